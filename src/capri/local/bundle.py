"""The public bundle of an epoch: all that a device needs, and the same bytes for everybody.

    12 bytes    "CAPRI-BUNDLE"
    2 + 4       format version, length of the header
    header      JSON: plan, law, kernels, bounds, and name and shape of every array
    arrays      little-endian, one after the other: float64, or 16 bits a number
    32          SHA-256 of all before

docs/reference/wire.md says it for other languages.

A bundle comes from somebody the device does not trust. Nothing in it is executed or unpickled, all
sizes are bounded before memory is asked for, and every number is checked. What a device computes
with it takes the same time for everybody, see :mod:`capri.local.coordinates`.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite, prod
from re import ASCII, fullmatch
from struct import Struct
from typing import Any

import numpy as np

from capri.arrays import FloatArray, from_columns16, to_columns16
from capri.epoch.plan import EpochPlan
from capri.epoch.play import BehaviourPolicy
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardScale
from capri.errors import BundleError, CapriError
from capri.features import Basis, LowRankFeatures, Span
from capri.files import plain
from capri.local.coordinates import (
    action_rows,
    action_state,
    check_kernel,
    feasible,
    settled,
    span_of,
    span_state,
)
from capri.local.wire import LARGEST_WHOLE, VERSION, read_header
from capri.privacy.sphere import Sphere
from capri.privacy.vector import VectorLayout
from capri.schema import Schema
from capri.spaces import Actions, FixedActions, VaryingActions

MAGIC = b"CAPRI-BUNDLE"
_HEAD = Struct("<12sHI")
_DIGEST = 32
# An honest bundle has well under a megabyte; actions with many features may need more.
LARGEST = 1 << 26
_LARGEST_HEADER = 1 << 17
# Products of a few such numbers are still far from overflow.
_LARGEST_NUMBER = 1e15
_LARGEST_SIDE = 1 << 24
# Numbers that the directions of a report are made of, twice.
_MOST_DIRECTIONS = 1 << 21
# Draws from the belief and what whitens are most of a bundle: 16 bits are more than they are worth.
_ROUNDED, _SHORT = ("law.draws", "whitening"), "int16"
_LARGEST_EXPONENT = 250
_PLAN_VALUES = (
    "epoch",
    "length",
    "tau",
    "sigma_max",
    "value_bound",
    "clip_norm",
    "moment_share",
    "tail_share",
)
_LAYOUT_VALUES = _PLAN_VALUES[-2:]


@dataclass(frozen=True)
class Mixing:
    """What is claimed of a batch whose reports are mixed: nothing that a device relies on.

    ``(epsilon, delta)`` against whoever sees the mixed batch alone, if at least ``reports`` of it
    come from honest people.
    """

    epsilon: float
    delta: float
    reports: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A bundle that was read: the plan of the epoch and how to play in it."""

    plan: EpochPlan
    behaviour: BehaviourPolicy
    context_dimension: int
    scale: RewardScale
    digest: bytes
    missing_reward: float = 0.0
    schema: Schema | None = None
    mixing: Mixing | None = None

    def encoded(self, values: object, *, single: bool = False) -> object:
        """Records of users as rows of numbers; what comes as numbers is left as it is."""
        return values if self.schema is None else self.schema.encoded(values, single=single)

    @property
    def actions(self) -> Actions:
        """The actions to choose from."""
        return self.behaviour.actions

    @property
    def reward_bound(self) -> float:
        """``B``: what is learnt of a reward lies within ``[-B, B]``."""
        return self.scale.bound

    @property
    def dimension(self) -> int:
        """Coordinates of a contribution."""
        return self.plan.dimension


