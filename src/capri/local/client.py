"""The device: decides, and makes one report that gives nothing away.

Two things outlive a restart. The decision that waits for its reward is a text that any client of
the same bundle can go on with; it holds context and action, so it must not leave the device. The
report is kept in the receipt: where an upload failed the same bytes are sent again, and nothing is
drawn a second time.
"""

import json
import os
from dataclasses import dataclass
from math import isfinite, nan
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cells import number_or_missing, visit_rows
from capri.epoch.bounds import as_sets
from capri.epoch.decisions import Decision, VisitStatus
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError, StorageError
from capri.local import wire
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

    def to_text(self) -> str:
        """As JSON. A context that is not a number, or too large to be one, is ``null`` there."""
        numbers = [each if isfinite(each) else None for each in self.context[0].tolist()]
        digest, action = self.device.bundle.digest.hex(), int(self.action[0])
        return json.dumps({"digest": digest, "context": numbers, "action": action})

    @classmethod
    def from_text(cls, text: str, device: Device) -> Self:
        """The inverse. What it is made of is checked, values are not looked at."""
        try:
            values = json.loads(text, parse_int=float, parse_constant=_refuse)
            cells, action, digest = values["context"], values["action"], values["digest"]
            row = np.array([[nan if each is None else each for each in cells]], dtype=np.float64)
            whole = type(action) is float and action.is_integer()
            plain = isinstance(cells, list) and {*map(type, cells)} <= {float, type(None)}
        except (ValueError, TypeError, LookupError, RecursionError):
            whole = plain = False
        bundle: Bundle = device.bundle
        if not (whole and plain and 0 <= action < bundle.behaviour.actions.count):
            raise DataError(
                "this is no decision that a client kept, or not all of it: open the client without "
                "it (pending=None), and decide again"
            )
        if digest != bundle.digest.hex():
            raise DataError(
                f"this decision was made under the bundle of digest {str(digest)[:64]!r}: open a "
                "client with that one, and renew it with keep=True"
            )
        if row.shape[1] != bundle.context_dimension:
            raise DataError(f"a context must have {bundle.context_dimension} numbers")
        return cls(device, row, np.array([int(action)]))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def leave_receipt(path: Path) -> None:
    """Create the file on disk, or refuse: it is there already, or cannot be made to last."""
    try:
        for target, flags in ((path, os.O_CREAT | os.O_EXCL | os.O_WRONLY), (path.parent, 0)):
            handle = os.open(target, flags, 0o600)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except FileExistsError:
        raise reported_already(path) from None
    except OSError as problem:
        raise StorageError(
            f"cannot write the receipt {path}: {problem.strerror}. Nothing was reported"
        ) from problem


def fill_receipt(path: Path, report: bytes) -> None:
    """Put the report into its receipt, on disk before it leaves."""
    try:
        with path.open("wb") as file:
            file.write(report)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise StorageError(
            f"cannot write the receipt {path}: {problem.strerror}. The report was dropped, and no "
            "second one is made"
        ) from problem


