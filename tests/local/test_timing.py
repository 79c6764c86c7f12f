"""What a device computes takes the same steps, on ordinary numbers, whatever its datum is.

Seconds are measured by ``benchmarks/device_time.py``. Here is what they follow from: no number that
processors are slow with arises, and the same functions are called in the same order.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest
from devices import BUDGET, late_bundle, put_together, small_aggregator, take_apart
from hostile import Case, built, data_against, fresh, fresh_products, work

import capri
from capri.epoch.encode import contributions
from capri.errors import BundleError
from capri.features import Basis, LowRankFeatures
from capri.kernels import (
    RBF,
    Categories,
    Columns,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Matern,
    RationalQuadratic,
)
from capri.kernels.evaluate import LEAST, MOST, steady
from capri.local.bundle import Bundle, open_bundle
from capri.local.coordinates import settled
from capri.local.device import Device, _steady_rows
from capri.privacy.sphere import COIN
from capri.privacy.vector import _LARGEST_SQUARE, _shrunk, _shrunk_rows, within_norm

FINEST = np.finfo(np.float64).tiny  # the smallest number that is not subnormal


def ordinary(*arrays: np.ndarray) -> None:
    for array in arrays:
        sizes = np.abs(array)
        assert np.isfinite(array).all()
        assert not ((sizes > 0) & (sizes < FINEST)).any()


def play(bundle: Bundle, context: np.ndarray, reward: float | None) -> None:
    """Decide and encode for the last action, while NumPy raises where a number gets lost."""
    plan, actions = bundle.plan, bundle.actions
    with np.errstate(under="raise", over="raise", invalid="raise"):
        _, rows = _steady_rows(context[None])
        law = bundle.behaviour.probabilities(rows)
        pairs = actions.pairs(rows)
        chosen = actions.chosen(rows, np.array([actions.count - 1]))
        psi = plan.features.whitened(chosen)
        baseline = np.zeros(1) if plan.baseline is None else plan.baseline(chosen)
        value = 0.0 if reward is None or not np.isfinite(reward) else reward
        contributions(
            plan,
            plan.opening,
            psi,
            settled(baseline),
            settled(np.array([value])),
            scale=bundle.scale,
        )
    # These sums of products are made where NumPy does not look.
    v = plan.features.basis.coordinates(pairs)
    ordinary(law, psi, psi * psi, baseline, v * v, plan.features.basis.rows(pairs))
    assert abs(law.sum() - 1) < 1e-6


def slow_bundle(actions: int = 500, pivots: int = 300) -> bytes:
    """Took ten times longer at a context of 0.5 than at 0: ``exp(-725)`` is subnormal."""
    header, arrays = take_apart(small_aggregator().bundle())
    header["kernel"] = {"type": "RBF", "lengthscale": 0.5 / sqrt(2 * 725), "variance": 1.0}
    arrays["pivots"], arrays["transform"] = np.zeros((pivots, 2)), np.ones((pivots, 2))
    arrays["whitening"] = np.ones((2, arrays["whitening"].shape[1]))
    arrays["actions"] = np.zeros((actions, 1))
    header["conduct"] = {"law": {"kind": "thompson"}}
    arrays = {name: each for name, each in arrays.items() if not name.startswith("law")}
    arrays["law.draws"] = np.ones((2, 1))
    return put_together(header, arrays)


def test_the_bundle_that_was_slow_at_one_context() -> None:
    bundle = open_bundle(slow_bundle())
    for context in (0.0, 0.3, 0.45, 0.5, 0.505, 0.52, 0.9, 1e100, 5e-324):
        play(bundle, np.array([context]), 0.5)


def test_plain_kernels_are_noticed() -> None:
    """The control: with the kernel itself the same bundle computes with numbers that get lost."""
    bundle = open_bundle(slow_bundle())
    features = bundle.plan.features
    assert isinstance(features, LowRankFeatures)
    plain = Basis(
        features.basis.kernel.kernel,  # type: ignore[attr-defined]
        features.basis.pivots,
        features.basis.transform,
    )
    law = replace(bundle.behaviour.law, basis=plain)  # type: ignore[call-arg]
    broken = replace(bundle, behaviour=replace(bundle.behaviour, law=law))
    play(broken, np.zeros(1), 0.5)
    with pytest.raises(FloatingPointError):
        play(broken, np.array([0.5]), 0.5)


def hostile_bundles(
    count: int, seed: int, most: int, make: Callable[[np.random.Generator], Case] = fresh
) -> tuple[int, int]:
    """Plays made-up bundles at contexts chosen against them; how many were accepted, refused."""
    draw = np.random.default_rng(seed)
    accepted = refused = 0
    while accepted < count:
        case = make(draw)
        if work(case) > most:
            continue
        try:
            bundle = open_bundle(built(case))
        except BundleError:
            refused += 1
            continue
        accepted += 1
        for context, reward in data_against(bundle, case, draw):
            play(bundle, context, reward)
    return accepted, refused


def test_no_number_gets_lost_under_hostile_bundles() -> None:
    accepted, refused = hostile_bundles(60, seed=1, most=1 << 13)
    assert accepted > refused  # else this would show little


def test_no_number_gets_lost_under_hostile_products() -> None:
    accepted, refused = hostile_bundles(60, seed=3, most=1 << 13, make=fresh_products)
    assert accepted > refused


@pytest.mark.slow
@pytest.mark.parametrize("make", [fresh, fresh_products])
def test_no_number_gets_lost_under_many_hostile_bundles(
    make: Callable[[np.random.Generator], Case],
) -> None:
    hostile_bundles(5000, seed=2, most=1 << 17, make=make)


# -- the same steps -------------------------------------------------------------------------------


def calls(bundle: bytes, context: Any, reward: Any) -> list[tuple[str, str]]:
    """All functions that a decision and a report call, of Python and C, in order."""
    client = capri.LocalClient(bundle, BUDGET, simulation=(1, 1))
    seen: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        name = argument.__name__ if event.startswith("c_") else frame.f_code.co_qualname
        seen.append((event, name))

    gc.disable()  # a collection calls back at times of its own
    sys.setprofile(note)
    try:
        client.act(context)
        client.report(reward)
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


@pytest.mark.parametrize("kernel", [RBF(lengthscale=0.4), "auto"], ids=["told", "auto"])
@pytest.mark.parametrize("limits", [None, capri.Limits(floor={0: 0.1}, share={1: 0.3})])
def test_the_same_functions_are_called_for_every_datum(
    kernel: Kernel | str, limits: capri.Limits | None
) -> None:
    bundle = late_bundle(kernel=kernel, limits=limits)
    expected = calls(bundle, [0.4], 0.5)
    assert len(expected) > 100
    for context in ([0.0], [nan], [inf], [1e200], [1e100], [5e-324], [-3.0]):
        for reward in (0.5, None, nan, -inf, 1e300, 5e-324):
            assert calls(bundle, context, reward) == expected


@pytest.mark.parametrize("limit", [1, 3, 30, 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("filled", [1.0, 0.6])
def test_the_same_functions_on_any_grid(limit: int, filled: float) -> None:
    """A grid of the attacker's choice: rounding brings rows of some contexts beyond its limit.

    A limit of 1 sent a long row through a loop of Python's integers, three times as slow.
    """
    header, arrays = take_apart(late_bundle())
    plan = header["plan"]
    arrays["whitening"] *= 1e3  # every row but that of zeros is clipped, hence as long as can be
    step = plan["value_bound"] * plan["clip_norm"] / limit / filled
    header["grid"] = [step * (1 + 1e-15), limit]
    bundle = put_together(header, arrays)
    data: list[tuple[Any, float | None]] = [([0.4], 0.5), ([0.0], 1e9), ([nan], 0.5), ([0.7], None)]
    data.append(([0.4], 1e9))
    device = Device(open_bundle(bundle))
    rows = [
        device.encode(np.array([context]), np.array([0]), np.array([nan if y is None else y]))
        for context, y in data
    ]
    norms = [int(row[0] @ row[0]) for row in rows]
    assert max(norms) <= limit**2
    assert (min(norms), max(norms) > 0) == (0, True)  # else there is nothing to tell apart
    expected = calls(bundle, *data[0])
    for context, reward in data[1:]:
        assert calls(bundle, context, reward) == expected


# -- the parts ------------------------------------------------------------------------------------

KERNELS: list[Kernel] = [
    RBF(lengthscale=0.3),
    RBF(variance=1e-30),
    RBF(lengthscale=(0.1, 5.0)),
    *(Matern(nu=nu, lengthscale=0.2) for nu in (0.5, 1.5, 2.5, 19.5, 20.5, 1e6 + 0.5, inf)),
    *(RationalQuadratic(alpha=alpha) for alpha in (1e-30, 0.5, 1.0, 2.0, 1e29)),
    Linear(variance=0.5, bias=0.25),
    RBF() * Matern() + Linear(variance=0.1),
    ContextAction(RBF(lengthscale=0.1), Matern(nu=0.5), 1),
    Constant(0.3),
    Categories(similarity=0.2, variance=0.7),
    Columns(Matern(nu=1.5), (1,)),
    ContextAction(Columns(RBF(lengthscale=0.1), (0,)), Categories(0.1), 1),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_steady_kernels_are_the_kernels_to_the_bit(kernel: Kernel) -> None:
    draw = np.random.default_rng(1)
    pivots = draw.random((7, 2))
    near = np.concatenate([pivots, draw.random((40, 2)), pivots + 1e-9, pivots + 1e-16])
    assert steady(kernel)(near, pivots).tobytes() == kernel(near, pivots).tobytes()
    assert steady(kernel).diagonal(near).tobytes() == kernel.diagonal(near).tobytes()
    far = np.concatenate(
        [near, *(draw.choice([-1, 1], (40, 2)) * s for s in (3, 9, 30, 1e9, 1e99))]
    )
    with np.errstate(all="ignore"):
        plain = kernel(far, pivots)
    with np.errstate(under="raise", over="raise", invalid="raise"):
        found = steady(kernel)(far, pivots)
    ordinary(found)
    assert np.abs(found).max() <= MOST
    usual = (np.abs(plain) >= LEAST) & (np.abs(plain) <= MOST)
    if not isinstance(kernel, ContextAction):  # parts of a product are cut one by one
        assert (found[usual] == plain[usual]).all()
    assert (np.abs(found[np.abs(plain) < LEAST]) <= LEAST).all()


@pytest.mark.parametrize("limit", [1, 2, 7, 1000, (1 << 20) + 3, (1 << 30) + 7, (1 << 31) - 1])
@pytest.mark.parametrize("dimension", [2, 5, 300])
def test_rows_are_shrunk_as_one_by_one(limit: int, dimension: int) -> None:
    """Around the limit, where floating point cannot tell: all at once equals exact integers."""
    draw = np.random.default_rng(limit)
    rows = draw.standard_normal((240, dimension))
    lengths = limit * np.repeat([1.0, 1 - 1e-15, 1 + 1e-15, 0.98, 1.02, 1.2], 40)
    rows *= lengths[:, None] / np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.rint(rows).astype(np.int64)
    assert (units.astype(float) ** 2).sum(axis=1).max() <= _LARGEST_SQUARE
    expected = [_shrunk([int(unit) for unit in row], limit) for row in units]
    found = _shrunk_rows(units, limit)
    assert found.tolist() == expected
    alone = [within_norm(row[None].astype(np.float64), limit)[0].tolist() for row in units]
    assert alone == expected
    assert all(sum(unit * unit for unit in row) <= limit**2 for row in found.tolist())


def test_kernels_that_are_nested_too_deep() -> None:
    header, arrays = take_apart(small_aggregator().bundle())
    for depth, accepted in ((60, True), (64, False)):
        kernel: dict[str, Any] = {"type": "RBF"}
        for _ in range(depth):
            kernel = {"type": "Product", "left": kernel, "right": {"type": "RBF"}}
        header["kernel"] = kernel
        if accepted:
            open_bundle(put_together(header, arrays))
        else:
            with pytest.raises(BundleError, match="at most 64 deep"):
                open_bundle(put_together(header, arrays))


def test_reports_that_compare_too_many_directions() -> None:
    header, arrays = take_apart(small_aggregator().bundle())
    width = arrays["whitening"].shape[0]
    for columns, candidates, accepted in ((2000, 1024, True), (2000, 4096, False)):
        arrays["whitening"] = np.ones((width, columns))
        header["plan"] |= {"moment_share": 0.0, "tail_share": 0.0}
        header["sphere"] = [columns, candidates, 1, str(COIN // 128)]
        if accepted:
            open_bundle(put_together(header, arrays))
        else:
            with pytest.raises(BundleError, match="more directions"):
                open_bundle(put_together(header, arrays))
