"""The parameters of an estimator, checked once and turned into what the engine takes."""

from dataclasses import dataclass
from math import inf, sqrt
from numbers import Integral, Real
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError, ShapeError
from capri.kernels import RBF, Kernel, Matern
from capri.privacy.budget import Budget

# Rows further out than this many box widths are moved to the edge, in fit and in predict.
_MARGIN = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked parameters."""

    budget: Budget | None
    tau: float | None
    rank: int | None
    calibration: str
    stream_rows: int


def checked(
    *, epsilon: Any, delta: Any, tau: Any, rank: Any, calibration: Any, stream_rows: Any
) -> Options:
    """Refuse what makes no sense; an infinite epsilon means no privacy."""
    budget = None
    if not (isinstance(epsilon, Real) and not isinstance(epsilon, bool) and epsilon == inf):
        budget = Budget(epsilon=epsilon, delta=delta)
    if not _is_auto(tau) and not (
        isinstance(tau, Real) and not isinstance(tau, bool) and 0 < float(tau) < inf
    ):
        raise ConfigurationError(f"tau must be 'auto' or positive and finite, got {tau!r}")
    for name, value in (("rank", rank), ("stream_rows", stream_rows)):
        if name == "rank" and _is_auto(value):
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(f"{name} must be a whole number of at least 1, got {value!r}")
    if calibration not in ("analytic", "paper"):
        raise ConfigurationError(f"calibration must be 'analytic' or 'paper', got {calibration!r}")
    return Options(
        budget=budget,
        tau=None if _is_auto(tau) else float(tau),
        rank=None if _is_auto(rank) else int(rank),
        calibration=calibration,
        stream_rows=int(stream_rows),
    )


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def checked_bounds(name: str, bounds: Any, columns: int) -> tuple[FloatArray, FloatArray]:
    """``(low, high)``: numbers for all columns, or one number each."""
    try:
        low, high = bounds
        low = np.broadcast_to(np.asarray(low, dtype=np.float64), (columns,)).copy()
        high = np.broadcast_to(np.asarray(high, dtype=np.float64), (columns,)).copy()
    except (TypeError, ValueError):
        raise ShapeError(
            f"{name} must be (low, high), numbers or one per column ({columns})"
        ) from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ConfigurationError(f"{name} must be finite with low < high in every column")
    return low, high


def checked_kernel(kernel: Any, low: FloatArray, high: FloatArray) -> Kernel:
    """A kernel as given, or by name with lengthscales of ``sqrt(d) / 2`` box widths."""
    if isinstance(kernel, Kernel):
        return kernel
    width = high - low
    scales = tuple((np.where(width > 0, width, 1.0) * sqrt(len(width)) / 2).tolist())
    if isinstance(kernel, str) and kernel == "rbf":
        return RBF(lengthscale=scales)
    if isinstance(kernel, str) and kernel == "matern":
        return Matern(nu=2.5, lengthscale=scales)
    raise ConfigurationError(f"kernel must be 'rbf', 'matern' or a capri kernel, got {kernel!r}")


def outer_box(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The box that rows are moved into: far outside, features would overflow and mean nothing."""
    width = np.maximum(high - low, np.maximum(np.abs(low), 1.0) * 1e-6)
    width = np.where(np.isinf(width), np.finfo(np.float64).max / 100, width)
    return low - _MARGIN * width, high + _MARGIN * width
