"""Saved policies: one JSON and one NPZ in a zip file. No pickle."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

from capri.codec import Arrays, Form, State, TreeCodec, packed, unpacked
from capri.crowd import ColumnCells, ColumnScores
from capri.dense_features import DenseFeatures
from capri.epoch.limits import Limits
from capri.epoch.plan import EpochPlan, ScheduleTerms, Segment
from capri.epoch.problem import Problem, with_actions
from capri.epoch.rewards import RewardScale, RewardTerms
from capri.errors import BudgetError, StorageError
from capri.family import ArmBasis, ArmFeatures, ProductBasis
from capri.family.factor import Factor, Scores
from capri.features import Basis, LowRankFeatures, ProjectedFeatures, SpanFunction
from capri.files import digest_of, write_atomically
from capri.kernels import Kernel, from_dict
from capri.partition import CellFeatures
from capri.privacy.budget import Budget
from capri.privacy.histogram import HistogramLayout
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.projection import IntegerProjection
from capri.privacy.shuffle import Shuffle
from capri.privacy.sphere import Sphere
from capri.privacy.vector import VectorLayout
from capri.schema import Schema
from capri.spaces import ContextPool, Contexts, FixedActions, VaryingActions

FORMAT = "capri-policy"
VERSION = 3


def write_policy_file(
    path: str | PathLike[str],
    values: dict[str, Any],
    arrays: Arrays,
    *,
    confidential: bool = False,
) -> None:
    """Write atomically; a confidential file can be read by its owner only."""
    head = {"format": FORMAT, "version": VERSION, **values}
    write_atomically(Path(path), packed(head, arrays, in_order=True), confidential=confidential)


def read_policy_file(
    path: str | PathLike[str], kind: str | None = "curator"
) -> tuple[dict[str, Any], Arrays]:
    """Read a saved policy of some kind (None: any), or say why it cannot be read."""
    if not Path(path).is_file():
        raise StorageError(f"no such file: {path}")
    values, arrays = unpacked(
        Path(path).read_bytes(), f"{path} is not a saved policy, or is damaged"
    )
    if values.get("format") != FORMAT:
        raise StorageError(f"{path} is not a saved policy")
    version = values.get("version")
    if version != VERSION:
        raise StorageError(
            f"{path} has format version {version}, this release reads version {VERSION} alone: "
            "open it with the release that wrote it"
        )
    if kind is not None and (stored := values.get("kind", "curator")) != kind:
        raise StorageError(f"{path} holds a policy of kind {stored!r}, {kind!r} was asked for")
    return values, arrays


@contextmanager
def damage_as_storage_error(path: str | PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong while stored values are put together means a damaged file."""
    try:
        yield
    except StorageError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, BudgetError) as problem:
        raise StorageError(f"{path} is damaged: {type(problem).__name__}") from problem


def problem_state(problem: Problem) -> tuple[dict[str, Any], Arrays]:
    """What a policy was built for, as JSON values and arrays."""
    contexts, actions, budget, limit = (
        problem.contexts,
        problem.actions,
        problem.budget,
        problem.limit,
    )
    values: dict[str, Any] = {
        "kernel": problem.kernel.to_dict(),
        "reward_bound": problem.reward_bound,
        **problem.scale.to_dict(),
        "budget": None if budget is None else asdict(budget),
        "model": str(problem.model),
        "limit": None if limit is None else asdict(limit),
        "context_dimension": contexts.dimension,
        "context_schema": None if contexts.schema is None else contexts.schema.to_dict(),
        "varying_actions": asdict(actions) if isinstance(actions, VaryingActions) else None,
        "rewards": problem.rewards.to_dict(),
        "limits": _limits_state(problem.limits),
        "shuffle": None if problem.shuffle is None else asdict(problem.shuffle),
        **({"tickets": True} if problem.tickets else {}),
    }
    arrays: Arrays = {}
    if isinstance(actions, FixedActions):
        arrays["actions"] = actions.rows
        values |= actions_state(actions)
    if isinstance(contexts, ContextPool):
        arrays |= {"contexts": contexts.rows, "weights": contexts.weights}
        if contexts.ranges is not None:
            arrays["ranges"] = contexts.ranges
    return values, arrays


