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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from capri.arrays import FloatArray
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

# Kernels that descriptions may name.
BY_TYPE: dict[str, type[Kernel]] = {}
SHIPPED: set[str] = set()
# Rows that a kernel of one's own is tried on, and how far from zero some of them lie.
_ROWS, _FARTHEST = 24, 1e100
_SLACK = 1e-8

K = TypeVar("K", bound=type[Kernel])

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


# -- kernels of one's own -------------------------------------------------------------------------
#
# A decision must not fail, take another value or warn for one user and not for another, so what
# such a kernel does at far, equal and single rows is tried before a policy is built.


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
