"""What mixing is worth: against enumeration of small batches, and against published values."""

from itertools import combinations_with_replacement
from math import comb, exp, expm1, pi, sqrt

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import gammaln

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.shuffle import Shuffle, blanket_delta, central_epsilon
from capri.privacy.sphere import COIN, Sphere, sphere
from capri_lab.clones import clones_delta, clones_epsilon


def small(candidates: int, near: int, share: float) -> Sphere:
    chance = int(COIN * share)
    return Sphere(dimension=5, candidates=candidates, near=near, chance=chance)


SMALL = [small(2, 1, 0.6), small(2, 1, 0.9), small(4, 1, 0.5), small(4, 2, 0.7), small(6, 2, 0.8)]


def law_of_sum(mechanism: Sphere, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of ``L`` on near numbers of either datum and on the rest, and their chances."""
    near, far = (mechanism.candidates * float(each) for each in mechanism.probabilities)
    share, grown = mechanism.near / mechanism.candidates, exp(epsilon)
    values = np.array([near - grown * far, far - grown * near, -far * expm1(epsilon)])
    return values, far * np.array([share, share, 1 - 2 * share])


def expected_sum(mechanism: Sphere, reports: int, epsilon: float) -> float:
    """``E[(sum L)_+] / (gamma n)`` term by term over all counts."""
    values, chances = law_of_sum(mechanism, epsilon)
    gamma = chances.sum()
    logarithms = np.log(np.maximum([*chances, 1 - gamma], 1e-300))
    ways = gammaln(np.arange(reports + 1) + 1.0)
    one, two = np.meshgrid(*[np.arange(reports + 1)] * 2, indexing="ij")
    total = 0.0
    for third in range(reports + 1 if chances[2] > 0 else 1):
        counts = np.array([one, two, np.full_like(one, third), reports - third - one - two])
        counts = counts[:, counts[3] >= 0]
        gain = values @ counts[:3]
        often = ways[reports] - ways[counts].sum(axis=0) + logarithms @ counts
        total += float(np.exp(often) @ np.maximum(gain, 0.0))
    return float(total / (gamma * reports))


def transformed_sum(mechanism: Sphere, reports: int, epsilon: float) -> float:
    """For any number of reports: ``E[S_+] = (1 / 2 pi) int M(s) / s^2 dt``, ``s = c + i t``.

    ``M`` is the moment generating function and ``c`` the saddle point. Counts of this many reports
    are as good as continuous: compared with the sum term by term this is right to ``1 / reports``.
    """
    values, chances = law_of_sum(mechanism, epsilon)

    def logarithm(s: np.ndarray) -> np.ndarray:
        return np.asarray(reports * np.log1p(np.expm1(np.multiply.outer(s, values)) @ chances))

    def slope(s: float) -> float:
        tilted = chances * np.exp(s * values)
        mean = tilted @ values / (1 + chances @ np.expm1(s * values))
        return float(reports * mean - 2 / s)

    deviation = sqrt(reports * (chances @ values**2))
    saddle = brentq(slope, 1e-6 / deviation, 1e3 / deviation, xtol=1e-9 / deviation)
    curvature = (slope(1.001 * saddle) - slope(0.999 * saddle)) / (0.002 * saddle)
    t = np.linspace(-12, 12, 20_001) / sqrt(curvature)
    top = logarithm(np.array([saddle]))[0]
    inside = np.exp(logarithm(saddle + 1j * t) - top) / (saddle + 1j * t) ** 2
    integral = inside.real.sum() * (t[1] - t[0]) / (2 * pi)
    return float(exp(top) * integral / (chances.sum() * reports))


@pytest.mark.parametrize("mechanism", SMALL, ids=str)
@pytest.mark.parametrize("reports", [1, 2, 3, 7, 20])
def test_the_expectation_term_by_term(mechanism: Sphere, reports: int) -> None:
    """Rounded up, by a part of a million where counts are not put into blocks."""
    for share in (0.0, 0.3, 0.8, 0.99):
        epsilon = share * mechanism.epsilon
        wanted = expected_sum(mechanism, reports, epsilon)
        found = blanket_delta(mechanism, reports, epsilon)
        assert wanted * (1 - 1e-12) <= found <= wanted * (1 + 1e-5) + 1e-15


@pytest.mark.parametrize("mechanism", [sphere(1.0, 20), sphere(2.0, 20)], ids=str)
def test_counts_in_blocks_are_rounded_up(mechanism: Sphere) -> None:
    """A block of hits takes the trials of its last one.

    With those of its first one the result lies 0.4 % to 14 % below the sum.
    """
    for share in (0.2, 0.5, 0.8):
        epsilon = share * mechanism.epsilon
        wanted = expected_sum(mechanism, 150, epsilon)
        found = blanket_delta(mechanism, 150, epsilon)
        assert wanted * (1 + 1e-3) < found < wanted * 1.25


@pytest.mark.parametrize("local", [4.0, 8.0])
def test_no_number_of_reports_is_too_large(local: float) -> None:
    """Above the true sum up to 1e15 reports, close to it up to 1e8, and never growing."""
    mechanism = sphere(local, 50)
    epsilon = central_epsilon(mechanism, 10**6, 1e-6)
    for reports in (10**6, 10**8, 10**9, 10**10, 10**11, 10**15):
        # About as likely in every batch: deviations of the mean shrink with the root.
        scaled = epsilon * sqrt(1e6 / reports)
        wanted = transformed_sum(mechanism, reports, scaled)
        found = blanket_delta(mechanism, reports, scaled)
        assert found > wanted
        assert found < 1.01 * wanted or reports > 10**8
        assert found <= blanket_delta(mechanism, reports // 100, scaled)
    assert 0 < clones_delta(local, 10**15, 1e-4) <= clones_delta(local, 10**7, 1e-4)


def test_the_transform_agrees_with_the_sum_term_by_term() -> None:
    mechanism = sphere(2.0, 20)
    for epsilon in (0.3, 0.5):
        wanted = expected_sum(mechanism, 200, epsilon)
        assert transformed_sum(mechanism, 200, epsilon) == pytest.approx(wanted, rel=5e-3)


def mixed_delta(mechanism: Sphere, others: list[set[int]], epsilon: float) -> float:
    """The divergence of mixed batches in which one person's near set is {0, ..., k - 1} or the last
    k numbers, and everybody else's is given: the multiset of numbers is all that is seen."""
    size, k = mechanism.candidates, mechanism.near
    near, far = (float(each) for each in mechanism.probabilities)

    def law(close: set[int]) -> list[float]:
        return [near if number in close else far for number in range(size)]

    def batch(first: set[int]) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], float] = {(): 1.0}
        for close in (first, *others):
            added: dict[tuple[int, ...], float] = {}
            for seen, chance in found.items():
                for number, each in enumerate(law(close)):
                    key = tuple(sorted((*seen, number)))
                    added[key] = added.get(key, 0.0) + chance * each
            found = added
        return found

    one, two = batch(set(range(k))), batch(set(range(size - k, size)))
    return sum(max(0.0, chance - exp(epsilon) * two[seen]) for seen, chance in one.items())


