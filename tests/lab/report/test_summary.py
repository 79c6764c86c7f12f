"""The summary holds the records' numbers, and keeps unlike promises apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capri.plots.style import COLOURS
from capri_lab.experiments import read_results
from capri_lab.report.marks import marks
from capri_lab.report.page import document
from capri_lab.report.summary import Series, Summary, summarise


@pytest.fixture(scope="module")
def records(results: Path) -> list[dict[str, Any]]:
    return list(read_results(results).records)


@pytest.fixture(scope="module")
def summary(records: list[dict[str, Any]]) -> Summary:
    return summarise(records)


def same(one: Series, summary: Summary, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    player = summary.players[one.player]
    return [
        record
        for record in records
        if record["status"] == "done"
        and (record["environment"], record["rounds"]) == (one.environment, one.rounds)
        and (record["policy"], record["promise"]["label"])
        == (player.policy, player.promise["label"])
        and record["epsilon"] == one.epsilon
    ]


def test_every_record_is_in_one_series(summary: Summary, records: list[dict[str, Any]]) -> None:
    assert summary.cells == len(records) == 132
    assert len(summary.failures) == 1
    assert sum(len(one.finals) for one in summary.series) == 131
    assert len(summary.series) == 44


def test_series_hold_means_over_seeds(summary: Summary, records: list[dict[str, Any]]) -> None:
    for one in summary.series:
        mine = same(one, summary, records)
        assert list(one.finals) == [record["seed"] for record in mine]
        ends = np.array([record["curve"]["regret"][-1] for record in mine])
        assert list(one.finals.values()) == pytest.approx(ends)
        rounds, mean, error = one.curve
        assert (rounds[0], rounds[-1], mean[0]) == (0, one.rounds, 0.0)
        assert mean[-1] == pytest.approx(ends.mean())
        assert one.regret.mean == pytest.approx(ends.mean())
        assert error is not None
        assert error[-1] == pytest.approx(ends.std(ddof=1) / np.sqrt(len(ends)))
        assert one.regret.standard_error == pytest.approx(error[-1])
        assert one.ratio is not None
        assert one.ratio.mean == pytest.approx(np.mean([record["ratio"] for record in mine]))


def test_curves_are_read_between_their_points(records: list[dict[str, Any]]) -> None:
    """Seeds recorded at other rounds are interpolated, not mismatched."""
    record = next(each for each in records if each["status"] == "done")
    line = record | {"curve": {"round": [1, 60], "regret": [1.0, 60.0]}, "regret_per_round": 1.0}
    other = line | {"seed": 1, "curve": {"round": [30, 60], "regret": [30.0, 60.0]}}
    (one,) = summarise([line, other]).series
    rounds, mean, error = one.curve
    np.testing.assert_allclose(mean, rounds)
    np.testing.assert_allclose(error, 0.0, atol=1e-12)


def test_epochs_are_means_at_the_rounds_they_closed(
    summary: Summary, records: list[dict[str, Any]]
) -> None:
    learners = [one for one in summary.series if one.epochs]
    assert {summary.players[one.player].policy[:5] for one in learners} == {"capri", "local"}
    for one in learners:
        mine = same(one, summary, records)
        first = [record["epochs"][0] for record in mine]
        assert one.epochs[0]["rounds"] == np.mean([epoch["length"] for epoch in first])
        assert one.epochs[0]["width"] == pytest.approx(np.mean([epoch["width"] for epoch in first]))
        assert one.epochs[-1]["rounds"] <= one.rounds


def test_a_policy_without_its_budget_is_another_player(summary: Summary) -> None:
    joint = [player for player in summary.players if player.policy == "capri-joint"]
    assert [player.promise["model"] for player in joint] == ["joint", "none"]
    assert [player.label for player in joint] == ["capri-joint", "capri-joint, no privacy"]


def test_only_like_promises_are_compared(summary: Summary) -> None:
    promise = [summary.players[one.player].promise["label"] for one in summary.series]
    assert summary.pairs
    for pair in summary.pairs:
        first, second = summary.series[pair.first], summary.series[pair.second]
        assert promise[pair.first] == promise[pair.second]
        assert (first.environment, first.rounds, first.epsilon, first.delta) == (
            second.environment, second.rounds, second.epsilon, second.delta,
        )  # fmt: skip
    # On each problem, horizon and epsilon: CAPRI and the linear rival, both joint with a delta;
    # and without privacy, CAPRI and LinUCB.
    assert len(summary.pairs) == 2 * 2 * (2 + 1)


def test_a_comparison_uses_common_seeds(summary: Summary) -> None:
    counts = [pair.comparison.seeds for pair in summary.pairs]
    assert sorted(counts) == [2] + [3] * 11


def test_marks_tell_promises_by_dash_and_players_by_colour(summary: Summary) -> None:
    drawn = marks(summary.players)
    dashes = {
        player.promise["label"]: mark.dash
        for player, mark in zip(summary.players, drawn, strict=True)
    }
    assert len(set(dashes.values())) == len(dashes) == 5
    for model in ("joint", "local", "none"):
        looks = [
            (mark.colour, mark.shape)
            for player, mark in zip(summary.players, drawn, strict=True)
            if player.promise["model"] == model
        ]
        assert len(set(looks)) == len(looks)
    assert all(mark.colour < len(COLOURS) for mark in drawn)


def test_a_policy_has_one_colour_of_its_own(summary: Summary) -> None:
    """Under all its promises; what uses no data is drawn in grey and takes none."""
    colours: dict[str, set[int]] = {}
    for player, mark in zip(summary.players, marks(summary.players), strict=True):
        if player.promise["model"] != "perfect":
            colours.setdefault(player.policy, set()).add(mark.colour)
    assert all(len(each) == 1 for each in colours.values())
    assert len(set.union(*colours.values())) == len(colours) == 5


def test_colours_run_out_within_a_model_last(summary: Summary) -> None:
    first = summary.players[0]
    many = [replace(first, policy=f"policy {number}") for number in range(2 * len(COLOURS))]
    looks = [(mark.colour, mark.shape) for mark in marks(many)]
    assert len(set(looks)) == len(looks)
    assert {colour for colour, _ in looks} == set(range(len(COLOURS)))


def test_notices_are_counted_by_kind(records: list[dict[str, Any]]) -> None:
    """Of three seeds two misfit, and one of these binds its rank; others say nothing."""
    first = next(record for record in records if record["status"] == "done" and record["epochs"])
    plain = [{**epoch, "notices": []} for epoch in first["epochs"]]

    def noticing(*kinds: str) -> list[dict[str, Any]]:
        told = [{"kind": kind, "text": f"{kind} {kinds}", "numbers": {}} for kind in kinds]
        return [{**plain[0], "notices": told}, *plain[1:]]

    epochs = [noticing("misfit"), plain, noticing("rank", "misfit")]
    mine = [first | {"seed": seed, "epochs": each} for seed, each in enumerate(epochs)]
    (series,) = document(summarise(mine))["series"]
    assert [(each["kind"], each["seeds"]) for each in series["notices"]] == [
        ("misfit", 2), ("rank", 1),
    ]  # fmt: skip
    assert series["notices"][0]["text"] == "misfit ('misfit',)"


def test_cells_that_failed_alike_are_one_row(records: list[dict[str, Any]]) -> None:
    failed = next(record for record in records if record["status"] == "failed")
    alike = [
        failed | {"epsilon": epsilon, "seed": seed} for epsilon in (1.0, None) for seed in range(30)
    ]
    other = failed | {"error": "another"}
    rows = document(summarise([*alike, other]))["failures"]
    assert [(row["cells"], row["error"]) for row in rows] == [
        (60, failed["error"]), (1, "another"),
    ]  # fmt: skip
    assert (rows[0]["epsilon"], rows[0]["seed"]) == ([1, None], list(range(30)))


def test_nothing_is_a_summary_too() -> None:
    empty = summarise([])
    assert (empty.series, empty.players, empty.cells) == ((), (), 0)
    assert document(empty)["series"] == []


def test_the_document_rounds_and_shares(summary: Summary) -> None:
    plain = document(summary)
    assert len(plain["grids"]) == 2
    # One certificate per model, epsilon and kinds of noise that were used.
    terms = [each["would_certify"] for each in plain["certificates"]]
    assert len({(each["model"], each["epsilon"]) for each in terms}) == 4
    assert len({(each["model"], each["epsilon"], each["mechanism"]) for each in terms}) == len(
        terms
    )
    certified = [one for one in plain["series"] if one["certificate"] is not None]
    assert len(certified) == 16
    for each in plain["certificates"]:
        assert each["claim"] == "none: seeded noise, nobody was protected"
        assert not {"spent", "releases"} & {*each, *each["would_certify"]}
    for one, series in zip(plain["series"], summary.series, strict=True):
        assert one["regret"][0] == pytest.approx(series.regret.mean, rel=1e-4)
        np.testing.assert_allclose(one["curve"], series.curve[1], rtol=1e-4)
