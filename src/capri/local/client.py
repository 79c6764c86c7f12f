"""The device: decides, and makes one report that gives nothing away."""

import os
from dataclasses import dataclass
from math import nan
from threading import Lock
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cells import number_or_missing, visit_rows
from capri.epoch.bounds import as_sets
from capri.epoch.decisions import Decision, VisitStatus
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError
from capri.local.bundle import Bundle, open_bundle
from capri.local.device import (
    Device,
    DeviceRandomness,
    SimulatedRandomness,
    SystemRandomness,
    usable_rows,
)
from capri.privacy.budget import Budget, PrivacyModel
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger


@dataclass(frozen=True, eq=False)
class Datum:
    """A decision that was not reported yet, with the device that made it: it is of that bundle."""

    device: Device
    context: FloatArray
    action: IntArray

    def reported(self, reward: float | None, gate: Gate) -> bytes:
        """The bytes of the one report on it, whatever the reward is."""
        value = np.array([number_or_missing(nan if reward is None else reward)])  # one way for both
        return bytes(self.device.report(self.context, self.action, value, gate)[0].tobytes())


def spent() -> BudgetError:
    """What a second report is answered with."""
    return BudgetError("this device has reported: a second report would spend twice")


class LocalClient:
    """One user's device in the local model.

    Context, action and reward stay here; what leaves is one report, private by itself. The client
    trusts nobody: it works out from the bundle what a report would cost its user and refuses a
    bundle that asks for more than ``budget``. It keeps nothing beyond its process: an app that ends
    between a decision and its reward takes a :class:`~capri.DurableClient`.

    Parameters
    ----------
    bundle:
        The bytes of :meth:`LocalCapri.bundle`, the same for every device.
    budget:
        What this user is willing to spend, in all: the client reports once.
    digest:
        The digest of the bundle as published elsewhere, to make sure that everybody got the same.
    simulation:
        ``(seed, user)`` to reproduce a user of a simulation, without any privacy. None for a real
        device.
    """

    def __init__(
        self,
        bundle: bytes,
        budget: Budget,
        *,
        digest: bytes | None = None,
        simulation: tuple[int, int] | None = None,
    ) -> None:
        self._budget = budget
        self._randomness = _randomness(simulation)
        self._bundle = affordable(bundle, budget, digest)
        self._gate = gate_of(self._randomness, budget)
        self._device = Device(self._bundle)
        self._reported = False
        self._pending: Datum | None = None
        self._lock = Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"LocalClient(epoch={self.epoch}, reported={self._reported})"

    @property
    def opened_bundle(self) -> Bundle:
        """What the aggregator asks for, as it was read: public."""
        return self._bundle

    @property
    def epoch(self) -> int:
        """The epoch this device takes part in."""
        return self._bundle.plan.epoch

    @property
    def reported(self) -> bool:
        """Whether the one report was made, and the budget spent."""
        return self._reported

    @property
    def private(self) -> bool:
        """Whether reports are protected: False only for a simulated user."""
        return self._randomness.private

    def act(self, context: object, *, available: object = None) -> Decision:
        """Decide on the device, for a row of numbers or a record of the bundle's schema.

        No number and no cell is refused, only another shape is.

        Where the context is not a number the action is uniform, and the report will contribute
        nothing while it looks like any other. A second decision replaces one that was not
        reported. After the report a device still decides, which costs nothing, and has nothing more
        to report. ``available``: the actions that may be chosen, as in :meth:`Capri.act`; it
        stays on the device.
        """
        with self._lock:
            device = self._device
        decision, datum = decided(device, context, available, self._randomness)
        with self._lock:
            if device is self._device and not self._reported:
                self._pending = datum
        return decision

    def report(self, reward: float | None) -> bytes:
        """The bytes to upload; None if no reward was seen, which nobody can tell from a report.

        Whatever is no finite number is a missing reward too. Can be called once. Lost in transport?
        Upload the same bytes again, never make new ones; a :class:`~capri.DurableClient` does so.
        """
        return self._spend().reported(reward, self._gate)

    def _spend(self) -> Datum:
        """Take the datum, once for all threads and processes.

        Before anything is drawn: an interrupted report is not made a second time.
        """
        if os.getpid() != self._process:
            raise BudgetError("this client was forked: its report belongs to the first process")
        with self._lock:
            if self._reported:
                raise spent()
            if self._pending is None:
                raise DataError("there is nothing to report: act comes first")
            datum, self._pending, self._reported = self._pending, None, True
        return datum

    def twin(self, context: FloatArray, action: IntArray) -> "LocalClient":
        """Another person's device with the same bundle and budget, for which this was decided.

        For audits, which need thousands of devices of one bundle: reading it again takes longer
        than a report.
        """
        if self._reported:
            raise BudgetError("this device belongs to a person who reports once: audit another one")
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._gate = gate_of(self._randomness, self._budget)
        other._pending = Datum(self._device, context, action)
        other._reported, other._lock = False, Lock()
        return other

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a client is neither pickled nor copied: two copies would report twice")

    def renew(self, bundle: bytes, *, digest: bytes | None = None, keep: bool = False) -> bool:
        """Go on with the bundle of a later epoch; True if a datum had to be dropped for it.

        A decision that was made under the old bundle belongs to its epoch: it is dropped rather
        than encoded anew. With ``keep`` it stays, for a reward that is still to come, until
        another decision takes its place: its report answers the old bundle, which the aggregator
        takes for its ``reward_wait``. A device that has reported decides by the new bundle and
        stays silent.
        """
        renewed = affordable(bundle, self._budget, digest)
        with self._lock:
            if newer(self._bundle, renewed).digest == self._bundle.digest:
                return False
            dropped = self._pending is not None and not keep
            self._bundle, self._device = renewed, Device(renewed)
            self._pending = self._pending if keep else None
            return dropped


