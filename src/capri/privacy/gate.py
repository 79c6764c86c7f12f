"""The gate: the single place where a secret turns public.

Whatever leaves is a sum of messages of one layout, or a report of one user. A layout knows how far
two messages are apart and how wide the noise is; the gate states that as an event, asks the ledger,
checks the width of the noise, adds it and records the event. Nothing else in this package adds
noise.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from math import inf, nextafter
from typing import Any, Protocol

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError
from capri.privacy.budget import Budget, PrivacyModel
from capri.privacy.layout import MECHANISMS, Layout
from capri.privacy.ledger import LEARNING, Ledger, ReleaseEvent
from capri.privacy.noise import NoiseSource, SecureNoise, SimulatedNoise
from capri.privacy.sphere import Sphere, Words, randomized
from capri.privacy.vector import VectorLayout

# Is shown what has left the gate, and the event that the ledger has of it: reports have none.
Observer = Callable[[Any, ReleaseEvent | None], object]
Departure = tuple[Any, ReleaseEvent | None]


class Randomness(Protocol):
    """Any source of randomness."""

    @property
    def private(self) -> bool:
        """Whether nobody could reproduce it."""


class Gate:
    """Checks, notes and publishes; ``ledger=None`` runs without privacy.

    ``source`` is what noise is drawn from: :class:`NoiseSource` or a device's randomness.
    """

    def __init__(self, source: Randomness, ledger: Ledger | None) -> None:
        self._source: Any = source
        self._ledger = ledger
        self._observers: list[Observer] = []
        self._held: list[Departure] | None = None

    def observe(self, observer: Observer) -> None:
        """Show this function everything that leaves from here on, once it has left.

        An observer is given copies of what is public, after the ledger has recorded it: whatever
        the observer does is post-processing. What it raises ends the call that released.
        """
        self._observers.append(observer)

    def _left(self, public: Any, event: ReleaseEvent | None = None) -> None:
        if self._held is None:
            self.tell([(public, event)])
        else:
            self._held.append((public, event))

    def tell(self, departures: Iterable[Departure]) -> None:
        """Show observers what has left and is committed."""
        for public, event in departures:
            for observer in self._observers:
                observer(deepcopy(public), event)

    def __reduce__(self) -> tuple[Any, ...]:
        """Observers are code of this process: a copy is observed by nobody."""
        return Gate, (self._source, self._ledger)

    @property
    def private(self) -> bool:
        """Whether what passes here is protected: a budget, and noise that nobody can reproduce."""
        return self._ledger is not None and self._source.private

    def check(
        self,
        layout: Layout,
        *,
        epoch: int,
        participants: int,
        model: PrivacyModel = PrivacyModel.JOINT,
        purpose: str = LEARNING,
        stage: int = 0,
    ) -> ReleaseEvent | None:
        """Refuse what the budget would not cover, before any data are in; the event to record."""
        if self._ledger is None:
            return None
        event = ReleaseEvent(
            epoch=epoch,
            model=str(model),
            participants=participants,
            purpose=purpose,
            stage=stage,
            **_cost(layout, self._ledger.budget),
        )
        self._ledger.check(event)
        least = MECHANISMS[layout.norm].narrowest
        if event.epsilon is None and layout.narrowest < least * (1 - self._ledger.tolerance):
            raise BudgetError(
                f"the noise must be at least {least} grid units wide for its account to "
                f"hold, got {layout.narrowest:g}"
            )
        return event

    def plan(
        self,
        layout: Layout,
        *,
        epoch: int,
        participants: int,
        model: PrivacyModel = PrivacyModel.JOINT,
        coordinates: int = 0,
    ) -> None:
        """The same, and an organisation's ledger notes it where there is one.

        ``coordinates``: of all stages of the epoch, which cost no more than this together.
        """
        event = self.check(layout, epoch=epoch, participants=participants, model=model)
        if event is not None and self._ledger is not None:
            self._ledger.plan(replace(event, rank=max(event.rank, coordinates)))

    def release(
        self,
        total: IntArray,
        layout: Layout,
        *,
        epoch: int,
        participants: int,
        model: PrivacyModel = PrivacyModel.JOINT,
        purpose: str = LEARNING,
        stage: int = 0,
        noised_alone: int = 0,
    ) -> tuple[FloatArray, ReleaseEvent | None]:
        """Publish a sum of messages under the budget, as numbers in the order of the layout.

        The ledger is asked first, and refuses rather than overspend. The noise is that of the
        layout: once in the joint model (Alg. 1, line 17), once for every participant in the
        textbook local one, less those whose reports were ``noised_alone``. The event is recorded as
        late as possible: an interrupt while noise is drawn has published nothing. Without a budget
        there is neither noise nor event.
        """
        _refuse_reports(layout)
        event = self.check(
            layout,
            epoch=epoch,
            participants=participants,
            model=model,
            purpose=purpose,
            stage=stage,
        )
        if event is None or self._ledger is None:
            if layout.noise_units:
                raise BudgetError("a private sum can be released through a ledger only")
            public = layout.numbers(total)
        else:
            noises = participants - noised_alone if model is PrivacyModel.LOCAL else 1
            public = layout.numbers(noised(total, layout, self._source, noises))
            self._ledger.record(event)
        self._left(public, event)
        return public, event

    def add_noise(self, units: IntArray, layout: Layout, reports: int) -> IntArray:
        """Reports of the textbook local model with noise, before they are summed (line 14)."""
        _refuse_reports(layout)
        public = noised(units, layout, self._source, reports)
        self._left(layout.numbers(public))
        return public

    def report(
        self, units: IntArray, layout: VectorLayout, *, epoch: int
    ) -> tuple[Words, IntArray]:
        """A report for each row of integers: a token, and the number of a direction.

        All that may leave a device. Reports are always promised something.
        """
        event = self.check(layout, epoch=epoch, participants=len(units), model=PrivacyModel.LOCAL)
        if event is None or self._ledger is None:
            raise BudgetError("without a budget no report passes the gate")
        assert layout.sphere is not None  # how every report is made
        public = randomized(units, layout.norm_limit, layout.sphere, self._source)
        self._ledger.record(event)
        self._left(public)
        return public

    def afresh(self, ledger: Ledger | None, held: "list[Departure]") -> "Gate":
        """The same source of noise with another account; what leaves is ``held``, not shown.

        Nothing is public before it is committed: two draws of one sum would say more than one may.
        """
        gate = Gate(self._source, ledger)
        gate._held = held
        return gate


def _refuse_reports(layout: Layout) -> None:
    """The sphere makes reports of single devices: it has no noise for a sum."""
    if isinstance(layout, VectorLayout) and layout.sphere is not None:
        raise BudgetError("a layout of device reports has no noise for a sum: it passes as reports")


def noised(total: IntArray, layout: Layout, source: NoiseSource, noises: int = 1) -> IntArray:
    """The integer sum with the noise of its layout, block by block.

    ``sigma / share`` on a block is ``sigma`` on the block times its share, and in that norm two
    messages are at most the diameter apart (docs/proofs/gate.md).
    """
    return np.concatenate(
        [
            source.add(total[block.part], layout.noise_scales[name], noises, layout.norm)
            for name, block in layout.blocks.items()
        ]
    )


def _cost(layout: Layout, budget: Budget) -> dict[str, Any]:
    """What one message in a release of this layout costs, as an event states it."""
    sphere = layout.sphere if isinstance(layout, VectorLayout) else None
    if sphere is not None:
        return {
            "rank": sphere.dimension,
            "calibration": "exact",
            "sensitivity": 0.0,  # what noise is accounted by; a device has no SciPy to ask
            "noise_scale": 0.0,
            "mechanism": "sphere",
            "epsilon": _within(sphere, budget.epsilon),
        }
    return {
        "rank": layout.coordinates,
        "calibration": layout.calibration,
        "sensitivity": layout.diameter * layout.unit,
        "noise_scale": layout.noise_units * layout.unit,
        "mechanism": MECHANISMS[layout.norm].name,
        "norm": layout.norm,
    }


def _within(sphere: Sphere, epsilon: float) -> float:
    """What a report costs: compared with the budget in exact fractions, and else rounded up."""
    return epsilon if sphere.keeps(epsilon) else max(sphere.epsilon, nextafter(epsilon, inf))


def noise_source(generator: np.random.Generator | None) -> NoiseSource:
    """Noise of a private run, or of a simulation with the generator it may use."""
    return SecureNoise() if generator is None else SimulatedNoise(generator)
