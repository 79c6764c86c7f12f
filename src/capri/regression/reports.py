"""The local form: every row is made private before anybody sums it.

A device sends its message ``w^2 t psi(x) / C``, a vector of norm at most 1, through a randomizer
that keeps its mean (Gaussian or sphere reports). The server adds reports up and decodes the sum
with the public covariance: in the local model the noise of all reports adds up, and a covariance
would cost more than it tells.
"""

from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

import numpy as np

from capri.errors import DataError
from capri.regression.engine import Engine
from capri.regression.planner import SIGNAL
from capri.regression.stage import StagePlan, StageResult
from capri.typing import FloatArray

# Mean square of scaled targets where nothing measures it: the expected signal, and noise of B^2/4.
_SECOND_MOMENT = SIGNAL + 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportPlan:
    """Everything a device needs to make its message, and the server to read the sum. Public."""

    stage: StagePlan

    @property
    def dimension(self) -> int:
        """Length of a message: coordinates times outputs."""
        return self.stage.grid.features * self.stage.grid.targets

    def messages(self, X: Any, y: Any) -> FloatArray:
        """One message per row, of norm at most 1 whatever the row holds."""
        X = np.asarray(X, dtype=np.float64)
        y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise DataError("features and targets must be finite numbers")
        features, targets = self.stage.contributions(X, y)
        products = features[:, :, None] * (targets / sqrt(self.stage.grid.targets))[:, None, :]
        flat = products.reshape(len(X), -1)
        # Rounding may leave a norm a few bits above 1, and a randomizer would refuse it.
        return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1), 1.0)[:, None])


def read_reports(
    engine: Engine, plan: ReportPlan, total: FloatArray, *, count: int, noise_scale: float
) -> StageResult:
    """The sum of ``count`` private messages as a stage result.

    ``noise_scale`` is the standard deviation of a coordinate of the sum that randomizers caused.
    """
    total = np.asarray(total, dtype=np.float64)
    if total.shape != (plan.dimension,) or not np.isfinite(total).all():
        raise DataError(
            f"the sum of reports must be {plan.dimension} finite numbers, got shape {total.shape}"
        )
    if count < 1 or not (isfinite(noise_scale) and noise_scale > 0):
        raise DataError("count must be at least 1 and noise_scale positive and finite")
    outputs = plan.stage.grid.targets
    scale = noise_scale * sqrt(2) * float(plan.stage.grid.level) ** 2
    stage = replace(plan.stage, rows=count, grid=replace(plan.stage.grid, noise_scale=scale))
    expected, weight = engine.expected()
    return StageResult(
        plan=stage,
        covariance=count * expected,
        vector=total.reshape(-1, outputs) * (stage.clip_norm * sqrt(outputs)),
        squares=np.full(outputs, count * weight * _SECOND_MOMENT),
    )
