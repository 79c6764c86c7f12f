"""One message, one gate: what holds for every layout, looked for on the code that makes messages.

Distances are squared, in exact fractions, and in the norm of the noise: a block counts its share.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import capri
from builders import ACTIONS, BUDGET, CONTEXTS, play_epoch, small_policy
from capri.arrays import FloatArray, IntArray
from capri.epoch.encode import Encoder
from capri.epoch.shadow import ShadowSum
from capri.errors import BudgetError, PrivacyLeakWarning
from capri.local.bundle import open_bundle
from capri.local.device import Device
from capri.privacy.budget import PrivacyModel
from capri.privacy.gate import Gate, noised
from capri.privacy.histogram import histogram_layout
from capri.privacy.layout import MECHANISMS, Layout, Norm
from capri.privacy.ledger import Ledger
from capri.privacy.moments import moment_layout
from capri.privacy.noise import NoiseSource, SecureNoise, SimulatedNoise
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.projection import integer_projection
from capri.privacy.sphere import sphere
from capri.privacy.vector import vector_layout
from layouts import squared_distance

RANK = 3


def vector(**changes: Any) -> Layout:
    given = {"rank": RANK, "length": 1000, "budget": BUDGET, "value_bound": 1.0}
    return vector_layout(**(given | changes))


def products(**changes: Any) -> Layout:
    """As loud as shares may be beside the blocks that are there."""
    plain = ProductLayout(rank=RANK, **changes)
    loud = replace(plain, moment_share=plain.largest_moment_share)
    loud = replace(loud, count_share=loud.largest_count_share)
    return loud.fitted(length=1000, budget=BUDGET)


def moments(targets: int, **changes: Any) -> Layout:
    given = {"features": RANK, "targets": targets, "rows": 1000, "budget": BUDGET}
    return moment_layout(**(given | changes))


def counts(share: float) -> Layout:
    return CountLayout(cells=(2,) * RANK).told_in_stages(BUDGET, share, 1000)


def histogram(**changes: Any) -> Layout:
    given = {"cells": RANK, "length": 1000, "budget": BUDGET}
    return histogram_layout(**(given | changes))


def pairs(scores: int, norm: Norm) -> Layout:
    budget = BUDGET if norm is Norm.L2 else capri.Budget(BUDGET.epsilon)
    return PairLayout(scores=scores, norm=norm).calibrated(budget)


DIRECTIONS = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 2)))[0].T
LAYOUTS: dict[str, Layout] = {
    "vector": vector(),
    "vector, no budget": vector(budget=None),
    "vector, paper": vector(noise_scale=100.0, calibration="paper", clip_norm=1.0),
    "vector, shares": vector(moment_share=0.2, tail_share=0.1),
    "vector, sphere": vector(moment_share=0.2, sphere=sphere(4.0, RANK + 1)),
    "products": products(),
    "products, missing": products(missing=True),
    "products, second moments": products(missing=True, second_moments=True, tail_share=0.1),
    "products, projected": products(
        missing=True,
        second_moments=True,
        tail_share=0.3,
        projection=integer_projection(DIRECTIONS, RANK),
    ),
    "moments": moments(1),
    "moments, two targets": moments(2),
    "moments, tails": moments(2, tails=True),
    "moments, a stage": moments(1, share=0.05, coordinates=1000),
    "counts": counts(1.0),
    "counts, a stage": counts(0.06),
    "counts, pure": CountLayout(cells=(2,) * RANK, norm=Norm.L1).calibrated(
        capri.Budget(BUDGET.epsilon)
    ),
    "pairs": pairs(RANK, Norm.L2),
    "pairs, pure": pairs(RANK, Norm.L1),
    "histogram": histogram(),
    "histogram, no budget": histogram(budget=None),
    "histogram, pure": histogram(budget=capri.Budget(BUDGET.epsilon), missing=True),
    "histogram, all blocks": histogram(missing=True, tail_share=0.05),
    "histogram, three visits": histogram(missing=True, contributions=3),
}
NOISY = [name for name, layout in LAYOUTS.items() if layout.noise_units]


def values_of(layout: Layout, numbers: FloatArray) -> FloatArray:
    """As many values a row as the layout takes: targets of a regression, or one."""
    columns = getattr(layout, "targets", 0) * (1 + getattr(layout, "tails", False))
    return numbers[:, :columns] if columns else numbers[:, 0]


anything = st.one_of(
    st.floats(-2, 2),
    st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True, width=64),
    st.sampled_from([0.0, 1.0, -1.0, 1e-160, 1e154, 1.8e308, np.nan, np.inf]),
)


# --- the theorem ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=100, deadline=None)
@given(rows=arrays(np.float64, (2, RANK + 4), elements=anything))
def test_no_two_messages_are_further_apart_than_the_diameter(name: str, rows: FloatArray) -> None:
    """Whatever two users bring; and neither is further from the zero message."""
    layout = LAYOUTS[name]
    with np.errstate(all="ignore"):
        left, right = layout.messages(rows[:, :RANK], values_of(layout, rows[:, RANK:]))
    for other in (right, np.zeros_like(left)):
        assert squared_distance(layout, left, other) <= layout.diameter_squared
    for block in layout.blocks.values():
        assert all(abs(int(unit)) <= block.largest for unit in left[block.part])


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "pairs, pure"])
def test_diameter_is_attained(name: str) -> None:
    """The same feature and opposite values: nothing less would do.

    A vector that tells of moments has them in the same norm, and opposite values agree on them.
    """
    layout = LAYOUTS[name]
    features = np.eye(RANK)[[0, 0]]
    values = np.array([[1.0] * 4, [-1.0] * 4])
    if name.startswith("counts"):  # no cell in common
        features = np.array([[0.0] * RANK, [1.0] * RANK])
    if name == "pairs":
        features = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]])
    if "tail" in layout.blocks:
        values[0] = 1e9  # tells an excess, and the other none
    if getattr(layout, "tails", False):
        values[:, 2:] = 0.0
    left, right = layout.messages(features, values_of(layout, values))
    lost = getattr(layout, "moment_share", 0.0) ** 2 if name.startswith("vector") else 0.0
    found = float(squared_distance(layout, left, right) / layout.diameter_squared)
    assert found == pytest.approx(1 - lost, rel=1e-4)


def test_two_scores_attain_the_diameter_of_pairs_in_l1() -> None:
    """With more scores the bound is that of Cauchy and Schwarz."""
    layout = pairs(2, Norm.L1)
    left, right = layout.messages(np.array([[1.0, 1.0], [1.0, -1.0]]), np.zeros(2))
    found = float(squared_distance(layout, left, right) / layout.diameter_squared)
    assert found == pytest.approx(1, rel=1e-3)


def test_diameter_is_rounded_up() -> None:
    """Roots of whole numbers are irrational: a pure epsilon is compared with no less than them."""
    for columns in range(1, 60):
        layout = CountLayout(cells=(2,) * columns)
        assert Fraction(layout.diameter) ** 2 >= layout.diameter_squared
        assert Fraction(np.nextafter(layout.diameter, 0)) ** 2 < layout.diameter_squared


@pytest.mark.parametrize("name", LAYOUTS)
def test_sum_is_that_of_messages_in_any_order(name: str) -> None:
    """Exactly, whatever the rows hold."""
    layout, generator = LAYOUTS[name], np.random.default_rng(0)
    rows = generator.normal(size=(200, RANK + 4))
    rows[::7, RANK:], rows[::11, 0] = np.nan, np.inf
    order = generator.permutation(200)
    sums = []
    with np.errstate(all="ignore"):
        for each in (rows, rows[order]):
            features, values = each[:, :RANK], values_of(layout, each[:, RANK:])
            sums.append(layout.total(features, values))  # type: ignore[attr-defined]
        messages = layout.messages(rows[:, :RANK], values_of(layout, rows[:, RANK:]))
    assert sums[0].tolist() == sums[1].tolist() == messages.sum(axis=0).tolist()


# --- layouts of real plans ------------------------------------------------------------------------


def of_policy(**changes: Any) -> tuple[Layout, Callable[[FloatArray, int, float], IntArray]]:
    """The layout of the epoch under way, and the encoder that its visits go through."""
    policy = small_policy(**changes)
    play_epoch(policy)
    plan, encoder = policy.plan(), Encoder(policy.plan(), policy.problem)

    def message(context: FloatArray, action: int, reward: float) -> IntArray:
        chosen = np.array([action])
        pairs = policy.problem.actions.chosen(context[None], chosen)
        return encoder.total(plan.opening, pairs, np.array([-1]), chosen, np.array([reward]))

    return plan.layout, message


def of_device() -> tuple[Layout, Callable[[FloatArray, int, float], IntArray]]:
    """The layout of a bundle, and the device that opens it."""
    aggregator = capri.LocalCapri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.4),
        actions=ACTIONS,
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(epsilon=4.0),
        horizon=60,
    )
    bundle = open_bundle(aggregator.bundle(), aggregator.digest)
    device = Device(bundle)

    def message(context: FloatArray, action: int, reward: float) -> IntArray:
        return device.encode(context[None], np.array([action]), np.array([reward]))[0]

    return bundle.plan.layout, message


def of_shadow() -> tuple[Layout, Callable[[FloatArray, int, float], IntArray]]:
    """The layout of visits that another system decides; the context stands for the weight."""
    shadow = ShadowSum(small_policy().problem, Norm.L1, 1, 100)

    def message(context: FloatArray, action: int, reward: float) -> IntArray:
        return shadow.messages(context * 10.0**action, np.array([reward]))[0]

    return shadow.layout, message


def of_fit(targets: int) -> tuple[Layout, Callable[[FloatArray, int, float], IntArray]]:
    """The layout of the second stage of a fit, whose residuals have tails."""
    generator = np.random.default_rng(0)
    X = generator.random((2000, 1))
    y = np.stack([np.sin(6 * X[:, 0])] * targets, axis=1)
    ridge = capri.PrivateKernelRidge(
        epsilon=8.0, X_bounds=(0, 1), y_bounds=(-1, 1), rank=4, random_state=0
    )
    with pytest.warns(PrivacyLeakWarning):
        ridge.fit(X, y)
    plan = ridge._engine.readings[-1].result.plan

    def message(context: FloatArray, action: int, reward: float) -> IntArray:
        return plan.total(context[None], np.full((1, targets), reward * (action - 1)))

    return plan.layout, message


def of_crowd(asked: int, **changes: Any) -> Any:
    """The layout of an epoch about contexts alone, and the encoder of its visits."""
    pool = capri.ContextPool.from_ranges([(-1, 1), (0, 1)])
    policy = small_policy(preset="practical", contexts=pool, horizon=None, **changes)
    for _ in range(asked):
        drawn = np.random.default_rng(0).random((policy.remaining, 2))
        policy.act_many(drawn)
        policy.close_epoch()
    plan, encoder = policy.plan(), Encoder(policy.plan(), policy.problem)

    def message(context: FloatArray, action: int, reward: float) -> IntArray:
        chosen = np.array([action])
        pairs = policy.problem.actions.chosen(np.append(context, reward)[None], chosen)
        return encoder.total(plan.opening, pairs, np.array([-1]), chosen, np.array([reward]))

    return plan.layout, message


PLANS: dict[str, Callable[[], tuple[Layout, Callable[..., IntArray]]]] = {
    "practical": lambda: of_policy(preset="practical", first_epoch=8),
    "as estimated": lambda: of_policy(
        preset="practical", first_epoch=8, missing_reward="as-estimated"
    ),
    "no budget": lambda: of_policy(preset="practical", first_epoch=8, budget=None),
    "unrelated arms": lambda: of_policy(
        preset="practical", first_epoch=8, kernel="auto", actions=12
    ),
    "paper": of_policy,
    "paper, local": lambda: of_policy(model="local"),
    "crowd, cells": lambda: of_crowd(0),
    "crowd, pairs": lambda: of_crowd(1),
    "crowd, pure": lambda: of_crowd(1, budget=capri.Budget(epsilon=4.0)),
    "device": of_device,
    "shadow": of_shadow,
    "fit": lambda: of_fit(1),
    "fit, two targets": lambda: of_fit(2),
}


@pytest.fixture(scope="module", params=PLANS)
def planned(request: pytest.FixtureRequest) -> tuple[Layout, Callable[..., IntArray]]:
    return PLANS[request.param]()


visit = st.tuples(
    arrays(np.float64, 1, elements=st.one_of(st.floats(-1, 2), st.sampled_from([1e100, -1e100]))),
    st.integers(0, len(ACTIONS) - 1),
    anything,
)


@settings(max_examples=60, deadline=None)
@given(left=visit, right=visit)
def test_layouts_of_real_plans_are_within_the_diameter(
    planned: tuple[Layout, Callable[..., IntArray]], left: Any, right: Any
) -> None:
    """Whoever is replaced by whom, through the code that a policy, a device and a fit run."""
    layout, message = planned
    with np.errstate(all="ignore"):
        first, second = message(*left), message(*right)
    assert squared_distance(layout, first, second) <= layout.diameter_squared


# --- the gate -------------------------------------------------------------------------------------


class Recorded(NoiseSource):
    """Adds 1 to everything, and notes how wide it should have been."""

    private = True

    def __init__(self) -> None:
        self.drawn: list[tuple[int, float, int, Norm]] = []

    def add(
        self, values: IntArray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> IntArray:
        self.drawn.append((len(values), scale, reports, norm))
        return values + 1


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("model", PrivacyModel)
def test_gate_adds_the_noise_of_the_layout_and_states_it(name: str, model: PrivacyModel) -> None:
    """Each block its own, once in the joint model and once a participant in the local one."""
    layout, source, ledger = LAYOUTS[name], Recorded(), Ledger(BUDGET)
    total = np.arange(layout.coordinates)
    public, event = Gate(source, ledger).release(
        total, layout, epoch=3, participants=5, model=model
    )
    noises = 5 if model is PrivacyModel.LOCAL else 1
    assert source.drawn == [
        (block.size, layout.noise_scales[name], noises, layout.norm)
        for name, block in layout.blocks.items()
    ]
    assert public.tolist() == layout.numbers(total + 1).tolist()
    assert ledger.events == (event,)
    assert event is not None
    assert event.mu == pytest.approx(layout.diameter / layout.noise_units, rel=1e-14)
    assert (event.epoch, event.participants, event.rank) == (3, 5, layout.coordinates)
    assert event.mechanism == MECHANISMS[layout.norm].name
    if event.calibration == "analytic" and "visits" not in name and "stage" not in name:
        assert ledger.spent.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-6)
    assert ledger.spent.epsilon <= BUDGET.epsilon


@pytest.mark.parametrize("name", NOISY)
def test_gate_refuses_less_noise(name: str) -> None:
    quiet = replace(LAYOUTS[name], noise_units=LAYOUTS[name].diameter / BUDGET.epsilon / 1e3)
    ledger, source = Ledger(BUDGET), Recorded()
    total = np.zeros(quiet.coordinates, dtype=np.int64)
    with pytest.raises(BudgetError):
        Gate(source, ledger).release(total, quiet, epoch=0, participants=1)
    assert not ledger.events
    assert not source.drawn


@pytest.mark.parametrize("name", LAYOUTS)
def test_gate_without_a_ledger_refuses_noise(name: str) -> None:
    """What was made to be hidden leaves through a ledger or not at all; sums of reports never."""
    layout = LAYOUTS[name]
    gate, total = Gate(SecureNoise(), None), np.zeros(layout.coordinates, dtype=np.int64)
    if name in NOISY or name == "vector, sphere":
        with pytest.raises(BudgetError, match=r"through a ledger only|passes as reports"):
            gate.release(total, layout, epoch=0, participants=1)
    else:
        assert gate.release(total, layout, epoch=0, participants=1)[1] is None


class Deaf(NoiseSource):
    """Noise that ignores its input: what passes the gate must not depend on the secret."""

    private = True

    def add(
        self, values: IntArray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> IntArray:
        return np.full(values.shape, int(scale), dtype=np.int64)


@pytest.mark.parametrize("name", NOISY)
def test_only_what_the_noise_source_returns_is_published(name: str) -> None:
    layout = LAYOUTS[name]
    secrets = np.zeros(layout.coordinates, dtype=np.int64), np.arange(layout.coordinates)
    left, right = (noised(secret, layout, Deaf()) for secret in secrets)
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", NOISY)
def test_released_numbers_are_as_wide_as_the_layout_says(name: str) -> None:
    """2,000 releases: a deviation has a relative error of 1.6 %, six of them are 9.5 %."""
    layout, source = LAYOUTS[name], SimulatedNoise(np.random.default_rng(5))
    zero = np.zeros(layout.coordinates, dtype=np.int64)
    drawn = np.array([layout.numbers(noised(zero, layout, source)) for _ in range(2000)])
    assert np.abs(drawn.std(axis=0) / layout.deviations - 1).max() < 0.095


def test_every_norm_has_a_mechanism() -> None:
    """One table says it all: name, noise, cost."""
    assert set(MECHANISMS) == set(Norm)
    for mechanism in MECHANISMS.values():
        for composition in (1.0, 3.0):
            scale = mechanism.scale(7.0, BUDGET, 10, composition)
            assert mechanism.epsilon(7.0, scale, BUDGET, 10, composition) <= BUDGET.epsilon
            assert mechanism.epsilon(7.07, scale, BUDGET, 10, composition) > BUDGET.epsilon
