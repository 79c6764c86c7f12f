"""The sphere randomizer: the law of a report in exact fractions, and what it is worth."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import exp, gamma, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capri
from capri.errors import ConfigurationError
from capri.privacy.calibration import analytic_multiplier
from capri.privacy.sphere import (
    COIN,
    DIRECTION_UNITS,
    Sphere,
    directions,
    projections,
    sphere,
    unbiased_sum,
)

EPSILONS = (0.001, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


def exact_exponential(epsilon: float) -> tuple[Fraction, Fraction]:
    """Rational bounds on ``e^epsilon`` by the Taylor series in integers, to 400 binary digits."""
    scale = 1 << 400
    top, bottom = Fraction(epsilon).as_integer_ratio()
    low = high = 0
    under = over = scale  # the term x^n / n!, rounded down and up
    for n in range(1, 300):
        low, high = low + under, high + over
        under = under * top // (bottom * n)
        over = -(-over * top // (bottom * n))
    # The rest is less than twice the next term, since x / 300 < 1/2.
    return Fraction(low, scale), Fraction(high + 2 * over, scale)


def unit_rows(generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    rows = generator.standard_normal((count, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def whole_rows(rows: np.ndarray) -> np.ndarray:
    """Vectors of norm at most 1 as devices have them, in units of 2^-30."""
    return np.trunc(rows * 2.0**30).astype(np.int64)


def seeds(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 2**64, size=(count, 2), dtype=np.uint64)


# -- privacy, in closed form ----------------------------------------------------------------------


def check_law(mechanism: Sphere, epsilon: float) -> None:
    near, far = mechanism.probabilities
    k, others = mechanism.near, mechanism.candidates - mechanism.near
    assert near * k + far * others == 1
    assert near >= far > 0
    assert mechanism.ratio == near / far
    below, above = exact_exponential(epsilon)
    assert mechanism.ratio <= below
    # Nothing is given away: one more unit of the coin would exceed e^epsilon, up to rounding.
    assert replace(mechanism, chance=mechanism.chance + 1).ratio > above * (1 - Fraction(1, 2**49))
    assert mechanism.keeps(epsilon)
    assert not mechanism.keeps(epsilon * (1 - 1e-6) - 1e-12)
    assert mechanism.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert mechanism.epsilon <= epsilon * (1 + 1e-15)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_outcome_probabilities_are_exact_and_their_ratio_is_within_the_promise(
    epsilon: float,
) -> None:
    for dimension in (2, 3, 17, 200, 4096):
        check_law(sphere(epsilon, dimension), epsilon)


@given(epsilon=st.floats(0.001, 30.0), dimension=st.integers(2, 300))
@settings(max_examples=40)
def test_ratio_for_any_epsilon_and_dimension(epsilon: float, dimension: int) -> None:
    check_law(sphere(epsilon, dimension), epsilon)


@given(data=st.data(), candidates=st.integers(1, 64).map(lambda half: 2 * half))
@settings(max_examples=100)
def test_keeps_is_the_exact_comparison(data: st.DataObject, candidates: int) -> None:
    """For any coin that can be written down, not only the ones that the search gives."""
    near = data.draw(st.integers(1, candidates // 2))
    least = -(-near * COIN // candidates)
    mechanism = Sphere(
        dimension=5,
        candidates=candidates,
        near=near,
        chance=data.draw(st.integers(least, COIN - 1)),
    )
    near_each, far_each = mechanism.probabilities
    assert near_each * near + far_each * (candidates - near) == 1
    epsilon = data.draw(st.floats(0.01, 45.0))
    below, above = exact_exponential(epsilon)
    if mechanism.keeps(epsilon):
        assert mechanism.ratio <= below
    else:  # refused although it is within the promise: at most by the margin of rounding
        assert mechanism.ratio > above * (1 - Fraction(1, 2**48))
    # What is stated as the cost is the cost.
    assert exact_exponential(mechanism.epsilon + 1e-15)[1] >= mechanism.ratio


def test_one_unit_of_the_coin_decides() -> None:
    """The largest chance that is allowed, and the next one."""
    mechanism = sphere(2.0, 20)
    limit = next(
        step
        for step in range(1, 1 << 16)
        if not Sphere(
            dimension=20,
            candidates=mechanism.candidates,
            near=mechanism.near,
            chance=mechanism.chance + step,
        ).keeps(2.0)
    )
    assert limit == 1  # the search left nothing


def test_a_generous_budget_is_no_problem() -> None:
    assert sphere(30.0, 10).keeps(1000.0)


# -- the choice: a bijection, hence the law above -------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "near"), [(2, 1), (4, 1), (4, 2), (16, 3), (16, 8), (64, 20)]
)
def test_every_pick_names_another_direction(candidates: int, near: int) -> None:
    """All (coin, pick) of some seeds and vectors: near ones cover the k nearest, far ones the rest.

    With exact coins and picks this makes the law of a report the closed form, for any ``u``.
    """
    dimension = 7
    mechanism = Sphere(dimension=dimension, candidates=candidates, near=near, chance=COIN - 1)
    generator = np.random.default_rng(1)
    vectors = np.concatenate(
        [
            whole_rows(unit_rows(generator, 12, dimension)),
            np.eye(dimension, dtype=np.int64)[:2],
            np.zeros((1, dimension), dtype=np.int64),  # no direction at all: the law is the same
        ]
    )
    for seed, vector in zip(seeds(generator, len(vectors)), vectors, strict=True):
        nearest = mechanism.nearest(seed[None], vector[None])
        assert nearest.shape == (1, near)
        named = {True: [], False: []}
        for coin in (True, False):
            coins = np.array([coin])
            for pick in range(int(mechanism.choices(coins)[0])):
                number = mechanism.choose(nearest, coins, np.array([pick]))
                named[coin].append(int(number[0]))
        assert sorted(named[True]) == sorted(nearest[0])
        assert len(named[False]) == candidates - near
        assert sorted(named[True] + named[False]) == list(range(candidates))


def test_nearest_are_the_nearest() -> None:
    """Against the directions that the aggregator will expand."""
    generator = np.random.default_rng(2)
    mechanism = Sphere(dimension=9, candidates=32, near=5, chance=COIN - 1)
    keys, vectors = seeds(generator, 50), unit_rows(generator, 50, 9)
    nearest = mechanism.nearest(keys, whole_rows(vectors))
    for key, vector, found in zip(keys, vectors, nearest, strict=True):
        rows = directions(np.tile(key, (16, 1)), np.arange(16), 9) / DIRECTION_UNITS
        products = np.stack([rows @ vector, -rows @ vector], axis=1).ravel()
        assert set(found) == set(np.argsort(-products)[:5])


# -- what a report is worth -----------------------------------------------------------------------


def reports_of(mechanism: Sphere, vector: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Decoded, unbiased reports of one vector."""
    generator = np.random.default_rng(seed)
    decoded = []
    for _ in range(0, count, 10_000):
        keys = seeds(generator, 10_000)
        nearest = mechanism.nearest(keys, whole_rows(np.tile(vector, (len(keys), 1))))
        coin = generator.integers(0, COIN, size=len(keys)) < mechanism.chance
        pick = generator.integers(0, mechanism.choices(coin))
        number = mechanism.choose(nearest, coin, pick)
        rows = directions(keys, number // 2, mechanism.dimension)
        decoded.append(rows * (1 - 2 * (number % 2))[:, None])
    return np.concatenate(decoded) / (DIRECTION_UNITS * mechanism.shrinkage)


@pytest.mark.parametrize(("epsilon", "dimension"), [(1.0, 12), (4.0, 40)])
def test_mean_and_variance_of_many_reports(epsilon: float, dimension: int) -> None:
    """1e5 reports: mean ``u``, mean square of a coordinate ``1/(shrinkage^2 m)``.

    Along ``u`` within 4 standard errors, 6e-5 by chance; each of the other coordinates within 5.5,
    4e-8 by chance and 2e-6 for 40 of them. All parts of both cases together stay below 3e-4, and
    the seed is fixed.
    """
    mechanism = sphere(epsilon, dimension)
    generator = np.random.default_rng(3)
    vector = unit_rows(generator, 1, dimension)[0]
    reports = reports_of(mechanism, vector, 100_000, seed=4)
    errors = reports.std(axis=0, ddof=1) / sqrt(len(reports))
    assert (np.abs(reports.mean(axis=0) - vector) <= 5.5 * errors).all()
    along = reports @ vector
    assert abs(along.mean() - 1) <= 4 * along.std(ddof=1) / sqrt(len(reports))
    # Every report has the same length, so the mean square over all coordinates is known exactly.
    lengths = np.einsum("ij,ij->i", reports, reports)
    assert lengths == pytest.approx(dimension * mechanism.deviation**2, rel=1e-5)
    # A direction across u: variance (1 - E<V,u>^2) / ((m - 1) shrinkage^2), by symmetry.
    across = unit_rows(generator, 1, dimension)[0]
    across -= (across @ vector) * vector
    across /= np.linalg.norm(across)
    values = reports @ across
    expected = (lengths.mean() - np.mean(along**2)) / (dimension - 1)
    spread = np.std(values**2, ddof=1) / sqrt(len(values))
    assert abs(np.mean(values**2) - expected) <= 4 * spread
    assert abs(values.mean()) <= 4 * values.std(ddof=1) / sqrt(len(values))
    # Its own variance along u against theory: E<V,u>^2 from the law and order statistics.
    second = second_moment(mechanism)
    noise = np.std(along**2, ddof=1) / sqrt(len(along))
    assert abs(np.mean(along**2) - second / mechanism.shrinkage**2) <= 4.2 * noise


def second_moment(mechanism: Sphere) -> float:
    """``E<V, u>^2`` of a reported direction by an independent simulation of the order statistics.

    Gaussian vectors of NumPy, 4e5 of them at least: its own error is far below that of the test.
    """
    generator = np.random.default_rng(5)
    half, k, m = mechanism.candidates // 2, mechanism.near, mechanism.dimension
    squares = generator.beta(0.5, (m - 1) / 2, size=(100_000, half))
    top = np.partition(squares, half - k, axis=1)[:, half - k :].mean()
    p = mechanism.chance / COIN
    # Both ends of a pair have the same square: far ones are k opposites and M - 2k others.
    total = 2 * half / m  # of all directions, exactly
    far = (total - k * top) / (mechanism.candidates - k)
    return float(p * top + (1 - p) * far)


@pytest.mark.parametrize("dimension", [2, 3, 10, 200, 3000])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_shrinkage_of_a_single_pair_in_closed_form(epsilon: float, dimension: int) -> None:
    """M = 2 is the sampler of Duchi, Jordan and Wainwright."""
    chance = int(COIN * exp(epsilon) / (1 + exp(epsilon)))
    mechanism = Sphere(dimension=dimension, candidates=2, near=1, chance=chance)
    if dimension < 300:
        mean = gamma(dimension / 2) / (sqrt(pi) * gamma((dimension + 1) / 2))
    else:  # Gamma(m/2) / Gamma((m+1)/2) by its expansion, exact to 1e-12 here
        mean = sqrt(2 / dimension) * (1 + 1 / (4 * dimension) + 1 / (32 * dimension**2)) / sqrt(pi)
    expected = (exp(epsilon) - 1) / (exp(epsilon) + 1) * mean
    assert mechanism.shrinkage == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("dimension", "candidates", "near"), [(2, 8, 1), (5, 16, 8), (50, 64, 5), (400, 256, 30)]
)
def test_shrinkage_by_simulation(dimension: int, candidates: int, near: int) -> None:
    """Order statistics of ``|<V, u>|``, whose square has a beta law. Within 5 standard errors:
    6e-7 by chance for each case."""
    mechanism = Sphere(
        dimension=dimension, candidates=candidates, near=near, chance=COIN // 2 + COIN // 4
    )
    generator = np.random.default_rng(6)
    half = candidates // 2
    products = np.sqrt(generator.beta(0.5, (dimension - 1) / 2, size=(20_000, half)))
    top = np.partition(products, half - near, axis=1)[:, half - near :].mean(axis=1)
    balance = 0.75 - 0.25 * near / (candidates - near)
    error = balance * top.std(ddof=1) / sqrt(len(top))
    assert abs(balance * top.mean() - mechanism.shrinkage) <= 5 * error


