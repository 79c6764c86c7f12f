"""Shadow mode: what the policy would be worth, by the gate alone; and what modes cost users."""

from typing import Any

import numpy as np
import pytest

import capri
from builders import small_policy
from capri import Budget, Capri, ConfigurationError, ContextPool, RewardStatus, VisitStatus
from capri.epoch.problem import checked_problem
from capri.epoch.rewards import RewardScale
from capri.epoch.shadow import WEIGHT_BOUND, ShadowSum
from capri.errors import BudgetError, ShapeError
from capri.privacy.budget import UserLimit
from capri.privacy.ledger import SHADOW

POOL = np.linspace(0, 1, 4)[:, None]
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def policy(**changes: Any) -> Capri:
    settings: dict[str, Any] = {
        "actions": ["red", "green"],
        "contexts": ContextPool(POOL),
        "budget": BUDGET,
        "first_epoch": 40,
        "simulation_seed": 3002,
    }
    return Capri(**(settings | changes))


@pytest.mark.parametrize("limit", [None, UserLimit(total=40)], ids=["once", "often"])
@pytest.mark.parametrize("budget", [BUDGET, None], ids=["private", "exact"])
def test_no_two_messages_are_farther_apart_than_what_is_accounted_for(
    budget: Budget | None, limit: UserLimit | None
) -> None:
    """Split over corners in L1; of those who come often, one vector in L2."""
    problem = checked_problem(
        kernel="auto", actions=2, contexts=ContextPool(POOL), budget=budget,
        scale=RewardScale.within(0.5), model="joint", limit=limit,
    )  # fmt: skip
    shadow = ShadowSum(problem, problem.norms[-1], 1, 1000)
    odd = [0.0, 5e-324, 1.0, WEIGHT_BOUND, 1e9, float("inf"), float("nan")]
    rewards = [-0.5, 0.0, 0.5, 1e9, -1e300, float("inf"), float("-inf"), float("nan")]
    weights, values = (each.ravel() for each in np.meshgrid(odd, rewards))
    messages = shadow.messages(weights, values).astype(object)
    norm = sum if shadow.layout.norm == "l1" else lambda row: sum(row * row)
    apart = max(int(norm(abs(one - other))) for one in messages for other in messages)
    most = shadow.layout.diameter_squared
    if shadow.layout.norm == "l1":
        assert apart**2 == most  # and the bound is reached
    else:
        assert 0.3 * most < apart <= most
    assert (shadow.layout.norm == "l1") == (budget is None or limit is None)


def test_the_estimate_is_the_clipped_one() -> None:
    """Without a budget nothing is added: the figures are those of the formula."""
    run = policy(budget=None)
    run.set_mode("shadow")
    rng, rows = np.random.default_rng(3003), []
    law = {tuple(row): run.probabilities([row])[0] for row in POOL}
    for _ in range(40):
        context = POOL[rng.integers(4)]
        action, p = int(rng.integers(2)), float(rng.choice([0.5, 0.03, 1.0]))
        reward = float(rng.uniform(-1.5, 1.5))
        decision = run.act(context, chosen=("red", "green")[action], chosen_propensity=p)
        assert decision.status is VisitStatus.SHADOW
        assert decision.propensity == pytest.approx(law[tuple(context)][decision.action_index])
        weight = min(law[tuple(context)][action] / p, WEIGHT_BOUND)
        told = rng.random() < 0.8
        if told:
            assert run.update(decision.id, reward) is RewardStatus.ACCEPTED
        rows.append((weight, float(np.clip(reward, -1, 1)) if told else 0.0))
    run.close_epoch()
    (record,) = run.shadow
    weights, rewards = np.array(rows).T
    assert record.visits == 40
    assert record.worth == pytest.approx((weights * rewards).mean(), abs=1e-6)
    assert record.weight == pytest.approx(weights.mean(), abs=1e-6)
    assert record.earned == pytest.approx(rewards.mean(), abs=1e-6)
    assert not run.epochs  # nothing was learnt


def test_an_epoch_of_both_kinds_has_two_events_and_costs_a_user_one() -> None:
    run = policy(contributions_per_user=2, contributions_per_epoch=2)
    for place in range(40):
        if place == 20:
            run.set_mode("shadow")
        run.act([0.0], user=f"{place % 20}", chosen="red", chosen_propensity=0.5)
    run.close_epoch()
    learning, shadow = sorted(run.ledger.events, key=lambda event: event.purpose)
    assert (learning.participants, shadow.participants) == (20, 20)
    assert (learning.epoch, shadow.epoch, shadow.purpose) == (1, 1, SHADOW)
    # One visit in each of two releases, accounted as two in the dearer one.
    both = run.ledger.spent_by("3")
    assert both.epsilon <= BUDGET.epsilon * (1 + 1e-9)
    assert both.epsilon >= (learning.pure(1) or 0.0) + (shadow.pure(1) or 0.0)
    with pytest.raises(BudgetError, match="was released before"):
        run.ledger.record(shadow)
    assert run.epochs[0].length == 20


