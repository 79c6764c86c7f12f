"""Walking a kernel for its lengthscales: the same kernel stretched, and who shares one scale."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from capri.kernels.algebra import ContextAction, Kernel
from capri.kernels.basic import Columns, Linear
from capri.kernels.stationary import _Stationary


def stretched(kernel: Kernel, factor: float) -> Kernel | None:
    """The kernel with every lengthscale multiplied by a factor; None where it has none.

    >>> from capri.kernels import RBF, Categories
    >>> stretched(RBF(lengthscale=(1.0, 0.5)) + Categories(), 2.0).left
    RBF(lengthscale=(2.0, 1.0), variance=1.0)
    >>> stretched(Categories(), 2.0) is None
    True
    """
    changed: dict[str, Any] = {}
    if isinstance(kernel, _Stationary):
        with np.errstate(over="ignore"):
            scale = factor * np.asarray(kernel.lengthscale)
        if not (np.isfinite(scale) & (scale > 0)).all():
            return None  # beyond what a number can hold
        changed["lengthscale"] = scale
    for name, part in _parts(kernel):
        if (other := stretched(part, factor)) is not None:
            changed[name] = other
    return replace(kernel, **changed) if changed else None  # type: ignore[type-var]


def sharing_one_scale(kernel: Kernel, columns: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Groups of columns that the kernel measures by one and the same number.

    >>> from capri.kernels import RBF
    >>> list(sharing_one_scale(ContextAction(RBF(), RBF((1.0, 2.0)), 2), range(4)))
    [(0, 1)]
    """
    columns = tuple(columns)
    if isinstance(kernel, Linear) or (
        isinstance(kernel, _Stationary) and not isinstance(kernel.lengthscale, tuple)
    ):
        yield columns
    for name, part in _parts(kernel):
        own = columns
        if isinstance(kernel, Columns):
            own = tuple(columns[place] for place in kernel.columns)
        elif isinstance(kernel, ContextAction):
            split = kernel.context_dimension
            own = columns[:split] if name == "context" else columns[split:]
        yield from sharing_one_scale(part, own)


def _parts(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """The kernels that a kernel is made of, by the names of their fields."""
    if not is_dataclass(kernel):
        return  # of the caller's own making: it may have scales that nobody knows of
    for field in fields(kernel):
        value = getattr(kernel, field.name)
        if isinstance(value, Kernel):
            yield field.name, value
