"""Policies of every kind, small enough to be played by the dozen."""

from typing import Any

import numpy as np

import capri
from builders import ACTIONS, BUDGET, CONTEXTS

_BASE: dict[str, Any] = {
    "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.4),
    "actions": ACTIONS,
    "contexts": capri.ContextPool(CONTEXTS),
    "reward_bound": 1.0,
    "budget": BUDGET,
    "horizon": 60,
}
_PAPER = _BASE | {"preset": "paper"}
_PRACTICAL = _BASE | {"preset": "practical", "first_epoch": 8, "growth": 2.0, "draws": 8}
_SAMPLER = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
_OWN_ACTIONS = capri.VaryingActions(count=3, dimension=1)

POLICIES: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "paper, analytic": _PAPER | {"calibration": "analytic"},
    "paper, dense": _PAPER | {"features": "dense"},
    "paper, local": _PAPER | {"model": "local"},
    "paper, sampler": _PAPER | {"contexts": _SAMPLER},
    "paper, linear kernel": _PAPER | {"kernel": capri.kernels.Linear(variance=0.5)},
    "paper, users": _PAPER | {"contributions_per_user": 2},
    "paper, local, users": _PAPER | {"model": "local", "contributions_per_user": 2},
    "thompson, calibrated": _PRACTICAL,
    "thompson, rigorous": _PRACTICAL | {"widths": "rigorous"},
    "thompson, paper widths": _PRACTICAL | {"widths": "paper"},
    "inverse gap": _PRACTICAL | {"exploration": "inverse-gap"},
    "inverse gap, rigorous": _PRACTICAL | {"exploration": "inverse-gap", "widths": "rigorous"},
    "uniform": _PRACTICAL | {"exploration": "uniform"},
    "uniform, rigorous": _PRACTICAL | {"exploration": "uniform", "widths": "rigorous"},
    "copied covariance, whitening": _PRACTICAL | {"covariance": "copy", "shape": "whitening"},
    "practical, local": _PRACTICAL | {"model": "local"},
    "practical, sampler": _PRACTICAL | {"contexts": _SAMPLER},
    "practical, own actions": _PRACTICAL
    | {
        "actions": _OWN_ACTIONS,
        "contexts": capri.ContextPool(np.repeat(CONTEXTS, 4, axis=1)),
    },
    "practical, no horizon": _PRACTICAL | {"horizon": None},
    "practical, users": _PRACTICAL | {"contributions_per_user": 3, "contributions_per_epoch": 2},
}
