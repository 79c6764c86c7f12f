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
from capri.features import Basis
from capri.learners.belief import Belief, Observation
from capri.learners.messages import Design
from capri.learners.reading import Leg
from capri.learners.response import Response
from capri.learners.support import Stage
from capri.learners.widths import Rehearsal
from capri.spaces import ContextPool, FixedActions

Flights = dict[int, tuple[Leg, ...]]


def apart(name: str, thing: Belief | Rehearsal | Design | Response) -> State:
    """The fields of a dataclass: plain values, and arrays under ``name.field``."""
    values, arrays = {}, {}
    for field, value in vars(thing).items():
        if isinstance(value, np.ndarray):
            arrays[f"{name}.{field}"] = value
        # What few beliefs have is left out of the others, so that their files stay as they were.
        elif not isinstance(value, Observation | Belief) and (field, value) != ("curious", False):
            values[field] = value
    return values, arrays


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
    arrays["design.matrix"] = observation.design
    arrays["design.covariance"] = observation.covariance
    arrays["design.baseline"] = observation.baseline
    # Only of epochs that went another way, and those are never stored.
    values = {name: value for name, value in values.items() if name not in _READ_ONLY}
    return values, arrays


_READ_ONLY = ("answers", "moment_bound", "silence")


def design_from(values: dict[str, Any], arrays: dict[str, FloatArray]) -> Design:
    """The inverse of :func:`design_state`."""
    parts = below("design", arrays)
    observation = Observation(
        design=parts.pop("matrix"),
        covariance=parts.pop("covariance"),
        baseline=parts.pop("baseline"),
    )
    return Design(observation=observation, **parts, **values)


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
            if leg.design is not None:
                entry["design"], design = design_state(leg.design)
                own |= design
            kept.append(entry)
            arrays |= named(f"flight.{epoch}.{place}", own)
        values.append({"epoch": epoch, "legs": kept})
    return values, arrays


def flights_from(
    values: list[dict[str, Any]], arrays: dict[str, FloatArray], problem: Problem, basis: Basis
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
                conduct = Conduct.from_state(entry["conduct"], own, basis, problem.actions)
            legs.append(
                Leg(
                    conduct,
                    stage,
                    own["baseline"],
                    entry["value_bound"],
                    entry["learnt"],
                    None if design is None else design_from(design, own),
                    moved,
                )
            )
        flights[int(flight["epoch"])] = tuple(legs)
    return flights
