"""Paired comparisons against SciPy's, and their edges."""

import numpy as np
import pytest
from scipy import stats

from capri_lab.report.summary import compare


def samples(count: int, shift: float) -> tuple[dict[int, float], dict[int, float]]:
    generator = np.random.default_rng(count)
    shared = generator.normal(size=count)
    first = shared + generator.normal(shift, 0.3, count)
    return dict(enumerate(first.tolist())), dict(enumerate(shared.tolist()))


@pytest.mark.parametrize(("count", "shift"), [(2, 0.1), (7, 0.0), (9, 0.2), (12, 0.5)])
def test_agrees_with_scipy(count: int, shift: float) -> None:
    first, second = samples(count, shift)
    a, b = np.array(list(first.values())), np.array(list(second.values()))
    result = compare(first, second)
    assert result is not None
    assert result.seeds == count
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    exact = stats.permutation_test(
        (a - b,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert result.difference == pytest.approx(exact.statistic)
    assert result.p == pytest.approx(exact.pvalue)


def test_many_seeds_are_sampled() -> None:
    """16 seeds, 2^14 of 2^16 flips: the p-value is within six standard errors (1e-8) of all."""
    first, second = samples(16, 0.1)
    result = compare(first, second)
    differences = np.array([first[seed] - second[seed] for seed in first])
    signs = 1 - 2 * ((np.arange(1 << 16)[:, None] >> np.arange(16)) & 1)
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-9))
    assert 0.01 < exact < 0.9
    assert result is not None
    assert result.p == pytest.approx(exact, abs=6 * np.sqrt(exact * (1 - exact) / (1 << 14)))
    assert result == compare(first, second)


def test_a_large_difference_of_many_seeds_is_never_certain() -> None:
    result = compare(dict.fromkeys(range(30), 1.0), dict.fromkeys(range(30), 0.0))
    assert result is not None
    assert result.p is not None
    assert 0 < result.p <= 2 / (1 << 14)


def test_the_other_way_round_changes_the_sign_alone() -> None:
    first, second = samples(6, 0.2)
    there, back = compare(first, second), compare(second, first)
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert there.difference == pytest.approx(-back.difference)
    assert back.high == pytest.approx(-there.low)
    assert there.p == back.p


def test_only_common_seeds_count() -> None:
    result = compare({1: 5.0, 2: 6.0, 3: 100.0}, {1: 4.0, 2: 3.0, 9: 0.0})
    assert result is not None
    assert (result.seeds, result.difference) == (2, 2.0)


def test_equal_results_are_no_evidence() -> None:
    result = compare(dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 1.0))
    assert result is not None
    assert (result.low, result.high, result.p) == (0.0, 0.0, 1.0)


def test_one_seed_gives_neither_interval_nor_p() -> None:
    result = compare({0: 1.0}, {0: 3.0})
    assert result is not None
    assert (result.difference, result.low, result.high, result.p) == (-2.0, None, None, None)


def test_no_common_seed_is_no_comparison() -> None:
    assert compare({0: 1.0}, {1: 1.0}) is None
