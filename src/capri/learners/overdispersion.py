"""How many people a pool of contexts and rewards really stands for, by the evidence.

A plan expects everybody to be drawn afresh from the public contexts, so that errors of ``n``
decisions average out as ``1/n``. They do not where the pool is a sample of the people, where the
same people come again, or where the basis leaves something out that is the same for all who are
alike. All three act as if ``N`` people took turns: the covariance ``C`` of a release that comes
from who came and what they said grows by ``1 + n/N``,

    R_N = noise^2 I + (1 + n/N) C

and information ends where that of ``N`` people ends. Without it the belief is too sure of itself,
and play settles on wrong actions the longer it lasts. Which ``N`` it is, the evidence of all
releases tells, each ``N`` with the prior that suits it best,

    log p(releases | N) = sum -(t^T R_N^-1 t + log det R_N) / 2 + log evidence of (J_N, h_N)

with targets ``t = g + H baseline``: a prior that is too small must not pass for a small crowd.
Post-processing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Believed, Observation, Told

# People: infinitely many, then fewer. Fewer than the last cannot teach anything.
SIZES = (np.inf, 3_000.0, 800.0, 200.0, 50.0)
# Logarithm of what speaks for infinitely many before any release, against each of the others.
_TRUST = 6.0


State = TypeVar("State", bound=Believed)


@dataclass(frozen=True, eq=False)
class Overdispersion:
    """Information and vector under every size, and how likely each is.

    ``constants`` are the first sum above, ``scores`` the log odds against the likeliest.
    """

    informations: FloatArray
    vectors: FloatArray
    constants: FloatArray
    scores: FloatArray

    @classmethod
    def empty(cls, *shape: int) -> "Overdispersion":
        """Before any release; ``shape``: that of the vector, blocks first."""
        count = len(SIZES)
        scores = np.full(count, -_TRUST)
        scores[0] = 0.0
        nothing = np.zeros((count, *shape, shape[-1]))
        return cls(nothing, np.zeros((count, *shape)), np.zeros(count), scores)

    @classmethod
    def of(cls, belief: Belief) -> "Overdispersion":
        """All sizes alike, with what is believed already."""
        empty = cls.empty(*belief.vector.shape)
        return replace(
            empty,
            informations=empty.informations + belief.information,
            vectors=empty.vectors + belief.vector,
        )

    def observe(self, told: Iterable[Told]) -> "Overdispersion":
        """Take in a release under every size."""
        informations, vectors = self.informations.copy(), self.vectors.copy()
        constants = self.constants.copy()
        for block, observation, released in told:
            sampling = 0.0 if observation.sampling is None else observation.sampling
            design = observation.design
            target = released + design @ observation.baseline
            for number, size in enumerate(SIZES):
                repeated = observation.participants / size
                factor = cho_factor(observation.covariance + repeated * sampling)
                weighted = cho_solve(factor, design)
                informations[number, block] += design.T @ weighted
                vectors[number, block] += weighted.T @ target
                constants[number] -= 0.5 * float(target @ cho_solve(factor, target))
                constants[number] -= float(np.log(np.diag(factor[0])).sum())
        return replace(self, informations=informations, vectors=vectors, constants=constants)

    def settle(
        self, belief: Belief, infer: Callable[[Belief], State]
    ) -> tuple["Overdispersion", Belief, State]:
        """The likeliest size, and what is believed under it.

        Infinitely many and the sizes around that of before are compared, then smaller ones as long
        as the smallest is the likeliest.
        """
        scores = np.full(len(SIZES), -np.inf)
        found: dict[int, tuple[Belief, State]] = {}
        waiting = sorted({0, *range(max(self.likeliest - 1, 0), self.likeliest + 1)})
        while waiting:
            number = waiting.pop(0)
            own = replace(
                belief, information=self.informations[number], vector=self.vectors[number]
            )
            state = infer(own)
            found[number] = own, state
            scores[number] = self.constants[number] + state.evidence - _TRUST * (number > 0)
            if not waiting and scores.argmax() == number < len(SIZES) - 1:
                waiting = [number + 1]
        best = replace(self, scores=scores - scores.max())
        return best, *found[best.likeliest]

    def seen(self, observation: Observation) -> Observation:
        """An observation as the likeliest size sees it."""
        if self.likeliest == 0 or observation.sampling is None:
            return observation
        repeated = observation.participants / SIZES[self.likeliest]
        covariance = observation.covariance + repeated * observation.sampling
        return replace(observation, covariance=covariance)

    @property
    def likeliest(self) -> int:
        """Number of the size that predicted best."""
        return int(self.scores.argmax())
