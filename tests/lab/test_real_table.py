"""The tables of real problems: drawn from the catalogue and from records, and fit for losses."""

from typing import Any

import pytest

import real_table


def record(
    policy: str, epsilon: float | None, seed: int, ratio: float, **more: Any
) -> dict[str, Any]:
    found = {"status": "done", "environment": "wine", "rounds": 10_000, "error": None}
    return found | {"policy": policy, "epsilon": epsilon, "seed": seed, "ratio": ratio} | more


def records(ours: float) -> list[dict[str, Any]]:
    players = {
        (real_table.OURS, 1.0): ours,
        (real_table.OURS, None): 0.1,
        (real_table.TOLD, 1.0): 0.2,
        ("batched-linear", 1.0): 0.3,
        ("adap-ucb", 1.0): 0.8,
        (real_table.FIXED, None): 0.6,
    }
    # Seeds differ a lot, players of the same seed by nothing but their own: pairs tell them apart.
    return [
        record(*player, seed, ratio + 0.1 * seed + 0.001 * (seed % 2))
        for player, ratio in players.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("ours", "against_rival", "against_fixed"),
    [
        (0.25, "wins", "wins"),
        (0.3, "even", "wins"),
        (0.5, "loses", "wins"),
        (0.7, "loses", "loses"),
    ],
)
def test_a_loss_is_shown(ours: float, against_rival: str, against_fixed: str) -> None:
    cells = records(ours)
    for cell in cells:  # a little luck, so that an interval is not empty
        cell["ratio"] += 0.0005 * ((cell["seed"] + len(cell["policy"])) % 3)
    line = real_table.result_table(cells).splitlines()[-1]
    columns = [each.strip() for each in line.strip("|").split("|")]
    assert columns[:3] == ["`wine`", "1e4", "3"]
    assert columns[6].endswith("batched-linear")  # the best rival, not the first
    assert columns[8:] == [against_rival, against_fixed]


def test_a_failed_cell_stops_the_table() -> None:
    failed = record("adap-ucb", 1.0, 0, 0.0, status="failed", error="it broke")
    with pytest.raises(SystemExit, match="adap-ucb on wine failed: it broke"):
        real_table.result_table([*records(0.2), failed])


def test_marks_are_needed() -> None:
    with pytest.raises(SystemExit, match="no marks"):
        real_table.with_table("a page", "results", "table")
