"""Kernels: frozen, composable, and the same for a row whatever batch it comes in.

Rows are points ``w``; a kernel called on ``n`` and ``k`` rows gives the ``(n, k)`` matrix of
``k(w, w')``. The algorithm needs ``k(w, w) <= 1``, which ``check_bounded`` verifies. A value
depends on its two rows only, never on their neighbours in the batch, so a decision made alone and
one made among thousands agree bit for bit; this is why no matrix product (BLAS) is used here.

>>> import numpy as np
>>> kernel = Matern(nu=2.5, lengthscale=0.3) * RBF(lengthscale=(1.0,))
>>> kernel(np.zeros((2, 1)), np.zeros((3, 1))).shape
(2, 3)
>>> from_dict(kernel.to_dict()) == kernel
True
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import numpy as np

from capri.checks import positive
from capri.errors import ConfigurationError
from capri.kernels.basic import (
    Auto,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Product,
    Sum,
    check_bounded,
    random_coefficients,
    scaled_coefficients,
)
from capri.kernels.own import BY_TYPE, SHIPPED, check_own, register
from capri.kernels.stationary import RBF, Lengthscale, Matern, RationalQuadratic, _Stationary
from capri.schema import Numeric, Schema

__all__ = [
    "KERNEL_NAMES",
    "RBF",
    "Auto",
    "Categories",
    "Columns",
    "Constant",
    "ContextAction",
    "Kernel",
    "Lengthscale",
    "Linear",
    "Matern",
    "Product",
    "RationalQuadratic",
    "Sum",
    "check_bounded",
    "check_own",
    "from_dict",
    "kernel_by_name",
    "random_coefficients",
    "register",
    "scaled_coefficients",
    "schema_kernel",
]

for _kind in (RBF, Matern, RationalQuadratic, Linear, Constant, Categories, Sum, Product,
              ContextAction, Columns, Auto):  # fmt: skip
    BY_TYPE[_kind.__name__] = _kind
SHIPPED |= set(BY_TYPE)


def from_dict(description: Mapping[str, object]) -> Kernel:
    """The kernel that ``to_dict`` described.

    >>> from_dict({"type": "RBF", "lengthscale": 0.3, "variance": 1.0})
    RBF(lengthscale=0.3, variance=1.0)
    """
    if not isinstance(description, Mapping):
        raise ConfigurationError(
            f"a kernel description must be a mapping, got {type(description).__name__}"
        )
    name = description.get("type")
    kind = BY_TYPE.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigurationError(
            f"kernel type must be one of {', '.join(BY_TYPE)}, got {name!r}: a class of your own "
            "is registered first, by capri.kernels.register"
        )
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    given = {key: value for key, value in description.items() if key != "type"}
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigurationError(
            f"{name} has the fields {', '.join(known)}, got {', '.join(map(repr, unknown))}: "
            "the description may come from a newer version"
        )
    missing = [key for key in known if key not in given and known[key].default is MISSING]
    if missing:
        raise ConfigurationError(f"{name} needs {', '.join(missing)}, got {list(given)}")
    values: dict[str, Any] = {key: _from_json(value) for key, value in given.items()}
    return kind(**values)


def _from_json(value: object) -> object:
    if isinstance(value, Mapping):
        return from_dict(value)
    return math.inf if value == "inf" else value


KERNEL_NAMES = ("rbf", "matern12", "matern32", "matern52", "rq", "linear")


def kernel_by_name(name: str, lengthscale: Lengthscale = 1.0) -> Kernel:
    """The kernel behind a short name; "linear" is ``<w, w'> / lengthscale^2``.

    >>> kernel_by_name("matern52", 0.3)
    Matern(nu=2.5, lengthscale=0.3, variance=1.0)
    """
    match name:
        case "rbf":
            return RBF(lengthscale=lengthscale)
        case "matern12" | "matern32" | "matern52":
            return Matern(nu=int(name[-2]) / 2, lengthscale=lengthscale)
        case "rq":
            return RationalQuadratic(lengthscale=lengthscale)
        case "linear":
            return Linear(variance=positive("lengthscale", lengthscale) ** -2)
    raise ConfigurationError(f"kernel must be one of {', '.join(KERNEL_NAMES)}, got {name!r}")


_SMOOTH = Matern(nu=2.5, lengthscale=0.5)


def schema_kernel(schema: Schema, *, numeric: Kernel = _SMOOTH, similarity: float = 0.5) -> Kernel:
    """``k = numeric(all numbers) * prod over categories (1 if equal, else similarity)``.

    Truth values are categories here. Numbers lie in [0, 1], so a lengthscale is a share of the
    declared range.

    >>> from capri.schema import Boolean
    >>> kernel = schema_kernel(Schema([Numeric("age", 0, 100), Boolean("member")]))
    >>> kernel(np.array([[0.3, 1.0]]), np.array([[0.3, 0.0]]))
    array([[0.5]])
    """
    if not isinstance(schema, Schema):
        raise ConfigurationError(f"schema must be a capri.Schema, got {type(schema).__name__}")
    numbers = [column.name for column in schema.columns if isinstance(column, Numeric)]
    parts: list[Kernel] = []
    if numbers:
        places = tuple(place for name in numbers for place in schema.places(name))
        parts.append(Columns(numeric, places))
    others = [name for name in schema.names if name not in numbers]
    parts += [Columns(Categories(similarity), schema.places(name)) for name in others]
    return math.prod(parts[1:], start=parts[0])


def stretched(kernel: Kernel, factor: float) -> Kernel | None:
    """The kernel with every lengthscale multiplied by a factor; None where it has none.

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
