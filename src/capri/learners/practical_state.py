"""The state of a practical learner as JSON values and arrays, and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import State
from capri.epoch.play import Conduct
from capri.epoch.problem import Problem
from capri.errors import StorageError
from capri.features import Basis
from capri.learners.belief import Belief, Observation
from capri.learners.messages import Design
from capri.learners.support import Stage
from capri.learners.widths import Rehearsal
from capri.spaces import ContextPool

_DESIGN_ARRAYS = ("spread", "second_moment")
_DESIGN_VALUES = (
    "value_bound",
    "residual",
    "main_share",
    "noise",
    "signal_variance",
    "residual_variance",
    "left_out",
    "tau",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Everything a practical learner remembers."""

    basis: Basis
    spectrum: FloatArray
    rehearsal: Rehearsal
    belief: Belief
    conduct: Conduct
    stage: Stage
    design: Design | None


def pack(
    *,
    basis: Basis,
    spectrum: FloatArray,
    rehearsal: Rehearsal,
    belief: Belief,
    conduct: Conduct,
    stage: Stage,
    design: Design | None,
) -> State:
    """All parts as plain values and arrays."""
    arrays: dict[str, Any] = {
        "basis.pivots": basis.pivots,
        "basis.transform": basis.transform,
        "basis.spectrum": spectrum,
        "rehearsal.features": rehearsal.features,
        "rehearsal.functions": rehearsal.functions,
        "rehearsal.coefficients": rehearsal.coefficients,
        "belief.information": belief.information,
        "belief.vector": belief.vector,
    }
    values: dict[str, Any] = {
        "belief": {
            "moment": belief.moment,
            "moment_precision": belief.moment_precision,
            "epochs": belief.epochs,
            "heavy_tails": belief.heavy_tails,
        },
        "stage": {"is_pool": stage.is_pool},
        "design": None,
    }
    conduct_values, conduct_arrays = conduct.state()
    values |= conduct_values
    arrays |= conduct_arrays
    if not stage.is_pool:
        arrays |= {"stage.contexts": stage.contexts, "stage.weights": stage.weights}
    if design is not None:
        values["design"] = {name: getattr(design, name) for name in _DESIGN_VALUES}
        arrays |= {f"design.{name}": getattr(design, name) for name in _DESIGN_ARRAYS}
        arrays |= {
            "design.matrix": design.observation.design,
            "design.covariance": design.observation.covariance,
            "design.baseline": design.observation.baseline,
        }
    return values, arrays


def unpack(state: State, problem: Problem) -> Parts:
    """The inverse of :func:`pack`."""
    values, arrays = state
    basis = Basis(problem.kernel, arrays["basis.pivots"], arrays["basis.transform"])
    return Parts(
        basis=basis,
        spectrum=arrays["basis.spectrum"],
        rehearsal=Rehearsal(
            arrays["rehearsal.features"],
            arrays["rehearsal.functions"],
            arrays["rehearsal.coefficients"],
        ),
        belief=Belief(
            information=arrays["belief.information"],
            vector=arrays["belief.vector"],
            **values["belief"],
        ),
        conduct=Conduct.from_state(values, arrays, basis, problem.actions),
        stage=_stage(values["stage"], arrays, problem),
        design=None if values["design"] is None else _design(values["design"], arrays),
    )


def _stage(values: dict[str, Any], arrays: dict[str, FloatArray], problem: Problem) -> Stage:
    if not values["is_pool"]:
        return Stage(arrays["stage.contexts"], arrays["stage.weights"], False)
    if not isinstance(problem.contexts, ContextPool):
        raise StorageError("this policy was saved with a context pool")
    return Stage(problem.contexts.rows, problem.contexts.weights, True)


def _design(values: dict[str, Any], arrays: dict[str, FloatArray]) -> Design:
    stored: dict[str, Any] = {name: arrays[f"design.{name}"] for name in _DESIGN_ARRAYS}
    return Design(
        observation=Observation(
            design=arrays["design.matrix"],
            covariance=arrays["design.covariance"],
            baseline=np.asarray(arrays["design.baseline"]),
        ),
        **stored,
        **values,
    )
