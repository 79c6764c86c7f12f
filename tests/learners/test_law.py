"""The law of contexts is learnt from second moments, at no price and whoever comes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

import capri
from capri.epoch.encode import Encoder
from capri.epoch.plan import EpochPlan
from capri.epoch.storage import PLANS
from capri.learners.arms_model import ArmsModel
from capri.learners.context_law import allowed
from capri.learners.context_support import ContextSupport, Functions
from capri.learners.learner import PracticalLearner
from capri.spaces import Contexts
from layouts import squared_distance

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
GRID = np.linspace(0, 1, 30)[:, None]
ACTIONS = np.linspace(0, 1, 8)[:, None]
BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)
STRONG = capri.Budget(epsilon=8.0, delta=1e-5)


def arms_for(
    contexts: Contexts | None = None, budget: capri.Budget | None = BUDGET, seed: int = 3
) -> capri.Capri:
    """Unrelated actions in blocks, of which the first eight are those of the others."""
    return capri.Capri(
        actions=9,
        contexts=capri.ContextPool(GRID) if contexts is None else contexts,
        budget=budget,
        simulation_seed=seed,
    )


def policy_for(
    contexts: Contexts | None = None, budget: capri.Budget | None = BUDGET, seed: int = 3
) -> capri.Capri:
    return capri.Capri(
        kernel=KERNEL,
        actions=ACTIONS,
        contexts=capri.ContextPool(GRID) if contexts is None else contexts,
        budget=budget,
        simulation_seed=seed,
    )


def played(policy: capri.Capri, rounds: int, crowded: bool, seed: int = 11) -> capri.Capri:
    """Users near 0.8, or even ones; rewards are highest where the action is the context."""
    generator, done = np.random.default_rng(seed), 0
    while done < rounds:
        count = policy.remaining
        x = generator.random(count)
        if crowded:
            x = np.clip(0.8 + 0.1 * generator.standard_normal(count), 0, 1)
        rows = np.rint(x * 29)[:, None] / 29
        decisions = policy.act_many(rows)
        rewards = 0.5 - np.abs(rows[:, 0] - np.asarray(decisions.action_index) / 7)
        policy.update_many(decisions, rewards + generator.uniform(-0.1, 0.1, count))
        done += count
    policy.close_full_epoch()
    return policy


def learner_of(policy: capri.Capri) -> PracticalLearner:
    learner = policy._learning.learner
    assert isinstance(learner, PracticalLearner)
    return learner


# -- the guarantee does not notice ----------------------------------------------------------------


@pytest.fixture(scope="module", params=["related", "unrelated"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Of an epoch that residuals and moments are planned for, after some that were learnt from."""
    policy = policy_for() if request.param == "related" else arms_for()
    played(policy, 1000, crowded=True)
    while not {"projected", "tail"} <= set(plan_of(policy).layout.blocks):
        played(policy, 1, crowded=True)
    return Encoder(plan_of(policy), policy.problem)


def plan_of(policy: capri.Capri) -> EpochPlan:
    plan = policy.plan()
    assert plan is not None
    return plan


anything = st.floats(allow_nan=True, allow_infinity=True, width=64)
visit = st.tuples(
    st.one_of(st.floats(-1, 2), st.sampled_from([0.0, 0.8, 1e100, -1e100])),
    st.integers(0, len(ACTIONS) - 1),
    st.one_of(st.floats(-2, 2), anything),
)


@settings(max_examples=200, deadline=None)
@given(visit, visit)
def test_messages_of_a_real_plan_are_within_the_sensitivity(
    encoder: Encoder, left: tuple[float, int, float], right: tuple[float, int, float]
) -> None:
    """``sum share^2 |gap|^2 <= (2 L^2)^2`` in exact fractions, whoever is replaced by whom."""
    plan = encoder._plan
    units = []
    for context, action, reward in (left, right):
        pairs = encoder._problem.actions.chosen(np.array([[context]]), np.array([action]))
        place = np.array([-1])
        units.append(
            encoder.total(plan.opening, pairs, place, np.array([action]), np.array([reward]))
        )
    assert squared_distance(plan.layout, *units) <= plan.layout.diameter_squared


