"""Filters: what adds up to no more than was promised, checked by an accountant of others."""

import random
from fractions import Fraction

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from capri import Budget, BudgetError, ConfigurationError
from capri.privacy.filters import Charge, best_order, filter_of, pure_divergence

BUDGET = Budget(3.0, 1e-6)


def gaussian(budget: Budget) -> Charge:
    return Charge.of(budget, gaussian=True, pure=False)


def pure(epsilon: float) -> Charge:
    return Charge.of(Budget(epsilon), gaussian=False, pure=True)


def admitted(account: str, offers: list[Charge]) -> list[Charge]:
    """What a filter takes of some offers, each of them in turn."""
    chosen, taken = filter_of(account, BUDGET), list[Charge]()
    for offer in offers:
        if chosen.admits([(each, 10) for each in (*taken, offer)]):
            taken.append(offer)
    return taken


def epsilon_by_others(charges: list[Charge], delta: float) -> float:
    """The tight composition, which is no filter: no valid one can allow less noise than it."""
    events = [
        GaussianDpEvent(1 / each.mu) if each.mu else LaplaceDpEvent(1 / (each.pure or 0.0))
        for each in charges
    ]
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(ComposedDpEvent(events))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("account", ["basic", "gaussian", "mixed"])
def test_what_a_filter_admits_is_within_the_budget_by_another_accountant(account: str) -> None:
    for seed in range(4):
        draw = random.Random(seed)
        offers = [gaussian(Budget(draw.uniform(0.05, 1.5), 10 ** -draw.uniform(6.5, 8)))
                  for _ in range(12)]  # fmt: skip
        if account != "gaussian":
            offers += [pure(draw.uniform(0.02, 0.6)) for _ in range(12)]
            draw.shuffle(offers)
        taken = admitted(account, offers)
        assert 2 <= len(taken) < len(offers)
        spent = filter_of(account, BUDGET).spent([(each, 10) for each in taken])
        assert spent.epsilon <= BUDGET.epsilon * (1 + 1e-7)
        # Never below what others find: their discretisation rounds up by 1e-4 a step.
        assert spent.epsilon >= epsilon_by_others(taken, spent.delta) - 1e-3


def test_gaussian_noise_alone_adds_up_exactly() -> None:
    """The filter of mu loses nothing: its sum is the composition that others compute."""
    charges = [gaussian(Budget(0.7, 1e-7))] * 3
    spent = filter_of("gaussian", BUDGET).spent([(each, 10) for each in charges])
    assert spent.epsilon == pytest.approx(epsilon_by_others(charges, 1e-6), rel=1e-3)


def test_renyi_divergences_are_those_of_another_accountant() -> None:
    order = best_order(BUDGET)
    mu = gaussian(Budget(0.5, 1e-7)).mu or 0.0
    ours = filter_of("mixed", BUDGET).spent([(gaussian(Budget(0.5, 1e-7)), 1)] * 4)
    accountant = RdpAccountant([order])
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(1 / mu), 4))
    assert ours.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9)
    for epsilon in (0.1, 1.0, 3.0):
        laplace = RdpAccountant([order])
        laplace.compose(LaplaceDpEvent(1 / epsilon))
        assert pure_divergence(epsilon, order) >= laplace._rdp[0] - 1e-12


def test_one_source_of_the_whole_budget_fits_and_no_second_one() -> None:
    for account in ("basic", "gaussian"):
        chosen = filter_of(account, BUDGET)
        assert chosen.admits([(gaussian(BUDGET), 50)])
        assert not chosen.admits([(gaussian(BUDGET), 50), (gaussian(Budget(0.01, 1e-9)), 50)])


def test_tenths_make_a_whole() -> None:
    chosen = filter_of("basic", Budget(0.3))
    assert chosen.admits([(pure(0.1), 0)] * 3)
    assert Fraction(0.1) * 3 > Fraction(0.3)
    assert not chosen.admits([(pure(0.1), 0)] * 3 + [(pure(1e-6), 0)])


def test_a_source_of_both_kinds_costs_what_the_dearer_one_costs() -> None:
    chosen = filter_of("mixed", BUDGET)
    both = Charge.of(Budget(0.5, 1e-6), gaussian=True, pure=True)
    single = [gaussian(Budget(0.5, 1e-6)), pure(0.5)]
    assert chosen.cost(both, 0) == max(chosen.cost(each, 0) for each in single)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-9, 1e-12, 1e-20])
def test_a_small_charge_is_rounded_up(epsilon: float) -> None:
    """With terms that nearly cancel. By the series ``alpha eps^2 / 2 (1 - O(eps^2))``."""
    for alpha in (2, 9, 100):
        tangent = alpha * epsilon**2 / 2
        least = min(epsilon, tangent * (1 - (alpha * epsilon) ** 2))
        assert pure_divergence(epsilon, alpha) >= least > 0
        assert pure_divergence(epsilon, alpha) <= min(epsilon, tangent + 1e-14)


def test_accounts_refuse_what_they_cannot_add_up() -> None:
    for order in (1, 0, 2.5, "9", True):
        with pytest.raises(ConfigurationError, match="order must be a whole number of 2 or more"):
            filter_of("mixed", BUDGET, order)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="Gaussian noise alone"):
        filter_of("gaussian", BUDGET).admits([(pure(0.1), 0)])
    batch = Charge(epsilon=0.1, delta=1e-7)
    with pytest.raises(BudgetError, match="mixed reports"):
        filter_of("mixed", BUDGET).admits([(batch, 0)])
    assert filter_of("basic", BUDGET).admits([(batch, 0)])
    for account in ("gaussian", "mixed"):
        with pytest.raises(ConfigurationError, match="delta above 0"):
            filter_of(account, Budget(1.0))
    with pytest.raises(ConfigurationError, match="account must be one of"):
        filter_of("pld", BUDGET)
