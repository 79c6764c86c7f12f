"""Bundles made up against the clock of a device, and data that might be told apart with them.

A :class:`Case` holds what a bundle is made from. Numbers near the ends of what a processor can
hold, lengthscales at which kernels vanish, patterns that spoil the guesses of its branches, many
actions, pivots and draws: whatever could take longer at some contexts than at others.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from math import log10, sqrt
from typing import Any

import numpy as np
from devices import put_together, small_aggregator, take_apart

from capri.family import ProductBasis
from capri.local.bundle import Bundle
from capri.privacy.sphere import COIN

Generator = np.random.Generator
Datum = tuple[np.ndarray, float | None]

ORDERS = (0.5, 1.5, 2.5, 7.5, 19.5, 20.5, 1e6 + 0.5, "inf")
PATTERNS = ("zeros", "ones", "normal", "wide", "tiny", "huge", "sparse", "two", "grid")


def power(draw: Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(10.0 ** draw.uniform(low, high))


def size(draw: Generator, most: int) -> int:
    return int(power(draw, 0, log10(most + 0.99)))


# -- genes ----------------------------------------------------------------------------------------


@dataclass
class Case:
    """What a bundle is made from; every field can be changed alone."""

    seed: int
    context: int = 1
    action: int = 1
    actions: int = 5
    varying: bool = False
    pivots: int = 10
    rank: int = 4
    whitened: int = 4
    draws: int = 8
    kernel: dict[str, Any] = field(default_factory=dict)
    law: dict[str, Any] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    scale: float = 1.0
    directions: int = 2
    shares: int = 1
    limit: int = 1 << 30
    fill: float = 1.0
    baseline: bool = False
    # Products of two factors instead of one kernel: how many features the factors have, and
    # principal directions of contexts, 0 for none.
    features: tuple[int, int] | None = None
    axes: int = 0


def leaf(draw: Generator, columns: int) -> dict[str, Any]:
    kind = draw.choice(["RBF", "Matern", "RationalQuadratic", "Linear"], p=[0.35, 0.3, 0.25, 0.1])
    extreme = draw.random() < 0.15
    variance = power(draw, -30, 29.9) if draw.random() < 0.2 else 1.0
    if kind == "Linear":
        return {"type": "Linear", "variance": variance, "bias": float(draw.choice([0.0, 1e-30]))}
    lengthscale: Any = power(draw, -29.9, 29.9) if extreme else power(draw, -3, 2)
    if draw.random() < 0.2:
        lengthscale = [lengthscale * power(draw, -0.04, 0.04) for _ in range(columns)]
    found: dict[str, Any] = {"type": str(kind), "lengthscale": lengthscale, "variance": variance}
    if kind == "Matern":
        found["nu"] = ORDERS[draw.integers(len(ORDERS))]
    elif kind == "RationalQuadratic":
        found["alpha"] = float(draw.choice([1.0, 0.5, 2.0, 30.0, 1e-30, 1e29]))
    return found


def kernel(draw: Generator, case: Case, depth: int = 0) -> dict[str, Any]:
    columns = case.context + case.action
    if draw.random() < 0.65 or depth > 2:
        return leaf(draw, columns)
    if draw.random() < 0.3 and depth == 0 and case.context:
        return {
            "type": "ContextAction",
            "context": leaf(draw, case.context),
            "action": leaf(draw, case.action),
            "context_dimension": case.context,
        }
    kind = str(draw.choice(["Sum", "Product"]))
    return {
        "type": kind,
        "left": kernel(draw, case, depth + 1),
        "right": kernel(draw, case, depth + 1),
    }


def law(draw: Generator) -> dict[str, Any]:
    return {"kind": str(draw.choice(["uniform", "thompson"]))}


GENES = (
    "seed", "sizes", "sizes", "kernel", "kernel", "law", "patterns", "patterns", "scale",
    "report", "grid",
)  # fmt: skip


def change(case: Case, draw: Generator, gene: str) -> None:
    """Draw one gene anew."""
    if gene == "seed":
        case.seed = int(draw.integers(1 << 30))
    elif gene == "sizes":
        case.actions, case.pivots = size(draw, 30_000), size(draw, 1000)
        case.rank, case.whitened = size(draw, 60), max(2, size(draw, 1500))
        case.draws = size(draw, 500)
    elif gene == "shape":
        case.context, case.action = int(draw.integers(1, 4)), int(draw.integers(1, 3))
        case.varying = bool(draw.random() < 0.1)
    elif gene == "kernel":
        case.kernel = kernel(draw, case)
    elif gene == "law":
        case.law, case.baseline = law(draw), bool(draw.random() < 0.5)
    elif gene == "patterns":
        names = ("pivots", "actions", "transform", "whitening", "draws", "weights", "roots")
        case.patterns = {name: str(draw.choice(PATTERNS)) for name in names}
        if draw.random() < 0.4:  # all pairs at one distance: what is slow at one is slow at all
            case.patterns |= {"pivots": "zeros", "actions": "zeros"}
    elif gene == "scale":
        case.scale = power(draw, -3, 3)
    elif gene == "report":
        case.directions, case.shares = int(draw.choice([2, 16, 64, 1024])), int(draw.integers(3))
    elif gene == "grid":
        case.limit = int(draw.choice([1, 40, 1000, 1 << 20, 1 << 30, (1 << 31) - 1]))
        case.fill = float(draw.choice([0.5, 0.9, 1.0, 1.0]))


def fresh(draw: Generator) -> Case:
    case = Case(seed=0)
    for gene in ("shape", *dict.fromkeys(GENES)):
        change(case, draw, gene)
    return case


def fresh_products(draw: Generator) -> Case:
    """The same genes, played in products of features of contexts and of actions."""
    case = fresh(draw)
    case.features = size(draw, 40), size(draw, 20)
    case.axes = int(draw.integers(1, 4)) if draw.random() < 0.4 else 0
    case.kernel = {
        "context": leaf(draw, case.axes or case.context),
        "action": leaf(draw, case.action),
    }
    return case


def known() -> Case:
    """Took ten times longer at a context of 0.5 than at 0 before devices were steady."""
    names = ("pivots", "actions", "transform", "whitening", "draws", "weights", "roots")
    return Case(
        seed=1,
        actions=2700,
        pivots=300,
        kernel={"type": "RBF", "lengthscale": 0.5 / sqrt(2 * 725), "variance": 1.0},
        law={"kind": "thompson"},
        patterns={name: "zeros" if name in ("pivots", "actions") else "ones" for name in names},
    )


def changed(case: Case, draw: Generator) -> Case:
    case = deepcopy(case)
    for _ in range(int(draw.choice([1, 1, 2]))):
        change(case, draw, str(draw.choice(GENES)))
    return case


def work(case: Case) -> int:
    """Kernel values of one decision, about: all of the work that contexts have a part in."""
    leaves = str(case.kernel).count("'type'")
    return case.actions * case.pivots * leaves


# -- bundles --------------------------------------------------------------------------------------

BASE = take_apart(small_aggregator().bundle())


def filled(draw: Generator, pattern: str, shape: tuple[int, ...], scale: float) -> np.ndarray:
    match pattern:
        case "zeros":
            return np.zeros(shape)
        case "ones":
            return np.full(shape, scale)
        case "normal":
            return scale * draw.standard_normal(shape)
        case "wide":
            return 10.0 ** draw.uniform(-70, 14.9, shape) * draw.choice([-1, 1], shape)
        case "tiny":
            return 10.0 ** draw.uniform(-320, -50, shape)
        case "huge":
            return 10.0 ** draw.uniform(14, 14.9, shape) * draw.choice([-1, 1], shape)
        case "sparse":
            return draw.standard_normal(shape) * (draw.random(shape) < 0.1)
        case "two":
            return scale * (draw.random(shape) < 0.5)
    return scale * np.linspace(0, 1, int(np.prod(shape))).reshape(shape)


def products(draw: Generator, case: Case) -> dict[str, np.ndarray]:
    """Both factors and which of their features are multiplied."""
    assert case.features is not None
    arrays: dict[str, np.ndarray] = {}
    sides = (("context", case.context, case.axes), ("action", case.action, 0))
    for (side, columns, axes), features in zip(sides, case.features, strict=True):
        pivots = case.pivots if side == "context" else min(case.pivots, 25)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "centre": ((columns,), "actions"),
            "rate": ((columns,), "weights"),
            "pivots": ((pivots, axes or columns), "pivots"),
            "transform": ((pivots, features), "transform"),
            "offset": ((features,), "weights"),
        }
        if axes:
            shapes["axes"] = (columns, axes), "roots"
        for name, (shape, pattern) in shapes.items():
            arrays[f"span.{side}.{name}"] = filled(draw, case.patterns[pattern], shape, case.scale)
    for name, features in zip(("left", "right"), case.features, strict=True):
        arrays[f"span.{name}"] = draw.integers(features + 1, size=case.rank).astype(float)
    return arrays


def built(case: Case) -> bytes:
    """The bundle of these genes, with a digest that is right."""
    draw = np.random.default_rng(case.seed)
    header, _ = deepcopy(BASE)

    def array(name: str, *shape: int) -> np.ndarray:
        return filled(draw, case.patterns[name], shape, case.scale if name == "actions" else 1.0)

    columns = case.context + case.action
    rows = case.pivots if case.features is None else case.rank
    if case.features is None:
        arrays = {
            "pivots": filled(draw, case.patterns["pivots"], (case.pivots, columns), case.scale),
            "transform": array("transform", case.pivots, case.rank),
        }
    else:
        arrays = products(draw, case)
    arrays["whitening"] = array("whitening", case.rank, case.whitened)
    if case.baseline:
        arrays["baseline"] = array("weights", rows)
    header["context_dimension"], header["varying_actions"] = case.context, None
    if case.varying:
        header["varying_actions"] = [case.actions, case.action]
        header["context_dimension"] += case.actions * case.action
    else:
        arrays["actions"] = array("actions", case.actions, case.action)
    header["kernel"] = case.kernel
    if case.features is not None:
        header |= {"kernel": {"type": "Auto"}, "span": case.kernel}
    header["conduct"] = {"law": case.law}
    if case.law["kind"] == "thompson":
        arrays["law.draws"] = array("draws", case.rank, case.draws)
    plan = header["plan"]
    plan["moment_share"], plan["tail_share"] = [(0.0, 0.0), (0.3, 0.0), (0.3, 0.1)][case.shares]
    near = max(1, case.directions // 16)
    odds = 54.0 * near / (case.directions - near)
    chance = int(COIN * (odds / (1 + odds)))
    header["sphere"] = [case.whitened + case.shares, case.directions, near, str(chance)]
    plan["value_bound"], plan["clip_norm"] = 1.0, 1.0
    header["grid"] = [1.0 / (case.limit * case.fill), case.limit]
    return put_together(header, arrays)


def scales(description: dict[str, Any]) -> Iterator[float]:
    """The lengthscales of a kernel."""
    for name, value in description.items():
        if name == "lengthscale":
            yield from value if isinstance(value, list) else [value]
        elif isinstance(value, dict):
            yield from scales(value)


def data_against(bundle: Bundle, case: Case, draw: Generator) -> list[Datum]:
    """Contexts and rewards that could be told apart."""
    width, basis = bundle.context_dimension, bundle.plan.features.basis
    if isinstance(basis, ProductBasis):  # scores of 0 lie at the centre
        pivots = np.stack([basis.context.scores.centre, 4 * basis.context.scores.centre])
    else:
        pivots = basis.pivots
    rows = [np.zeros(width), np.full(width, 0.5), draw.random(width)]
    for row in pivots[draw.integers(len(pivots), size=2)]:
        rows.append(np.resize(row[: case.context] if not case.varying else row, width))
    lengthscales = list(scales(case.kernel)) or [1.0]
    # Where exp(-r^2/2) or exp(-r) reaches the floor, becomes subnormal, and vanishes.
    for exponent in draw.choice([1.0, 100.0, 229.0, 231.0, 700.0, 725.0, 745.0, 2000.0], size=3):
        shift = float(draw.choice(lengthscales)) * float(
            draw.choice([sqrt(2 * exponent), exponent])
        )
        rows.append(rows[3] + np.full(width, shift) / sqrt(width))
    far = draw.choice([1e3, 1e15, 1e50, 1e100, -1e100, 5e-324, 1e-310, 1e-160, 1e-59])
    rows += [np.full(width, far), np.full(width, np.nan), np.full(width, 1e200)]
    rows.append(np.where(draw.random(width) < 0.5, 0.0, draw.choice(rows[3])))
    rewards = (0.5, 1.0, -1.0, None, float("nan"), 1e300, 1e-310, 0.3)
    data: list[Datum] = [(row, rewards[draw.integers(len(rewards))]) for row in rows]
    data += [(rows[0], reward) for reward in (1.0, 1e-310)]
    return data
