"""What a learner knows, as JSON values and arrays: everything here is public."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capri.codec import Arrays, Form, State, TreeCodec, Values
from capri.epoch.play import BehaviourPolicy
from capri.epoch.problem import Problem
from capri.epoch.storage import KERNEL, SPANS, SPANS_APART
from capri.errors import StorageError
from capri.family import Candidates, Family
from capri.features import Span
from capri.kernels import Kernel
from capri.learners.active import Rehearsal
from capri.learners.arm_prior import ArmPosterior, ArmPrior
from capri.learners.arms_model import ArmsModel
from capri.learners.belief import Belief, Expected, Observation, Posterior, Squares
from capri.learners.boundary import Intercept
from capri.learners.context_law import ContextLaw
from capri.learners.context_support import ContextSupport, Functions
from capri.learners.crowd import Crowd
from capri.learners.dense_model import DenseModel
from capri.learners.drift import Drift
from capri.learners.fit import Fit, PoolTest, Rates
from capri.learners.model import Knowledge
from capri.learners.overdispersion import Overdispersion
from capri.learners.priors import EvidencePrior, KnownKernelPrior
from capri.learners.response import ResponseRate
from capri.learners.segments import Design, PlannedSegment, Stage
from capri.learners.warm_start import WarmStart
from capri.spaces import ContextPool, FixedActions


def _behaviour_state(behaviour: BehaviourPolicy, given: Mapping[str, Any]) -> State:
    """A law within limits; with the rows of its actions where those were replaced since."""
    values, arrays = behaviour.state()
    own, now = behaviour.actions, given["actions"]
    if isinstance(own, FixedActions) and not np.array_equal(own.rows, now.rows):
        arrays["actions"] = own.rows
    return values, arrays


def _behaviour_from(values: Values, arrays: Arrays, given: Mapping[str, Any]) -> BehaviourPolicy:
    actions = FixedActions(arrays["actions"]) if "actions" in arrays else given["actions"]
    found = BehaviourPolicy.from_state(values, arrays, given["basis"], actions)
    return found.within(given["bounds"])


_PRIORS = (KnownKernelPrior, Intercept, EvidencePrior, Family, ArmPrior, Candidates)
_SUMS = (Belief, Posterior, ArmPosterior, Overdispersion, Squares, ResponseRate, WarmStart)
_TESTS = (Drift, Fit, Rates, PoolTest)
_CONTEXTS = (ContextLaw, ContextSupport, Functions, Crowd, ContextPool)
_EPOCHS = (Stage, PlannedSegment, Design, Observation, Expected)
_MODELS = (DenseModel, ArmsModel, Rehearsal)
_CODEC = TreeCodec(
    classes=(Knowledge, *_MODELS, *_PRIORS, *_SUMS, *_TESTS, *_CONTEXTS, *_EPOCHS, *SPANS),
    apart={
        **SPANS_APART,
        Knowledge: ("problem", "options", "model", "crowd"),
        DenseModel: ("options", "basis"),
        ArmsModel: ("options", "basis"),
        Family: ("basis",),
        Crowd: ("declared",),
        ContextPool: ("schema", "ranges"),
        PlannedSegment: ("played",),
    },
    forms={Kernel: KERNEL, BehaviourPolicy: Form(_behaviour_state, _behaviour_from)},
)


def knowledge_state(known: Knowledge) -> State:
    """Crowd and coordinates, then the model in them, and what releases made of both."""
    lean = replace(
        known,
        stage=_lean(known.stage),
        pending={
            epoch: tuple(
                replace(each, stage=_lean(each.stage, moved=each.moved)) for each in segments
            )
            for epoch, segments in known.pending.items()
        },
    )
    parts = {"crowd": known.crowd, "basis": known.basis, "model": known.model, "known": lean}
    values: Values = {}
    arrays: Arrays = {}
    for name, part in parts.items():
        values[name], own = _CODEC.write(part, name, actions=known.problem.actions)
        arrays |= own
    return values, arrays


def knowledge_from(known: Knowledge, state: State) -> Knowledge:
    """The inverse of :func:`knowledge_state`, for the same problem and a model of its kind."""
    values, arrays = state
    declared = known.crowd.declared
    schema = declared.schema
    crowd = _CODEC.read(Crowd, values["crowd"], arrays, "crowd", declared=declared, schema=schema)
    problem = crowd.inhabited(known.problem)
    basis = _CODEC.read(Span, values["basis"], arrays, "basis", kernel=problem.kernel)
    model = _CODEC.read(
        type(known.model), values["model"], arrays, "model", options=known.options, basis=basis
    )
    found: Knowledge = _CODEC.read(
        Knowledge,
        values["known"],
        arrays,
        "known",
        problem=problem,
        options=known.options,
        model=model,
        crowd=crowd,
        basis=basis,
        actions=problem.actions,
        bounds=problem.bounds,
    )
    return replace(
        found,
        stage=_whole(found.stage, problem),
        pending={
            epoch: tuple(replace(each, stage=_whole(each.stage, problem)) for each in segments)
            for epoch, segments in found.pending.items()
        },
    )


def _lean(stage: Stage, *, moved: bool = False) -> Stage:
    """Without the rows of a pool, which the problem keeps, and without a law that can be computed.

    ``moved``: its actions were replaced, so it cannot.
    """
    law = stage.law if moved else None
    if not stage.is_pool:
        return replace(stage, law=law)
    return Stage(np.empty((0, stage.contexts.shape[1])), np.empty(0), True, law)


def _whole(stage: Stage, problem: Problem) -> Stage:
    """The inverse of :func:`_lean`."""
    if not stage.is_pool:
        return stage
    if not isinstance(problem.contexts, ContextPool):
        raise StorageError("this policy was saved with a context pool")
    return replace(stage, contexts=problem.contexts.rows, weights=problem.contexts.weights)
