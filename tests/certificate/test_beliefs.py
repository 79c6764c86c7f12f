"""The table of beliefs: never too low, and attained by the worst that keeps the promise."""

from math import exp, log
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

import capri
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier, gaussian_delta
from capri.privacy.certificate.beliefs import (
    belief_after,
    belief_table,
    in_words,
    likely,
    odds_factor,
    percent,
)

BUDGETS = st.builds(Budget, st.floats(0.05, 12.0), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]))
CHANCES = st.sampled_from([1e-9, 1e-5, 1e-3, 0.01, 0.2])


def test_known_values() -> None:
    """Pure epsilon 1 by hand: odds times e. 0.5 -> e / (1 + e)."""
    rows = {row["before"]: row for row in belief_table(Budget(1.0))}
    assert list(rows) == [0.01, 0.1, 0.5, 0.9]
    assert rows[0.5]["after_at_most"] == pytest.approx(0.731059, abs=1e-6)
    assert rows[0.01]["after_at_most"] == pytest.approx(0.01 * exp(1) / (0.99 + 0.01 * exp(1)))
    assert {row["exceeded_with_chance_at_most"] for row in rows.values()} == {0.0}


def test_randomized_response_attains_the_pure_bound() -> None:
    """Truth with probability e^eps / (1 + e^eps): the belief lands on the bound, and not above."""
    epsilon = 1.7
    true, false = exp(epsilon) / (1 + exp(epsilon)), 1 / (1 + exp(epsilon))
    for row in belief_table(Budget(epsilon)):
        before = row["before"]
        posterior = before * true / (before * true + (1 - before) * false)
        assert posterior <= row["after_at_most"] <= posterior * (1 + 1e-5)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(BUDGETS, CHANCES)
def test_gaussian_noise_stays_within_the_bound(budget: Budget, chance: float) -> None:
    """The loss of a Gaussian is N(mu^2/2, mu^2): odds exceed the factor as rarely as is said."""
    mu = 1 / analytic_multiplier(budget)
    assert gaussian_delta(budget.epsilon, mu) == pytest.approx(budget.delta, rel=1e-6)
    exceeded = ndtr(mu / 2 - log(odds_factor(budget, chance)) / mu)
    assert exceeded <= chance


@settings(max_examples=100, derandomize=True, deadline=None)
@given(BUDGETS, CHANCES)
def test_bound_is_attained_by_the_best_test_of_a_gaussian(budget: Budget, chance: float) -> None:
    """Publish only whether a threshold was crossed, with power ``chance``: odds rise by the factor.

    So no smaller factor would be true of everything that keeps the promise.
    """
    mu = 1 / analytic_multiplier(budget)
    false_alarm = float(ndtr(ndtri(chance) - mu))
    assert odds_factor(budget, chance) == pytest.approx(chance / false_alarm, rel=1e-5)
    assert odds_factor(budget, chance) >= chance / false_alarm


def test_delta_alone_is_no_excuse_for_epsilon() -> None:
    """But for a chance of delta, odds may rise by more than e^eps: the table must not say e^eps."""
    budget = Budget(1.0, 1e-5)
    assert odds_factor(budget, budget.delta) > exp(1.0) * 1.2
    assert odds_factor(budget, 0.01) < exp(1.0)


def test_rare_columns_are_higher_and_beliefs_ordered() -> None:
    rows = belief_table(Budget(2.0, 1e-6))
    usual, rare = rows[::2], rows[1::2]
    assert {row["exceeded_with_chance_at_most"] for row in usual} == {0.01}
    assert {row["exceeded_with_chance_at_most"] for row in rare} == {1e-6}
    for one, other in zip(usual, rare, strict=True):
        assert one["before"] < one["after_at_most"] < other["after_at_most"] < 1


def test_large_delta_has_one_column_and_large_epsilon_no_overflow() -> None:
    assert len(belief_table(Budget(1.0, 0.05))) == 4
    for budget in (Budget(1e4), Budget(1e4, 1e-5)):
        assert all(row["after_at_most"] == pytest.approx(1.0) for row in belief_table(budget))
    assert belief_after(0.0, 5.0) == 0.0


