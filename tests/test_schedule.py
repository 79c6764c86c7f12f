"""Epoch lengths against Algorithm 1, lines 2 and 20."""

from itertools import islice, pairwise
from math import ceil, log2, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capri.epoch.plan import Schedule
from capri.errors import ConfigurationError

HORIZONS = [2, 3, 4, 5, 9, 10, 16, 17, 99, 100, 101, 1000, 10_000, 99_999, 10**6, 10**9]


@pytest.mark.parametrize("horizon", HORIZONS)
def test_lengths_sum_to_the_horizon(horizon: int) -> None:
    assert sum(Schedule.paper(horizon)) == horizon


@pytest.mark.parametrize("horizon", HORIZONS)
def test_first_epoch_is_the_root_of_the_horizon_rounded_up(horizon: int) -> None:
    assert next(iter(Schedule.paper(horizon))) == min(ceil(sqrt(horizon)), horizon)


def test_root_is_exact_where_floating_point_is_not() -> None:
    """``ceil(sqrt(n^2))`` by floats is off by one for large n; integers are not."""
    root = 10**9 + 7
    assert next(iter(Schedule.paper(root * root))) == root
    assert next(iter(Schedule.paper(root * root + 1))) == root + 1


@pytest.mark.parametrize("horizon", HORIZONS)
def test_each_epoch_but_the_truncated_last_doubles(horizon: int) -> None:
    lengths = list(Schedule.paper(horizon))
    for before, after in pairwise(lengths[:-1]):
        assert after == 2 * before
    if len(lengths) > 1:
        assert 1 <= lengths[-1] <= 2 * lengths[-2]


@settings(max_examples=300)
@given(st.integers(2, 10**12))
def test_number_of_epochs(horizon: int) -> None:
    """``ceil(log2(T / T_1 + 1))``, not the paper's "log T"."""
    lengths = list(Schedule.paper(horizon))
    assert len(lengths) == ceil(log2(horizon / lengths[0] + 1))


def test_hand_made_example() -> None:
    assert list(Schedule.paper(100)) == [10, 20, 40, 30]
    assert list(Schedule.paper(2)) == [2]
    assert list(Schedule.paper(5)) == [3, 2]


def test_length_agrees_with_iteration_and_ends_with_zero() -> None:
    schedule = Schedule.paper(1000)
    lengths = list(schedule)
    assert [schedule.length(epoch) for epoch in range(1, len(lengths) + 3)] == [*lengths, 0, 0]


def test_endless_schedule_grows_geometrically() -> None:
    assert list(islice(Schedule(first=7, growth=1.0), 4)) == [7, 7, 7, 7]
    assert list(islice(Schedule(first=8, growth=1.5), 4)) == [8, 12, 18, 27]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": 0}, "at least 1 round, got 0"),
        ({"first": 5, "growth": 0.5}, "growth must be at least 1, got 0.5"),
        ({"first": 5, "growth": float("nan")}, "growth must be at least 1, got nan"),
        ({"first": 5, "growth": float("inf")}, "growth must be at least 1, got inf"),
        ({"first": 5, "horizon": 1}, "horizon must be at least 2, got 1"),
    ],
)
def test_bad_schedule_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Schedule(**arguments)


@pytest.mark.parametrize("horizon", [1, 0, -5])
def test_short_horizon_is_refused(horizon: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at least 2, got {horizon}"):
        Schedule.paper(horizon)
