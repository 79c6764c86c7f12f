"""Stage after stage: plan from what is public, sum in secret, release, learn.

In the local form every row is made private before anybody sums it. A device sends its message
``w^2 t psi(x) / C``, a vector of norm at most 1, through a randomizer that keeps its mean: the
sphere's, 32 bytes of pure epsilon privacy, or any other. The server adds reports up and decodes the
sum with the public covariance: in the local model the noise of all reports adds up, and a
covariance would cost more than it tells.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import isfinite, sqrt
from typing import Any, NoReturn

import numpy as np

from capri.arrays import FloatArray, IntArray, one_blas_thread
from capri.errors import BudgetError, DataError
from capri.local import wire
from capri.local.device import DeviceRandomness, SystemRandomness
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.moments import MomentLayout, moment_layout
from capri.privacy.sphere import Sphere, sphere, unbiased_sum
from capri.privacy.vector import VectorLayout
from capri.regression.decode import Estimate, StageReading
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
)
from capri.regression.family import RowBasis, TableBasis, cells_of
from capri.regression.pooling import decode
from capri.regression.priors import FunctionPrior
from capri.regression.stage import MARGIN, StageFeatures, StagePlan, StageResult, Targets
from capri.regression.tables import checked_block
from capri.streams import Streams

# Mean square of scaled targets where nothing measures it: the expected signal, and noise of B^2/4.
_SECOND_MOMENT = SIGNAL + 0.25
# Messages of norm 1 in whole numbers: from there on a report is the same on every processor.
_UNITS = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is public before the first row: the same for every stage."""

    basis: RowBasis
    law: RowDistribution
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    budget: Budget | None
    calibration: str
    tau: float | None
    prior: FunctionPrior
    shares: tuple[float, ...]  # of mu^2, stage by stage; what is left was spent on counts
    coordinates: int = 0  # that are released of the same rows, at most

    @property
    def outputs(self) -> int:
        """Number of targets."""
        return len(self.targets.low)

    def layout(self, rows: int, *, share: float = 1.0, tails: bool = False) -> MomentLayout:
        """How the moments of this many rows are summed and released, at a share of ``mu^2``."""
        return moment_layout(
            features=self.basis.rank,
            targets=self.outputs,
            rows=rows,
            budget=self.budget,
            calibration=self.calibration,
            tails=tails,
            share=share,
            coordinates=self.coordinates,
        )

    @property
    def unit_noise(self) -> float:
        """Deviation of the noise on the vector for features and targets of size 1."""
        layout = self.layout(1)
        return layout.noise_units / sqrt(2) / float(layout.level) ** 2 * sqrt(self.outputs)


