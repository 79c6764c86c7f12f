"""The coordinates that a bundle is written in: pivots of a kernel, or products of two factors.

Of a known kernel a bundle holds ``pivots`` and ``transform``. Of an unknown one it holds, below the
name ``span``,

    context.*, action.*     of each factor: centre, rate, axes, pivots, transform, offset
    left, right             which feature of either one makes each product, as whole numbers

and in its header, as ``span``, the kernels of both factors. Arrays without numbers are left out: a
factor that is constant has none but centre and rate. So are those that are the identity, which the
actions and the pivots of unrelated actions are. The features of actions that are the same for all
contexts are computed when a bundle is opened.

All of it is public. It comes from somebody the device does not trust, so shapes are compared before
anything is computed with them, and what is built takes the same time at every context.

Processors take a hundred times longer for numbers below 1e-308 than for others, NaN ends a search
early, and a bundle comes from somebody who would like to know why a device took long. So numbers
keep a distance from both: with

    contexts, rewards, arrays of the bundle     0, or at least 1e-60 in size
    kernel values                               0, or at least 1e-100 and at most 1e60
    coordinates v(w), whitened features psi(w)  0, or at least 1e-60
    scores, features u(c) and z(x) of a product 0, or at least 1e-60; features at most 1e35

and arrays of at most 1e15, products and sums of them are multiples of numbers above 1e-300 and stay
below 1e300, wherever a device forms them. Only what is far below any rounding error is changed.

What one decision may ask of a device is limited: numbers held at once, kernel arithmetic, and
products, counted from shapes alone before anything is computed. None of it depends on a context.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.play import BehaviourPolicy, ThompsonLaw
from capri.errors import BundleError
from capri.family.basis import ProductBasis
from capri.family.factor import FARTHEST_SCORE, Factor, Scores
from capri.features import Basis, LowRankFeatures, Span, row_by_row
from capri.kernels import SHIPPED, from_dict
from capri.kernels.evaluate import steady, without_tiny
from capri.kernels.stationary import LARGE_ORDER
from capri.spaces import Actions, FixedActions, VaryingActions

LEAST = 1e-60
# Products of two features stay below those of a kernel and an array.
_MOST_FEATURE = 1e35


def settled(values: FloatArray) -> FloatArray:
    """The same numbers, in place, with 0 for those that are closer to it than ``LEAST``."""
    return without_tiny(values, LEAST)


class SteadyScores(Scores):
    """Scores on a common scale that are settled before and after they are turned."""

    def __call__(self, rows: FloatArray) -> FloatArray:
        """The scores of each row, by itself."""
        scores = (rows - self.centre) * self.rate
        np.maximum(scores, -FARTHEST_SCORE, out=scores)
        np.minimum(scores, FARTHEST_SCORE, out=scores)
        settled(scores)
        return scores if self.axes is None else settled(row_by_row(scores, self.axes))


class SteadyFactor(Factor):
    """Features of one side that are settled, and limited: they are multiplied by the other's."""

    def __call__(self, rows: FloatArray) -> FloatArray:
        """``u`` of each row."""
        found = super().__call__(rows)
        np.maximum(found, -_MOST_FEATURE, out=found)
        np.minimum(found, _MOST_FEATURE, out=found)
        return settled(found)


Arrays = dict[str, FloatArray]
# How deep kernels may be nested: evaluating them must not depend on the depth of the caller.
_DEEPEST = 64
# Up to so many rows an identity is left out: a few bytes must not ask for more than 32 MB.
_MOST_INDICATORS = 1 << 11
_SIDES = ("context", "action")
# The largest number that a bundle may hold.
_LARGEST = 1e15
_BELOW = "span."


def span_state(features: LowRankFeatures) -> tuple[dict[str, Any], Arrays]:
    """What a bundle says of its coordinates: entries of the header, and arrays."""
    basis = features.basis
    if not isinstance(basis, ProductBasis):
        kernel_basis = features.kernel_basis
        return {}, {"pivots": kernel_basis.pivots, "transform": kernel_basis.transform}
    kernels, arrays = basis.state()
    arrays.pop("table", None)
    _check_scales(arrays)
    for side, used in zip(_SIDES, (basis.left, basis.right), strict=True):
        check_kernel(kernels[side])
        # Features that no product needs stay here; one is left, to tell how many rows there are.
        most = max(1, int(used.max(initial=0)))
        arrays[f"{side}.transform"] = arrays[f"{side}.transform"][:, :most]
        arrays[f"{side}.offset"] = arrays[f"{side}.offset"][:most]
        constant, pivots = not arrays[f"{side}.offset"].size, f"{side}.pivots"
        if constant or _is_identity(arrays[pivots]):
            del arrays[pivots]
    return {"span": kernels}, {f"{_BELOW}{name}": a for name, a in arrays.items() if a.size}


