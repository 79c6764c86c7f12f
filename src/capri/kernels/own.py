"""Kernels of one's own: how files know them by name, and what a policy asks of them.

A decision must not fail, take another value or warn for one user and not for another, so what a
kernel of one's own does at far, equal and single rows is tried before a policy is built.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TypeVar

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.kernels.basic import Kernel

# Kernels that descriptions may name.
BY_TYPE: dict[str, type[Kernel]] = {}
SHIPPED: set[str] = set()
# Rows that a kernel of one's own is tried on, and how far from zero some of them lie.
_ROWS, _FARTHEST = 24, 1e100
_SLACK = 1e-8

K = TypeVar("K", bound=type[Kernel])


def register(kind: K) -> K:
    """Make a kernel of your own known, so that files, stores and certificates can name it.

    A decorator of a frozen dataclass that derives from :class:`Kernel`; its fields are numbers,
    texts, tuples of them, or kernels. A program that loads a policy registers the class first.

    >>> from dataclasses import dataclass
    >>> @register
    ... @dataclass(frozen=True)
    ... class Periodic(Kernel):
    ...     period: float = 1.0
    ...
    ...     @property
    ...     def constant_diagonal(self):
    ...         return 1.0
    ...
    ...     def _cross(self, left, right):
    ...         apart = np.sin(np.pi * (left[:, None] - right[None]) / self.period)
    ...         return np.exp(-2.0 * np.sum(apart**2, axis=2))
    >>> from capri.kernels import from_dict
    >>> from_dict({"type": "Periodic", "period": 0.5})
    Periodic(period=0.5)
    """
    if not (isinstance(kind, type) and issubclass(kind, Kernel)):
        raise ConfigurationError(
            f"register takes a class that derives from capri.kernels.Kernel, got {kind!r}"
        )
    name = kind.__name__
    if kind.__abstractmethods__:
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigurationError(f"kernel {name} lacks {missing}")
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        raise ConfigurationError(
            f"kernel {name} must be a frozen dataclass: its fields are what a file keeps of it"
        )
    if name in SHIPPED:
        raise ConfigurationError(f"kernel {name} is one of capri's own: give yours another name")
    for method in ("_cross", "_diagonal"):
        if method in vars(kind):
            setattr(kind, method, _total(vars(kind)[method]))
    BY_TYPE[name] = kind
    return kind


def _total(method: Callable[..., FloatArray]) -> Callable[..., FloatArray]:
    """Rows at which a method fails get NaN, which counts for nothing; no other row hears of them.

    A failure that reached a caller would tell of one visit, and end the epoch of all.
    """

    @wraps(method)
    def total(self: Kernel, rows: FloatArray, *others: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            try:
                return method(self, rows, *others)
            except Exception:
                if len(rows) > 1:
                    return np.concatenate([total(self, row[None], *others) for row in rows])
                return np.full((len(rows), *(len(each) for each in others)), np.nan)

    return total


def check_own(kernel: Kernel, dimension: int) -> None:
    """Refuse a kernel of one's own that no file could name, or that is no kernel of these rows."""
    own = [each for each in parts(kernel) if type(each).__name__ not in SHIPPED]
    if not own:
        return
    for each in own:
        name = type(each).__name__
        if BY_TYPE.get(name) is not type(each):
            raise ConfigurationError(
                f"kernel {name} is your own: decorate the class with capri.kernels.register, so "
                "that files, stores and certificates can name it"
            )
    said = f"kernel {type(own[0]).__name__}"
    points = np.random.default_rng(0).standard_normal((_ROWS, dimension))
    points[1] = points[0]
    points[2], points[3, 0] = 0.0, 0.0
    with np.errstate(all="ignore"):
        _check_values(kernel, points, said)
        _check_far(kernel, points, said)


def parts(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel and all that it is made of."""
    yield kernel
    if not is_dataclass(kernel):
        return
    for field in fields(kernel):
        if isinstance(value := getattr(kernel, field.name), Kernel):
            yield from parts(value)


def _check_values(kernel: Kernel, points: FloatArray, said: str) -> None:
    """``K = K^T``, eigenvalues of at least 0, ``k(w, w)`` on the diagonal, rows one by one."""
    values = kernel(points, points)
    if np.shape(values) != (len(points), len(points)) or not np.isfinite(values).all():
        raise ConfigurationError(f"{said} must give a finite matrix of one value for each pair")
    if np.abs(values - values.T).max() > _SLACK:
        raise ConfigurationError(f"{said} must be symmetric: k(v, w) = k(w, v)")
    if np.linalg.eigvalsh(values).min() < -_SLACK * len(points):
        raise ConfigurationError(f"{said} must be positive semi-definite")
    if np.abs(np.diagonal(values) - kernel.diagonal(points)).max() > _SLACK:
        raise ConfigurationError(f"{said} must have k(w, w) as its diagonal")
    alone = np.vstack([kernel(row[None], points) for row in points])
    if not np.array_equal(alone, values):
        raise ConfigurationError(
            f"{said} must give a row the same values alone and among others: use sums over axes "
            "rather than matrix products"
        )


def _check_far(kernel: Kernel, points: FloatArray, said: str) -> None:
    """Contexts are served up to 1e100, so values there must be numbers, too."""
    for scale in (1e-300, 1e10, _FARTHEST):
        try:
            values = kernel(points * scale, -points * scale)
        except Exception as problem:
            raise ConfigurationError(f"{said} fails at rows of size {scale:g}: {problem}") from None
        if not np.isfinite(values).all():
            raise ConfigurationError(f"{said} must be finite at rows of size {scale:g}")
