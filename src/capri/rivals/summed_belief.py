"""What linear rivals without a tree know: sums of noisy moments and their solution."""

from math import sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray
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


@final
class SummedBelief:
    """Moments ``(x x^T, x y) + Gaussian noise``, summed (rewards already within [-1, 1]).

    Local model: every user adds noise before sending (``local=True``). Joint model: the curator
    adds it once to the sum of a batch; a user is in one batch, so each has the full budget. The
    matrix has noise of spectral size ``s sqrt(2 d n)`` after ``n`` draws of scale ``s``: the ridge
    follows it, ``ridge_n = plain + shift s sqrt(2 d n)``, as does the bonus.
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
        local: bool,
    ) -> None:
        self.noise = GaussianMoments.calibrated(dimension, budget, levels=1)
        self._dimension, self._horizon = dimension, horizon
        self._generator = generator
        self._plain, self._shift = positive("ridge", plain_ridge), positive("shift", shift)
        self._choice = bonus
        self._local = local
        self._sum = np.zeros(packed_size(dimension))
        self._draws = 0
        self._solve()

    def release(self, features: FloatArray, targets: FloatArray) -> FloatArray:
        """Noisy moments of a batch; ``n`` reports are simulated by one draw of ``sqrt(n)``."""
        total = moments(features, targets)
        if self.noise.scale > 0:
            draws = len(features) if self._local else 1
            total = total + sqrt(draws) * self.noise.draw(self._generator)
        return total

    def learn(self, features: FloatArray, targets: FloatArray) -> None:
        """Add the moments of a batch."""
        self._sum += self.release(features, targets)
        self._draws += len(features) if self._local else 1
        self._solve()

    def _solve(self) -> None:
        self.ridge = self._plain + self._shift * self.noise.matrix_size(self._draws)
        self.bonus = bonus_width(
            self._choice,
            ridge=self.ridge,
            dimension=self._dimension,
            horizon=self._horizon,
            vector_size=self.noise.vector_size(self._draws),
        )
        self.solution: Solution = solve(
            self._sum, self._dimension, ridge=self.ridge, floor=0.1 * self.ridge
        )
