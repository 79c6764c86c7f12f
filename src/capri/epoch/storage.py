"""Saved policies: one JSON and one NPZ in a zip file. No pickle."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from capri.crowd import ColumnCells, ColumnScores
from capri.dense_features import DenseFeatures
from capri.epoch.limits import Limits
from capri.epoch.plan import EpochPlan, ScheduleTerms, Segment
from capri.epoch.problem import Problem, with_actions
from capri.epoch.rewards import RewardScale, RewardTerms
from capri.errors import BudgetError, StorageError
from capri.family import ArmBasis, ArmFeatures, ProductBasis
from capri.features import (
    Basis,
    Function,
    LowRankFeatures,
    ProjectedFeatures,
    Span,
)
from capri.files import digest_of, plain, write_atomically
from capri.kernels import Kernel, from_dict
from capri.partition import CellFeatures
from capri.privacy.budget import Budget
from capri.privacy.histogram import HistogramLayout
from capri.privacy.layout import Norm
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.projection import IntegerProjection
from capri.privacy.shuffle import Shuffle
from capri.privacy.sphere import Sphere
from capri.privacy.vector import VectorLayout
from capri.schema import Schema
from capri.spaces import ContextPool, Contexts, FixedActions, VaryingActions

FORMAT = "capri-policy"
VERSION = 2
Arrays = dict[str, Any]
RewardLayout = VectorLayout | ProductLayout | HistogramLayout
AnyLayout = RewardLayout | CountLayout | PairLayout


def write_policy_file(
    path: str | PathLike[str],
    values: dict[str, Any],
    arrays: Arrays,
    *,
    confidential: bool = False,
) -> None:
    """Write atomically; a confidential file can be read by its owner only."""
    packed, archive = BytesIO(), BytesIO()
    np.savez(packed, **arrays)
    head = {"format": FORMAT, "version": VERSION, **values}
    with zipfile.ZipFile(archive, "w") as folder:
        # Without a date: equal states make equal files, and a file has no clock in it.
        folder.writestr(zipfile.ZipInfo("state.json"), json.dumps(head, default=plain))
        folder.writestr(zipfile.ZipInfo("arrays.npz"), packed.getvalue())
    write_atomically(Path(path), archive.getvalue(), confidential=confidential)


def read_policy_file(
    path: str | PathLike[str], kind: str | None = "curator"
) -> tuple[dict[str, Any], Arrays]:
    """Read a saved policy of some kind (None: any), or say why it cannot be read."""
    if not Path(path).exists():
        raise StorageError(f"no such file: {path}")
    try:
        with zipfile.ZipFile(path) as folder:
            if folder.testzip() is not None:
                raise StorageError(f"{path} is damaged: a checksum does not match")
            values = json.loads(folder.read("state.json"))
            packed = folder.read("arrays.npz")
        with np.load(BytesIO(packed), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except StorageError:
        raise
    except Exception as problem:  # zipfile, zlib, json and NumPy each fail in ways of their own
        raise StorageError(f"{path} is not a saved policy, or is damaged") from problem
    if not isinstance(values, dict) or values.get("format") != FORMAT:
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
        "varying_actions": asdict(actions) if isinstance(actions, VaryingActions) else None,
    }
    if problem.rewards != RewardTerms():  # left out where nothing was asked for
        values["rewards"] = problem.rewards.to_dict()
    if problem.limits is not None:
        values["limits"] = problem.limits.to_dict()
        if problem.limits.declared != actions.names:  # they were replaced since
            values["limited_actions"] = problem.limits.declared
    if problem.shuffle is not None:
        values["shuffle"] = asdict(problem.shuffle)
    arrays: Arrays = {}
    if isinstance(actions, FixedActions):
        arrays["actions"] = actions.rows
        values |= actions_state(actions)
    if contexts.schema is not None:
        values["context_schema"] = contexts.schema.to_dict()
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
        schema = _schema(values.get("context_schema"))
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
    if _schema(values.get("context_schema")) != contexts.schema:
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
        **(RewardTerms.from_dict(values["rewards"]).arguments() if "rewards" in values else {}),
        **({"limits": _limits(values)} if "limits" in values else {}),
        **({"shuffle": Shuffle(**values["shuffle"])} if "shuffle" in values else {}),
    }


def _limits(values: dict[str, Any]) -> Limits:
    return Limits.from_dict(values["limits"], values.get("limited_actions"))


def _schema(description: dict[str, Any] | None) -> Schema | None:
    return None if description is None else Schema.from_dict(description)


def actions_state(actions: FixedActions) -> dict[str, Any]:
    """What actions are called, beside their rows; nothing of those without names."""
    values: dict[str, Any] = {}
    if actions.names is not None:
        values["action_names"] = list(actions.names)
    if actions.schema is not None:
        values["action_schema"] = actions.schema.to_dict()
    if actions.codes is not None:
        values["action_codes"] = list(actions.codes)
    return values


def actions_from_state(values: dict[str, Any], rows: Any) -> FixedActions:
    """The inverse of :func:`actions_state`."""
    schema = _schema(values.get("action_schema"))
    return FixedActions(rows, values.get("action_names"), schema, values.get("action_codes"))


def version_state(problem: Problem) -> tuple[dict[str, Any], Arrays]:
    """What may change while a policy runs: actions, limits, rewards, schedule."""
    values: dict[str, Any] = {"rewards": problem.rewards.to_dict()}
    if problem.limits is not None:
        values["limits"] = [problem.limits.to_dict(), problem.limits.declared]
    if problem.schedule is not None:
        values["schedule"] = asdict(problem.schedule)
    if not isinstance(problem.actions, FixedActions):
        return values, {}  # contexts bring their own
    return values | actions_state(problem.actions), {"rows": problem.actions.rows}


def in_version(problem: Problem, values: dict[str, Any], arrays: Arrays) -> Problem:
    """The problem in another version: the inverse of :func:`version_state`."""
    limits, schedule = values.get("limits"), values.get("schedule")
    renewed = replace(
        problem,
        rewards=RewardTerms.from_dict(values["rewards"]),
        limits=None if limits is None else Limits.from_dict(*limits),
        schedule=None if schedule is None else ScheduleTerms(**schedule),
    )
    if "rows" not in arrays:
        return with_actions(renewed, problem.actions)
    return with_actions(renewed, actions_from_state(values, arrays["rows"]))


def plan_state(plan: EpochPlan) -> tuple[dict[str, Any], Arrays]:
    """A plan as JSON values and arrays."""
    values: dict[str, Any] = {
        "epoch": plan.epoch,
        "length": plan.length,
        "tau": plan.tau,
        "sigma_max": plan.sigma_max,
        "value_bound": plan.value_bound,
        "clip_norm": plan.clip_norm,
        "baseline": plan.baseline is not None,
        "layout": layout_state(plan.layout),
    }
    features = plan.features
    arrays: Arrays = {}
    if plan.baseline is not None:
        arrays |= named("plan.baseline", function_state(plan.baseline))
    if isinstance(features, LowRankFeatures | CellFeatures):
        if isinstance(features.basis, ProductBasis):
            values["features"] = "products"
            values["span"], span = features.basis.state()
            arrays |= named("plan.span", span)
        else:
            assert isinstance(features.basis, Basis)
            values["features"] = "low-rank"
            arrays["plan.pivots"] = features.basis.pivots
            arrays["plan.transform"] = features.basis.transform
        if isinstance(features, LowRankFeatures):
            arrays["plan.whitening"] = features.whitening
        else:
            arrays["plan.directions"] = features.directions
            arrays["plan.centres"] = features.centres
    elif isinstance(features, ArmFeatures):
        values["features"] = "arms"
        values["span"], span = features.basis.state()
        arrays |= named("plan.span", span)
        arrays |= {"plan.shapes": features.shapes, "plan.sizes": features.sizes}
        if features.offsets is not None:
            arrays["plan.offsets"] = features.offsets
    elif isinstance(features, ColumnCells | ColumnScores):
        values["features"] = "cells" if isinstance(features, ColumnCells) else "scores"
        arrays |= named("plan", vars(features))
    elif isinstance(features, DenseFeatures):
        values["features"] = "dense"
        arrays["plan.basis_copy"] = features.basis_copy
        arrays["plan.covariance_copy"] = features.covariance_copy
    return values, arrays


def plan_from_state(values: dict[str, Any], arrays: Arrays, kernel: Kernel) -> EpochPlan:
    """The inverse of :func:`plan_state`."""
    features: ProjectedFeatures
    span: Span | None = None
    if values["features"] == "products":
        span = ProductBasis.from_state(values["span"], below("plan.span", arrays))
    elif values["features"] == "low-rank":
        span = Basis(kernel, arrays["plan.pivots"], arrays["plan.transform"])
    if values["features"] == "cells":
        features = ColumnCells(arrays["plan.places"], arrays["plan.windows"])
    elif values["features"] == "scores":
        windows, tables = arrays["plan.windows"], arrays["plan.tables"]
        features = ColumnScores(arrays["plan.numbers"], windows, tables)
    elif values["features"] == "arms":
        blocks = ArmBasis.from_state(values["span"], below("plan.span", arrays))
        sizes = arrays["plan.sizes"].astype(np.int64)
        offsets = arrays.get("plan.offsets")
        features = ArmFeatures(blocks, arrays["plan.shapes"], sizes, values["tau"], offsets)
    elif span is not None and "plan.centres" in arrays:
        directions, centres = arrays["plan.directions"], arrays["plan.centres"]
        features = CellFeatures(span, directions, centres, values["tau"])
    elif span is not None:
        features = LowRankFeatures(span, arrays["plan.whitening"], values["tau"])
    else:
        features = DenseFeatures(
            kernel, arrays["plan.basis_copy"], arrays["plan.covariance_copy"], values["tau"]
        )
    baseline = None
    if values["baseline"]:
        baseline = function_from_state(below("plan.baseline", arrays), features)
    return EpochPlan(
        epoch=values["epoch"],
        length=values["length"],
        features=features,
        tau=values["tau"],
        sigma_max=values["sigma_max"],
        value_bound=values["value_bound"],
        clip_norm=values["clip_norm"],
        layout=layout_from_state(values["layout"]),
        baseline=baseline,
    )


# Layouts that are told by their fields alone.
_PLAIN: dict[str, Any] = {"histogram": HistogramLayout, "counts": CountLayout, "pairs": PairLayout}


def layout_state(layout: AnyLayout) -> dict[str, Any]:
    """A layout as plain values; of a projection the products that enter it."""
    values = {each.name: getattr(layout, each.name) for each in fields(layout)}
    if isinstance(layout, VectorLayout):
        sphere = layout.sphere
        return {"kind": "vector", **values, "sphere": None if sphere is None else asdict(sphere)}
    for kind, plain_layout in _PLAIN.items():
        if isinstance(layout, plain_layout):
            return {"kind": kind, **values}
    assert isinstance(layout, ProductLayout)
    if (projection := layout.projection) is not None:
        values["projection"] = {
            "coordinates": projection.coordinates.tolist(),
            "rows": projection.compact.tolist(),
        }
    return {"kind": "products", **values}


def layout_from_state(values: dict[str, Any]) -> AnyLayout:
    """The inverse of :func:`layout_state`."""
    values = {**values, "norm": Norm(values["norm"])}
    if (kind := values.pop("kind")) in _PLAIN:
        if kind == "counts":
            values["cells"] = tuple(values["cells"])
        found: AnyLayout = _PLAIN[kind](**values)
        return found
    if kind == "vector":
        sphere = values["sphere"]
        values["sphere"] = None if sphere is None else Sphere(**sphere)
        return VectorLayout(**values)
    if (kept := values["projection"]) is not None:
        values["projection"] = IntegerProjection.compacted(
            values["rank"], kept["coordinates"], kept["rows"]
        )
    return ProductLayout(**values)


def segment_state(segment: Segment) -> tuple[dict[str, Any], Arrays]:
    """A segment as JSON values and arrays."""
    values = {
        "number": segment.number,
        "value_bound": segment.value_bound,
        "baseline": segment.baseline is not None,
    }
    if segment.baseline is None:
        return values, {}
    return values, named(f"segment.{segment.number}", function_state(segment.baseline))


def segment_from_state(values: dict[str, Any], arrays: Arrays, plan: EpochPlan) -> Segment:
    """The inverse of :func:`segment_state`, for a segment of this plan."""
    baseline, own = None, below(f"segment.{values['number']}", arrays)
    if values["baseline"]:
        baseline = function_from_state(own, plan.features)
    return Segment(number=values["number"], value_bound=values["value_bound"], baseline=baseline)


def function_state(function: Function) -> Arrays:
    """A baseline as arrays; what it is made of is stored with the features."""
    return {"weights": function.weights}


def function_from_state(arrays: Arrays, features: ProjectedFeatures) -> Function:
    """The inverse of :func:`function_state`, for the features that it was planned with."""
    assert isinstance(features, LowRankFeatures | CellFeatures | ArmFeatures)
    return features.basis.weighted(arrays["weights"])


def named(name: str, arrays: Arrays) -> Arrays:
    """Arrays under a common name: ``name.key``."""
    return {f"{name}.{key}": array for key, array in arrays.items()}


def below(name: str, arrays: Arrays, mark: str = ".") -> Arrays:
    """The arrays under a common name, without it: the inverse of :func:`named`."""
    start = f"{name}{mark}"
    return {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}


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
