"""The parameters that every estimator here takes, written down once.

scikit-learn reads the names of parameters off the signature of ``__init__``. That of a dataclass is
made of its fields and those of its bases, so an estimator adds its own and repeats none.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, eq=False, repr=False)
class SharedParameters:
    """What is taken by all; their meaning is told by :class:`PrivateKernelRidge`."""

    kernel: Any = "auto"
    epsilon: float = 1.0
    delta: float = 1e-5
    tau: Any = "auto"
    X_bounds: Any = None
    public_X: Any = None  # noqa: N815 (scikit-learn calls rows X)
    rank: Any = "auto"
    calibration: str = "analytic"
    random_state: Any = None
    weight_bound: float = 1.0


@dataclass(eq=False, repr=False)
class RidgeParameters(SharedParameters):
    """Of regression: the kernel may be given by its place."""

    kernel: Any = "auto"
    y_bounds: Any = field(default=None, kw_only=True)
    stream_rows: int = field(default=100_000, kw_only=True)


@dataclass(eq=False, repr=False)
class ClassifierParameters(SharedParameters):
    """Of classification: the classes may be given by their place."""

    classes: Any = None


@dataclass(eq=False, repr=False)
class QuantileParameters(SharedParameters):
    """Of quantiles: they may be given by their place."""

    quantiles: Any = (0.1, 0.5, 0.9)
    y_bounds: Any = field(default=None, kw_only=True)
