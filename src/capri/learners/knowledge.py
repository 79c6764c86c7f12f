"""All that a learner knows, in one piece: what an explanation is made from."""

from dataclasses import dataclass

from capri.epoch.problem import Problem
from capri.features import Span
from capri.learners.belief import Belief, Posterior
from capri.learners.crowds import Crowds
from capri.learners.drift import Drift
from capri.learners.priors import Prior


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Public through and through: the problem, and what the releases made of it."""

    problem: Problem
    basis: Span
    prior: Prior
    belief: Belief
    posterior: Posterior
    crowds: Crowds
    drift: Drift
