"""What a learner knows, as JSON values and arrays: everything here is public."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import State
from capri.epoch.play import BehaviourPolicy, UniformLaw
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.errors import StorageError
from capri.features import Span
from capri.learners.belief import Belief, Expected, Observation, Squares
from capri.learners.context_law import ContextLaw
from capri.learners.crowd import Crowd
from capri.learners.drift import Drift
from capri.learners.fit import Fit, PoolTest, Rates
from capri.learners.model import Knowledge
from capri.learners.overdispersion import Overdispersion
from capri.learners.response import ResponseRate
from capri.learners.segments import Design, Pending, PlannedSegment, Stage
from capri.learners.warm_start import WarmStart
from capri.spaces import ContextPool, FixedActions

# Parts that are stored under names of their own.
_APART = (dict, Belief, Expected)
_USUAL = (("curious", False), ("ends", False), ("size", None))


def apart(
    name: str, thing: Belief | Design | ResponseRate | Overdispersion | Squares | Expected
) -> State:
    """The fields of a dataclass: plain values, and arrays under ``name.field``."""
    values, arrays = {}, {}
    for field, value in vars(thing).items():
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{field}"] = value
        # What few beliefs have is left out of the others, so that their files stay as they were.
        elif not isinstance(value, _APART) and (field, value) not in _USUAL:
            values[field] = value
    return values, arrays


def knowledge_state(known: Knowledge) -> State:
    """Model, belief, law, and the segments of epochs that are not read yet."""
    values, arrays = known.model.state(known.posterior)  # type: ignore[arg-type]
    if known.problem.sends_products:
        values["context_law"], law = known.context_law.state()
        values["comers"] = asdict(known.pool_test)
        arrays |= named("context_law", law)
    values["belief"], belief = apart("belief", known.belief)
    values["stage"] = {"is_pool": known.stage.is_pool}
    behaviour_values, behaviour = known.behaviour.state()
    arrays |= belief | behaviour | stage_arrays(known.stage)
    arrays |= apart("crowds", known.overdispersion)[1]
    values["squares"], squares = apart("squares", known.squares)
    values["flights"], pending = pending_state(known.pending)
    arrays |= squares | pending
    if known.problem.rewards.measured:
        answers, response = response_state(known.response)
        values |= answers | {"rates": asdict(known.rates)}
        arrays |= response
    if known.warm_start is not None:
        values["doubt"] = known.posterior.doubt
        arrays |= named("head", vars(known.warm_start)) | named("mixed", known.posterior.parts)
    crowd, own = known.crowd.state()
    if crowd["step"] != "over" or crowd["epochs"]:
        values["crowd"] = crowd
        arrays |= named("crowd", own)
    values |= {"fit": asdict(known.fit), "drift": asdict(known.drift)}
    return values | behaviour_values, arrays


def knowledge_from(known: Knowledge, state: State) -> Knowledge:
    """The inverse of :func:`knowledge_state`, for the same problem and a model of its kind."""
    (values, arrays), crowd = state, known.crowd
    if "crowd" in values:
        crowd = Crowd.from_state(crowd.declared, values["crowd"], below("crowd", arrays))
    problem = crowd.inhabited(known.problem)
    model, weights = known.model.restored(problem, values, arrays)
    belief = Belief(**below("belief", arrays), **values["belief"])
    start, posterior = None, model.prior.again(belief, weights)
    if "doubt" in values:  # something was known before the first user
        start, doubt = WarmStart(**below("head", arrays)), values["doubt"]
        posterior = model.prior.again(start.added(belief, doubt), weights)
        posterior = replace(posterior, doubt=doubt, **below("mixed", arrays))
    law, pool_test = known.context_law, known.pool_test
    if "context_law" in values:
        law = ContextLaw.from_state(values["context_law"], below("context_law", arrays))
        comers = values["comers"]
        pool_test = PoolTest(**comers | {"fit": Fit(**comers["fit"])})
    response, rates = ResponseRate.unknown(*belief.vector.shape), Rates()
    if "response" in values:
        response, rates = response_from(values, arrays), Rates(**values["rates"])
    behaviour = BehaviourPolicy.from_state(values, arrays, model.basis, problem.actions)
    return replace(
        known,
        problem=problem,
        crowd=crowd,
        model=model,
        belief=belief,
        posterior=posterior,
        overdispersion=Overdispersion(**below("crowds", arrays)),
        squares=Squares(**below("squares", arrays), **values["squares"]),
        response=response,
        context_law=law,
        behaviour=behaviour.within(problem.bounds),
        stage=stage_from(problem, values["stage"], arrays),
        drift=Drift(**values["drift"]),
        fit=Fit(**values["fit"]),
        rates=rates,
        pool_test=pool_test,
        warm_start=start,
        pending=pending_from(values["flights"], arrays, problem, model.basis),
    )


def stage_arrays(stage: Stage) -> dict[str, FloatArray]:
    """Contexts that were sampled; a pool is stored by the problem."""
    if stage.is_pool:
        return {}
    return {"stage.contexts": stage.contexts, "stage.weights": stage.weights}


def stage_from(problem: Problem, values: dict[str, Any], arrays: dict[str, FloatArray]) -> Stage:
    """The inverse of :func:`stage_arrays`."""
    if not values["is_pool"]:
        return Stage(**below("stage", arrays), is_pool=False)
    if isinstance(problem.contexts, ContextPool):
        return Stage(problem.contexts.rows, problem.contexts.weights, True)
    raise StorageError("this policy was saved with a context pool")


def design_state(design: Design) -> State:
    """What a plan expects of its epoch."""
    values, arrays = apart("design", design)
    observation = design.observation
    constant, squares = apart("design.squares", design.squares)
    values |= constant
    arrays |= squares
    if observation.sampling is not None:
        arrays["design.sampling"] = observation.sampling
    values["participants"] = observation.participants
    arrays["design.matrix"] = observation.design
    arrays["design.covariance"] = observation.covariance
    arrays["design.baseline"] = observation.baseline
    # Only of epochs that went another way, and those are never stored.
    values = {name: value for name, value in values.items() if name not in _READ_ONLY}
    return values, arrays


_READ_ONLY = ("answers", "moment_bound")


def design_from(values: dict[str, Any], arrays: dict[str, FloatArray]) -> Design:
    """The inverse of :func:`design_state`."""
    parts, plain = below("design", arrays), dict(values)
    observation = Observation(
        design=parts.pop("matrix"),
        covariance=parts.pop("covariance"),
        baseline=parts.pop("baseline"),
        sampling=parts.pop("sampling", None),
        participants=plain.pop("participants"),
    )
    squares = Expected(
        spread=parts.pop("squares.spread"),
        image=parts.pop("squares.image"),
        constant=plain.pop("constant"),
    )
    return Design(observations={...: observation}, squares=squares, **parts, **plain)


def response_state(response: ResponseRate) -> State:
    """Who answers."""
    values, arrays = apart("response", response)
    silence, more = apart("silence", response.silence)
    return {"response": values, "silence": silence}, arrays | more


def response_from(values: dict[str, Any], arrays: dict[str, FloatArray]) -> ResponseRate:
    """The inverse of :func:`response_state`."""
    silence = Belief(**below("silence", arrays), **values["silence"])
    return ResponseRate(silence=silence, **below("response", arrays), **values["response"])


def pending_state(pending: Pending) -> tuple[list[dict[str, Any]], dict[str, FloatArray]]:
    """All segments of epochs that are not read yet."""
    values: list[dict[str, Any]] = []
    arrays: dict[str, FloatArray] = {}
    for epoch, segments in pending.items():
        kept = []
        for place, segment in enumerate(segments):
            behaviour, own = segment.behaviour.state()
            own |= stage_arrays(segment.stage)
            own["baseline"] = segment.baseline
            entry = {
                "conduct": behaviour,
                "stage": {"is_pool": segment.stage.is_pool},
                "value_bound": segment.value_bound,
                "learnt": segment.learnt,
                "design": None,
            }
            if segment.moved:
                assert isinstance(segment.behaviour.actions, FixedActions)
                assert segment.stage.law is not None
                entry["moved"] = True
                own |= {"actions": segment.behaviour.actions.rows, "law": segment.stage.law}
            if segment.promised is not None:
                own["promised"] = segment.promised
            if segment.design is not None:
                entry["design"], design = design_state(segment.design)
                own |= design
            kept.append(entry)
            arrays |= named(f"flight.{epoch}.{place}", own)
        values.append({"epoch": epoch, "legs": kept})
    return values, arrays


def pending_from(
    values: list[dict[str, Any]], arrays: dict[str, FloatArray], problem: Problem, basis: Span
) -> Pending:
    """The inverse of :func:`pending_state`."""
    pending: Pending = {}
    for each in values:
        segments = []
        for place, entry in enumerate(each["legs"]):
            own = below(f"flight.{each['epoch']}.{place}", arrays)
            design, moved = entry["design"], "moved" in entry
            stage = stage_from(problem, entry["stage"], own)
            if moved:
                behaviour = BehaviourPolicy(FixedActions(own["actions"]), UniformLaw())
                stage = replace(stage, law=own["law"])
            else:
                behaviour = BehaviourPolicy.from_state(
                    entry["conduct"], own, basis, problem.actions
                )
                behaviour = behaviour.within(problem.bounds)
            segments.append(
                PlannedSegment(
                    behaviour,
                    stage,
                    own["baseline"],
                    entry["value_bound"],
                    entry["learnt"],
                    None if design is None else design_from(design, own),
                    moved,
                    own.get("promised"),
                )
            )
        pending[int(each["epoch"])] = tuple(segments)
    return pending