def test_message_with_a_projection_is_stored_whole(encoder: Encoder) -> None:
    layout = encoder._plan.layout
    values, arrays = PLANS.write(layout, "layout")
    again = json.loads(json.dumps(values))
    assert PLANS.read(type(layout), again, arrays, "layout") == layout


# -- what is learnt -------------------------------------------------------------------------------


def test_crowd_is_found_and_told() -> None:
    """Users near 0.8 of an even pool: 0.63 of its weight is elsewhere than they are."""
    policy = played(policy_for(), 8000, crowded=True)
    assert "pool" in [notice.kind for notice in policy.notices]
    assert policy.epochs[-1].mismatch == pytest.approx(0.63, abs=0.12)
    law = learner_of(policy).known.context_law
    weights, away = law.weights(GRID, np.full(30, 1 / 30))
    assert weights.sum() + away.sum() == pytest.approx(1.0)
    assert (weights > 0).all()
    assert weights[GRID[:, 0] > 0.55].sum() > 0.9
    record = policy.epochs[-1].to_dict()
    assert record["mismatch"] == policy.epochs[-1].mismatch


def test_crowd_is_found_among_unrelated_actions() -> None:
    """By dense messages on every second epoch, once releases do not fit."""
    policy = played(arms_for(), 12_000, crowded=True)
    assert isinstance(learner_of(policy).known.model, ArmsModel)
    assert "pool" in [notice.kind for notice in policy.notices]
    assert policy.epochs[-1].mismatch == pytest.approx(0.6, abs=0.15)
    weights, _ = learner_of(policy).known.context_law.weights(GRID, np.full(30, 1 / 30))
    assert weights[GRID[:, 0] > 0.55].sum() > 0.85


def test_unrelated_actions_get_coordinates_for_users_beside_the_pool() -> None:
    """What was learnt passes to new features of contexts, and goes on in a file."""
    pool = capri.ContextPool(GRID[GRID[:, 0] < 0.5])
    policy = arms_for(pool, budget=None)
    before = learner_of(policy).known.basis
    played(policy, 6000, crowded=False)
    known = learner_of(policy).known
    assert known.context_law.kind == 2
    assert known.basis is not before
    best = policy.estimate(np.array([[0.9]]))[0]
    assert abs(best.argmax() / 7 - 0.9) < 0.2


@pytest.mark.parametrize("make", [policy_for, arms_for])
@pytest.mark.parametrize("budget", [BUDGET, None])
def test_right_pool_is_left_alone(
    make: Callable[..., capri.Capri], budget: capri.Budget | None
) -> None:
    policy = played(make(budget=budget), 4000, crowded=False)
    assert "pool" not in [notice.kind for notice in policy.notices]
    assert policy.epochs[-1].mismatch is not None
    assert policy.epochs[-1].mismatch < 0.1


def test_sampler_has_a_law_to_be_corrected() -> None:
    sampler = capri.ContextSampler.from_ranges([(0.0, 1.0)])
    policy = capri.Capri(  # dense messages alone carry who comes
        kernel=KERNEL, actions=ACTIONS, contexts=sampler, budget=BUDGET, simulation_seed=3,
        noise="gaussian",
    )  # fmt: skip
    played(policy, 4000, crowded=True)
    assert policy.epochs[-1].mismatch is not None
    assert policy.epochs[-1].mismatch > 0.3


def test_users_beside_the_pool_get_coordinates() -> None:
    """A pool of [0, 1/2]: half of the users are like nobody in it."""
    pool = capri.ContextPool(GRID[GRID[:, 0] < 0.5])
    policy = policy_for(pool)
    before = learner_of(policy).known.basis.rank
    played(policy, 6000, crowded=False)
    learner = learner_of(policy)
    assert learner.known.context_law.kind == 2
    assert learner.known.context_law.mismatch[1] > 0.25
    assert learner.known.basis.rank > 1.3 * before
    best = policy.estimate(np.array([[0.9]]))[0]
    assert abs(ACTIONS[best.argmax(), 0] - 0.9) < 0.2


