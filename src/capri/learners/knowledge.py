"""All that a learner knows, in one piece: what an explanation is made from."""

from dataclasses import dataclass
from typing import Any

from capri.epoch.problem import Problem
from capri.features import Span
from capri.learners.belief import Belief
from capri.learners.crowds import Crowds
from capri.learners.drift import Drift


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Public through and through: the problem, and what the releases made of it.

    Prior and posterior are whole or in blocks, as the basis is.
    """

    problem: Problem
    basis: Span
    prior: Any
    belief: Belief
    posterior: Any
    crowds: Crowds
    drift: Drift
