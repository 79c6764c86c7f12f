"""Everything that turns a secret into something public, and nothing else."""
