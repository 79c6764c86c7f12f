"""Stage after stage: plan from what is public, sum in secret, release, learn."""

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.features import Basis, LowRankFeatures
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate, MomentMechanism
from capri.privacy.moments import MomentGrid, make_moment_grid
from capri.regression.allocation import (
    SIGNAL,
    Law,
    Shape,
    expected_moments,
    matrix_root,
    next_reach,
    shape_stage,
)
from capri.regression.decode import Estimate, Reading, decode
from capri.regression.stage import Lot, StagePlan, StageResult, Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is public before the first row: the same for every stage."""

    basis: Basis
    law: Law
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    budget: Budget | None
    calibration: str
    tau: float | None
    prior: float
    shares: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """Number of targets."""
        return len(self.targets.low)

    def grid(self, rows: int) -> MomentGrid:
        """The grid on which the moments of this many rows are summed and released."""
        return make_moment_grid(
            features=self.basis.rank,
            targets=self.outputs,
            rows=rows,
            budget=self.budget,
            calibration=self.calibration,
        )

    @property
    def unit_noise(self) -> float:
        """Deviation of the noise on the vector for features and targets of size 1."""
        grid = self.grid(1)
        return grid.noise_units / sqrt(2) / float(grid.level) ** 2 * sqrt(self.outputs)


class Engine:
    """The public state between stages. It never sees a row: sums come in, releases go out."""

    def __init__(self, setting: Setting, salt: int, from_data: tuple[str, ...] = ()) -> None:
        self.setting = setting
        self.from_data = from_data  # settings that were read off the rows: not private
        self.readings: list[Reading] = []
        self.estimates: list[Estimate] = []
        self._salt = salt
        self._shape: Shape | None = None

    def lots(self) -> list[Lot]:
        """Which rows each stage takes."""
        edges = np.concatenate([[0.0], np.cumsum(self.setting.shares)])
        edges[-1] = 1.0
        return [
            Lot(salt=self._salt, low=float(low), high=float(high)) for low, high in pairwise(edges)
        ]

    def plan(self, lot: Lot, rows: int, noise: float | None = None) -> StagePlan:
        """Plan the next stage from the releases so far; ``noise`` as in ``Options.engine``."""
        setting = self.setting
        with one_blas_thread():
            reach = self._reach()
            shape = (
                self._identity()
                if setting.budget is None
                else self._whitened(rows, reach, setting.unit_noise if noise is None else noise)
            )
        self._shape = shape
        # The ridge is in the whitening already; features ask for one to state their width.
        features = LowRankFeatures(setting.basis, shape.whitening, 1.0)
        return StagePlan(
            number=len(self.readings) + 1,
            lot=lot,
            rows=rows,
            features=features,
            clip_norm=shape.clip_norm,
            box=setting.box,
            targets=setting.targets,
            baseline=setting.basis.transform @ self._baseline(),
            reach=reach,
            grid=setting.grid(rows),
        )

    def _baseline(self) -> FloatArray:
        """The coefficients that residuals are residuals of."""
        if not self.estimates:
            return np.zeros((self.setting.basis.rank, self.setting.outputs))
        return np.stack([estimate.mean for estimate in self.estimates], axis=1)

    def _reach(self) -> FloatArray:
        """How large residuals may be, one for each output."""
        if not self.estimates:
            return np.ones(self.setting.outputs)
        law = self.setting.law.covariance
        return np.array(
            [
                next_reach(float(np.sum(law * estimate.covariance)), estimate.noise_variance)
                for estimate in self.estimates
            ]
        )

    def _whitened(self, rows: int, reach: FloatArray, noise: float) -> Shape:
        """The shape for the output that knows least."""
        setting = self.setting
        if self.estimates:
            worst = max(self.estimates, key=lambda estimate: float(np.trace(estimate.covariance)))
            root, noise_variance = matrix_root(worst.covariance), worst.noise_variance
        else:
            root, noise_variance = sqrt(setting.prior) * np.eye(setting.basis.rank), SIGNAL
        return shape_stage(
            setting.law,
            root,
            rows=max(rows, 1),
            noise_variance=max(noise_variance, 1e-6),
            noise=noise * float(reach.max()),
        )

    def _identity(self) -> Shape:
        """No noise, hence nothing to shape: the cap is a bound on ``|v|`` that holds in the box."""
        basis, box, rank = self.setting.basis, self.setting.box, self.setting.basis.rank
        bound = basis.kernel.constant_diagonal
        if bound is None:
            corners = np.stack([*box, *np.clip(basis.pivots, *box)])
            bound = 4 * float(basis.kernel.diagonal(corners).max())
        return Shape(
            whitening=np.eye(rank),
            clip_norm=sqrt(max(bound, 1e-12)) * (1 + 1e-9),
            error=0.0,
            root=np.zeros((rank, rank)),
        )

    def release(self, plan: StagePlan, total: IntArray, gate: Gate) -> FloatArray:
        """Moments of a stage, made public."""
        mechanism = MomentMechanism(grid=plan.grid, calibration=self.setting.calibration)
        return gate.release(mechanism, total, epoch=plan.number, participants=plan.rows)[0]

    def learn(self, plan: StagePlan, total: IntArray, gate: Gate) -> None:
        """Release the sum of a stage and update the estimate."""
        self.learn_from(StageResult.read(plan, self.release(plan, total, gate)))

    def expected(self) -> tuple[FloatArray, float]:
        """Covariance and weight of one row under the public law, in the shape of the open stage."""
        assert self._shape is not None
        return expected_moments(self.setting.law, self._shape)

    def learn_from(self, result: StageResult) -> None:
        """Update the estimate: post-processing."""
        setting = self.setting
        with one_blas_thread():
            expected, weight = self.expected()
            reading = Reading.of(
                result, expected=expected, weight=weight, baseline=self._baseline()
            )
            self.readings.append(reading)
            self.estimates = [
                decode(self.readings, output, prior=setting.prior, tau=setting.tau)
                for output in range(setting.outputs)
            ]
