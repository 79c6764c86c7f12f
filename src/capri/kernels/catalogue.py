"""Kernels by description, by name and by schema: what a saved file, the shell and a table speak."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from capri.checks import positive
from capri.errors import ConfigurationError
from capri.kernels.algebra import ContextAction, Kernel, Product, Sum
from capri.kernels.basic import Auto, Categories, Columns, Constant, Linear
from capri.kernels.stationary import RBF, Lengthscale, Matern, RationalQuadratic
from capri.schema import Numeric, Schema

_BY_TYPE: dict[str, type[Kernel]] = {
    kind.__name__: kind
    for kind in (
        RBF,
        Matern,
        RationalQuadratic,
        Linear,
        Constant,
        Categories,
        Sum,
        Product,
        ContextAction,
        Columns,
        Auto,
    )
}


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
    kind = _BY_TYPE.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigurationError(f"kernel type must be one of {', '.join(_BY_TYPE)}, got {name!r}")
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
    >>> import numpy as np
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