@pytest.mark.parametrize("preset", ["practical", "paper"])
def test_an_epoch_has_one_noise_for_both_purposes(preset: str) -> None:
    """The paper's is Gaussian whatever Laplace noise would cost: no epoch is refused at its end."""
    run = small_policy(
        preset=preset, budget=Budget(1.0, 1e-5), contributions_per_user=3, simulation_seed=1
    )
    for user in range(40):
        if user == 20:
            run.set_mode("shadow")
        named = {"chosen": 0, "chosen_propensity": 0.5} if user >= 20 else {}
        run.update(run.act([0.0], user=user, **named), 0.1)
    run.close_epoch(early=True)
    assert {event.purpose for event in run.ledger.events} == {"learning", SHADOW}
    assert len({event.mechanism for event in run.ledger.events}) == 1


@pytest.mark.filterwarnings("ignore::capri.errors.RewardIgnoredWarning")
def test_visits_over_the_limit_and_without_a_context_send_nothing() -> None:
    run = policy(budget=None, contributions_per_user=1, first_epoch=12)
    run.set_mode("shadow")
    odd: list[Any] = [
        {"context": [float("nan")], "user": "a", "chosen": "red", "chosen_propensity": 0.5},
        {"context": [0.0], "user": "b", "chosen": "pink", "chosen_propensity": 0.5},
        {"context": [0.0], "user": "c", "chosen": "red", "chosen_propensity": 7.0},
        {"context": [0.0], "user": "d"},
        {"context": [0.0], "user": "e", "chosen": 1, "chosen_propensity": 0.5},
        {"context": [0.0], "user": "e", "chosen": 1, "chosen_propensity": 0.5},
    ]
    statuses = [run.update(run.act(**visit), 1.0) for visit in odd]
    assert [status is RewardStatus.ACCEPTED for status in statuses] == [False] * 4 + [True, False]
    for place in range(6):
        run.act([0.0], user=f"late {place}")
    run.close_epoch()
    (record,) = run.shadow
    assert record.visits == 12
    assert record.earned == pytest.approx(1 / 12)


def test_shapes_are_public_and_checked() -> None:
    run = policy()
    with pytest.raises(ConfigurationError, match="come together"):
        run.act_many(POOL, chosen=["red"] * 4)
    with pytest.raises(ShapeError):
        run.act_many(POOL, chosen=["red"], chosen_propensities=[0.5])
    paper = small_policy(model="local")
    with pytest.raises(ConfigurationError, match="joint"):
        paper.set_mode("shadow")


def test_names_of_the_other_system_matter_in_shadow_mode_alone() -> None:
    one, two = policy(), policy()
    first = one.act([0.0], chosen="pink", chosen_propensity=0.1)
    assert first.action_index == two.act([0.0]).action_index
    assert first.status is VisitStatus.SERVED


def test_the_estimate_is_in_the_units_of_rewards() -> None:
    """A range around 0.5: what is sent is centred, what is told is not."""
    run = policy(budget=None, reward_range=(0.0, 1.0), first_epoch=50)
    run.set_mode("shadow")
    rng = np.random.default_rng(3004)
    rewards = rng.uniform(-0.2, 1.2, size=30)
    weights = []
    for reward in rewards:
        law = run.probabilities([[0.0]])[0]
        weights.append(min(law[0] / 0.25, WEIGHT_BOUND))
        run.update(run.act([0.0], chosen="red", chosen_propensity=0.25), float(reward))
    run.close_epoch(early=True)
    (record,) = run.shadow
    clipped = np.clip(rewards, 0, 1)
    assert record.worth == pytest.approx((np.array(weights) * clipped).mean(), abs=1e-6)
    assert record.earned == pytest.approx(clipped.mean(), abs=1e-6)


def test_who_may_not_have_the_default_gets_something_else() -> None:
    run = policy(limits=capri.Limits(allowed={"red": {0: (0.5, None)}}))
    run.set_mode("default", action="red")
    assert run.act([1.0]).action_name == "red"
    assert run.act([0.0]).action_name == "green"
    assert run.act([1.0], available=["green"]).action_name == "green"


def test_no_name_of_another_system_refuses_a_batch() -> None:
    run = policy(contributions_per_user=1)
    run.set_mode("shadow")
    odd = [10**5000, -1, 2**80, float("nan"), object(), "red"]
    made = run.act_many(
        [[0.0]] * 6, users=list("abcdef"), chosen=odd, chosen_propensities=[0.5] * 6
    )  # type: ignore[list-item]
    assert [VisitStatus(status) for status in made.status] == [VisitStatus.SHADOW] * 6