def _check_scales(arrays: Arrays) -> None:
    """Say now what every device would refuse."""
    centre, rate = np.abs(arrays["context.centre"]), np.abs(arrays["context.rate"])
    if (np.maximum(centre, rate) > _LARGEST).any():
        column = int((np.maximum(centre, rate) > _LARGEST).argmax())
        raise BundleError(
            f"column {column} of the public contexts is too far from 0, or varies too little, for "
            f"devices: its mean and one over its deviation must be below {_LARGEST:g}. Shift or "
            "scale it"
        )


def action_state(actions: FixedActions, *, products: bool) -> Arrays:
    """Rows of the actions; none where they are unrelated and coordinates are products."""
    return {} if products and _is_identity(actions.rows) else {"actions": actions.rows}


def action_rows(header: Mapping[str, Any], arrays: Arrays) -> FloatArray:
    """The inverse of :func:`action_state`."""
    if "span" in header and "actions" not in arrays:
        return _identity(len(arrays[f"{_BELOW}action.transform"]))
    return arrays["actions"]


def _is_identity(rows: FloatArray) -> bool:
    count = len(rows)
    square = rows.shape == (count, count) and count <= _MOST_INDICATORS
    return square and bool((rows == np.eye(count)).all())


def _identity(count: int) -> FloatArray:
    if count > _MOST_INDICATORS:
        raise BundleError("the bundle is malformed: it leaves out an array that is too large")
    return np.eye(count)


def span_of(
    header: Mapping[str, Any], arrays: Arrays, actions: Actions, context_dimension: int
) -> tuple[Span, tuple[int, int]]:
    """The coordinates, steady, and how many parts the kernels of contexts and of actions have."""
    own = context_dimension
    if isinstance(actions, VaryingActions):
        own -= actions.count * actions.dimension
    if own < 0:
        raise BundleError("the bundle is malformed: contexts are too short for their actions")
    parts = check_kernel(header["kernel"])
    if "span" not in header:
        return _kernel_basis(header["kernel"], arrays, own + actions.dimension), (parts, parts)
    kernels = header["span"]
    if set(kernels) != set(_SIDES):
        raise BundleError(f"the bundle is malformed: a span has {' and '.join(_SIDES)}")
    parts_of = (check_kernel(kernels["context"]), check_kernel(kernels["action"]))
    given = {name[len(_BELOW) :]: a for name, a in arrays.items() if name.startswith(_BELOW)}
    context = _factor(kernels["context"], _side("context", given), own)
    action = _factor(kernels["action"], _side("action", given), actions.dimension)
    left = _indices(given.get("left"), context.width)
    right = _indices(given.get("right"), action.width)
    if left.shape != right.shape:
        raise BundleError("the bundle is malformed: its products do not fit their factors")
    if not factors_fit(context, action, actions.count, parts_of):
        raise BundleError("the bundle asks for more work than a device should do", "too-much-work")
    table = action(actions.rows) if isinstance(actions, FixedActions) else None
    return ProductBasis(context, action, left, right, table, settled), parts_of


def _kernel_basis(kernel: dict[str, Any], arrays: Arrays, columns: int) -> Basis:
    pivots, transform = arrays["pivots"], arrays["transform"]
    if pivots.ndim != 2 or transform.ndim != 2 or len(pivots) != len(transform):
        raise BundleError("the bundle is malformed: pivots and transform must be matrices that fit")
    if pivots.shape[1] != columns:
        raise BundleError("the bundle is malformed: pivots, contexts and actions do not fit")
    return Basis(steady(from_dict(kernel)), pivots, transform, settled)


def _factor(kernel: dict[str, Any], arrays: Arrays, columns: int) -> SteadyFactor:
    """One side; every shape follows from that of the transform."""
    if not {"pivots", "transform", "offset"} & set(arrays):  # a constant
        nothing = np.zeros((0, 0))
        arrays = arrays | {"pivots": nothing, "transform": nothing, "offset": np.zeros(0)}
    elif "pivots" not in arrays:
        arrays = arrays | {"pivots": _identity(len(arrays["transform"]))}
    if not columns:
        arrays = {"centre": np.zeros(0), "rate": np.zeros(0)} | arrays
    axes, transform = arrays.get("axes"), arrays["transform"]
    turned = columns if axes is None else axes.shape[-1]
    features = transform.shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        "centre": (columns,),
        "rate": (columns,),
        "axes": (columns, turned),
        "pivots": (len(transform), turned if features else 0),
        "transform": (len(transform), features),
        "offset": (features,),
    }
    if any(shapes.get(name) != array.shape for name, array in arrays.items()):
        raise BundleError("the bundle is malformed: the parts of a factor do not fit")
    return SteadyFactor(
        SteadyScores(arrays["centre"], arrays["rate"], axes),
        steady(from_dict(kernel)),
        arrays["pivots"],
        transform,
        arrays["offset"],
    )


def _side(side: str, arrays: Arrays) -> Arrays:
    return {
        name.removeprefix(f"{side}."): array
        for name, array in arrays.items()
        if name.startswith(f"{side}.")
    }


