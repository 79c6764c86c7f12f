"""A kernel against the same points again and again, for a few rows at a time.

Who decides for one context asks for ``k(c, pivots)`` with pivots that stay. What belongs to them is
scaled once, and Matern terms of one order are evaluated together: a call of NumPy takes longer than
the numbers of one row. Every number is computed by the same operations in the same order as the
kernel's own, so that both agree to the last bit: a decision never depends on how many ask at once.
"""

from typing import TypeGuard

import numpy as np

from capri.arrays import FloatArray
from capri.kernels.algebra import Kernel, Sum
from capri.kernels.basic import Linear
from capri.kernels.stationary import BLOCK, LARGE_ORDER, Matern, half_integer


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