@pytest.mark.parametrize("mechanism", SMALL, ids=str)
def test_no_small_batch_tells_more(mechanism: Sphere) -> None:
    """By enumeration of all batches, for all near sets of the others: both bounds hold."""
    size, k = mechanism.candidates, mechanism.near
    choices = [set(range(k)), set(range(size - k, size)), {0, size - 1} if k == 2 else {size // 2}]
    for count in (1, 2, 3):
        for others in combinations_with_replacement(choices, count):
            for share in (0.0, 0.4, 0.9):
                epsilon = share * mechanism.epsilon
                truth = mixed_delta(mechanism, list(others), epsilon)
                assert truth <= blanket_delta(mechanism, count + 1, epsilon) + 1e-12
                assert truth <= clones_delta(mechanism.epsilon, count + 1, epsilon) + 1e-12


def test_clones_term_by_term() -> None:
    local, reports = 1.5, 30
    heads, share = exp(local) / (1 + exp(local)), exp(-local)
    for epsilon in (0.1, 0.5, 1.2):
        total = 0.0
        for count in range(reports):
            often = comb(reports - 1, count) * share**count * (1 - share) ** (reports - 1 - count)
            for seen in range(count + 2):
                fewer = comb(count, seen - 1) * 0.5**count if seen else 0.0
                same = comb(count, seen) * 0.5**count
                one, two = heads * fewer + (1 - heads) * same, (1 - heads) * fewer + heads * same
                total += often * max(0.0, one - exp(epsilon) * two)
        assert total <= clones_delta(local, reports, epsilon) <= total * (1 + 1e-5)


@pytest.mark.parametrize(
    ("local", "reports", "clones", "blanket"),
    [
        (1.0, 1_000, 0.182, 0.136), (1.0, 10_000, 0.053, 0.040),
        (4.0, 1_000, 3.99, 1.45), (4.0, 10_000, 0.601, 0.371), (4.0, 100_000, 0.170, 0.107),
        (6.0, 1_000, 6.0, 3.43), (6.0, 10_000, 5.72, 1.27), (6.0, 100_000, 0.524, 0.330),
    ],
)  # fmt: skip
def test_values_at_delta_one_in_a_million(
    local: float, reports: int, clones: float, blanket: float
) -> None:
    """50 coordinates; computed apart from this code, to three digits. Never below, hardly above."""
    assert clones_epsilon(local, reports, 1e-6) == pytest.approx(clones, rel=4e-3)
    found = central_epsilon(sphere(local, 50), reports, 1e-6)
    assert blanket * (1 - 0.013) <= found <= blanket * 1.03


def test_what_was_asked_for() -> None:
    """At local epsilon 4 and delta 1e-6."""
    assert central_epsilon(sphere(4.0, 50), 100_000, 1e-6) <= 0.125
    assert central_epsilon(sphere(4.0, 50), 10_000, 1e-6) <= 0.42


def test_more_reports_and_more_delta_hide_better() -> None:
    mechanism = sphere(2.0, 20)
    by_reports = [central_epsilon(mechanism, reports, 1e-6) for reports in (1, 30, 300)]
    assert by_reports[0] <= mechanism.epsilon
    assert (np.diff(by_reports) < 0).all()
    by_delta = [central_epsilon(mechanism, 300, delta) for delta in (1e-9, 1e-6, 1e-3)]
    assert (np.diff(by_delta) < 0).all()
    deltas = [blanket_delta(mechanism, 1_000, epsilon) for epsilon in (0.0, 0.1, 0.5, 1.9, 2.1)]
    assert (np.diff(deltas) < 0).all()
    assert deltas[-1] == 0.0


def test_the_local_epsilon_of_a_central_one() -> None:
    for central, reports in ((1.0, 3_000), (0.2, 1_000)):
        local = Shuffle(most=16.0).randomizer(Budget(central, 1e-6), reports, 30)
        assert local.epsilon > central
        assert central * 0.97 < central_epsilon(local, reports, 1e-6) <= central * (1 + 1e-3)


@pytest.mark.parametrize(
    ("central", "reports", "least"), [(0.2, 300, 1.08), (1.0, 300, 1.08), (1.0, 3000, 1.0)]
)
def test_what_is_best_alone_is_not_best_in_a_batch(
    central: float, reports: int, least: float
) -> None:
    """Variances: never above that of the local optimum, a tenth less in small batches."""
    mixing, budget, dimension = Shuffle(most=8.0), Budget(central, 1e-6), 50
    spent = mixing.local_epsilon(budget, reports)
    while not mixing.keeps(budget, alone := sphere(spent, dimension), reports):
        spent -= 0.02
    found = mixing.randomizer(budget, reports, dimension)
    assert mixing.keeps(budget, found, reports)
    assert least <= (alone.deviation / found.deviation) ** 2 < 1.2
    close = Shuffle(most=alone.epsilon).randomizer(budget, reports, dimension)
    assert close.keeps(alone.epsilon)  # never beyond what a device allows
    assert found.epsilon >= alone.epsilon * (1 - 1e-9)


def test_public_mistakes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="reports"):
        central_epsilon(sphere(1.0, 5), 0, 1e-6)
    with pytest.raises(ConfigurationError, match="delta"):
        central_epsilon(sphere(1.0, 5), 10, 0.0)
    with pytest.raises(ConfigurationError, match="local epsilon"):
        clones_epsilon(-1.0, 10, 1e-6)
