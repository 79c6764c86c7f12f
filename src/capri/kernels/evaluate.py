"""Kernels evaluated with care: at a steady pace on a device, and fast for a few rows at a time.

*Steady*: kernels decay to numbers below 1e-308, on which processors compute a hundred times slower,
and an exponential takes a short cut at 0. Whoever chooses the kernel could read a context off the
time. A steady kernel agrees with the kernel it is made from, to the bit, wherever that lies between
``LEAST`` and ``MOST``, and never leaves this range but to be 0:

- distances are held between the largest one at which the kernel is still 1 to the last bit and
  the first one at which it is below ``LEAST``;
- what is not a function of a distance is clipped, and 0 where it is smaller than ``LEAST``.

Both ends depend on the kernel alone.

*Near*: a decision for one context asks for ``k(c, pivots)`` with pivots that stay. What belongs to
them is scaled once, and Matern terms of one order are evaluated together: a call of NumPy takes
longer than the numbers of one row. Every number is computed by the same operations in the same
order as the kernel's own, so that both agree to the last bit: a decision never depends on how many
ask at once.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import TypeGuard, final

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.kernels.basic import BLOCK, Columns, ContextAction, Kernel, Linear, Product, Sum
from capri.kernels.stationary import (
    LARGE_ORDER,
    Matern,
    _Stationary,
    blocks,
    distances,
    half_integer,
)

LEAST, MOST = 1e-100, 1e60
# Distances, or their squares, to look for the ends of the range among.
_NEAR = (np.exp2(np.arange(-200.0, 0.0))[:, None] * np.linspace(1.0, 2.0, 9)[:-1]).ravel()
_FAR = np.exp2(np.arange(-200.0, 900.0))
_BETWEEN = np.linspace(1.0, 2.0, 1025)


def steady(kernel: Kernel) -> Kernel:
    """The same kernel at a steady pace, with all parts that it is made of.

    >>> from capri.kernels import RBF
    >>> points = np.array([[0.0], [0.5], [1e9]])
    >>> values = steady(RBF())(points, points[:1])
    >>> bool((values[:2] == RBF()(points[:2], points[:1])).all()), bool(values[2, 0] < 1e-100)
    (True, True)
    """
    if isinstance(kernel, _Stationary):
        # Every final kernel is a dataclass; its ends are those at any other lengthscale.
        alike = replace(kernel, lengthscale=1.0)  # type: ignore[type-var]
        return SteadyStationary(kernel, *_ends(alike))
    if isinstance(kernel, Sum | Product):
        return Tamed(replace(kernel, left=steady(kernel.left), right=steady(kernel.right)))
    if isinstance(kernel, ContextAction):
        context, action = steady(kernel.context), steady(kernel.action)
        return Tamed(replace(kernel, context=context, action=action))
    if isinstance(kernel, Columns):
        return Tamed(replace(kernel, kernel=steady(kernel.kernel)))
    return Tamed(kernel)


def without_tiny(values: FloatArray, least: float) -> FloatArray:
    """The same numbers in place, 0 where they are smaller than ``least``: one product each.

    >>> without_tiny(np.array([1.0, -1e-200, 0.0, -2.0]), 1e-60) == [1.0, 0.0, 0.0, -2.0]
    array([ True,  True,  True,  True])
    """
    values *= np.abs(values) >= least
    return values


@final
@dataclass(frozen=True)
class SteadyStationary(Kernel):
    """``k(w, w')`` of the distance ``min(max(r, nearest), farthest)``."""

    kernel: _Stationary
    nearest: float
    farthest: float

    @property
    def constant_diagonal(self) -> float | None:
        """That of the kernel."""
        return self.kernel.constant_diagonal

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        kernel = self.kernel
        kernel._check_dimension(left)
        values = distances(kernel._scaled(left), kernel._scaled(right), kernel._metric)
        for block in blocks(values):
            np.maximum(block, self.nearest, out=block)
            np.minimum(block, self.farthest, out=block)
            kernel._shape(block)
            block *= kernel.variance
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        return self.kernel._diagonal(points)


@final
@dataclass(frozen=True)
class Tamed(Kernel):
    """``k(w, w')`` within ``+-MOST``, 0 where it is smaller than ``LEAST`` or not a number."""

    kernel: Kernel

    @property
    def constant_diagonal(self) -> float | None:
        """That of the kernel where it is in range."""
        constant = self.kernel.constant_diagonal
        return None if constant is None else float(_tame(np.array([constant]))[0])

    def _cross(self, left: FloatArray, right: FloatArray) -> FloatArray:
        values = self.kernel._cross(left, right)
        for block in blocks(values):
            _tame(block)
        return values

    def _diagonal(self, points: FloatArray) -> FloatArray:
        return _tame(self.kernel._diagonal(points))


def _tame(values: FloatArray) -> FloatArray:
    """In place; ``fmin`` and ``fmax`` turn what is not a number into one."""
    np.fmin(values, MOST, out=values)
    np.fmax(values, -MOST, out=values)
    return without_tiny(values, LEAST)


@lru_cache(maxsize=256)
def _ends(kernel: _Stationary) -> tuple[float, float]:
    """Up to where the shape is 1 to the bit, and a first place with ``k < LEAST``."""
    with np.errstate(all="ignore"):
        low, high = _first(_NEAR, _shape(kernel, _NEAR) != 1.0)
        # To the last bit: the short cut of an exponential ends where its value could change.
        for _ in range(6):
            between = np.linspace(low, high, 1025)
            low, high = _first(between, _shape(kernel, between) != 1.0)
        dead = _shape(kernel, _FAR) * kernel.variance < LEAST
        if not dead.any():
            return low, inf
        between = np.linspace(*_first(_FAR, dead), 1025)
        return low, _first(between, _shape(kernel, between) * kernel.variance < LEAST)[1]


def _first(places: FloatArray, changed: BoolArray) -> tuple[float, float]:
    """The last place before a change, and the first one with it."""
    at = int(changed.argmax()) if changed.any() else len(places) - 1
    return float(places[max(at - 1, 0)]), float(places[at])


def _shape(kernel: _Stationary, distance: FloatArray) -> FloatArray:
    """The kernel at variance 1, at these distances or squared distances."""
    values = distance.copy()
    kernel._shape(values)
    return values


class Near:
    """``k(rows, points)``, for rows that are known to be finite.

    >>> kernel, points = Linear(bias=1.0) + Matern() + Matern(lengthscale=2.0), np.eye(3)
    >>> row = np.array([[0.1, 0.2, 0.7]])
    >>> bool((Near(kernel, points)(row) == kernel(row, points)).all())
    True
    """

    def __init__(self, kernel: Kernel, points: FloatArray) -> None:
        self._kernel, self._points = kernel, points
        self._most = 0  # rows that are taken at once
        linear, *others = _terms(kernel)
        smooth = [term for term in others if _is_plain(term)]
        orders = {term.nu for term in smooth}
        plain = isinstance(linear, Linear) and len(smooth) == len(others) and len(orders) == 1
        if not plain or len(points) < 2:  # a sum down to one number is made in another order
            return
        assert isinstance(linear, Linear)
        self._linear, self._order = linear, int(orders.pop() - 0.5)
        self._columns = np.ascontiguousarray(points.T)[:, None]
        self._lengths = np.array([term.lengthscale for term in smooth])
        # By column, then by term: (columns, 1, terms, points).
        scaled = [points / length for length in self._lengths]
        self._scaled = np.ascontiguousarray(np.stack([each.T for each in scaled], axis=1))[:, None]
        self._most = max(1, BLOCK // max(1, self._scaled.size))

    def __call__(self, rows: FloatArray) -> FloatArray:
        """The kernel of each row with each point."""
        if len(rows) > self._most:
            return self._kernel(rows, self._points)
        by_column = rows.T
        found: FloatArray = np.add.reduce(by_column[:, :, None] * self._columns, axis=0)
        found *= self._linear.variance
        found += self._linear.bias
        squares = (by_column[:, :, None] / self._lengths)[:, :, :, None] - self._scaled
        squares *= squares
        distance = np.add.reduce(squares, axis=0)  # column after column, as the kernel does it
        np.sqrt(distance, out=distance)
        half_integer(distance, self._order)
        for place in range(len(self._lengths)):
            found += distance[:, place]
        return found


def _terms(kernel: Kernel) -> list[Kernel]:
    """The terms of a sum, in the order in which they are added."""
    terms: list[Kernel] = []
    while isinstance(kernel, Sum):
        terms.append(kernel.right)
        kernel = kernel.left
    return [kernel, *reversed(terms)]


def _is_plain(term: Kernel) -> TypeGuard[Matern]:
    """Matern of a half-integer order and one lengthscale, of variance 1."""
    return (
        isinstance(term, Matern)
        and isinstance(term.lengthscale, float)
        and term.variance == 1.0
        and 0.5 <= term.nu < LARGE_ORDER
        and (term.nu - 0.5).is_integer()
    )