def test_devices_learn_no_law() -> None:
    """A report that is private by itself has no room for moments."""
    aggregator = capri.LocalCapri(
        kernel=KERNEL,
        actions=ACTIONS,
        contexts=capri.ContextPool(GRID),
        budget=capri.Budget(epsilon=4.0),
        public_seed=1,
        first_epoch=20,
        horizon=60,
    )
    bundle = aggregator.bundle()
    for user in range(20):
        client = capri.LocalClient(bundle, capri.Budget(epsilon=4.0), simulation=(1, user))
        client.act([0.8])
        aggregator.receive(client.report(0.5))
    assert aggregator.epochs[-1].mismatch is None
    assert "mismatch" not in aggregator.epochs[-1].to_dict()


@pytest.mark.parametrize("make", [policy_for, arms_for])
@pytest.mark.parametrize("half", [False, True])
def test_learnt_law_is_kept_in_files(
    make: Callable[..., capri.Capri], half: bool, tmp_path: Path
) -> None:
    """A loaded policy plans and learns on, to the bit."""
    pool = capri.ContextPool(GRID[GRID[:, 0] < 0.5]) if half else None
    policy = played(make(pool, budget=STRONG if make is arms_for else BUDGET), 2500, crowded=True)
    assert learner_of(policy).known.context_law.kind > 0
    policy.save(tmp_path / "policy.capri")
    again = capri.Capri.load(tmp_path / "policy.capri")
    for each in (policy, again):
        played(each, 4000, crowded=True, seed=12)
    np.testing.assert_array_equal(policy.probabilities(GRID), again.probabilities(GRID))
    assert policy.epochs[-1].mismatch == again.epochs[-1].mismatch


# -- pieces ---------------------------------------------------------------------------------------


def test_functions_are_centred_and_orthonormal_under_the_pool() -> None:
    generator = np.random.default_rng(0)
    rows, weights = generator.random((80, 3)), generator.dirichlet(np.ones(80))
    functions = Functions.of(rows, weights, 16, centred=True)
    assert functions is not None
    values = functions(rows)
    np.testing.assert_allclose(weights @ values, 0, atol=1e-8)
    np.testing.assert_allclose((values * weights[:, None]).T @ values, np.eye(16), atol=1e-6)


def test_pool_of_one_row_has_no_other_law() -> None:
    reach = ContextSupport.of(policy_for(capri.ContextPool([[0.5]])).problem)
    assert reach.inside is None
    assert len(reach.elsewhere) == 0


def test_rows_elsewhere_are_not_like_the_pool() -> None:
    reach = ContextSupport.of(policy_for(capri.ContextPool(GRID[:15])).problem)
    beyond = reach.elsewhere[:, 0]
    assert ((beyond < 0) | (beyond > GRID[14, 0])).all()
    assert beyond.max() > 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_constrained_weights_are_the_nearest_that_are_allowed(seed: int) -> None:
    """Kuhn and Tucker: the step from ``free`` is a non-negative mix of the active bounds."""
    generator = np.random.default_rng(seed)
    root, slopes = generator.standard_normal((5, 5)), generator.standard_normal((40, 5))
    precision, free = root @ root.T + 0.1 * np.eye(5), 3 * generator.standard_normal(5)
    least = -generator.random(40)  # so that 0 is allowed
    beta = allowed(free, precision, slopes, least)
    slack = slopes @ beta - least
    assert slack.min() > -1e-6
    active = slack < 1e-6
    gradient = precision @ (beta - free)
    if not active.any():
        np.testing.assert_allclose(gradient, 0, atol=1e-6)
        return
    _, rest = nnls(slopes[active].T, gradient)
    assert rest < 1e-5 * max(1.0, float(np.linalg.norm(gradient)))
