"""Rivals that see a row of features of a pair."""