def test_variance_beats_gaussian_noise() -> None:
    """Same promise up to the delta of 1e-5 that only the Gaussian needs, contribution bound 1."""
    for dimension in (10, 50, 200):
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
            gaussian = 2 * analytic_multiplier(capri.Budget(epsilon=epsilon, delta=1e-5))
            assert sphere(epsilon, dimension).deviation < gaussian
            assert sphere(epsilon, dimension).deviation ** 2 < 0.6 * gaussian**2


def test_more_privacy_costs_more_noise() -> None:
    deviations = [sphere(epsilon, 30).deviation for epsilon in EPSILONS]
    assert all(one > two for one, two in pairwise(deviations[:-1]))


@pytest.mark.parametrize(
    ("epsilon", "dimension"), [(0.5, 30), (1.0, 5), (2.0, 100), (4.0, 30), (8.0, 60)]
)
def test_threshold_is_nearly_the_best(epsilon: float, dimension: int) -> None:
    """At most 5 % (and a little for the steps in k) above an exhaustive search over all k, M."""
    best = 0.0
    for power in range(1, 9):
        candidates = 2**power
        for near in range(1, candidates // 2 + 1):
            odds = exp(epsilon) * near / (candidates - near)
            option = Sphere(
                dimension=dimension,
                candidates=candidates,
                near=near,
                chance=int(COIN * Fraction(odds) / (1 + Fraction(odds))),
            )
            best = max(best, option.shrinkage)
    chosen = sphere(epsilon, dimension)
    assert best**2 <= 1.051 * chosen.shrinkage**2
    assert chosen.shrinkage <= best * (1 + 1e-9)


# -- validation -----------------------------------------------------------------------------------


GOOD = {"dimension": 4, "candidates": 8, "near": 2, "chance": COIN // 2}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dimension": 1}, "dimension"),
        ({"dimension": 1 << 17}, "dimension"),
        ({"dimension": 4.0}, "whole"),
        ({"dimension": True}, "whole"),
        ({"candidates": 7}, "even"),
        ({"candidates": 0}, "even"),
        ({"candidates": 1 << 13}, "even"),
        ({"near": 0}, "near"),
        ({"near": 5}, "near"),
        ({"chance": COIN}, "chance"),
        ({"chance": COIN // 4 - 1}, "chance"),
        ({"chance": -1}, "chance"),
        ({"chance": 0.5}, "whole"),
        ({"chance": None}, "whole"),
    ],
)
def test_impossible_parameters_are_refused(change: dict[str, object], text: str) -> None:
    Sphere(**GOOD)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=text):
        Sphere(**(GOOD | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-4, 31.0, float("inf"), float("nan")])
def test_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match="epsilon"):
        sphere(epsilon, 10)


