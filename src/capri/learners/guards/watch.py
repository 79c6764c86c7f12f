"""All guard rails of the practical learner together: what they look at, and when.

Everything here is a function of options, public rows, plans and releases: post-processing. Nothing
that is planned, played or released depends on it, and it takes no draw from anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.notice import Notice
from capri.epoch.problem import Problem
from capri.features import Basis, Span
from capri.learners.belief import Belief, Told
from capri.learners.crowds import Crowds
from capri.learners.drift import Believed
from capri.learners.guards import words
from capri.learners.guards.fit import Fit, Innovation
from capri.learners.guards.other_kernels import Candidate, candidates
from capri.learners.options import PracticalOptions
from capri.learners.room import Level

# Public pairs on which kernels are compared: matrices of so many rows squared.
_PAIRS = 600


class Scaled(Protocol):
    """A posterior that knows the scale of its prior."""

    @property
    def scale(self) -> float: ...  # noqa: D102 - as in Posterior


@dataclass(frozen=True, eq=False)
class Watch:
    """Guard rails around one configuration and one basis."""

    problem: Problem
    options: PracticalOptions
    norm_bound: float
    basis: Span
    left_out: float = 0.0  # of what is expected of f, where no kernel was told

    @cached_property
    def _pairs(self) -> FloatArray:
        return public_pairs(self.problem)

    @cached_property
    def _kernels(self) -> tuple[Candidate, ...]:
        """The told kernel and its other lengthscales: made once, when the first release is in."""
        if not isinstance(self.basis, Basis):
            return ()
        return candidates(self.problem.kernel, self.basis, self._pairs, self.options.smoothness)

    @cached_property
    def opening(self) -> tuple[Notice, ...]:
        """What can be said before any user."""
        if not isinstance(self.basis, Basis):  # columns are scaled from the pool
            notice = words.products(self.options, self.left_out)
            return () if notice is None else (notice,)
        found = (
            words.scales(self.problem, self._pairs),
            words.rank(self.options, self.basis, self._pairs),
        )
        return tuple(notice for notice in found if notice is not None)

    def after(
        self,
        fit: Fit,
        told: Sequence[Told],
        *,
        before: Belief,
        expected: Believed,
        belief: Belief,
        state: Scaled,
        crowds: Crowds,
    ) -> tuple[Fit, tuple[Notice, ...]]:
        """What a release says: innovations with it, and notices.

        ``before`` and ``expected`` are what was believed until it came, ``belief`` and ``state``
        what is believed now. The first release is held against the prior alone, whose scale is
        learnt from it: how large ``f`` is nobody has to know in advance. So innovations count from
        the second on. A belief that starts again, as rewards with heavy tails were cut off, was
        wrong for a reason of its own, and innovations start again with it.
        """
        if belief.moment_precision == 0:
            return Fit(), ()
        found = [
            words.prior_scale(state.scale, self.norm_bound),
            words.another_kernel(belief, self._kernels, self.norm_bound),
            words.people(crowds),
        ]
        if before.moment_precision > 0:
            known = isinstance(self.basis, Basis)
            if not known:  # what is left of a misfit when the crowd has explained what it can
                told = [(block, crowds.seen(each), part) for block, each, part in told]
            newest = Innovation.of(told, expected)
            fit = fit.after(newest)
            if known or crowds.likeliest == 0:  # else few people are what explains it
                found.append(words.misfit(fit, newest, told=known))
        return fit, tuple(notice for notice in found if notice is not None)


def level_of(problem: Problem, basis: Span) -> Level | None:
    """The common level of rewards that have a range; None where they may have either sign."""
    if problem.scale.symmetric:
        return None
    return Level.of(basis.coordinates(public_pairs(problem)), problem.reward_bound)


def public_pairs(problem: Problem) -> FloatArray:
    """Public pairs under uniform play, the same whenever they are asked for.

    From draws of their own, so that guard rails move no other draw, and a policy that was loaded
    sees the pairs that it saw before.
    """
    generator, actions = np.random.default_rng(0), problem.actions
    contexts, weights = problem.contexts.support(generator, _PAIRS)
    if len(contexts) * actions.count <= _PAIRS:
        pairs = actions.pairs(contexts)
        return np.asarray(pairs.reshape(-1, pairs.shape[-1]))
    rows = generator.choice(len(contexts), size=_PAIRS, p=weights)
    return actions.chosen(contexts[rows], generator.integers(actions.count, size=_PAIRS))