def test_table_in_docs_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "certificate.md").read_text()
    for before, chance, words in (
        (0.01, 0.01, "in 99 of 100 cases"),
        (0.5, 0.01, "in 99 of 100 cases"),
        (0.5, 1e-5, "but for 1 case in 100,000"),
    ):
        budgets = [Budget(epsilon, 1e-5) for epsilon in (0.5, 1.0, 2.0, 4.0)]
        factors = [*(odds_factor(budget, chance) for budget in budgets), exp(1.0)]
        cells = [percent(belief_after(before, factor)) for factor in factors]
        row = [f"{100 * before:g} % becomes, {words}, at most", *cells]
        assert f"| {' | '.join(row)} |" in page
    mu = 1 / analytic_multiplier(Budget(1.0, 1e-5))
    assert ndtr(mu / 2 - 1 / mu) == pytest.approx(1.6e-4, rel=0.02)


def test_percentages_round_up() -> None:
    assert percent(0.73106) == "73.2 %"
    assert percent(0.9991) == "99.91 %"
    assert percent(1.0) == "100 %"


@pytest.mark.parametrize(
    ("budget", "as_likely", "said"),
    [
        (Budget(0.1, 1e-5), "almost as likely in 99 of 100 cases",
         "1 % becomes at most 1.1 %, and one of 50 % at most 52.2 %: strong"),
        (Budget(0.5, 1e-5), "at most 1.5 times as likely in 99 of 100 cases",
         "1 % becomes at most 1.5 %, and one of 50 % at most 59.6 %: strong"),
        (Budget(1.0, 1e-5), "at most 2.2 times as likely in 99 of 100 cases",
         "1 % becomes at most 2.1 %, and one of 50 % at most 67.9 %: moderate"),
        (Budget(4.0, 1e-5), "at most 18 times as likely in 99 of 100 cases",
         "1 % becomes at most 15.0 %, and one of 50 % at most 94.6 %: weak"),
        (Budget(20.0, 1e-5), "at most 2,600,000 times as likely in 99 of 100 cases",
         "1 % becomes at most 99.997 %, and one of 50 % at most 99.999962 %: hardly any"),
        (Budget(0.2), "almost as likely", ""),
        (Budget(1.0), "at most 2.8 times as likely",
         "1 % becomes at most 2.7 %, and one of 50 % at most 73.2 %: moderate protection."),
        (Budget(20.0), "at most 490,000,000 times as likely", "hardly any protection."),
        (Budget(800.0), "any number of times as likely",
         "1 % becomes at most 100 %, and one of 50 % at most 100 %: hardly any protection."),
    ],
)  # fmt: skip
def test_words_follow_the_figures(budget: Budget, as_likely: str, said: str) -> None:
    table = belief_table(budget)
    assert likely(table) == as_likely
    assert said in in_words(table)
    statement = f"{likely(table)}. {in_words(table)}"
    once = budget.delta > 0
    assert statement.count("in 99 of 100 cases") == statement.count("Just as often, a") == once


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.builds(Budget, st.floats(0.01, 60.0), st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 0.02])))
def test_words_never_promise_more_than_the_table(budget: Budget) -> None:
    """What is called almost as likely moves 50 % by 6 points at most; strong by ten, and so on."""
    table = belief_table(budget)
    after = next(row["after_at_most"] for row in table if row["before"] == 0.5)
    assert ("almost" in likely(table)) == (after <= 5 / 9)
    grade = in_words(table).rpartition(": ")[2]
    limits = {"strong": 0.6, "moderate": 0.8, "weak": 0.95, "hardly any": 1.0}
    assert after <= limits[grade.removesuffix(" protection.")]
    assert percent(after) in in_words(table)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_a_policy_states_what_laplace_noise_allows(epsilon: float) -> None:
    """Odds rise by ``e^epsilon`` in half of all cases: 99 of 100 must not be promised less."""
    budget = Budget(epsilon, 1e-5)
    table = belief_table(budget, laplace=True)
    assert all(row["after_at_most"] >= belief_after(row["before"], exp(epsilon)) for row in table)
    policy = capri.Capri(
        actions=[[0.0], [1.0]], contexts=capri.ContextPool([[0.0], [1.0]]), budget=budget
    )
    assert policy.certificate().beliefs == table
