"""Reports that were made up: what one of them weighs, and that searching for tokens is noticed."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import BUDGET, small_aggregator

import capri
from capri.local.device import SimulatedRandomness
from capri.local.honesty import honest_bound, robust_sum, suspects
from capri.local.wire import pack
from capri.privacy.sphere import DIRECTION_UNITS, directions, randomized, reported_sum, sphere

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "sphere.md"
DIMENSION = 20
LIMIT = 1 << 20


def runs(few: int, all_of_them: int) -> list[Any]:
    """Seeds of the default suite, and the others, which are slow."""
    return [range(few), pytest.param(range(few, all_of_them), marks=pytest.mark.slow)]


def honest(epsilon: float, count: int, seed: int, *, alike: bool = True) -> tuple[Any, Any]:
    """Tokens and numbers of real reports; ``alike``: everybody has the same datum, the worst."""
    generator = np.random.default_rng(seed)
    data = generator.standard_normal((1 if alike else count, DIMENSION))
    data *= (LIMIT - 100) / np.linalg.norm(data, axis=1, keepdims=True)
    rows = np.broadcast_to(np.rint(data), (count, DIMENSION)).astype(np.int64)
    draws = SimulatedRandomness(seed, np.arange(count))
    return randomized(rows, LIMIT, sphere(epsilon, DIMENSION), draws)


@cache
def searched(count: int, tries: int, most: float = np.inf) -> tuple[Any, Any]:
    """Reports of somebody who wants the first axis, the best of so many tokens each.

    ``most``: with so many deviations at most.
    """
    generator = np.random.default_rng(99)
    tokens = generator.integers(0, 2**63, (count * tries, 2)).astype(np.uint64)
    found = directions(tokens, np.zeros(len(tokens), dtype=np.int64), DIMENSION)[:, 0]
    size = np.abs(found) * np.sqrt(DIMENSION) / DIRECTION_UNITS
    best = np.where(size <= most, size, 0).reshape(count, tries).argmax(axis=1) + tries * np.arange(
        count
    )
    return tokens[best], (found[best] < 0).astype(np.int64)


def test_leverage_is_as_the_page_says() -> None:
    """Of a table by epsilon and coordinates: one over the shrinkage."""
    rows = re.findall(r"^\| (\d+) \| ([\d.]+(?: \| [\d.]+){4}) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(m) for m, _ in rows] == [2, 5, 10, 20, 50, 100, 200]
    for m, cells in rows:
        for epsilon, cell in zip((0.5, 1, 2, 4, 8), cells.split("|"), strict=True):
            assert float(cell) == pytest.approx(1 / sphere(epsilon, int(m)).shrinkage, abs=0.051)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_moments_of_honest_reports(epsilon: float) -> None:
    """``q`` is what it is: along the datum of all, 40,000 reports, four standard errors."""
    mechanism = sphere(epsilon, DIMENSION)
    tokens, numbers = honest(epsilon, 40_000, 7)
    generator = np.random.default_rng(7)
    datum = generator.standard_normal(DIMENSION)
    vectors = directions(tokens, numbers // 2, DIMENSION) / DIRECTION_UNITS
    squares = DIMENSION * (vectors @ (datum / np.linalg.norm(datum))) ** 2
    error = squares.std() / np.sqrt(len(squares))
    assert abs(squares.mean() - mechanism.inflation) < 4 * error


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 1000), (1.0, 4000), (4.0, 2000)])
@pytest.mark.parametrize("seeds", runs(10, 30), ids=str)
def test_honest_crowds_raise_no_alarm(
    epsilon: float, count: int, alike: bool, seeds: range
) -> None:
    """Thirty crowds each; the bound is passed once in 10^5 times or less."""
    for seed in seeds:
        crowd = honest(epsilon, count, seed, alike=alike)
        assert robust_sum(sphere(epsilon, DIMENSION), *crowd) is None


@pytest.mark.parametrize("seeds", runs(5, 20), ids=str)
def test_three_percent_that_searched_are_noticed(seeds: range) -> None:
    """At epsilon 1, 480 of 16,000, the best of 4,000 tokens each: in 20 of 20 runs."""
    mechanism = sphere(1.0, DIMENSION)
    forged, numbers = searched(480, 4000)
    for seed in seeds:
        tokens, honestly = honest(1.0, 15_520, seed, alike=False)
        mixed = np.concatenate([tokens, forged]), np.concatenate([honestly, numbers])
        found = robust_sum(mechanism, *mixed)
        assert found is not None
        total, count, (notice,) = found
        assert notice.numbers["found"] > notice.numbers["bound"]
        assert notice.kind == "forged reports"
        # All that was made up is left out, and of honest reports one in twenty.
        assert 16_000 - count == notice.numbers["left_out"]
        assert 480 < 16_000 - count < 480 + 0.06 * 15_520
        one = np.eye(1, DIMENSION)[0] * DIRECTION_UNITS
        was = reported_sum(*mixed, DIMENSION) @ one
        assert abs(total @ one) < was / 4


def test_who_knows_the_filter_has_half() -> None:
    """Forged reports of two deviations at most are left in, or are too few to be seen."""
    mechanism, (forged, numbers) = sphere(1.0, DIMENSION), searched(480, 60, most=1.99)
    tokens, honestly = honest(1.0, 15_520, 3, alike=False)
    mixed = np.concatenate([tokens, forged]), np.concatenate([honestly, numbers])
    found = robust_sum(mechanism, *mixed)
    total = reported_sum(*mixed, DIMENSION) if found is None else found[0]
    free = reported_sum(*searched(480, 4000), DIMENSION)[0]
    before = reported_sum(tokens, honestly, DIMENSION)[0]
    assert 0.3 * free < total[0] - before < 0.6 * free


def test_an_aggregator_says_so_and_goes_on() -> None:
    aggregator = small_aggregator(first_epoch=2000, horizon=None)
    plan = capri.LocalClient(aggregator.bundle(), BUDGET).opened_bundle.plan
    assert plan.sphere is not None
    generator = np.random.default_rng(5)
    tokens = generator.integers(0, 2**63, (400_000, 2)).astype(np.uint64)
    found = directions(tokens, np.zeros(len(tokens), dtype=np.int64), plan.dimension)[:, 0]
    best = np.argsort(-found)[:2000]
    rows = pack(aggregator.digest, tokens[best], np.zeros(2000, dtype=np.int64))
    assert not aggregator.notices
    aggregator.receive_many(rows)
    assert "forged reports" in [notice.kind for notice in aggregator.notices]
    assert len(aggregator.epochs) == 1


def test_few_reports_say_nothing() -> None:
    mechanism = sphere(1.0, DIMENSION)
    tokens = np.zeros((999, 2), dtype=np.uint64)
    numbers = np.zeros(999, dtype=np.int64)
    assert robust_sum(mechanism, tokens, numbers) is None
    alike = np.zeros((2000, 2), dtype=np.uint64), np.zeros(2000, dtype=np.int64)
    assert suspects(mechanism, *alike)[1] == pytest.approx(DIMENSION)
    assert honest_bound(mechanism, 10**6) < honest_bound(mechanism, 10**3)
