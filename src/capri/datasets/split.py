"""Which rows are public. Everything a policy is told in advance comes from these rows alone."""

import math
from numbers import Real

import numpy as np

from capri.arrays import BoolArray
from capri.errors import ConfigurationError, ShapeError
from capri.streams import TABLE_SPLIT


def public_mask(
    count: int, *, public_share: float | None = None, public: object = None, seed: int = 0
) -> BoolArray:
    """True for public rows: given as a mask, or a share of the rows drawn at random.

    A share is rounded to whole rows and depends on the number of rows and the seed only, never on
    what the rows hold.

    >>> int(public_mask(10, public_share=0.3).sum())
    3
    """
    if (public_share is None) == (public is None):
        raise ConfigurationError(
            "say which rows are public: give either public_share, a share of the rows, or public, "
            "a column or a mask of True and False"
        )
    if public is not None:
        mask = _as_mask(public, count)
    else:
        mask = np.zeros(count, dtype=np.bool_)
        generator = np.random.default_rng([_checked_seed(seed), TABLE_SPLIT])
        mask[generator.permutation(count)[: round(_share(public_share) * count)]] = True
    if mask.sum() < 2 or mask.all():
        raise ConfigurationError(
            f"at least 2 rows must be public and 1 private, got {int(mask.sum())} public of {count}"
        )
    return mask


def _as_mask(public: object, count: int) -> BoolArray:
    mask = np.asarray(public)
    if mask.dtype != np.bool_:
        raise ConfigurationError(
            f"public must be a mask of True and False, one per row, got {mask.dtype} values"
        )
    if mask.shape != (count,):
        raise ShapeError(f"public must have shape ({count},), one per row, got {mask.shape}")
    return mask.copy()


def _share(share: object) -> float:
    number = float(share) if isinstance(share, Real) and not isinstance(share, bool) else math.nan
    if not 0.0 < number < 1.0:
        raise ConfigurationError(f"public_share must lie between 0 and 1, got {share!r}")
    return number


def _checked_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigurationError(f"seed must be a whole number of 0 or more, got {seed!r}")
    return int(seed)
