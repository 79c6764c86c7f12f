"""What a device keeps across restarts: the decision that waits for its reward, and its report.

Both are small. The decision is a text that any client of the same bundle can go on with; it holds
context and action, so it must not leave the device. The report is kept in the receipt: where an
upload failed the same bytes are sent again, and nothing is drawn a second time.
"""

import json
import os
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import NoReturn, Self

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError, DataError, StorageError
from capri.local import wire
from capri.local.bundle import Bundle
from capri.local.device import Device


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
            told = json.loads(text, parse_int=float, parse_constant=_refuse)
            cells, action, digest = told["context"], told["action"], told["digest"]
            row = np.array([[nan if each is None else each for each in cells]], dtype=np.float64)
            whole = type(action) is float and action.is_integer()
            plain = isinstance(cells, list) and {*map(type, cells)} <= {float, type(None)}
        except (ValueError, TypeError, LookupError, RecursionError):
            whole = plain = False
        bundle: Bundle = device.bundle
        if not (whole and plain and 0 <= action < bundle.conduct.actions.count):
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
