"""Cells of every type and size, and objects that answer no question about themselves."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from hypothesis import strategies as st


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("4711")


_METHODS = (
    "__float__", "__int__", "__index__", "__array__", "__len__", "__iter__", "__getitem__",
    "__bool__", "__str__", "__repr__", "__ne__", "__lt__", "__gt__", "keys",
)  # fmt: skip
_EVIL = dict.fromkeys(_METHODS, _refuse) | {"__eq__": _refuse, "__hash__": _refuse}
_Meta = type("_Meta", (type,), {"__hash__": _refuse, "__eq__": _refuse})


def _evil(*bases: type, **more: Any) -> type:
    return type("Evil", bases, _EVIL | more)


class _Posing:
    """Pretends to be of a class, and of none when asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("4711")

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("4711")


HUGE = "x" * 2_000_000
ODD: list[Any] = [
    None, "0.5", "", "1", HUGE, b"1", b"\xff" * 9, bytearray(b"1"), memoryview(b"1"),
    datetime(2020, 1, 1, tzinfo=UTC), date(2020, 1, 1), timedelta(1), pd.Timestamp("2020"),
    pd.NA, pd.NaT, pd.Timedelta(1), np.datetime64("2020"), np.datetime64("NaT"),
    np.timedelta64(1), np.str_("0.5"), np.bytes_(b"1"), np.void(b"12345678"), np.ma.masked,
    np.ma.array(0.5, mask=True), np.ma.array([0.5], mask=[True]), np.longdouble("1e4000"),
    np.ma.array(np.longdouble("1e4000"), mask=True), np.complex128(1j), 1j,
    10**400, -(10**400), 10**5000, float("nan"), float("inf"), Decimal("NaN"), Decimal("sNaN"),
    Decimal("1e999999"), Fraction(10**400, 3), [], [0.5], [[0.5]], [0.1, 0.2], (), (1,), {},
    {"age": 3}, {0.5}, frozenset(), range(3), iter([1]), object(), int, np, len, Ellipsis,
    np.array([]), np.array([0.1, 0.2]), np.array("a"), np.array(["a"]), np.array([[1, 2]]),
    np.array([None]), np.zeros((0, 2)), pd.Series([1, 2]), pd.DataFrame({"a": [1]}), "\ud800",
    _evil(object)(), _evil(list)([1]), _evil(tuple)([1]), _evil(dict)(), _evil(str)("pro"),
    _evil(float)(0.5), _evil(int)(1),
    _Meta("Strange", (), {})(), _Posing(), ["x"] * 100_000,
]  # fmt: skip
NUMBERS: list[Any] = [
    True, False, 0, 1, -0.0, 0.25, 1e300, 5e-324, np.float32(0.5), np.float16(0.5), np.int8(1),
    np.uint64(2**64 - 1), np.bool_(True), np.longdouble("0.1"), Decimal("0.1"), Fraction(1, 3),
    2**64, 10**300, np.array(0.5),
]  # fmt: skip


class Held:
    """A cell in a box: test tools ask what they hold, and some cells answer nothing."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __repr__(self) -> str:
        return f"Held({type(self.cell).__name__})"


HELD = [Held(cell) for cell in ODD + NUMBERS]
odd_cells = st.one_of(
    st.sampled_from(HELD),
    st.text().map(Held),
    st.binary().map(Held),
    st.integers().map(Held),
    st.floats().map(Held),
    st.recursive(st.none() | st.text() | st.floats(), st.lists, max_leaves=5).map(Held),
)