def make_bundle(problem: Problem, plan: EpochPlan, behaviour: BehaviourPolicy) -> bytes:
    """The bytes that every device gets."""
    features, actions = plan.features, problem.actions
    check_kernel(problem.kernel.to_dict())
    if not isinstance(features, LowRankFeatures):
        raise BundleError("a bundle needs low-rank features")
    span, arrays = span_state(features)
    behaviour_values, behaviour_arrays = behaviour.state()
    arrays = {**arrays, "whitening": features.whitening, **behaviour_arrays}
    if plan.baseline is not None:
        arrays["baseline"] = plan.baseline.weights
    if isinstance(actions, FixedActions):
        arrays |= action_state(actions, products=bool(span))
    layout = plan.vector
    sphere = layout.sphere
    assert sphere is not None  # how every device makes its report
    header: dict[str, Any] = {
        "kernel": problem.kernel.to_dict(),
        "context_dimension": problem.contexts.dimension,
        "reward_bound": problem.reward_bound,
        **problem.scale.to_dict(),
        "varying_actions": None
        if isinstance(actions, FixedActions)
        else [actions.count, actions.dimension],
        "plan": {
            name: getattr(layout if name in _LAYOUT_VALUES else plan, name) for name in _PLAN_VALUES
        },
        "grid": [layout.step, layout.norm_limit],
        # As text: most languages read numbers of a JSON file as floats, exact up to 2^53.
        "sphere": [sphere.dimension, sphere.candidates, sphere.near, str(sphere.chance)],
        "conduct": behaviour_values,
        "arrays": [
            [name, list(array.shape), *([_SHORT] if name in _ROUNDED else [])]
            for name, array in arrays.items()
        ],
    }
    header |= span
    if problem.shuffle is not None and problem.budget is not None:
        # What mixing is claimed to be worth: a device keeps to its own budget whatever this says.
        counted = problem.shuffle.counted(plan.length)
        header["shuffle"] = [problem.budget.epsilon, problem.budget.delta, counted]
    if problem.rewards.missing:  # said only where it is not the default
        header["missing_reward"] = problem.rewards.missing
    if actions.names is not None:
        header["action_names"] = list(actions.names)
    if problem.contexts.schema is not None:
        header["schema"] = problem.contexts.schema.to_dict()
    text = json.dumps(header, separators=(",", ":"), default=plain).encode()
    if len(text) > _LARGEST_HEADER:
        raise BundleError(
            f"the header of a bundle has at most {_LARGEST_HEADER} bytes, got {len(text)}: use "
            "fewer or shorter names of actions and levels"
        )
    parts = [_HEAD.pack(MAGIC, VERSION, len(text)), text]
    parts += [_bytes_of(array, short=name in _ROUNDED) for name, array in arrays.items()]
    body = b"".join(parts)
    return body + sha256(body).digest()


def _bytes_of(array: FloatArray, *, short: bool) -> bytes:
    """Doubles, row after row; or an exponent for each column and then its numbers, of 16 bits."""
    if not short:
        return np.ascontiguousarray(array, dtype="<f8").tobytes()
    exponents, numbers = to_columns16(array)
    return np.concatenate([exponents[None], numbers]).astype("<i2").tobytes()


