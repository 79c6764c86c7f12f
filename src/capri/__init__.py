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

from capri import version

if typing.TYPE_CHECKING:
    from capri import environments as environments
    from capri import kernels as kernels
    from capri.audit.proof import AttackResult as AttackResult
    from capri.audit.proof import AuditResult as AuditResult
    from capri.client import Client as Client
    from capri.client import ServiceError as ServiceError
    from capri.epoch.decisions import Decision as Decision
    from capri.epoch.decisions import Decisions as Decisions
    from capri.epoch.decisions import VisitStatus as VisitStatus
    from capri.epoch.limits import Limits as Limits
    from capri.epoch.modes import Mode as Mode
    from capri.epoch.modes import Operation as Operation
    from capri.epoch.plan import EpochPlan as EpochPlan
    from capri.epoch.plan import EpochRecord as EpochRecord
    from capri.epoch.plan import Epochs as Epochs
    from capri.epoch.plan import Notice as Notice
    from capri.epoch.rewards import RewardStatus as RewardStatus
    from capri.epoch.shadow import ShadowRecord as ShadowRecord
    from capri.errors import AwayError as AwayError
    from capri.errors import BudgetError as BudgetError
    from capri.errors import BundleError as BundleError
    from capri.errors import CapriError as CapriError
    from capri.errors import ConfigurationError as ConfigurationError
    from capri.errors import DataError as DataError
    from capri.errors import HorizonError as HorizonError
    from capri.errors import InDoubtError as InDoubtError
    from capri.errors import KernelWarning as KernelWarning
    from capri.errors import MissingExtraError as MissingExtraError
    from capri.errors import PrivacyLeakWarning as PrivacyLeakWarning
    from capri.errors import RewardIgnoredWarning as RewardIgnoredWarning
    from capri.errors import ShapeError as ShapeError
    from capri.errors import StorageError as StorageError
    from capri.forecast.result import ExpectedEpoch as ExpectedEpoch
    from capri.forecast.result import ExpectedRegret as ExpectedRegret
    from capri.forecast.result import Forecast as Forecast
    from capri.forecast.result import KernelCost as KernelCost
    from capri.joint.policy import Capri as Capri
    from capri.learners.explanation import Explanation as Explanation
    from capri.learners.options import PracticalOptions as PracticalOptions
    from capri.learners.paper import PaperOptions as PaperOptions
    from capri.learners.prior import Prior as Prior
    from capri.local.aggregator import LocalCapri as LocalCapri
    from capri.local.client import LocalClient as LocalClient
    from capri.local.durable import Allowance as Allowance
    from capri.local.durable import DurableClient as DurableClient
    from capri.local.reports import ReportStatus as ReportStatus
    from capri.local.shuffler import Shuffler as Shuffler
    from capri.privacy.budget import Budget as Budget
    from capri.privacy.budget import PrivacyModel as PrivacyModel
    from capri.privacy.budget import Promise as Promise
    from capri.privacy.certificate import Certificate as Certificate
    from capri.privacy.certificate import Declaration as Declaration
    from capri.privacy.ledger import Ledger as Ledger
    from capri.privacy.ledger import ReleaseEvent as ReleaseEvent
    from capri.privacy.ledger import Spending as Spending
    from capri.privacy.shuffle import Shuffle as Shuffle
    from capri.regression import ErrorWidth as ErrorWidth
    from capri.regression import PrivateKernelClassifier as PrivateKernelClassifier
    from capri.regression import PrivateKernelQuantiles as PrivateKernelQuantiles
    from capri.regression import PrivateKernelRidge as PrivateKernelRidge
    from capri.regression import PublicScaler as PublicScaler
    from capri.regression.engine import ReportPlan as ReportPlan
    from capri.schema import Boolean as Boolean
    from capri.schema import Categorical as Categorical
    from capri.schema import Numeric as Numeric
    from capri.schema import Schema as Schema
    from capri.simulation import SimulationResult as SimulationResult
    from capri.simulation import simulate as simulate
    from capri.spaces import ContextPool as ContextPool
    from capri.spaces import ContextSampler as ContextSampler
    from capri.spaces import FixedActions as FixedActions
    from capri.spaces import VaryingActions as VaryingActions
    from capri.store.organisation import OrganisationLedger as OrganisationLedger

__version__ = version.VERSION

# Where each public name lives. Loaded when it is asked for: a device that only needs LocalClient
# loads NumPy and a few small files.
_NAMES = {
    "capri": ("environments", "kernels"),
    "capri.audit.proof": ("AttackResult", "AuditResult"),
    "capri.client": ("Client", "ServiceError"),
    "capri.epoch.decisions": ("Decision", "Decisions", "VisitStatus"),
    "capri.epoch.rewards": ("RewardStatus",),
    "capri.epoch.limits": ("Limits",),
    "capri.epoch.modes": ("Mode", "Operation"),
    "capri.epoch.shadow": ("ShadowRecord",),
    "capri.epoch.plan": ("EpochPlan", "EpochRecord", "Epochs", "Notice"),
    "capri.errors": (
        "AwayError",
        "BudgetError",
        "BundleError",
        "CapriError",
        "ConfigurationError",
        "DataError",
        "HorizonError",
        "InDoubtError",
        "KernelWarning",
        "MissingExtraError",
        "PrivacyLeakWarning",
        "RewardIgnoredWarning",
        "ShapeError",
        "StorageError",
    ),
    "capri.forecast.result": (
        "ExpectedEpoch",
        "ExpectedRegret",
        "Forecast",
        "KernelCost",
    ),
    "capri.joint.policy": ("Capri",),
    "capri.learners.explanation": ("Explanation",),
    "capri.learners.options": ("PracticalOptions",),
    "capri.learners.paper": ("PaperOptions",),
    "capri.learners.prior": ("Prior",),
    "capri.local.aggregator": ("LocalCapri",),
    "capri.local.client": ("LocalClient",),
    "capri.local.durable": ("Allowance", "DurableClient"),
    "capri.local.reports": ("ReportStatus",),
    "capri.local.shuffler": ("Shuffler",),
    "capri.privacy.budget": ("Budget", "PrivacyModel", "Promise"),
    "capri.privacy.certificate": ("Certificate", "Declaration"),
    "capri.privacy.ledger": ("Ledger", "ReleaseEvent", "Spending"),
    "capri.privacy.shuffle": ("Shuffle",),
    "capri.regression": (
        "ErrorWidth",
        "PrivateKernelClassifier",
        "PrivateKernelQuantiles",
        "PrivateKernelRidge",
        "PublicScaler",
    ),
    "capri.regression.engine": ("ReportPlan",),
    "capri.schema": ("Boolean", "Categorical", "Numeric", "Schema"),
    "capri.simulation": ("SimulationResult", "simulate"),
    "capri.spaces": ("ContextPool", "ContextSampler", "FixedActions", "VaryingActions"),
    "capri.store.organisation": ("OrganisationLedger",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'capri' has no attribute {name!r}")
    if _HOMES[name] == "capri":
        return importlib.import_module(f"capri.{name}")
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
