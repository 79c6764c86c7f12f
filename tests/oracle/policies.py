"""Policies of every kind, small enough to be played by the dozen."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

import capri
from builders import ACTIONS, BUDGET, CONTEXTS, PURE

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
_LIMITS = capri.Limits(
    floor={0: 0.1}, ceiling={1: 0.5}, allowed={2: {0: (None, 0.7)}}, availability={1: 0.5}
)
_RANGES = capri.ContextPool.from_ranges([(0, 1), (-1, 2)], size=16)
_SCHEMA = capri.Schema(
    [
        capri.schema.Numeric("age", 0, 1, missing="own"),
        capri.schema.Categorical("plan", ["free", "pro"], missing="own"),
    ]
)
_ROWS = capri.Prior.from_rows(np.repeat(CONTEXTS, 5, axis=0), [0, 1, 2, 0, 1] * 4, [0.1, 0.3] * 10)
_OWN_ACTIONS = capri.VaryingActions(count=3, dimension=1)

_RANGE: dict[str, Any] = {"reward_bound": None, "reward_range": (0.0, 1.0)}

POLICIES: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "paper, analytic": _PAPER | {"calibration": "analytic"},
    "paper, dense": _PAPER | {"features": "dense"},
    "paper, local": _PAPER | {"model": "local"},
    "paper, sampler": _PAPER | {"contexts": _SAMPLER},
    "paper, linear kernel": _PAPER | {"kernel": capri.kernels.Linear(variance=0.5)},
    "paper, users": _PAPER | {"contributions_per_user": 2},
    "paper, local, users": _PAPER | {"model": "local", "contributions_per_user": 2},
    "practical": _PRACTICAL,
    "practical, whole rewards": _PRACTICAL | {"residual": False},
    "auto": _PRACTICAL | {"kernel": "auto"},
    "auto, late and missing": _PRACTICAL
    | {"kernel": "auto", "reward_wait": 60, "missing_reward": "as-estimated"},
    "practical, sampler": _PRACTICAL | {"contexts": _SAMPLER},
    "practical, own actions": _PRACTICAL
    | {
        "actions": _OWN_ACTIONS,
        "contexts": capri.ContextPool(np.repeat(CONTEXTS, 4, axis=1)),
    },
    "practical, no horizon": _PRACTICAL | {"horizon": None},
    "late, thompson": _PRACTICAL | {"reward_wait": 6},
    "late, whole rewards": _PRACTICAL | {"reward_wait": 3, "residual": False},
    "late, sampler, users": _PRACTICAL
    | {"reward_wait": 11, "contexts": _SAMPLER, "contributions_per_user": 3},
    "late, paper, local": _PAPER | {"reward_wait": 6, "model": "local"},
    "late, paper": _PAPER | {"reward_wait": 6},
    "late, sum": _PRACTICAL | {"reward_wait": 6, "reward_rule": "sum"},
    "late, last, clock": _PRACTICAL
    | {
        "reward_wait": timedelta(hours=1),
        "reward_rule": "last",
        "epoch_time": timedelta(hours=2),
        "clock": lambda: datetime(2030, 1, 1, tzinfo=UTC),
    },
    "memory": _PRACTICAL | {"memory": 30.0, "first_epoch": 4, "growth": 1.3},
    "changes, late": _PRACTICAL | {"first_epoch": 3, "growth": 1.1, "reward_wait": 5},
    "changes, arms": _PRACTICAL
    | {"kernel": "auto", "actions": 12, "first_epoch": 4, "growth": 1.1},
    "missing, as estimated": _PRACTICAL | {"missing_reward": "as-estimated"},
    "missing, as estimated, late, max": _PRACTICAL
    | {"missing_reward": "as-estimated", "reward_wait": 6, "reward_rule": "max"},
    "missing counts": _PRACTICAL | {"missing_reward": -0.5},
    "range": _PRACTICAL | _RANGE,
    "range, auto, late": _PRACTICAL | _RANGE | {"kernel": "auto", "reward_wait": 6},
    "range, transformed, paper": _PAPER | _RANGE | {"reward_transform": "log1p"},
    "range, arms": _PRACTICAL | _RANGE | {"kernel": "auto", "actions": 12},
    "many unrelated arms": _PRACTICAL | {"kernel": "auto", "actions": 12},
    "limits": _PRACTICAL | {"limits": _LIMITS},
    "limits, a share": _PRACTICAL | {"limits": capri.Limits(share={1: 0.3})},
    "limits, many unrelated arms": _PRACTICAL
    | {"limits": _LIMITS, "kernel": "auto", "actions": 12},
    "limits, late": _PRACTICAL | {"limits": _LIMITS, "reward_wait": 6},
    "told beforehand": _PRACTICAL | {"prior": _ROWS},
    "crowd": _PRACTICAL | {"contexts": _RANGES, "rank_tolerance": 0.1, "first_epoch": 2},
    "crowd, auto, late": _PRACTICAL
    | {"contexts": _RANGES, "first_epoch": 4, "kernel": "auto", "reward_wait": 6},
    "crowd, named": _PRACTICAL
    | {
        "contexts": capri.ContextPool.from_ranges(_SCHEMA, size=16),
        "kernel": "auto",
        "contributions_per_user": 3,
    },
    "crowd, arms": _PRACTICAL
    | {"contexts": _RANGES, "first_epoch": 4, "kernel": "auto", "actions": 12},
    "practical, users": _PRACTICAL | {"contributions_per_user": 3, "contributions_per_epoch": 2},
}

# Messages of one cell alone, wherever those of a whole vector go.
_PURE = ("practical", "auto", "practical, sampler", "practical, own actions", "late, sum")
_PURE += ("auto, late and missing", "changes, late", "many unrelated arms", "limits", "range, arms")
_PURE += ("crowd", "crowd, auto, late", "crowd, named", "crowd, arms")
_PURE += ("missing, as estimated, late, max", "told beforehand", "practical, users")
POLICIES |= {f"pure, {name}": POLICIES[name] | {"budget": PURE} for name in _PURE}

# Noise so small that blind shares are even: dependence is asked for, too.
_PAIRS = POLICIES["crowd"] | {"first_epoch": 4}
POLICIES["crowd, pairs"] = _PAIRS | {"budget": capri.Budget(epsilon=40.0, delta=1e-5)}
POLICIES["crowd, pairs, pure, late"] = _PAIRS | {
    "budget": capri.Budget(epsilon=60.0),
    "reward_wait": 6,
    "kernel": "auto",
}
