"""Unrelated arms: the practical learner in blocks."""
