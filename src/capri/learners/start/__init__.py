"""What is known before the first user, and how far it is believed."""

from capri.learners.start.head import HeadStart, discounted, head_start, inferred
from capri.learners.start.prior import (
    Observed,
    Prior,
    checked_prior,
    observed,
    sampled_pairs,
    stored_prior,
)

__all__ = [
    "HeadStart",
    "Observed",
    "Prior",
    "checked_prior",
    "discounted",
    "head_start",
    "inferred",
    "observed",
    "sampled_pairs",
    "stored_prior",
]
