"""Whom a user has to trust, and how a report is made private."""

from enum import StrEnum


class PrivacyModel(StrEnum):
    """Whom a user has to trust: the curator (joint) or nobody (local)."""

    JOINT = "joint"
    LOCAL = "local"


class Randomizer(StrEnum):
    """How a report of the local model is made private."""

    GAUSSIAN = "gaussian"
    SPHERE = "sphere"