def decided(
    device: Device, context: object, available: object, randomness: DeviceRandomness
) -> tuple[Decision, Datum]:
    """A decision, and what there will be to report of it."""
    bundle = device.bundle
    row = visit_rows(bundle.encoded(context, single=True), bundle.context_dimension, single=True)
    sets = None
    if available is not None:
        sets = as_sets(available, 1, bundle.actions, single=True)
    action, propensity = device.decide(row, randomness.action(1), sets)
    counted = row if sets is None else device.counted(row, sets)
    number, names = int(action[0]), bundle.actions.names
    decision = Decision(
        "",
        bundle.plan.epoch,
        number,
        bundle.actions.features_of(row, action)[0],
        float(propensity[0]),
        VisitStatus.SERVED if usable_rows(counted)[0] else VisitStatus.INVALID,
        action_name=None if names is None else names[number],
    )
    return decision, Datum(device, counted, action)


def affordable(data: bytes, budget: Budget, digest: bytes | None = None) -> Bundle:
    """Read a bundle, and make sure that a report under it can be made and afforded."""
    if not isinstance(budget, Budget):
        raise ConfigurationError(f"budget must be a capri.Budget, got {type(budget).__name__}")
    bundle = open_bundle(data, digest)
    check_promise(bundle, budget)
    return bundle


def newer(bundle: Bundle, renewed: Bundle) -> Bundle:
    """The later of two bundles, which the second must be."""
    now, then = renewed.plan.epoch, bundle.plan.epoch
    if now < then:
        raise BundleError(
            f"this bundle is older (epoch {now}) than the one in use (epoch {then})", "older"
        )
    return renewed


def gate_of(randomness: DeviceRandomness, budget: Budget) -> Gate:
    """The gate of one person, for one report."""
    return Gate(randomness, Ledger(budget, tolerance=0.0))


def _randomness(simulation: tuple[int, int] | None) -> DeviceRandomness:
    if simulation is None:
        return SystemRandomness()
    pair = isinstance(simulation, tuple) and len(simulation) == 2
    if not pair or not all(isinstance(each, int) and 0 <= each < 2**63 for each in simulation):
        raise ConfigurationError(
            f"simulation must be None or (seed, user), whole numbers from 0, got {simulation!r}"
        )
    return SimulatedRandomness(simulation[0], np.array([simulation[1]]))


def check_promise(bundle: Bundle, budget: Budget) -> None:
    """Refuse a plan that protects less than the budget asks for: by exact fractions."""
    plan = bundle.plan
    try:
        gate_of(SystemRandomness(), budget).check(
            plan.vector, epoch=plan.epoch, participants=plan.length, model=PrivacyModel.LOCAL
        )
    except BudgetError as problem:
        raise BundleError(f"this bundle asks for too much: {problem}", "too-costly") from None
