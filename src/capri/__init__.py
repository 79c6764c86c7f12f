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

import importlib
import typing

from capri import moved

if typing.TYPE_CHECKING:
    from capri import datasets, environments, kernels
    from capri.epoch.decide import Decision, Decisions, RewardStatus, VisitStatus
    from capri.epoch.plan import EpochRecord
    from capri.errors import (
        BudgetError,
        BundleError,
        CapriError,
        ConfigurationError,
        DataError,
        HorizonError,
        PrivacyLeakWarning,
        RewardIgnoredWarning,
        ShapeError,
        StorageError,
    )
    from capri.experiments.frames import load_results
    from capri.joint.policy import Capri
    from capri.learners.options import PracticalOptions
    from capri.learners.paper import PaperOptions
    from capri.local.aggregator import LocalCapri, ReportStatus
    from capri.local.client import LocalClient
    from capri.privacy.budget import Budget
    from capri.regression import PrivateKernelRidge
    from capri.simulation import SimulationResult, simulate
    from capri.spaces import ContextPool, ContextSampler, VaryingActions

__version__ = "0.1.0"
moved.install()

# Where each public name lives. Loaded when it is asked for: a device that only needs LocalClient
# loads NumPy and a few small files.
_HOMES = {
    "Budget": "capri.privacy.budget",
    "BudgetError": "capri.errors",
    "BundleError": "capri.errors",
    "Capri": "capri.joint.policy",
    "CapriError": "capri.errors",
    "ConfigurationError": "capri.errors",
    "ContextPool": "capri.spaces",
    "ContextSampler": "capri.spaces",
    "DataError": "capri.errors",
    "Decision": "capri.epoch.decide",
    "Decisions": "capri.epoch.decide",
    "EpochRecord": "capri.epoch.plan",
    "HorizonError": "capri.errors",
    "LocalCapri": "capri.local.aggregator",
    "LocalClient": "capri.local.client",
    "PaperOptions": "capri.learners.paper",
    "PracticalOptions": "capri.learners.options",
    "PrivacyLeakWarning": "capri.errors",
    "PrivateKernelRidge": "capri.regression",
    "ReportStatus": "capri.local.aggregator",
    "RewardIgnoredWarning": "capri.errors",
    "RewardStatus": "capri.epoch.decide",
    "ShapeError": "capri.errors",
    "SimulationResult": "capri.simulation",
    "StorageError": "capri.errors",
    "VaryingActions": "capri.spaces",
    "VisitStatus": "capri.epoch.decide",
    "load_results": "capri.experiments.frames",
    "simulate": "capri.simulation",
}

__all__ = [
    "Budget",
    "BudgetError",
    "BundleError",
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
    "LocalCapri",
    "LocalClient",
    "PaperOptions",
    "PracticalOptions",
    "PrivacyLeakWarning",
    "PrivateKernelRidge",
    "ReportStatus",
    "RewardIgnoredWarning",
    "RewardStatus",
    "ShapeError",
    "SimulationResult",
    "StorageError",
    "VaryingActions",
    "VisitStatus",
    "datasets",
    "environments",
    "kernels",
    "load_results",
    "simulate",
]


def __getattr__(name: str) -> typing.Any:
    if name in ("datasets", "environments", "kernels"):
        return importlib.import_module(f"capri.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'capri' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != "sklearn":
            raise
        raise ImportError(
            f"{name} needs scikit-learn: pip install 'capri-bandits[ridge]'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
