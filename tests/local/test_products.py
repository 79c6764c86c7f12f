"""Bundles where nobody told a kernel: products of factors, read, refused and played steadily."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import (
    BUDGET,
    CONTEXTS,
    fill,
    honest_reports,
    late_aggregator,
    late_bundle,
    one_report,
    open_epochs,
    put_together,
    small_aggregator,
    snapshot,
    take_apart,
)

import capri
from capri.epoch.play import ThompsonLaw
from capri.errors import BundleError
from capri.family import ProductBasis
from capri.features import LowRankFeatures
from capri.local.bundle import Bundle, open_bundle

RNG = np.random.default_rng(7)
GRID = np.linspace(0, 1, 50)[:, None]
# Contexts and actions of problems of several kinds; the last ones have a constant factor.
PROBLEMS: dict[str, tuple[np.ndarray, Any]] = {
    "one column": (CONTEXTS, np.linspace(0, 1, 5)[:, None]),
    "principal directions": (RNG.normal(size=(80, 20)) * 100, RNG.random((4, 2))),
    "unrelated actions": (RNG.random((30, 3)), np.eye(9)),
    "own actions": (RNG.random((40, 2 + 3 * 2)), capri.VaryingActions(3, 2)),
    "nothing but own actions": (RNG.random((40, 3 * 2)), capri.VaryingActions(3, 2)),
    "one context": (np.full((1, 2), 7.0), RNG.random((6, 1))),
    "one action": (CONTEXTS, [[0.3]]),
}


def aggregator_of(problem: str, **changes: Any) -> capri.LocalCapri:
    contexts, actions = PROBLEMS[problem]
    pool = capri.ContextPool(contexts)
    return small_aggregator(
        kernel="auto", contexts=pool, actions=actions, **({"draws": 8} | changes)
    )


def play_an_epoch(aggregator: capri.LocalCapri, contexts: np.ndarray) -> None:
    bundle = aggregator.bundle()
    for user in range(aggregator.remaining):
        client = capri.LocalClient(bundle, BUDGET, simulation=(5, user))
        decision = client.act(contexts[user % len(contexts)])
        report = client.report(0.2 * decision.action_index - 0.4)
        assert aggregator.receive(report) == capri.ReportStatus.ACCEPTED


def products_of(bundle: Bundle) -> ProductBasis:
    features = bundle.plan.features
    assert isinstance(features, LowRankFeatures)
    assert isinstance(features.basis, ProductBasis)
    return features.basis


# -- honest bundles -------------------------------------------------------------------------------


def assert_close(found: Any, wanted: Any) -> None:
    """Sums of other lengths, of numbers below a few hundred."""
    assert np.abs(found - wanted).max() <= 1e-11 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_round_trip(problem: str) -> None:
    """What a device reads is what the aggregator planned, before and after learning.

    Laws to the bit. Features but for rounding: a bundle leaves out those that no product needs.
    """
    contexts, _ = PROBLEMS[problem]
    aggregator = aggregator_of(problem)
    for _ in range(2):
        bundle = open_bundle(aggregator.bundle(), aggregator.digest)
        plan = open_epochs(aggregator)[-1].plan
        assert isinstance(plan.features, LowRankFeatures)
        found, basis = products_of(bundle), plan.features.basis
        assert isinstance(basis, ProductBasis)
        assert (found.left.tolist(), found.right.tolist()) == (
            basis.left.tolist(),
            basis.right.tolist(),
        )
        assert (found.table is None) == isinstance(bundle.actions, capri.VaryingActions)
        law = bundle.behaviour.probabilities(contexts)
        assert law.tobytes() == aggregator.probabilities(contexts).tobytes()
        pairs = bundle.actions.pairs(contexts)
        flat = pairs.reshape(-1, pairs.shape[-1])
        psi = bundle.plan.features.whitened(flat)
        assert_close(psi, plan.features.whitened(flat))
        assert (plan.baseline is None) == (bundle.plan.baseline is None)
        if plan.baseline is not None and bundle.plan.baseline is not None:
            assert_close(bundle.plan.baseline(flat), plan.baseline(flat))
        play_an_epoch(aggregator, contexts)
    assert aggregator.epochs[-1].epoch == 2


def test_everybody_gets_the_same_bytes_and_laws_do_not_depend_on_neighbours() -> None:
    aggregator = late_aggregator(kernel="auto")
    assert aggregator.bundle() == late_aggregator(kernel="auto").bundle()
    assert put_together(*take_apart(aggregator.bundle()), listed=False) == aggregator.bundle()
    bundle = open_bundle(aggregator.bundle())
    together = bundle.behaviour.probabilities(CONTEXTS)
    for row, law in zip(CONTEXTS, together, strict=True):
        assert bundle.behaviour.probabilities(row[None])[0].tobytes() == law.tobytes()


def test_told_kernels_say_nothing_of_products() -> None:
    header, arrays = take_apart(late_bundle())
    assert "span" not in header
    assert not any(name.startswith("span") for name in arrays)
    assert list(arrays)[:3] == ["pivots", "transform", "whitening"]


def test_what_is_the_identity_is_left_out() -> None:
    header, arrays = take_apart(aggregator_of("unrelated actions").bundle())
    assert header["kernel"] == {"type": "Auto"}
    assert not {"actions", "span.action.pivots"} & set(arrays)
    bundle = open_bundle(put_together(header, arrays))
    assert np.array_equal(bundle.actions.pairs(np.zeros((1, 3)))[0, :, 3:], np.eye(9))


@pytest.mark.parametrize("problem", ["one column", "unrelated actions", "nothing but own actions"])
def test_saved_and_loaded(problem: str, tmp_path: Path) -> None:
    """An aggregator that was loaded gives out the same bundles."""
    contexts, _ = PROBLEMS[problem]
    aggregator = aggregator_of(problem)
    for _ in range(2):
        path = tmp_path / "aggregator.capri"
        aggregator.save(path)
        loaded = capri.LocalCapri.load(path)
        assert loaded.bundle() == aggregator.bundle()
        assert snapshot(loaded, tmp_path) == snapshot(aggregator, tmp_path)
        play_an_epoch(aggregator, contexts)
        play_an_epoch(loaded, contexts)
    assert loaded.bundle() == aggregator.bundle()
    assert loaded.estimate(contexts).tobytes() == aggregator.estimate(contexts).tobytes()


def test_saved_with_reports_that_wait(tmp_path: Path) -> None:
    """Epochs that are not read yet are stored with the basis of their plan."""
    aggregator = small_aggregator(kernel="auto", reward_wait=40)
    reports = fill(aggregator)
    assert reports
    path = tmp_path / "aggregator.capri"
    aggregator.save(path)
    loaded = capri.LocalCapri.load(path)
    assert snapshot(loaded, tmp_path) == snapshot(aggregator, tmp_path)
    for each in (aggregator, loaded):
        fill(each, first=60)
    assert loaded.bundle() == aggregator.bundle()


def test_reports_to_actions_that_were_replaced_still_count() -> None:
    """They are read in the columns of the old factors."""
    aggregator = small_aggregator(kernel="auto", reward_wait=40, horizon=400)
    fill(aggregator)
    late = honest_reports(aggregator, 130, first=60)
    aggregator.replace_actions(np.linspace(0, 2, 7)[:, None])
    assert (aggregator.receive_many(late[:90]) == capri.ReportStatus.ACCEPTED).all()
    assert aggregator.receive_many(late[90:]).tolist() == [capri.ReportStatus.ACCEPTED] * 40
    before = len(aggregator.epochs)
    for user in range(aggregator.remaining):
        report = one_report(aggregator.bundle(), BUDGET, 500 + user)
        assert aggregator.receive(report) == capri.ReportStatus.ACCEPTED
    assert len(aggregator.epochs) > before
    bundle = open_bundle(aggregator.bundle())
    assert bundle.actions.count == 7
    law = bundle.behaviour.probabilities(CONTEXTS)
    assert law.tobytes() == aggregator.probabilities(CONTEXTS).tobytes()


@pytest.mark.parametrize(
    ("contexts", "actions"),
    [
        (GRID, GRID),
        (RNG.random((300, 64)), np.eye(10)),
        (RNG.random((200, 4)), RNG.random((20, 2))),
        (RNG.random((300, 20)), np.eye(300)),
    ],
    ids=["50 x 50", "digits", "200 x 20", "300 unrelated actions"],
)
def test_a_late_bundle_is_small(contexts: np.ndarray, actions: np.ndarray) -> None:
    """A megabyte is the limit: with all draws and as many directions as ten reports ask for."""
    aggregator = small_aggregator(
        kernel="auto", contexts=capri.ContextPool(contexts), actions=actions, first_epoch=10
    )
    play_an_epoch(aggregator, contexts)
    bundle = aggregator.bundle()
    assert isinstance(open_bundle(bundle).behaviour.law, ThompsonLaw)
    assert len(bundle) < 1 << 20


# -- hostile bundles ------------------------------------------------------------------------------


@cache
def late() -> bytes:
    return late_bundle(kernel="auto")


def changed(**arrays: Callable[[np.ndarray], np.ndarray] | None) -> bytes:
    """The late bundle with some of its ``span`` arrays made anew, or left out."""
    header, found = take_apart(late())
    for name, change in arrays.items():
        key = f"span.{name.replace('__', '.')}"
        found[key] = found[key] if change is None else change(found[key])
        if change is None:
            del found[key]
    return put_together(header, found)


def with_first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.concatenate([[value], array[1:]])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("value", [-1.0, 0.5, 1e3, 1e15, nan, inf])
def test_products_of_features_that_are_not_there(side: str, value: float) -> None:
    with pytest.raises(BundleError, match=r"not there|NaN"):
        open_bundle(changed(**{side: with_first(value)}))


@pytest.mark.parametrize(
    "arrays",
    [
        {"left": None},
        {"left": lambda array: array[:-1]},
        {"left": lambda array: array[None]},
        {"context__centre": None},
        {"context__rate": lambda array: np.append(array, 1.0)},
        {"context__pivots": lambda array: array[:-1]},
        {"context__pivots": lambda array: np.hstack([array, array])},
        {"context__pivots": None},
        {"context__transform": lambda array: array[:, 0]},
        {"context__transform": None},
        {"context__offset": None},
        {"action__offset": lambda array: array[:-1]},
        {"action__offset": lambda array: array[None]},
        {"action__centre": lambda array: array * nan},
        {"action__transform": lambda array: array * 1e300},
    ],
)
def test_factors_that_do_not_fit(arrays: dict[str, Any]) -> None:
    with pytest.raises(BundleError):
        open_bundle(changed(**arrays))


def test_arrays_that_no_factor_has() -> None:
    header, arrays = take_apart(late())
    for name in ("span.context.more", "span.action.axes"):
        with pytest.raises(BundleError, match="do not fit"):
            open_bundle(put_together(header, arrays | {name: np.ones((3, 3))}))


@pytest.mark.parametrize(
    "span",
    [
        {},
        [],
        {"context": {"type": "RBF"}},
        {"context": {"type": "RBF"}, "action": {"type": "RBF"}, "more": {"type": "RBF"}},
        {"context": {"type": "Auto"}, "action": {"type": "RBF"}},
        {"context": {"type": "RBF"}, "action": {"type": "Sum", "left": {"type": "Auto"}}},
        {"context": {"type": "Matern", "nu": 0.7}, "action": {"type": "RBF"}},
        {"context": {"type": "RBF"}, "action": {"type": "RBF", "lengthscale": 1e-300}},
        {"context": {"type": "RBF", "lengthscale": [1.0, 1.0]}, "action": {"type": "RBF"}},
    ],
)
def test_kernels_of_factors_are_checked(span: Any) -> None:
    header, arrays = take_apart(late())
    with pytest.raises(BundleError):
        open_bundle(put_together(header | {"span": span}, arrays))


def test_auto_without_factors_is_refused() -> None:
    header, arrays = take_apart(late_bundle())
    with pytest.raises(BundleError):
        open_bundle(put_together(header | {"kernel": {"type": "Auto"}}, arrays))


def large(kind: str) -> bytes:
    """Little more than the late bundle in bytes, and far more in work."""
    header, arrays = take_apart(late())
    rank = len(arrays["span.left"])
    if kind == "identity":
        arrays |= {
            "span.action.transform": np.ones((1 << 20, 1)),
            "span.action.offset": np.ones(1),
            "span.right": np.zeros(rank),
        }
        del arrays["actions"], arrays["span.action.pivots"]
    elif kind == "pivots":
        arrays |= {
            "span.context.pivots": np.ones((1 << 13, 1)),
            "span.context.transform": np.ones((1 << 13, 1)),
            "span.context.offset": np.ones(1),
            "span.left": np.zeros(rank),
        }
    elif kind == "actions":
        arrays["actions"] = np.ones((1 << 20, 1))
    elif kind == "draws":
        arrays["law.draws"] = np.ones((rank, 4000))
        arrays["actions"] = np.ones((4000, 1))
    elif kind == "products":
        many = 1 << 13
        arrays["span.left"] = arrays["span.right"] = np.zeros(many)
        arrays |= {"law.draws": np.ones((many, 2)), "baseline": np.ones(many)}
        arrays["whitening"] = np.ones((many, arrays["whitening"].shape[1]))
    elif kind == "parts":
        tree: dict[str, Any] = {"type": "RBF"}
        for _ in range(10):
            tree = {"type": "Sum", "left": tree, "right": tree}
        header["span"] = {"context": {"type": "RBF"}, "action": tree}
        arrays["actions"] = np.ones((4000, 1))
    return put_together(header, arrays)


@pytest.mark.parametrize("kind", ["identity", "pivots", "actions", "draws", "products", "parts"])
def test_more_work_than_a_device_should_do(kind: str) -> None:
    with pytest.raises(BundleError, match=r"more work|too large"):
        open_bundle(large(kind))


# -- steady ---------------------------------------------------------------------------------------


def wild(bundle: Bundle) -> np.ndarray:
    """Coordinates at contexts that overflow and get lost without care."""
    rows = np.array([[0.0], [1e-59], [1.0], [-1e100], [1e100], [3e15]])
    with np.errstate(under="raise", over="raise", invalid="raise"):
        return products_of(bundle).coordinates(bundle.actions.pairs(rows))


def test_factors_without_limits_are_noticed() -> None:
    """The control: features beyond their limit, and the same with a plain factor."""
    header, arrays = take_apart(late())
    header["span"]["context"] = {"type": "Linear", "variance": 1e30, "bias": 0.0}
    header["span"]["action"] = {"type": "Linear", "variance": 1e30, "bias": 0.0}
    for side in ("context", "action"):
        arrays[f"span.{side}.transform"][:] = 1e15
        arrays[f"span.{side}.pivots"][:] = 1e15
        arrays[f"span.{side}.rate"][:] = 1e15
    bundle = open_bundle(put_together(header, arrays))
    assert np.abs(wild(bundle)).max() <= 1.0001e70
    basis = products_of(bundle)
    plain = [
        capri.family.Factor(**{field.name: getattr(side, field.name) for field in fields(side)})
        for side in (basis.context, basis.action)
    ]
    unlimited = replace(basis, context=plain[0], action=plain[1])
    rows = bundle.actions.pairs(np.array([[1e100]]))
    assert np.abs(unlimited.coordinates(rows)).max() > 1e80
