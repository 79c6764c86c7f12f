"""Differentially private contextual kernel bandits.

>>> import numpy as np
>>> policy = Capri(
...     kernel=kernels.Matern(nu=2.5, lengthscale=0.3),
...     actions=np.linspace(0, 1, 5)[:, None],
...     contexts=ContextPool(np.linspace(0, 1, 4)[:, None]),
...     budget=Budget(epsilon=1.0, delta=1e-5),
...     horizon=100,
... )
>>> decision = policy.act([0.0])
>>> policy.update(decision, 0.5)
<RewardStatus.ACCEPTED: 0>
"""

import typing as _typing

from capri import environments, kernels
from capri.decisions import Decision, Decisions, RewardStatus
from capri.errors import (
    BudgetError,
    CapriError,
    ConfigurationError,
    DataError,
    HorizonError,
    PrivacyLeakWarning,
    RewardIgnoredWarning,
    ShapeError,
    StorageError,
)
from capri.learners.options import PracticalOptions
from capri.learners.paper import PaperOptions
from capri.plan import EpochRecord
from capri.policy import Capri
from capri.privacy.budget import Budget
from capri.simulation import SimulationResult, simulate
from capri.spaces import ContextPool, ContextSampler, VaryingActions

if _typing.TYPE_CHECKING:
    from capri.regression import PrivateKernelRidge

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "Capri",
    "CapriError",
    "ConfigurationError",
    "ContextPool",
    "ContextSampler",
    "DataError",
    "Decision",
    "Decisions",
    "EpochRecord",
    "HorizonError",
    "PaperOptions",
    "PracticalOptions",
    "PrivacyLeakWarning",
    "PrivateKernelRidge",
    "RewardIgnoredWarning",
    "RewardStatus",
    "ShapeError",
    "SimulationResult",
    "StorageError",
    "VaryingActions",
    "environments",
    "kernels",
    "simulate",
]


def __getattr__(name: str) -> _typing.Any:
    """Load the estimator when it is asked for: it needs scikit-learn, which nothing else does."""
    if name != "PrivateKernelRidge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from capri.regression import PrivateKernelRidge
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != "sklearn":
            raise
        raise ImportError(
            "PrivateKernelRidge needs scikit-learn: pip install 'capri-bandits[ridge]'"
        ) from missing
    return PrivateKernelRidge
