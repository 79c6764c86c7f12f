"""Stage after stage: plan from what is public, sum in secret, release, learn."""

import os
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray, one_blas_thread
from capri.errors import BudgetError
from capri.features import Basis, LowRankFeatures
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.moments import MomentLayout, moment_layout
from capri.privacy.randomness import Streams
from capri.regression.decode import Estimate, Reading
from capri.regression.design import (
    SIGNAL,
    ReleasedCovariance,
    RowDistribution,
    RowSupport,
    Shape,
    expected_moments,
    matrix_root,
    next_reach,
    shape_stage,
    spread_rows,
)
from capri.regression.pooling import decode
from capri.regression.priors import FunctionPrior
from capri.regression.stage import MARGIN, Lot, StagePlan, StageResult, Targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is public before the first row: the same for every stage."""

    basis: Basis
    law: RowDistribution
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    budget: Budget | None
    calibration: str
    tau: float | None
    prior: FunctionPrior
    shares: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """Number of targets."""
        return len(self.targets.low)

    def layout(self, rows: int, *, tails: bool = False) -> MomentLayout:
        """How the moments of this many rows are summed and released."""
        return moment_layout(
            features=self.basis.rank,
            targets=self.outputs,
            rows=rows,
            budget=self.budget,
            calibration=self.calibration,
            tails=tails,
        )

    @property
    def unit_noise(self) -> float:
        """Deviation of the noise on the vector for features and targets of size 1."""
        layout = self.layout(1)
        return layout.noise_units / sqrt(2) / float(layout.level) ** 2 * sqrt(self.outputs)


def tells_tails(reach: FloatArray) -> bool:
    """What exceeds the reach is told by a tail, unless nothing can exceed it."""
    return bool((reach < 1).any())


def _planned(estimate: Estimate) -> FloatArray:
    """What is not known, for planning: in a mean over weights the largest of them would decide."""
    return estimate.covariance if estimate.central is None else estimate.central


class Engine:
    """The public state between stages. It never sees a row: sums come in, releases go out."""

    def __init__(self, setting: Setting, salt: int, from_data: tuple[str, ...] = ()) -> None:
        self.setting = setting
        self.from_data = from_data  # settings that were read off the rows: not private
        self.called_by: str | None = None  # an estimator around this one: what it spent is unknown
        self.readings: list[Reading] = []
        self.estimates: list[Estimate] = []
        self.law = setting.law  # as far as releases tell of it
        self._seen: list[ReleasedCovariance] = []
        self._base: RowDistribution | None = None
        self._salt = salt
        self._shape: Shape | None = None
        self._baseline = self._nothing()

    def _nothing(self) -> FloatArray:
        return np.zeros((self.setting.basis.rank, self.setting.outputs))

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
            reach, loudness = self._reach()
            noise = loudness * (setting.unit_noise if noise is None else noise)
            exact = setting.budget is None
            shape = self._identity() if exact else self._whitened(rows, noise)
        self._shape, self._baseline = shape, self._nothing()
        for output, estimate in enumerate(self.estimates):
            if reach[output] < 1:  # whole targets stay within a reach of 1
                self._baseline[:, output] = estimate.mean
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
            baseline=setting.basis.transform @ self._baseline,
            reach=reach,
            layout=setting.layout(rows, tails=tells_tails(reach)),
        )

    def _reach(self) -> tuple[FloatArray, float]:
        """How large residuals may be, one for each output, and the noise of the loudest."""
        outputs = self.setting.outputs
        if not self.estimates or self.setting.budget is None:
            return np.ones(outputs), 1.0
        found = [
            next_reach(
                float(np.sum(self.law.covariance * _planned(each))),
                each.noise_variance,
            )
            for each in self.estimates
        ]
        return np.array([reach for reach, _ in found]), max(loudness for _, loudness in found)

    def _whitened(self, rows: int, noise: float) -> Shape:
        """The shape for the output that knows least."""
        setting = self.setting
        if self.estimates:
            worst = max(self.estimates, key=lambda estimate: float(np.trace(estimate.covariance)))
            root = matrix_root(_planned(worst))
            noise_variance = worst.noise_variance
        else:
            root = matrix_root(setting.prior.covariance(setting.prior.expected))
            noise_variance = SIGNAL
        return shape_stage(
            self.law,
            root,
            rows=max(rows, 1),
            noise_variance=max(noise_variance, 1e-6),
            noise=noise,
        )

    def _identity(self) -> Shape:
        """No noise, hence nothing to shape: the cap is a bound on ``|v|`` that holds in the box.

        Coordinates of a family are not those of one kernel: for them it holds for rows like the
        public ones, and rows far away count less.
        """
        basis, box, rank = self.setting.basis, self.setting.box, self.setting.basis.rank
        bound = basis.kernel.constant_diagonal
        if self.setting.prior.family is not None:
            bound = 4 * float((self.law.sample**2).sum(axis=1).max())
        elif bound is None:
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
        numbers, _ = gate.release(total, plan.layout, epoch=plan.number, participants=plan.rows)
        return plan.layout.matrix(numbers)

    def learn(self, plan: StagePlan, total: IntArray, gate: Gate) -> None:
        """Release the sum of a stage and update the estimate."""
        self.learn_from(StageResult.read(plan, self.release(plan, total, gate)))

    def expected(self) -> tuple[FloatArray, float]:
        """Covariance and weight of one row under the public law, in the shape of the open stage."""
        assert self._shape is not None
        return expected_moments(self.law, self._shape)

    def _constant(self) -> FloatArray | None:
        """The coefficients of 1, where the basis has it."""
        if self.setting.prior.family is None:
            return None
        sample = self.setting.law.sample
        return np.asarray(np.linalg.lstsq(sample, np.ones(len(sample)), rcond=None)[0])

    def _realise(self) -> None:
        """The law that all releases so far speak of; from the first one, rows to find it among."""
        basis, law = self.setting.basis, self.setting.law
        if self._base is None:
            self._base = law
            first = law.realised(self._seen)
            if law.rows is not None and first.rows is not None:
                rows = spread_rows(law.rows, first.rows)
                parts = [basis.coordinates(rows[i : i + 4096]) for i in range(0, len(rows), 4096)]
                self._base = RowDistribution.of(np.concatenate(parts), rows)
        self.law = self._base.realised(self._seen)

    def support(self) -> RowSupport | None:
        """Where rows are, as far as releases tell."""
        law, (low, high) = self.law, self.setting.box
        if law.rows is None:
            return None
        width = (high - low) / (1 + 2 * MARGIN)
        return RowSupport.of(law.rows, width, SIGNAL)

    def learn_from(self, result: StageResult) -> None:
        """Update the estimate: post-processing."""
        setting, plan = self.setting, result.plan
        with one_blas_thread():
            if result.measured and setting.budget is not None:
                self._seen.append(
                    ReleasedCovariance(
                        covariance=result.covariance,
                        rows=plan.rows,
                        deviation=result.noise[0],
                        whitening=plan.features.whitening,
                        clip_norm=plan.clip_norm,
                    )
                )
                self._realise()
            expected, weight = self.expected()
            reading = Reading.of(
                result,
                expected=expected,
                weight=weight,
                baseline=self._baseline,
                constant=self._constant() if result.measured else None,
            )
            self.readings.append(reading)
            prior = setting.prior
            if self._seen:
                prior = prior.under(setting.law.centred, self.law.centred)
            self.estimates = [
                decode(self.readings, output, prior=prior, tau=setting.tau)
                for output in range(setting.outputs)
            ]


@dataclass(kw_only=True, eq=False)
class OpenRows:
    """Their sum so far, and what their one release will need."""

    engine: Engine
    plan: StagePlan
    total: IntArray
    streams: Streams
    ledger: Ledger | None
    rows: int = 0
    process: int = field(default_factory=os.getpid)

    def check(self, budget: Budget | None) -> None:
        """They belong to one process and one budget."""
        if self.process != os.getpid():
            raise BudgetError(
                "open rows of another process: releasing them here too would spend their budget "
                "twice. Release before forking"
            )
        if budget != self.engine.setting.budget:
            raise BudgetError(
                f"the open rows were taken under {self.engine.setting.budget}: set epsilon and "
                "delta back to release them, or call fit to begin anew under another budget"
            )
