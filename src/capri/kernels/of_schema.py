"""The kernel that suits a schema: distances for numbers, equality for categories."""

from math import prod

from capri.errors import ConfigurationError
from capri.kernels.algebra import Kernel
from capri.kernels.categories import Categories, Columns
from capri.kernels.stationary import Matern
from capri.schema import Numeric, Schema

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
    return prod(parts[1:], start=parts[0])
