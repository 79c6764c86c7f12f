"""The gate: the single place where a secret turns public.

Whatever leaves, leaves by a mechanism: the integer sum of an epoch, the sums of messages with
several blocks, the second moments of a regression's rows, or one user's report on a device. A
mechanism knows its own sensitivity and noise and states them as an event; the gate checks the width
of the noise, asks the ledger, applies the mechanism and records the event. Nothing else in this
package adds noise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nextafter, sqrt
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.calibration import NOISE_UNITS
from capri.privacy.directions import Words
from capri.privacy.grid import Grid
from capri.privacy.ledger import LEARNING, Ledger, ReleaseEvent
from capri.privacy.message import MessageGrid
from capri.privacy.moments import MomentGrid
from capri.privacy.noise import NoiseSource, SecureNoise, SimulatedNoise
from capri.privacy.promise import PrivacyModel
from capri.privacy.sphere import Sphere, SphereDraws, randomized


class Randomness(Protocol):
    """Any source of randomness."""

    @property
    def private(self) -> bool:
        """Whether nobody could reproduce it."""


Secret = TypeVar("Secret")
Public = TypeVar("Public")
# Is shown what has left the gate.
Observer = Callable[[Any], object]


class Mechanism(ABC, Generic[Secret, Public]):
    """One way out: what it costs, and how it hides."""

    @property
    @abstractmethod
    def narrowest(self) -> float:
        """The smallest standard deviation of its noise, in grid units; infinite without a grid."""

    @abstractmethod
    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """The use of this mechanism that the ledger is asked about."""

    @abstractmethod
    def noisy(self, secret: Secret, source: Any) -> Public:
        """What is published under a budget."""

    def exact(self, secret: Secret) -> Public:
        """What is published where nobody is promised anything. Reports always are promised."""
        raise BudgetError("without a budget nothing passes the gate by this mechanism")


@dataclass(frozen=True, kw_only=True)
class SumMechanism(Mechanism[IntArray, FloatArray]):
    """Discrete Gaussian noise on the integer sum of an epoch (Alg. 1, line 17).

    ``noises``: how many noise vectors are added here; in the textbook local model one for every
    report that does not carry its own yet.
    """

    grid: Grid
    rank: int
    model: PrivacyModel
    calibration: str
    noises: int = 1
    purpose: str = LEARNING

    @property
    def narrowest(self) -> float:
        """The noise is the same on every coordinate."""
        return self.grid.noise_units

    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """``sensitivity = 2 norm_limit step`` against the noise on the released vector."""
        return ReleaseEvent(
            epoch=epoch,
            model=str(self.model),
            calibration=self.calibration,
            participants=participants,
            rank=self.rank,
            sensitivity=self.grid.sensitivity * self.grid.step,
            noise_scale=self.grid.noise_units * self.grid.step,
            purpose=self.purpose,
        )

    def noised(self, units: IntArray, source: NoiseSource) -> IntArray:
        """Integers with noise: the sum, or a report before it is summed (Alg. 1, line 14)."""
        return source.add(units, self.grid.noise_units, reports=self.noises)

    def noisy(self, secret: IntArray, source: NoiseSource) -> FloatArray:
        """The noisy sum as numbers."""
        return np.asarray(self.noised(secret, source) * self.grid.step)

    def exact(self, secret: IntArray) -> FloatArray:
        """The sum as numbers."""
        return np.asarray(secret * self.grid.step)


@dataclass(frozen=True, kw_only=True)
class MomentMechanism(Mechanism[IntArray, FloatArray]):
    """Discrete Gaussian noise on the second moments of rows."""

    grid: MomentGrid
    calibration: str

    @property
    def narrowest(self) -> float:
        """Off the diagonal, where a difference counts twice."""
        return self.grid.noise_units / sqrt(2)

    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """``sensitivity = sqrt(2) |s|^2_max`` in the Frobenius norm."""
        unit = float(self.grid.level) ** -2
        return ReleaseEvent(
            epoch=epoch,
            model=str(PrivacyModel.JOINT),
            calibration=self.calibration,
            participants=participants,
            rank=self.grid.coordinates,
            sensitivity=self.grid.sensitivity * unit,
            noise_scale=self.grid.noise_units * unit,
        )

    def noisy(self, secret: IntArray, source: NoiseSource) -> FloatArray:
        """The moment matrix of ``s`` with symmetric noise, as numbers."""
        grid = self.grid
        matrix = np.zeros((grid.size, grid.size), dtype=np.int64)
        upper = np.triu_indices(grid.size, 1)
        matrix[upper] = source.add(secret[upper], grid.noise_units / sqrt(2))
        matrix += matrix.T
        np.fill_diagonal(matrix, source.add(np.diag(secret).copy(), grid.noise_units))
        return np.asarray(matrix / float(grid.level) ** 2)

    def exact(self, secret: IntArray) -> FloatArray:
        """The moment matrix from the two limbs of a run without privacy."""
        if self.grid.limbs == 1:
            raise BudgetError("a private sum can be released through a ledger only")
        return self.grid.exact(secret)


@dataclass(frozen=True, kw_only=True)
class MessageMechanism(Mechanism[IntArray, FloatArray]):
    """Discrete Gaussian noise on the integer sum of messages, for each block its own.

    ``sigma / share`` on a block is ``sigma`` on the block times its share, and in that norm two
    messages are at most ``2 L^2`` apart (docs/privacy.md, "One message layout").
    """

    grid: MessageGrid
    model: PrivacyModel
    calibration: str = "analytic"

    @property
    def narrowest(self) -> float:
        """The noise of the loudest block."""
        return min(self.grid.noise_scales.values())

    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """``mu = 2 L^2 / sigma``, in units: nothing was rounded after the bounds held."""
        return ReleaseEvent(
            epoch=epoch,
            model=str(self.model),
            calibration=self.calibration,
            participants=participants,
            rank=self.grid.layout.coordinates,
            sensitivity=float(self.grid.sensitivity),
            noise_scale=self.grid.noise_units,
        )

    def noised(self, units: IntArray, source: NoiseSource) -> IntArray:
        """The integer sum with noise, block by block."""
        return np.concatenate(
            [
                source.add(units[block.part], self.grid.noise_scales[name])
                for name, block in self.grid.layout.blocks.items()
            ]
        )

    def noisy(self, secret: IntArray, source: NoiseSource) -> FloatArray:
        """The noisy sums as numbers, in the order of the layout."""
        return self.grid.numbers(self.noised(secret, source))

    def exact(self, secret: IntArray) -> FloatArray:
        """The sums as numbers."""
        return self.grid.numbers(secret)


class ReportDraws(SphereDraws, Randomness, Protocol):
    """What a device draws for its report."""

    def noised(self, units: IntArray, scale: float) -> IntArray:
        """Each row plus integer Gaussian noise of its own."""


@dataclass(frozen=True, kw_only=True)
class SphereMechanism(Mechanism[IntArray, tuple[Words, IntArray]]):
    """One sphere report for each row of integers of norm at most ``norm_limit``.

    A report is a token and a direction's number.
    """

    sphere: Sphere
    norm_limit: int

    @property
    def narrowest(self) -> float:
        """Its probabilities are exact: no width has to be checked."""
        return inf

    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """Compared with the budget in exact fractions, and else rounded up."""
        above = max(self.sphere.epsilon, nextafter(budget.epsilon, inf))
        return ReleaseEvent(
            epoch=epoch,
            model=str(PrivacyModel.LOCAL),
            calibration="exact",
            participants=participants,
            rank=self.sphere.dimension,
            sensitivity=0.0,  # what a Gaussian is accounted by; a device has no SciPy to ask
            noise_scale=0.0,
            mechanism="sphere",
            epsilon=budget.epsilon if self.sphere.keeps(budget.epsilon) else above,
        )

    def noisy(self, secret: IntArray, source: SphereDraws) -> tuple[Words, IntArray]:
        """Tokens and numbers: all that may leave a device."""
        return randomized(secret, self.norm_limit, self.sphere, source)


@dataclass(frozen=True, kw_only=True)
class NoisyReportMechanism(Mechanism[IntArray, tuple[Words, IntArray]]):
    """One Gaussian report for each row of integers: a token and the integers with noise."""

    grid: Grid
    rank: int

    @property
    def narrowest(self) -> float:
        """The noise is the same on every coordinate."""
        return self.grid.noise_units

    def event(self, budget: Budget, epoch: int, participants: int) -> ReleaseEvent:
        """``sensitivity = 2 norm_limit step`` against the noise of one report."""
        return ReleaseEvent(
            epoch=epoch,
            model=str(PrivacyModel.LOCAL),
            calibration="analytic",
            participants=participants,
            rank=self.rank,
            sensitivity=self.grid.sensitivity * self.grid.step,
            noise_scale=self.grid.noise_units * self.grid.step,
        )

    def noisy(self, secret: IntArray, source: ReportDraws) -> tuple[Words, IntArray]:
        """Tokens and integers: all that may leave a device."""
        return source.seeds(len(secret)), source.noised(secret, self.grid.noise_units)


class Gate:
    """Checks, notes and publishes; ``ledger=None`` runs without privacy.

    ``source`` is what its mechanisms draw from: :class:`NoiseSource` or a device's randomness.
    """

    def __init__(self, source: Randomness, ledger: Ledger | None) -> None:
        self._source: Any = source
        self._ledger = ledger
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Show this function everything that leaves from here on, once it has left.

        An observer is given what is public, after the ledger has recorded it, and cannot change it:
        whatever the observer does is post-processing. What it raises ends the call that released.
        """
        self._observers.append(observer)

    def _left(self, public: Any) -> None:
        for observer in self._observers:
            observer(public)

    def __reduce__(self) -> tuple[Any, ...]:
        """Observers are code of this process: a copy is observed by nobody."""
        return Gate, (self._source, self._ledger)

    @property
    def private(self) -> bool:
        """Whether what passes here is protected: a budget, and noise that nobody can reproduce."""
        return self._ledger is not None and self._source.private

    def check(
        self, mechanism: Mechanism[Secret, Public], epoch: int, participants: int
    ) -> ReleaseEvent | None:
        """Refuse what the budget would not cover, before any data are in; the event to record."""
        if self._ledger is None:
            return None
        event = mechanism.event(self._ledger.budget, epoch, participants)
        self._ledger.check(event)
        if mechanism.narrowest < NOISE_UNITS * (1 - self._ledger.tolerance):
            raise BudgetError(
                f"the noise must be at least {NOISE_UNITS} grid units wide for its account to "
                f"hold, got {mechanism.narrowest:g}"
            )
        return event

    def release(
        self,
        mechanism: Mechanism[Secret, Public],
        secret: Secret,
        *,
        epoch: int,
        participants: int,
    ) -> tuple[Public, ReleaseEvent | None]:
        """Publish under the budget. The ledger is asked first, and refuses rather than overspend.

        The event is recorded as late as possible: an interrupt while noise is drawn has published
        nothing. Without a budget there is neither noise nor event.
        """
        event = self.check(mechanism, epoch, participants)
        if event is None or self._ledger is None:
            public = mechanism.exact(secret)
        else:
            public = mechanism.noisy(secret, self._source)
            self._ledger.record(event)
        self._left(public)
        return public, event

    def afresh(self, ledger: Ledger | None) -> "Gate":
        """The same source of noise and the same observers with another account."""
        gate = Gate(self._source, ledger)
        gate._observers = self._observers
        return gate

    def report(self, mechanism: SumMechanism, units: IntArray) -> IntArray:
        """Reports with noise before they are summed: the local form of a sum (Alg. 1, line 14)."""
        public = mechanism.noised(units, self._source)
        self._left(public * mechanism.grid.step)
        return public


def noise_source(generator: np.random.Generator | None) -> NoiseSource:
    """Noise of a private run, or of a simulation with the generator it may use."""
    return SecureNoise() if generator is None else SimulatedNoise(generator)
