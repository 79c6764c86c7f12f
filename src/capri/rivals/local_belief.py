"""What linear rivals in the local model know: sums of noisy reports and their solution."""

from math import sqrt
from typing import final

import numpy as np

from capri.privacy.budget import Budget
from capri.rivals.base import positive
from capri.rivals.least_squares import (
    GaussianMoments,
    Solution,
    moments,
    packed_size,
    solve,
)
from capri.rivals.tree_belief import Bonus, bonus_width
from capri.typing import FloatArray


@final
class LocalBelief:
    """Reports ``(x x^T, x y) + Gaussian noise``, one per user, summed by a server.

    The server's matrix has noise of spectral size ``s sqrt(2 d n)`` after ``n`` reports of scale
    ``s``: the ridge follows it, ``ridge_n = plain + shift s sqrt(2 d n)``, as does the bonus.
    """

    def __init__(
        self,
        *,
        dimension: int,
        horizon: int,
        budget: Budget | None,
        generator: np.random.Generator,
        plain_ridge: float,
        shift: float,
        bonus: Bonus,
    ) -> None:
        self.noise = GaussianMoments.calibrated(dimension, budget, levels=1)
        self._dimension, self._horizon = dimension, horizon
        self._generator = generator
        self._plain, self._shift = positive("ridge", plain_ridge), positive("shift", shift)
        self._choice = bonus
        self._sum = np.zeros(packed_size(dimension))
        self._reports = 0
        self._solve()

    def report(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """The sum of the reports of some users: ``n`` draws of noise are one of ``sqrt(n)``."""
        total = moments(features, targets)
        if self.noise.scale > 0:
            total = total + sqrt(len(features)) * self.noise.draw(self._generator)
        return total

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Add the reports of a block of users."""
        self._sum += self.report(features, targets)
        self._reports += len(features)
        self._solve()

    def _solve(self) -> None:
        self.ridge = self._plain + self._shift * self.noise.matrix_size(self._reports)
        self.bonus = bonus_width(
            self._choice,
            ridge=self.ridge,
            dimension=self._dimension,
            horizon=self._horizon,
            vector_size=self.noise.vector_size(self._reports),
        )
        self.solution: Solution = solve(
            self._sum, self._dimension, ridge=self.ridge, floor=0.1 * self.ridge
        )