def _indices(numbers: FloatArray | None, width: int) -> IntArray:
    """Whole numbers from 0 to below ``width``."""
    if numbers is not None and numbers.ndim == 1:
        whole = numbers == np.floor(numbers)
        if (whole & (numbers >= 0) & (numbers < width)).all():
            return numbers.astype(np.int64)
    raise BundleError("the bundle is malformed: a product of features that are not there")


def check_kernel(description: Any, depth: int = 1) -> int:
    """Refuse kernels that could fail, or take long, at some contexts only; counts their parts.

    Whether and when a report is made would tell the server which: contexts reach 1e100, and
    numbers between 1e-30 and 1e30 leave squares of their quotients far from overflow. Bessel
    functions take a hundred times longer at some distances than at others.
    """
    if depth > _DEEPEST:
        raise BundleError(f"devices take kernels that are nested at most {_DEEPEST} deep")
    if isinstance(description, dict) and description.get("type") not in SHIPPED:
        raise BundleError(f"devices cannot compute a kernel of type {description.get('type')!r}")
    parts = 1
    values = description.values() if isinstance(description, dict) else description
    for value in values:
        if isinstance(value, dict | list):
            parts += check_kernel(value, depth + 1)
        elif isinstance(value, int | float) and value and not 1e-30 <= abs(value) <= 1e30:
            raise BundleError(
                "the bundle is malformed: the numbers of a kernel must lie in 1e-30 to 1e30"
            )
    order: Any = description.get("nu", "inf") if isinstance(description, dict) else "inf"
    number = isinstance(order, int | float) and not isinstance(order, bool)
    if order != "inf" and not (number and 0 < order < LARGE_ORDER and (order - 0.5) % 1 == 0):
        raise BundleError(
            f"devices take Matern kernels of half-integer order below {LARGE_ORDER:g} only: 1/2, "
            "3/2, ..., or infinite order"
        )
    return parts


# -- work ------------------------------------------------------------------------------------------

# Numbers held at once (64 MB), kernel arithmetic and products (tens to hundreds of milliseconds),
# and coordinates of anything.
_MOST_NUMBERS, _MOST_WORK, _MOST_PRODUCTS, _WIDEST = 1 << 23, 1 << 27, 1 << 32, 1 << 12


def feasible(features: LowRankFeatures, behaviour: BehaviourPolicy, parts: tuple[int, int]) -> bool:
    """Whether a device should do it; ``parts``: of the kernels of contexts and of actions."""
    draws = behaviour.law.draws.shape[-1] if isinstance(behaviour.law, ThompsonLaw) else 1
    count, width = behaviour.actions.count, max(draws, features.basis.rank, features.rank)
    rounds = 1 if behaviour.bounds is None else behaviour.bounds.rounds
    if count * draws * rounds > _MOST_WORK:  # the law is asked once more for every ceiling
        return False
    if isinstance(features.basis, ProductBasis):
        return _products(features.basis, count, width, draws, parts)
    pivots, columns = (int(side) for side in features.kernel_basis.pivots.shape)
    values, width = count * pivots * parts[0], max(width, pivots, columns)
    return (
        width <= _WIDEST
        and count * width <= _MOST_NUMBERS
        and values * (columns + 8) <= _MOST_WORK
        and values * width <= _MOST_PRODUCTS
    )


def factors_fit(context: Factor, action: Factor, count: int, parts: tuple[int, int]) -> bool:
    """Whether features of one context and of all actions fit a device: asked before the others."""
    return _fit(context, action, count, parts, rank=1, width=1)


def _products(
    basis: ProductBasis, count: int, width: int, draws: int, parts: tuple[int, int]
) -> bool:
    """The factors, then all products of the two.

    The law of fixed actions is one product with ``brackets``, which are made when a bundle is
    opened (:meth:`ProductBasis.values`).
    """
    context, action = basis.context, basis.action
    brackets = context.width * max(count, action.width) * draws
    return (
        _fit(context, action, count, parts, rank=basis.rank, width=width)
        and brackets <= _MOST_NUMBERS
        and brackets * action.width <= _MOST_PRODUCTS
    )


def _fit(
    context: Factor,
    action: Factor,
    count: int,
    parts: tuple[int, int],
    *,
    rank: int,
    width: int,
) -> bool:
    widest = max(rank, width, *_sides(context), *_sides(action))
    work = _values(context, parts[0]) + count * _values(action, parts[1])
    products = _turned(context) + count * (_turned(action) + rank * width)
    return (
        widest <= _WIDEST
        and count * widest <= _MOST_NUMBERS
        and work <= _MOST_WORK
        and products <= _MOST_PRODUCTS
    )


def _sides(factor: Factor) -> tuple[int, ...]:
    return factor.columns, factor.width, *factor.pivots.shape


def _values(factor: Factor, parts: int) -> int:
    """Kernel arithmetic of one row."""
    pivots, columns = factor.pivots.shape
    return int(pivots * (columns + 8) * parts)


def _turned(factor: Factor) -> int:
    """Products with the axes and the transform of one row."""
    pivots, columns = factor.pivots.shape
    return int(factor.columns * columns + pivots * factor.width)
