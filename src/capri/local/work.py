"""What one decision may ask of a device: a bundle comes from somebody who would keep it busy.

Counted from shapes alone, before anything is computed: numbers held at once, kernel arithmetic, and
products. None of it depends on a context.
"""

from capri.epoch.play import Conduct, ThompsonLaw
from capri.family.basis import ProductBasis
from capri.family.factor import Factor
from capri.features import LowRankFeatures

# Numbers held at once (64 MB), kernel arithmetic and products (tens to hundreds of milliseconds),
# and coordinates of anything.
_MOST_NUMBERS, _MOST_WORK, _MOST_PRODUCTS, _WIDEST = 1 << 23, 1 << 27, 1 << 32, 1 << 12


def feasible(features: LowRankFeatures, conduct: Conduct, parts: tuple[int, int]) -> bool:
    """Whether a device should do it; ``parts``: of the kernels of contexts and of actions."""
    draws = conduct.law.draws.shape[-1] if isinstance(conduct.law, ThompsonLaw) else 1
    count, width = conduct.actions.count, max(draws, features.basis.rank, features.rank)
    rounds = 1 if conduct.bounds is None else conduct.bounds.rounds
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
