"""Fixtures of the contract suites: the places a policy may be kept."""

from stores import place, store  # noqa: F401
