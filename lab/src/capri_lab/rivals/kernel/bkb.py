"""BKB: GP-UCB on a small random dictionary."""

from math import log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import positive
from capri.features import NUMERICAL_RANK, greedy_basis
from capri_lab.rivals.base import Chance, Positive, Width, chosen_width
from capri_lab.rivals.kernel.optimism import KernelRival
from capri_lab.rivals.kernel.posterior import WeightPosterior, optimistic


@final
class BKB(KernelRival):
    """Budgeted kernelised bandits of Calandriello, Carratino, Lazaric, Valko and Rosasco (2019).

    Algorithm 1 of arXiv 1903.05594: lines 4-7 are :meth:`_choose`, lines 8-12 :meth:`_learn` and
    :meth:`_resample`. The posterior is that of features ``z(x) = (K_SS^1/2)^+ k_S(x)`` on a
    dictionary ``S`` of past pairs,

        mean(x) = z(x)^T V^-1 Z^T y,    V = Z^T Z + lambda I
        variance(x) = k(x, x) - z(x)^T Z^T Z V^-1 z(x)

    (their sigma^2 is this variance over ``lambda``), and each past pair enters the next dictionary
    with probability ``min(1, q variance(x) / lambda)``. A pair that was played ``n`` times enters
    with ``1 - (1 - p)^n``, since the projection depends on the span of ``S`` alone.

    ``patience`` is the share by which the information gain may grow before the whole dictionary is
    drawn again; until then only the pair just played may enter, with its probability. 0 draws
    anew in every round, as published; waiting is in the spirit of BBKB (Calandriello et al. 2020,
    arXiv 2002.09954) and runs 1e5 rounds in one or two minutes. ``oversampling`` is ``q``;
    infinity keeps every pair, and equals GP-UCB with ``noise^2 = lambda``.

    ``beta="theory"`` is Eqn 5 with the realised gain,
    ``2 R sqrt(gain + ln(1/delta)) / sqrt(lambda) + (1 + 1/sqrt(1 - eps)) B`` with eps = 1/2;
    "practical" is 1; a number is the multiple of the standard deviation.

    Limits: theory's ``q`` is in the hundreds, which on finite spaces keeps every pair.
    """

    name = "bkb"
    reference = "Calandriello et al. 2019, arXiv 1903.05594"

    beta: Width = "practical"
    # In units of the reward bound, as is norm_bound; lambda = noise^2.
    noise: Positive = 0.06
    oversampling: float = 5.0
    patience: float = 0.5
    norm_bound: Positive = 1.0
    failure: Chance = 0.1

    def _start(self) -> int:
        self._ridge = self.noise**2
        if self.oversampling != float("inf"):
            self.oversampling = positive("oversampling", self.oversampling)
        if self.patience != 0:
            self.patience = positive("patience", self.patience)
        self._rows = self._pairs
        self._counts = np.zeros(len(self._rows))
        self._sums = np.zeros(len(self._rows))
        self._gain = self._gain_then = 0.0
        self._dictionary = np.empty(0, dtype=np.int64)
        diagonal = self.kernel.diagonal(self._rows)
        empty = np.zeros((len(self._rows), 1))
        self._posterior = WeightPosterior(empty, self._actions.count, self._ridge, diagonal)
        return 1

    @property
    def dictionary_size(self) -> int:
        """Pairs in the dictionary now."""
        return len(self._dictionary)

    def _width(self) -> float:
        # R / sqrt(lambda) = 1; their sigma is ours over sqrt(lambda), and so is their B term.
        theory = 2 * sqrt(self._gain + log(1 / self.failure)) + (1 + sqrt(2)) * self.norm_bound
        return chosen_width(self.beta, practical=1.0, theory=theory)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width())

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        place, chosen, value = int(context[0]), int(action[0]), float(reward[0])
        pair = place * self._actions.count + chosen
        variance = float(self._posterior.of(np.array([pair]))[1][0])
        self._gain += 0.5 * log(1 + variance / self._ridge)
        self._counts[pair] += 1
        self._sums[pair] += value
        if self._gain > (1 + self.patience) * self._gain_then:
            self._resample()
            return 1
        self._posterior.observe(place, chosen, value)
        if self._public.random() < self.oversampling * variance / self._ridge:
            self._enter(pair)
        return 1

    def _enter(self, pair: int) -> None:
        """Add one pair to the dictionary: one coordinate more, orthogonal to the others.

        ``z_new(x) = (k(x, s) - z(x)^T z(s)) / sqrt(residual(s))``, a step of Cholesky's algorithm.
        """
        rest = float(self._posterior.residual[pair])
        if rest <= NUMERICAL_RANK:
            return
        column = self.kernel(self._rows, self._rows[pair : pair + 1])[:, 0]
        column -= self._posterior.rows @ self._posterior.rows[pair]
        self._posterior.extend(column / sqrt(rest), self._counts, self._sums)
        self._dictionary = np.append(self._dictionary, pair)

    def _resample(self) -> None:
        """Draw a dictionary from the past pairs and embed all pairs with it."""
        seen = np.flatnonzero(self._counts)
        if self.oversampling == float("inf"):
            chosen = seen
        else:
            variance = np.maximum(self._posterior.of(seen)[1], 0.0)
            share = np.minimum(self.oversampling * variance / self._ridge, 1.0)
            entering = 1.0 - (1.0 - share) ** self._counts[seen]
            chosen = seen[self._public.random(len(seen)) < entering]
            if len(chosen) == 0:
                chosen = seen[-1:]
        self._dictionary = chosen
        basis = greedy_basis(self.kernel, self._rows[chosen], tolerance=0.0, max_rank=len(chosen))
        embedded = basis.coordinates(self._rows)
        residual = basis.residual(self._rows, embedded)
        self._posterior = WeightPosterior(embedded, self._actions.count, self._ridge, residual)
        self._posterior.set(self._counts, self._sums)
        self._gain_then = self._gain