class FitEngine:
    """The public state between stages. It never sees a row: sums come in, releases go out."""

    def __init__(self, setting: Setting, from_data: tuple[str, ...] = ()) -> None:
        self.setting = setting
        self.from_data = from_data  # settings that were read off the rows: not private
        self.called_by: str | None = None  # an estimator around this one: what it spent is unknown
        self.readings: list[StageReading] = []
        self.estimates: list[Estimate] = []
        self._seen: list[ReleasedCovariance] = []
        self._shape: Shape | None = None
        self._baseline = self._nothing()

    def _nothing(self) -> FloatArray:
        return np.zeros((self.setting.basis.rank, self.setting.outputs))

    def plan(
        self, rows: int, *, share: float | None = None, noise: float | None = None
    ) -> StagePlan:
        """Plan the next stage from the releases so far; ``noise`` as in ``Options.engine``.

        With a ``share`` of ``mu^2`` it is over the same rows as the stages before; without, over
        the rows of other people, at the full budget.
        """
        setting = self.setting
        past = [reading.result.plan for reading in self.readings]
        table = 1 if share is not None else 1 + max((plan.table for plan in past), default=0)
        share = 1.0 if share is None else share
        with one_blas_thread():
            reach, loudness = self._reach()
            noise = loudness * (setting.unit_noise if noise is None else noise) / sqrt(share)
            exact = setting.budget is None
            shape = self._identity() if exact else self._whitened(rows, noise, share)
        self._shape, self._baseline = shape, self._nothing()
        for output, estimate in enumerate(self.estimates):
            if reach[output] < 1:  # whole targets stay within a reach of 1
                self._baseline[:, output] = estimate.mean
        return StagePlan(
            number=len(self.readings) + 1,
            rows=rows,
            features=StageFeatures(setting.basis, shape.whitening),
            clip_norm=shape.clip_norm,
            box=setting.box,
            targets=setting.targets,
            baseline=setting.basis.transform @ self._baseline,
            reach=reach,
            # What exceeds the reach is told by a tail, unless nothing can exceed it.
            layout=setting.layout(rows, share=share, tails=bool((reach < 1).any())),
            table=table,
            share=share,
        )

    def _reach(self) -> tuple[FloatArray, float]:
        """How large residuals may be, one for each output, and the noise of the loudest."""
        outputs = self.setting.outputs
        if not self.estimates or self.setting.budget is None:
            return np.ones(outputs), 1.0
        # In a mean over weights the largest would decide, and noise in y has what is not expected.
        usual = [e.covariance if e.central is None else e.central for e in self.estimates]
        found = [
            next_reach(float(np.sum(self.law.covariance * covariance)), each.noise_variance)
            for each, covariance in zip(self.estimates, usual, strict=True)
        ]
        return np.array([reach for reach, _ in found]), max(loudness for _, loudness in found)

    def _whitened(self, rows: int, noise: float, share: float) -> Shape:
        """The shape for the output that knows least."""
        setting = self.setting
        if self.estimates:
            worst = max(self.estimates, key=lambda estimate: float(np.trace(estimate.covariance)))
            root = matrix_root(worst.covariance)
            noise_variance = worst.noise_variance
        else:
            root = matrix_root(setting.prior.covariance(setting.prior.expected))
            noise_variance = SIGNAL
        return shape_stage(
            self.law,
            root,
            rows=max(rows, 1),
            noise_variance=max(noise_variance, 1e-6) / share,
            noise=noise,
        )

    def _identity(self) -> Shape:
        """No noise, hence nothing to shape: the cap is a bound on ``|v|`` that holds in the box.

        Coordinates of a family are not those of one kernel: for them it holds for rows like the
        public ones, and rows far away count less.
        """
        basis, box, rank = self.setting.basis, self.setting.box, self.setting.basis.rank
        bound = basis.kernel.constant_diagonal
        if isinstance(basis, TableBasis):
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
        numbers, _ = gate.release(
            total, plan.layout, epoch=plan.table, participants=plan.rows, stage=plan.stage
        )
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

    @cached_property
    def law(self) -> RowDistribution:
        """The public law, as far as all releases so far tell of it."""
        return self.setting.law.realised(self._seen)

    def __getstate__(self) -> dict[str, Any]:
        """Without the law that releases and the setting tell anew: it has a public sample."""
        return {name: each for name, each in vars(self).items() if name != "law"}

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
                self.__dict__.pop("law", None)
            expected, weight = self.expected()
            reading = StageReading.of(
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

    engine: FitEngine
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportPlan:
    """All that a row's message is made with, and its sum read. Public, and of one process.

    It has no form on the wire, and nothing that remembers who has reported: it shows what the local
    model costs where rows are at hand. Devices of people are :class:`~capri.LocalClient`.
    """

    stage: StagePlan

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ReportPlan is not pickled: it has no form on the wire, since a device must not "
            "unpickle what a server sends. Make it where the rows are, or use capri.LocalCapri"
        )

    @property
    def dimension(self) -> int:
        """Length of a message: coordinates times outputs."""
        return self.stage.layout.features * self.stage.layout.targets

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all that a message is made with: reports say which plan they answer.

        Messages of two plans that differ in anything here mean different things, and their sum
        means nothing.
        """
        stage, features = self.stage, self.stage.features
        numbers = {
            "pivots": features.basis.pivots,
            "transform": features.basis.transform,
            "cells": cells_of(features.basis),
            "whitening": features.whitening,
            "clip_norm": stage.clip_norm,
            "box": stage.box,
            "targets": (stage.targets.low, stage.targets.high),
            "baseline": stage.baseline,
            "reach": stage.reach,
            "dimension": (stage.layout.features, stage.layout.targets),
        }
        digest = sha256(json.dumps(features.basis.kernel.to_dict(), sort_keys=True).encode())
        for name, each in numbers.items():
            array = np.ascontiguousarray(each, dtype="<f8")
            digest.update(f"{name} {array.shape} ".encode())
            digest.update(array.tobytes())
        return digest.digest()

    def sphere(self, epsilon: float) -> Sphere:
        """The randomizer of reports at this epsilon."""
        return sphere(epsilon, max(2, self.dimension))

    def reports(
        self, X: Any, y: Any, *, epsilon: float, randomness: DeviceRandomness | None = None
    ) -> list[bytes]:
        """One report per row, private by itself: pure epsilon, 32 bytes, made on the device.

        Two calls for a row are two reports, and cost twice: the caller keeps account of it.
        ``randomness`` is the operating system's unless a simulation brings its own.
        """
        vectors = self.messages(X, y)
        if self.dimension == 1:  # a circle is the smallest sphere with directions to choose from
            vectors = np.hstack([vectors, np.zeros((len(vectors), 1))])
        source = SystemRandomness() if randomness is None else randomness
        gate = Gate(source, Ledger(Budget(epsilon), tolerance=0.0))
        chosen = self.sphere(epsilon)
        layout = VectorLayout(
            rank=chosen.dimension, step=1 / _UNITS, norm_limit=_UNITS, sphere=chosen
        )
        units = np.trunc(vectors * _UNITS).astype(np.int64)  # towards 0: norms stay within
        tokens, numbers = gate.report(units, layout, epoch=self.stage.number)
        rows = wire.pack(self.digest, tokens, numbers)
        return [row.tobytes() for row in rows]

    def total(self, reports: Sequence[bytes], *, epsilon: float) -> tuple[FloatArray, int, float]:
        """What sound reports add up to: the sum, their number, and the noise on a coordinate.

        Reports that are damaged, answer another plan, or repeat a token are left out.
        """
        chosen = self.sphere(epsilon)
        whole = [each for each in reports if isinstance(each, bytes) and len(each) == wire.SIZE]
        rows = np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, wire.SIZE)
        ours = np.frombuffer(self.digest[:8], dtype=np.uint8)
        fits = wire.are_reports(rows) & (rows[:, wire.DIGEST] == ours).all(axis=1)
        rows = np.unique(rows[fits], axis=0)
        _, first = np.unique(rows[:, wire.TOKEN], axis=0, return_index=True)
        numbers = wire.numbers_of(rows[first])
        first, numbers = first[numbers < chosen.candidates], numbers[numbers < chosen.candidates]
        if not len(numbers):
            raise DataError("there is no report of this plan among those given")
        total = unbiased_sum(wire.tokens_of(rows[first]), numbers, chosen)[: self.dimension]
        return total, len(numbers), chosen.deviation * sqrt(len(numbers))

    def messages(self, X: Any, y: Any) -> FloatArray:
        """One message per row, of norm at most 1 whatever the row holds.

        Shapes and types may be refused. A row with a value that is missing or not finite has a
        message of zeros, and the report of it looks like any other.
        """
        X, y = checked_block(X, y)
        shape, wanted = (
            (X.shape[1], y.shape[1]),
            (len(self.stage.box[0]), self.stage.layout.targets),
        )
        if shape != wanted:
            raise DataError(
                f"this plan is for {wanted[0]} columns of features and {wanted[1]} of targets, got "
                f"{shape[0]} and {shape[1]}"
            )
        features, targets = (np.nan_to_num(each) for each in self.stage.contributions(X, y))
        products = features[:, :, None] * (targets / sqrt(self.stage.layout.targets))[:, None, :]
        flat = products.reshape(len(X), -1)
        # Rounding may leave a norm a few bits above 1, and a randomizer would refuse it.
        return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1), 1.0)[:, None])


def read_reports(
    engine: FitEngine, plan: ReportPlan, total: FloatArray, *, count: int, noise_scale: float
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
    outputs = plan.stage.layout.targets
    scale = noise_scale * sqrt(2) * float(plan.stage.layout.level) ** 2
    stage = replace(plan.stage, rows=count, layout=replace(plan.stage.layout, noise_units=scale))
    expected, weight = engine.expected()
    return StageResult(
        plan=stage,
        covariance=count * expected,
        vector=total.reshape(-1, outputs) * (stage.clip_norm * sqrt(outputs)),
        squares=np.full(outputs, count * weight * _SECOND_MOMENT),
        measured=False,
    )