def test_stated_cost_is_the_logarithm_of_the_ratio() -> None:
    mechanism = Sphere(dimension=2, candidates=2, near=1, chance=3 * COIN // 4)
    assert mechanism.ratio == 3
    assert log(3) <= mechanism.epsilon <= log(3) * (1 + 1e-15)


@pytest.mark.parametrize(
    ("dimension", "told"),
    [(10, [15.8, 8.0, 4.1, 2.2, 1.4]), (50, [36.0, 18.1, 9.2, 4.8, 2.8])],
)
def test_a_forged_report_counts_as_many_honest_ones(dimension: int, told: list[float]) -> None:
    """As long as an honest one, and it points where its maker likes: ``1/c`` against a mean of 1.

    The figures of docs/proofs/sphere.md. Seeds are tried until one points along the first axis.
    """
    found = [sphere(epsilon, dimension) for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert [round(1 / each.shrinkage, 1) for each in found] == told
    chosen = found[1]
    seeds = np.random.default_rng(1).integers(0, 2**63, (20_000, 2)).astype(np.uint64)
    axis = np.zeros((len(seeds), dimension), dtype=np.int64)
    axis[:, 0] = 1 << 20
    products = projections(seeds, chosen.candidates // 2, axis)
    user, row = np.unravel_index(np.abs(products).argmax(), products.shape)
    number = np.array([2 * row + (products[user, row] < 0)])
    moved = unbiased_sum(seeds[user : user + 1], number, chosen)
    longest = 1 / chosen.shrinkage
    assert np.linalg.norm(moved) == pytest.approx(longest, rel=1e-6)
    assert (0.9 if dimension == 10 else 0.55) * longest < moved[0] < longest
