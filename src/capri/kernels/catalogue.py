"""Kernels by description and by name: what a saved file and the shell speak."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from capri.checks import positive
from capri.errors import ConfigurationError
from capri.kernels.algebra import ContextAction, Kernel, Product, Sum
from capri.kernels.auto import Auto
from capri.kernels.categories import Categories, Columns, Constant
from capri.kernels.linear import Linear
from capri.kernels.stationary import RBF, Lengthscale, Matern, RationalQuadratic

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
