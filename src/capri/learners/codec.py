"""What a learner knows, as JSON values and arrays: everything here is public."""

from dataclasses import replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import State
from capri.epoch.play import Conduct, UniformLaw
from capri.epoch.problem import Problem
from capri.epoch.storage import below, named
from capri.errors import StorageError
from capri.family import Candidates, Family, ProductBasis
from capri.features import Basis, Span
from capri.learners.active import Rehearsal
from capri.learners.belief import Belief, Expected, Observation, Posterior, Squares
from capri.learners.messages import Design
from capri.learners.overdispersion import Crowds
from capri.learners.priors import EvidencePrior, Prior, ToldPrior
from capri.learners.reading import Leg
from capri.learners.response import Response
from capri.learners.support import Stage
from capri.learners.watch import level_of
from capri.spaces import ContextPool, FixedActions

Flights = dict[int, tuple[Leg, ...]]


# Parts that are stored under names of their own.
_APART = (Observation, Belief, Expected)
_USUAL = (("curious", False), ("ends", False), ("size", None))


def apart(
    name: str, thing: Belief | Rehearsal | Design | Response | Crowds | Squares | Expected
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


def prior_state(basis: Span, prior: Prior, state: Posterior) -> State:
    """Coordinates, what was believed of them, and what the evidence made of it."""
    if isinstance(basis, Basis):
        assert isinstance(prior, ToldPrior)
        return {}, {
            "basis.pivots": basis.pivots,
            "basis.transform": basis.transform,
            "basis.spectrum": prior.spectrum,
        }
    assert isinstance(prior, EvidencePrior)
    assert state.weights is not None
    family = prior.family
    values, arrays = family.basis.state()
    for side in ("contexts", "actions"):
        candidates = getattr(family, side)
        values[side] = list(candidates.names)
        arrays |= {
            f"{side}.covariances": candidates.covariances,
            f"{side}.shares": candidates.shares,
        }
    return {"family": values}, named("basis", arrays | {"weights": state.weights})


def prior_from(
    problem: Problem, prior: Prior, values: dict[str, Any], arrays: dict[str, FloatArray]
) -> tuple[Span, Prior, FloatArray | None]:
    """The inverse of :func:`prior_state`; ``prior`` is one of the same kind."""
    own = below("basis", arrays)
    if isinstance(prior, ToldPrior):
        basis = Basis(problem.kernel, own["pivots"], own["transform"])
        level = level_of(problem, basis)
        return basis, replace(prior, spectrum=own["spectrum"], level=level), None
    assert isinstance(prior, EvidencePrior)
    described = values["family"]
    sides = [
        Candidates(own[f"{side}.covariances"], own[f"{side}.shares"], tuple(described[side]))
        for side in ("contexts", "actions")
    ]
    family = Family(ProductBasis.from_state(described, own), *sides)
    level = level_of(problem, family.basis)
    return family.basis, replace(prior, family=family, level=level), own["weights"]


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
    return Design(observation=observation, squares=squares, **parts, **plain)


def response_state(response: Response) -> State:
    """Who answers."""
    values, arrays = apart("response", response)
    silence, more = apart("silence", response.silence)
    return {"response": values, "silence": silence}, arrays | more


def response_from(values: dict[str, Any], arrays: dict[str, FloatArray]) -> Response:
    """The inverse of :func:`response_state`."""
    silence = Belief(**below("silence", arrays), **values["silence"])
    return Response(silence=silence, **below("response", arrays), **values["response"])


def flights_state(flights: Flights) -> tuple[list[dict[str, Any]], dict[str, FloatArray]]:
    """All legs of epochs that are not read yet."""
    values: list[dict[str, Any]] = []
    arrays: dict[str, FloatArray] = {}
    for epoch, legs in flights.items():
        kept = []
        for place, leg in enumerate(legs):
            conduct, own = leg.conduct.state()
            own |= stage_arrays(leg.stage)
            own["baseline"] = leg.baseline
            entry = {
                "conduct": conduct,
                "stage": {"is_pool": leg.stage.is_pool},
                "value_bound": leg.value_bound,
                "learnt": leg.learnt,
                "design": None,
            }
            if leg.moved:
                assert isinstance(leg.conduct.actions, FixedActions)
                assert leg.stage.law is not None
                entry["moved"] = True
                own |= {"actions": leg.conduct.actions.rows, "law": leg.stage.law}
            if leg.promised is not None:
                own["promised"] = leg.promised
            if leg.design is not None:
                entry["design"], design = design_state(leg.design)
                own |= design
            kept.append(entry)
            arrays |= named(f"flight.{epoch}.{place}", own)
        values.append({"epoch": epoch, "legs": kept})
    return values, arrays


def flights_from(
    values: list[dict[str, Any]], arrays: dict[str, FloatArray], problem: Problem, basis: Span
) -> Flights:
    """The inverse of :func:`flights_state`."""
    flights: Flights = {}
    for flight in values:
        legs = []
        for place, entry in enumerate(flight["legs"]):
            own = below(f"flight.{flight['epoch']}.{place}", arrays)
            design, moved = entry["design"], "moved" in entry
            stage = stage_from(problem, entry["stage"], own)
            if moved:
                conduct = Conduct(FixedActions(own["actions"]), UniformLaw())
                stage = replace(stage, law=own["law"])
            else:
                conduct = Conduct.from_state(entry["conduct"], own, basis, problem.actions).within(
                    problem.bounds
                )
            legs.append(
                Leg(
                    conduct,
                    stage,
                    own["baseline"],
                    entry["value_bound"],
                    entry["learnt"],
                    None if design is None else design_from(design, own),
                    moved,
                    own.get("promised"),
                )
            )
        flights[int(flight["epoch"])] = tuple(legs)
    return flights