def problem_arguments(
    values: dict[str, Any], arrays: Arrays, contexts: Contexts | None
) -> dict[str, Any]:
    """The arguments to build a policy with again; a sampler of contexts must be given."""
    if "contexts" in arrays:
        if contexts is not None:
            raise StorageError("this file holds its context pool: load it without contexts")
        schema = _schema(values["context_schema"])
        contexts = ContextPool(
            arrays["contexts"], arrays["weights"], schema, ranges=arrays.get("ranges")
        )
    if contexts is None:
        raise StorageError("this policy samples its contexts: load it with contexts=sampler")
    if contexts.dimension != values["context_dimension"]:
        raise StorageError(
            f"this policy was saved with contexts of {values['context_dimension']} numbers, "
            f"the sampler gives {contexts.dimension}"
        )
    if _schema(values["context_schema"]) != contexts.schema:
        raise StorageError(
            "this policy was saved with another schema of its contexts: give the sampler the "
            "schema that it had"
        )
    varying, budget = values["varying_actions"], values["budget"]
    limit = values["limit"] or {"total": None, "per_epoch": None}
    return {
        "kernel": from_dict(values["kernel"]),
        "actions": VaryingActions(**varying)
        if varying is not None
        else actions_from_state(values, arrays["actions"]),
        "contexts": contexts,
        **RewardScale.from_dict(values).arguments(),
        "budget": None if budget is None else Budget(**budget),
        "model": values["model"],
        "contributions_per_user": limit["total"],
        "contributions_per_epoch": limit["per_epoch"],
        **RewardTerms.from_dict(values["rewards"]).arguments(),
        "limits": _limits(values["limits"]),
        **({} if values["shuffle"] is None else {"shuffle": Shuffle(**values["shuffle"])}),
        **({"tickets": True} if "tickets" in values else {}),
    }


def _limits_state(limits: Limits | None) -> list[Any] | None:
    """Limits, and the actions that they were declared for."""
    return None if limits is None else [limits.to_dict(), limits.declared]


def _limits(values: list[Any] | None) -> Limits | None:
    return None if values is None else Limits.from_dict(*values)


def _schema(description: dict[str, Any] | None) -> Schema | None:
    return None if description is None else Schema.from_dict(description)


def actions_state(actions: FixedActions) -> dict[str, Any]:
    """What actions are called, beside their rows."""
    return {
        "action_names": None if actions.names is None else list(actions.names),
        "action_schema": None if actions.schema is None else actions.schema.to_dict(),
        "action_codes": None if actions.codes is None else list(actions.codes),
    }


def actions_from_state(values: dict[str, Any], rows: Any) -> FixedActions:
    """The inverse of :func:`actions_state`."""
    schema = _schema(values["action_schema"])
    return FixedActions(rows, values["action_names"], schema, values["action_codes"])


def version_state(problem: Problem) -> tuple[dict[str, Any], Arrays]:
    """What may change while a policy runs: actions, limits, rewards, schedule."""
    values: dict[str, Any] = {
        "rewards": problem.rewards.to_dict(),
        "limits": _limits_state(problem.limits),
        "schedule": None if problem.schedule is None else asdict(problem.schedule),
    }
    if not isinstance(problem.actions, FixedActions):
        return values, {}  # contexts bring their own
    return values | actions_state(problem.actions), {"rows": problem.actions.rows}


def in_version(problem: Problem, values: dict[str, Any], arrays: Arrays) -> Problem:
    """The problem in another version: the inverse of :func:`version_state`."""
    schedule = values["schedule"]
    renewed = replace(
        problem,
        rewards=RewardTerms.from_dict(values["rewards"]),
        limits=_limits(values["limits"]),
        schedule=None if schedule is None else ScheduleTerms(**schedule),
    )
    if "rows" not in arrays:
        return with_actions(renewed, problem.actions)
    return with_actions(renewed, actions_from_state(values, arrays["rows"]))