def open_bundle(data: bytes, digest: bytes | None = None) -> Bundle:
    """Read and check a bundle; ``digest`` is the one that is expected, if it is known.

    Every way in which the bytes can be wrong ends in a :class:`BundleError`.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BundleError(f"a bundle is bytes, got {type(data).__name__}", "not-a-bundle")
    data = bytes(data)
    if len(data) > LARGEST:
        raise BundleError(f"a bundle has at most {LARGEST} bytes, got {len(data)}", "too-large")
    if len(data) < _HEAD.size + _DIGEST or not data.startswith(MAGIC):
        raise BundleError("this is not a capri bundle, or it was cut short", "not-a-bundle")
    _, version, length = _HEAD.unpack_from(data)
    if version != VERSION:
        raise BundleError(
            f"the bundle has format version {version}, this release reads version {VERSION} alone: "
            "device and aggregator need the same",
            "version",
        )
    found = data[-_DIGEST:]
    if sha256(memoryview(data)[:-_DIGEST]).digest() != found:
        raise BundleError("the bundle is damaged: its digest does not match", "damaged")
    if digest is not None and digest != found:
        raise BundleError(
            "this is another bundle than the one expected: digests differ", "other-bundle"
        )
    try:
        with np.errstate(all="ignore"):
            return _checked(data, length, found)
    except BundleError:
        raise
    # Whatever else a hostile header makes go wrong, and only that: nothing was executed.
    except (
        CapriError, KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError,
        RecursionError, UnicodeError, MemoryError, ImportError,
    ) as problem:  # fmt: skip
        raise BundleError(f"the bundle is malformed: {problem or type(problem).__name__}") from None


def _checked(data: bytes, length: int, digest: bytes) -> Bundle:
    if length > min(_LARGEST_HEADER, len(data) - _HEAD.size - _DIGEST):
        raise BundleError("the bundle is malformed: its header does not fit")
    start = _HEAD.size + length
    header = read_header(data[_HEAD.size : start])
    arrays = _arrays(header["arrays"], data, start)
    varying = header["varying_actions"]
    actions: Actions
    if varying is None:
        rows = action_rows(header, arrays)
        _check_side(rows.ndim == 2)
        actions = FixedActions(rows, header.get("action_names"))
    else:
        count, features = (_whole(number, "an action count") for number in varying)
        actions = VaryingActions(count, features)
    context_dimension = _whole(header["context_dimension"], "context_dimension")
    basis, leaves = span_of(header, arrays, actions, context_dimension)
    bound = _number(header["reward_bound"], "reward_bound", 1e-50, 1e50)
    scale = RewardScale.from_dict(header)
    if abs(scale.bound - bound) > 1e-9 * bound:  # logarithms differ between machines
        raise BundleError("the bundle is malformed: its range of rewards has another bound")
    plan = _plan(header, arrays, basis, bound)
    described = header.get("schema")
    schema = None if described is None else Schema.from_dict(described)
    if schema is not None and schema.dimension != context_dimension:
        raise BundleError("the bundle is malformed: its schema makes rows of another size")
    behaviour = BehaviourPolicy.from_state(
        _behaviour(header["conduct"], arrays, basis), arrays, basis, actions
    )
    if behaviour.bounds is not None and behaviour.bounds.columns > context_dimension:
        raise BundleError("the bundle is malformed: a rule is about a column that is not there")
    missing = header.get("missing_reward", min(max(0.0, scale.low), scale.high))
    bundle = Bundle(
        plan=plan,
        behaviour=behaviour,
        context_dimension=context_dimension,
        scale=scale,
        digest=digest,
        missing_reward=_number(missing, "missing_reward", scale.low, scale.high),
        schema=schema,
        mixing=_mixing(header.get("shuffle"), plan.length),
    )
    _check_shapes(bundle, leaves)
    return bundle


def _mixing(claim: Any, length: int) -> Mixing | None:
    """The claim, or None where it cannot be read: clients in other languages ignore it, too."""
    try:
        epsilon, delta, reports = claim
        return Mixing(
            _number(epsilon, "a central epsilon", 0, 1e3),
            _number(delta, "a central delta", 0, 1),
            _whole(reports, "the reports of a batch", length),
        )
    except (TypeError, ValueError, BundleError):
        return None


def _behaviour(values: Any, arrays: dict[str, FloatArray], basis: Span) -> Any:
    """A law of a known kind, with one number for each coordinate and draw."""
    kind = values["law"]["kind"]
    if kind not in ("uniform", "thompson"):
        raise BundleError("the bundle is malformed: a law of an unknown kind")
    if kind == "thompson":
        _check_side(arrays["law.draws"].ndim == 2 and len(arrays["law.draws"]) == basis.rank)
    return values


def _rows_of(basis: Span) -> int:
    """Pivots of a kernel; products are coordinates already."""
    return len(basis.pivots) if isinstance(basis, Basis) else basis.rank


def _check_side(fits: bool) -> None:
    if not fits:
        raise BundleError("the bundle is malformed: its arrays do not fit each other")


def _arrays(listed: Any, data: bytes, start: int) -> dict[str, FloatArray]:
    """The arrays, finite and of the announced shapes, which fill the bytes exactly."""
    arrays: dict[str, FloatArray] = {}
    for name, sides, *form in listed:
        shape = tuple(_whole(side, "an array side") for side in sides)
        if not isinstance(name, str) or name in arrays or not 1 <= len(shape) <= 2:
            raise BundleError("the bundle is malformed: a bad array")
        short = form == [_SHORT] and len(shape) == 2
        if form and not short:
            raise BundleError("the bundle is malformed: an array of an unknown form")
        end = start + (2 * (prod(shape) + shape[1]) if short else 8 * prod(shape))
        if end > len(data) - _DIGEST:
            raise BundleError("the bundle is malformed: its arrays do not fit")
        array = _numbers(data[start:end], shape) if short else np.frombuffer(data[start:end], "<f8")
        if not (np.abs(array) <= _LARGEST_NUMBER).all():
            raise BundleError(f"the bundle is malformed: {name} holds NaN or enormous numbers")
        arrays[name] = settled(array.reshape(shape).astype(np.float64))
        start = end
    if start != len(data) - _DIGEST:
        raise BundleError("the bundle is malformed: bytes are left over")
    return arrays


def _numbers(data: bytes, shape: tuple[int, ...]) -> FloatArray:
    """The inverse of what 16 bits make of an array."""
    words = np.frombuffer(data, "<i2").astype(np.int64).reshape(shape[0] + 1, shape[1])
    if (np.abs(words[0]) > _LARGEST_EXPONENT).any():
        raise BundleError("the bundle is malformed: an exponent out of its range")
    return from_columns16(words[0], words[1:])


def _plan(
    header: dict[str, Any], arrays: dict[str, FloatArray], basis: Span, bound: float
) -> EpochPlan:
    values = header["plan"]
    if set(values) != set(_PLAN_VALUES):
        raise BundleError(f"the bundle is malformed: a plan has {', '.join(_PLAN_VALUES)}")
    step, limit = header["grid"]
    value_bound = _number(values["value_bound"], "value_bound", 1e-60, 2 * bound)
    clip_norm = _number(values["clip_norm"], "clip_norm", 1e-60, 1e60)
    limit = _whole(limit, "norm_limit", (1 << 31) - 1)
    step = _number(step, "step", 1e-200, 1e200)
    # A contribution at its bound must fill the grid: else devices would round all of it away.
    if not 0.5 <= value_bound * clip_norm / step / limit <= 1:
        raise BundleError("the bundle is malformed: contributions do not fit their grid")
    share = {name: _number(values[name], name, 0, 0.5) for name in ("moment_share", "tail_share")}
    if share["tail_share"] and not share["moment_share"]:
        raise BundleError("the bundle is malformed: a tail share needs a moment share")
    dimension, candidates, near, chance = header["sphere"]
    if not isinstance(chance, str) or not fullmatch("[0-9]{1,19}", chance, ASCII):
        raise BundleError("the bundle is malformed: a chance is a text of digits")
    sphere = Sphere(dimension=dimension, candidates=candidates, near=near, chance=int(chance))
    _check_side(arrays["whitening"].ndim == 2 and len(arrays["whitening"]) == basis.rank)
    baseline = None
    if "baseline" in arrays:
        _check_side(arrays["baseline"].shape == (_rows_of(basis),))
        baseline = basis.weighted(arrays["baseline"])
    tau = _number(values["tau"], "tau", 1e-300, 1e300)
    return EpochPlan(
        epoch=_whole(values["epoch"], "epoch", LARGEST_WHOLE),
        length=_whole(values["length"], "length", LARGEST_WHOLE),
        features=LowRankFeatures(basis, arrays["whitening"], tau, settled),
        tau=tau,
        sigma_max=_number(values["sigma_max"], "sigma_max", 0, 1e300),
        value_bound=value_bound,
        clip_norm=clip_norm,
        layout=VectorLayout(
            rank=arrays["whitening"].shape[1],
            step=step,
            norm_limit=limit,
            value_bound=value_bound,
            sphere=sphere,
            moment_share=share["moment_share"],
            tail_share=share["tail_share"],
        ),
        baseline=baseline,
    )


def _check_shapes(bundle: Bundle, leaves: tuple[int, int]) -> None:
    """All matrices fit each other, and a device can play: tried at the context of zeros."""
    plan, behaviour, actions = bundle.plan, bundle.behaviour, bundle.actions
    features = plan.features
    assert isinstance(features, LowRankFeatures)
    if not feasible(features, behaviour, leaves):
        raise BundleError("the bundle asks for more work than a device should do", "too-much-work")
    assert plan.sphere is not None
    if plan.sphere.candidates * plan.sphere.dimension > _MOST_DIRECTIONS:
        raise BundleError(
            "the bundle asks for more directions than a device should compare", "too-much-work"
        )
    if plan.sphere.dimension != bundle.dimension:
        raise BundleError("the bundle is malformed: the sphere has another dimension")
    origin = np.zeros((1, bundle.context_dimension))
    law = behaviour.probabilities(origin)
    pair = actions.chosen(origin, np.zeros(1, dtype=np.int64))
    psi = features.whitened(pair)
    fits = law.shape == (1, actions.count) and (law >= 0).all() and abs(law.sum() - 1) < 1e-6
    if not fits or psi.shape != (1, features.rank) or not np.isfinite(psi).all():
        raise BundleError("the bundle is malformed: nothing can be played with it")
    if plan.baseline is not None and not np.isfinite(plan.baseline(pair)).all():
        raise BundleError("the bundle is malformed: its baseline is not a number")


def _whole(value: Any, name: str, largest: int = _LARGEST_SIDE, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise BundleError(f"the bundle is malformed: {name} must lie in {least} to {largest}")
    return value


def _number(value: Any, name: str, low: float, high: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or not low <= value <= high:
        raise BundleError(f"the bundle is malformed: {name} must lie in {low:g} to {high:g}")
    return float(value)
