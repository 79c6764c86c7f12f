"""The public brain of a policy: plans epochs, learns from releases, says how to play."""