def _kernel_from(values: dict[str, Any], arrays: Arrays, given: Mapping[str, Any]) -> Kernel:
    return from_dict(values)


def _projection_state(projection: IntegerProjection, given: Mapping[str, Any]) -> State:
    """The products that enter it."""
    rows = {"coordinates": projection.coordinates.tolist(), "rows": projection.compact.tolist()}
    return {"rank": projection.rank} | rows, {}


def _projection_from(
    values: dict[str, Any], arrays: Arrays, given: Mapping[str, Any]
) -> IntegerProjection:
    return IntegerProjection.compacted(**values)


KERNEL = Form(lambda kernel, given: (kernel.to_dict(), {}), _kernel_from)
SPANS = (Basis, ProductBasis, ArmBasis, Factor, Scores)
# Of a kernel's pivots the kernel is the problem's; how a device settles numbers is its own.
SPANS_APART: dict[type, tuple[str, ...]] = {
    Basis: ("kernel", "settle"),
    ProductBasis: ("settle", "_memory"),
}
_FEATURES = (LowRankFeatures, CellFeatures, ArmFeatures, ColumnCells, ColumnScores, DenseFeatures)
_LAYOUTS = (VectorLayout, Sphere, ProductLayout, HistogramLayout, CountLayout, PairLayout)
PLANS = TreeCodec(
    classes=(EpochPlan, Segment, SpanFunction, *_FEATURES, *_LAYOUTS, *SPANS),
    apart={
        **SPANS_APART,
        EpochPlan: ("features",),
        SpanFunction: ("basis",),
        LowRankFeatures: ("settle",),
        DenseFeatures: ("kernel",),
    },
    forms={Kernel: KERNEL, IntegerProjection: Form(_projection_state, _projection_from)},
)


def plan_state(plan: EpochPlan) -> State:
    """A plan as JSON values and arrays; what a baseline is made of is stored with the features."""
    features, arrays = PLANS.write(plan.features, "features")
    values, own = PLANS.write(plan, "plan")
    return {"features": features, "plan": values}, arrays | own


def plan_from_state(values: dict[str, Any], arrays: Arrays, kernel: Kernel) -> EpochPlan:
    """The inverse of :func:`plan_state`."""
    features = PLANS.read(ProjectedFeatures, values["features"], arrays, "features", kernel=kernel)
    basis = getattr(features, "basis", None)
    plan: EpochPlan = PLANS.read(
        EpochPlan, values["plan"], arrays, "plan", features=features, basis=basis
    )
    return plan


def segment_state(segment: Segment) -> State:
    """A segment as JSON values and arrays."""
    return PLANS.write(segment, "segment")


def segment_from_state(values: dict[str, Any], arrays: Arrays, plan: EpochPlan) -> Segment:
    """The inverse of :func:`segment_state`, for a segment of this plan."""
    basis = getattr(plan.features, "basis", None)
    segment: Segment = PLANS.read(Segment, values, arrays, "segment", basis=basis)
    return segment


_VALUES = ("problem", "horizon", "preset", "options", "terms", "prior")
_ARRAYS = ("actions", "contexts", "weights", "ranges")


def configuration_digest(values: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Of what a policy was built from, given as its saved file says it.

    Kernel, reward bound, budget, model, limits, horizon, preset, options, terms of devices, actions
    and context pool. A sampler of contexts is code and has no digest: its number of columns stands
    for it.
    """
    return digest_of(
        {name: values[name] for name in _VALUES if name in values},
        {name: arrays[name] for name in _ARRAYS if name in arrays},
    )


def plan_digest(plan: EpochPlan) -> str:
    """Of everything about an epoch that was fixed before its data."""
    return digest_of(*plan_state(plan))
