"""What a certificate identifies a fit by: digests of its settings and of the plan of each stage."""

from dataclasses import asdict
from typing import Any

from capri.files import digest_of
from capri.regression.engine import Engine, Setting
from capri.regression.stage import StagePlan


def fit_digests(engine: Engine) -> dict[str, Any]:
    """Of everything that was fixed before the first row, and before the rows of each stage."""
    return {
        "configuration": _setting_digest(engine.setting),
        "plans": [_plan_digest(reading.result.plan) for reading in engine.readings],
    }


def _setting_digest(setting: Setting) -> str:
    values = {
        "kernel": setting.basis.kernel.to_dict(),
        "budget": None if setting.budget is None else asdict(setting.budget),
        "calibration": setting.calibration,
        "tau": setting.tau,
        "prior": setting.prior.expected.tolist(),
        "shares": setting.shares,
    }
    return digest_of(
        values,
        {
            "pivots": setting.basis.pivots,
            "transform": setting.basis.transform,
            "box.low": setting.box[0],
            "box.high": setting.box[1],
            "targets.low": setting.targets.low,
            "targets.high": setting.targets.high,
        },
    )


def _plan_digest(plan: StagePlan) -> str:
    values = {
        "number": plan.number,
        "lot": asdict(plan.lot),
        "rows": plan.rows,
        "clip_norm": plan.clip_norm,
        "grid": asdict(plan.grid),
    }
    whitening = plan.features.whitening
    return digest_of(
        values, {"whitening": whitening, "baseline": plan.baseline, "reach": plan.reach}
    )
