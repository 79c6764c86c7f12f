"""Rivals that see the numbers of actions and no context."""
