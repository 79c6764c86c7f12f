"""Rivals that see the kernel of a pair."""
