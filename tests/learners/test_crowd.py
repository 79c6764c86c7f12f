"""Who comes, learnt in private where nothing is public but ranges."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from capri.arrays import FloatArray
from capri.learners.copula import denoised, on_simplex
from capri.schema import Boolean, Categorical, Numeric

BUDGET = capri.Budget(epsilon=2.0, delta=1e-5)


def policy(ranges: Any, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "actions": 3,
        "contexts": capri.ContextPool.from_ranges(ranges, size=32),
        "budget": BUDGET,
        "simulation_seed": 5,
    }
    return capri.Capri(**(settings | changes))


def met(asked: capri.Capri, come: Any) -> capri.Capri:
    """The policy once it knows who comes: ``come`` gives so many visits."""
    while asked.crowd().step != "over":
        asked.act_many(come(asked.remaining))
        asked.close_epoch()
    asked.plan()  # from here on by the pool
    return asked


def correlated(seed: int, *, scale: float = 1.0) -> Any:
    """Two columns that go together by .8, one that does not, one that is 2 for everybody."""
    rng = np.random.default_rng(seed)

    def come(count: int) -> FloatArray:
        one, other, third = rng.normal(size=(3, count))
        two = 0.8 * one + 0.6 * other
        return np.stack([scale * one, two, third, np.full(count, 2.0)], axis=1)

    return come


FOUR = [(-4, 4), (-4, 4), (-4, 4), (0, 10)]


@pytest.mark.parametrize("budget", [None, BUDGET, capri.Budget(epsilon=2.0)], ids=str)
def test_the_pool_is_like_those_who_come(budget: capri.Budget | None) -> None:
    asked = met(policy(FOUR, budget=budget), correlated(1))
    known = asked._engine.learning.learner.known  # type: ignore[attr-defined]
    rows, weights = known.problem.contexts.rows, known.problem.contexts.weights
    made = rows[: len(rows) - 32]
    found = np.corrcoef(made[:, :3].T)
    assert found[0, 1] == pytest.approx(0.8, abs=0.2)
    assert abs(found[0, 2]) < 0.35
    assert made[:, :3].std(axis=0) == pytest.approx(np.ones(3), abs=0.35)
    assert np.median(made[:, 3]) == pytest.approx(2.0, abs=0.4)
    assert weights.sum() == pytest.approx(1)
    report = asked.crowd()
    assert report.users == sum(each.length for each in asked.epochs)
    assert {report.together[0].one, report.together[0].other} == {"column 0", "column 1"}
    assert "column 3" not in {each.one for each in report.together}, "it does not vary"


def test_what_was_declared_is_what_is_served(tmp_path: Path) -> None:
    """The pool of the problem stays; a file gives the learnt one back, to the bit."""
    asked, come = policy(FOUR, first_epoch=60), correlated(2)
    declared = asked.contexts
    asked.act_many(come(30))
    asked.save(tmp_path / "early.capri")
    again = capri.Capri.load(tmp_path / "early.capri")
    for each in (asked, again):
        met(each, correlated(3))
        assert each.contexts.rows.tolist() == declared.rows.tolist()
    assert repr(asked.crowd()) == repr(again.crowd())
    asked.save(tmp_path / "late.capri")
    rows = come(5)
    loaded = capri.Capri.load(tmp_path / "late.capri")
    assert loaded.crowd() == asked.crowd()
    assert loaded.probabilities(rows).tobytes() == asked.probabilities(rows).tobytes()
    assert loaded.act_many(rows).action_index.tolist() == asked.act_many(rows).action_index.tolist()


def test_rewards_that_come_late_pass_to_the_learnt_pool() -> None:
    """Epochs between the steps learn of rewards, in the basis of the ranges."""
    asked, come = policy(FOUR, first_epoch=60, reward_wait=90), correlated(4)
    for _ in range(60):
        decisions = asked.act_many(come(min(30, asked.remaining)))
        asked.update_many(decisions, np.full(len(decisions), 0.5))
    assert asked.crowd().step == "over"
    assert len([each for each in asked.epochs if each.predicted_error is not None]) > 1
    assert asked.estimate(come(20)).mean() > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"horizon": 1000},
        {"learn_crowd": False},
        {"contexts": capri.ContextPool(np.zeros((2, 4)))},
        {"contexts": capri.ContextSampler.from_ranges(FOUR)},
        {"preset": "paper", "horizon": 1000, "kernel": capri.kernels.RBF(lengthscale=2.0)},
    ],
    ids=["short", "declined", "given", "sampled", "paper"],
)
def test_nothing_is_asked_where_it_would_not_pay(changes: dict[str, Any]) -> None:
    asked = policy(FOUR, **changes)
    assert asked.plan().features.rank != 4 or asked.plan().tau != 1.0
    if asked.preset == "practical":
        assert asked.crowd().step == "over"
        assert "public rows" in repr(asked.crowd())


def test_a_range_that_is_far_too_wide_is_looked_at_more_closely() -> None:
    """Twice, and a notice names the column."""
    asked = policy([(-1000, 1000), (-4, 4)], budget=None)
    with pytest.warns(capri.KernelWarning, match="ranges: .*'column 0' lie at"):
        met(asked, lambda count: correlated(6)(count)[:, :2])
    column = asked.crowd().columns[0]
    assert column.low is not None
    assert column.high is not None
    assert -4 < column.low < 0 < column.high < 4


@pytest.mark.parametrize("budget", [None, capri.Budget(epsilon=8.0, delta=1e-5)], ids=str)
def test_visits_that_cannot_be_read_do_not_blur_the_others(budget: capri.Budget | None) -> None:
    """Four of ten have a cell that is no number: shares are of the others, and a notice says so."""
    honest, rng = correlated(11), np.random.default_rng(12)

    def come(count: int) -> FloatArray:
        rows: FloatArray = honest(count)
        rows[rng.random(count) < 0.4, 2] = np.nan
        return rows

    asked = policy(FOUR, budget=budget)
    with pytest.warns(capri.KernelWarning, match="unreadable: about (5|6|7)"):
        met(asked, come)
    one = asked.crowd().columns[0]
    assert one.low == pytest.approx(-1.28, abs=0.35)
    assert one.high == pytest.approx(1.28, abs=0.35)
    assert asked.crowd().together[0].correlation == pytest.approx(0.8, abs=0.2)


def test_records_with_levels_and_missing_cells() -> None:
    """Shares of levels and of missing cells; a level that nobody declared is common."""
    schema = [
        Numeric("age", 0, 100, missing="own"),
        Categorical("plan", ["free", "pro", "old"]),
        Boolean("member"),
        Categorical("city", [f"city {place}" for place in range(120)]),
    ]
    rng = np.random.default_rng(7)

    def come(count: int) -> list[dict[str, Any]]:
        plans = rng.choice(["free", "pro", "gold"], size=count, p=[0.5, 0.2, 0.3])
        return [
            {
                "age": None if plan == "gold" else 20.0 + 40 * (plan == "pro"),
                "plan": plan,
                "member": plan == "pro",
                "city": f"city {rng.integers(120)}",
            }
            for plan in plans
        ]

    asked = policy(capri.Schema(schema), budget=None)
    with pytest.warns(capri.KernelWarning, match="30% of the cells of 'plan'|all of them rare"):
        met(asked, come)
    age, plan, member, _ = asked.crowd().columns
    assert age.missing == pytest.approx(0.3, abs=0.1)
    assert dict(plan.levels)["free"] == pytest.approx(0.5, abs=0.1)
    assert dict(plan.levels)["unknown"] == pytest.approx(0.3, abs=0.1)
    rows = asked._engine.learning.learner.known.problem.contexts.rows[:1000]  # type: ignore[attr-defined]
    names = asked.contexts.schema.features  # type: ignore[union-attr]
    made = dict(zip(names, rows.T, strict=True))
    assert made["plan = pro"].mean() == pytest.approx(0.2, abs=0.1)
    assert np.corrcoef(made["plan = pro"], made["member"])[0, 1] > 0.5
    indicators = np.stack([made[name] for name in names if name.startswith("plan")])
    assert (indicators.sum(axis=0) == 1).all()
    assert member.middle == pytest.approx(0.0, abs=0.05)


def test_many_and_odd_columns_are_survived() -> None:
    """Eighty columns: copies, constants, tails; contexts beyond every range; and no numbers."""
    rng = np.random.default_rng(8)

    def come(count: int) -> FloatArray:
        one = rng.standard_cauchy((count, 20))
        rows = np.concatenate([one, one, np.zeros((count, 20)), 1e9 + 0 * one], axis=1)
        rows[::7, 0], rows[1::7, 1] = np.nan, np.inf
        return np.asarray(rows)

    asked = met(policy([(-50, 50)] * 80, first_epoch=50), come)
    assert len(asked.crowd().columns) == 80
    asked.act_many(come(20))
    asked.close_epoch(early=True)


def test_shares_are_the_nearest_ones() -> None:
    assert on_simplex(np.array([0.5, 0.9, -0.3])).tolist() == pytest.approx([0.3, 0.7, 0.0])
    truth, rng = np.repeat([0.5, 0.0], [2, 15]), np.random.default_rng(9)
    seen = truth + 0.06 * rng.normal(size=(50, 17))
    found = np.array([on_simplex(each) for each in seen])
    assert found.min() >= 0
    assert found.sum(axis=1) == pytest.approx(np.ones(50))
    assert ((found - truth) ** 2).mean() < 0.5 * ((seen - truth) ** 2).mean()


def test_noise_alone_makes_no_correlations() -> None:
    rng = np.random.default_rng(10)
    noise = np.triu(rng.normal(size=(20, 20)), 1) * 0.1
    assert np.abs(denoised(np.eye(20) + noise + noise.T, 0.12) - np.eye(20)).max() < 1e-9
    known = np.full((20, 20), 0.6) + 0.4 * np.eye(20)
    found = denoised(known + noise + noise.T, 0.1)
    assert np.abs(found - known).mean() < 0.1
    assert np.diag(found) == pytest.approx(np.ones(20))
