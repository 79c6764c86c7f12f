"""The durable store: what a policy knows, kept on disk for any number of processes."""