def report_in(path: Path) -> bytes | None:
    """The report that a receipt holds; None where it was cut short, or never filled."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot read the receipt {path}: {problem.strerror}") from problem
    whole = len(data) == wire.SIZE
    return data if whole and wire.are_reports(np.frombuffer(data, np.uint8)[None])[0] else None


def reported_already(receipt: Path | None) -> BudgetError:
    """What a second report is answered with."""
    where = "" if receipt is None else f", says its receipt {receipt}"
    return BudgetError(f"this device has reported{where}: a second report would spend twice")


class LocalClient:
    """One user's device in the local model.

    Context, action and reward stay here; what leaves is one report, private by itself. The client
    trusts nobody: it works out from the bundle what a report would cost its user and refuses a
    bundle that asks for more than ``budget``.

    Parameters
    ----------
    bundle:
        The bytes of :meth:`LocalCapri.bundle`, the same for every device.
    budget:
        What this user is willing to spend, in all: the client reports once.
    digest:
        The digest of the bundle as published elsewhere, to make sure that everybody got the same.
    receipt:
        Path of a file that remembers across restarts that the report was made. It is created just
        before the report, and holds it: where it exists the device makes no other, and :attr:`made`
        is what to upload again.
    pending:
        :attr:`pending` of a client of the same bundle, to go on with its decision after a restart.
        Needs a receipt, which says whether that decision was reported meanwhile.
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
        receipt: str | PathLike[str] | None = None,
        pending: str | None = None,
        simulation: tuple[int, int] | None = None,
    ) -> None:
        if not isinstance(budget, Budget):
            raise ConfigurationError(f"budget must be a capri.Budget, got {type(budget).__name__}")
        self._budget = budget
        self._randomness = _randomness(simulation)
        self._gate = Gate(self._randomness, Ledger(budget, tolerance=0.0))
        self._bundle = self._checked(bundle, digest)
        self._device = Device(self._bundle)
        self._receipt = None if receipt is None else Path(receipt)
        self._reported, self._made = False, None
        if self._receipt is not None and self._receipt.exists():
            self._reported, self._made = True, report_in(self._receipt)
        self._pending = self._resumed(pending)
        self._lock = Lock()
        self._process = os.getpid()

    def _resumed(self, pending: str | None) -> Datum | None:
        """The decision that was kept, unless it was reported since."""
        if pending is None:
            return None
        if self._receipt is None:
            raise ConfigurationError(
                "a decision that was kept needs a receipt: without one it could be reported twice"
            )
        datum = Datum.from_text(pending, self._device)
        return None if self._reported else datum

    def _checked(self, data: bytes, digest: bytes | None) -> Bundle:
        """Read a bundle, and make sure that a report under it can be made and afforded."""
        bundle = open_bundle(data, digest)
        check_promise(bundle, self._budget)
        return bundle

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
    def made(self) -> bytes | None:
        """The one report, to be uploaded again where that failed; None before it was made.

        After a restart as the receipt holds it: None where that was cut short, and no second report
        takes its place.
        """
        return self._made

    @property
    def pending(self) -> str | None:
        """The decision that waits for its reward, to be kept on the device until a restart.

        A short text; None where there is none. It holds the context and the action: it must not
        leave the device. Keep the bundle beside it.
        """
        with self._lock:
            return None if self._pending is None else self._pending.to_text()

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
            bundle, device = self._bundle, self._device
        given = bundle.encoded(context, single=True)
        row = visit_rows(given, bundle.context_dimension, single=True)
        sets = None
        if available is not None:
            sets = as_sets(available, 1, bundle.actions, single=True)
        action, propensity = device.decide(row, self._randomness.action(1), sets)
        counted = row if sets is None else device.counted(row, sets)
        features = bundle.actions.features_of(row, action)
        with self._lock:
            if device is self._device and not self._reported:
                self._pending = Datum(device, counted, action)
        status = VisitStatus.SERVED if usable_rows(counted)[0] else VisitStatus.INVALID
        number, names = int(action[0]), bundle.actions.names
        return Decision(
            "",
            bundle.plan.epoch,
            number,
            features[0],
            float(propensity[0]),
            status,
            action_name=None if names is None else names[number],
        )

    def report(self, reward: float | None) -> bytes:
        """The bytes to upload; None if no reward was seen, which nobody can tell from a report.

        Whatever is no finite number is a missing reward too. Can be called once. Lost in transport?
        Upload the same bytes again (:attr:`made`), never make new ones.
        """
        value = np.array([number_or_missing(nan if reward is None else reward)])  # one way for both
        datum = self._spend()
        message = datum.device.report(datum.context, datum.action, value, self._gate)
        report = bytes(message[0].tobytes())
        if self._receipt is not None:
            fill_receipt(self._receipt, report)
        self._made = report
        return report

    def _spend(self) -> Datum:
        """Take the datum, once for all threads, processes and restarts.

        Before anything is drawn: an interrupted report is not made a second time.
        """
        if os.getpid() != self._process:
            raise BudgetError("this client was forked: its report belongs to the first process")
        with self._lock:
            if self._reported:
                raise reported_already(self._receipt)
            if self._pending is None:
                raise DataError("there is nothing to report: act comes first")
            if self._receipt is not None:
                leave_receipt(self._receipt)
            datum, self._pending, self._reported = self._pending, None, True
        return datum

    def twin(self, context: FloatArray, action: IntArray) -> "LocalClient":
        """Another person's device with the same bundle and budget, for which this was decided.

        For audits, which need thousands of devices of one bundle: reading it again takes longer
        than a report.
        """
        if self._reported or self._receipt is not None:
            raise BudgetError("this device belongs to a person who reports once: audit another one")
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._gate = Gate(self._randomness, Ledger(self._budget, tolerance=0.0))
        other._pending = Datum(self._device, context, action)
        other._reported, other._made, other._lock = False, None, Lock()
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
        renewed = self._checked(bundle, digest)
        with self._lock:
            if renewed.plan.epoch < self.epoch:
                raise BundleError(
                    f"this bundle is older (epoch {renewed.plan.epoch}) than the one in use "
                    f"(epoch {self.epoch})",
                    "older",
                )
            if renewed.digest == self._bundle.digest:
                return False
            dropped = self._pending is not None and not keep
            self._bundle, self._device = renewed, Device(renewed)
            self._pending = self._pending if keep else None
            return dropped


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
    gate = Gate(SystemRandomness(), Ledger(budget, tolerance=0.0))
    try:
        gate.check(
            plan.vector, epoch=plan.epoch, participants=plan.length, model=PrivacyModel.LOCAL
        )
    except BudgetError as problem:
        raise BundleError(f"this bundle asks for too much: {problem}", "too-costly") from None
