"""The local form: every row is made private before anybody sums it.

A device sends its message ``w^2 t psi(x) / C``, a vector of norm at most 1, through a randomizer
that keeps its mean: the sphere's, 32 bytes of pure epsilon privacy, or any other. The server adds
reports up and decodes the sum with the public covariance: in the local model the noise of all
reports adds up, and a covariance would cost more than it tells.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import isfinite, sqrt
from typing import Any, NoReturn

import numpy as np

from capri.arrays import FloatArray
from capri.errors import DataError
from capri.local import wire
from capri.local.device import DeviceRandomness, SystemRandomness
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.sphere import Sphere, sphere, unbiased_sum
from capri.privacy.vector import VectorLayout
from capri.regression.design import SIGNAL
from capri.regression.engine import Engine
from capri.regression.stage import StagePlan, StageResult
from capri.regression.tables import checked_block

# Mean square of scaled targets where nothing measures it: the expected signal, and noise of B^2/4.
_SECOND_MOMENT = SIGNAL + 0.25
# Messages of norm 1 in whole numbers: from there on a report is the same on every processor.
_UNITS = 1 << 30


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
            "pivots": features.kernel_basis.pivots,
            "transform": features.kernel_basis.transform,
            "whitening": features.whitening,
            "clip_norm": stage.clip_norm,
            "box": stage.box,
            "targets": (stage.targets.low, stage.targets.high),
            "baseline": stage.baseline,
            "reach": stage.reach,
            "dimension": (stage.layout.features, stage.layout.targets),
        }
        digest = sha256(json.dumps(features.kernel_basis.kernel.to_dict(), sort_keys=True).encode())
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
