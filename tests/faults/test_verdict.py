"""The verdict on a run can fail: each impossible outcome is made up, and each is found."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

import capri
import fault_verdict
from fault_changes import DEFAULT, SERVED, SHADOW
from fault_harness import Outcome
from fault_journal import Change, Journal, Sent
from fault_verdict import MOST_DECISIONS, Epoch, Here, Verdict
from fault_worker import BASE, POOL, Setting, Worker
from recount import released_in, rows_of
from run_faults import numbers_kept

SETTINGS = {"op": "settings", "actions": [*BASE, {"name": "c1", "place": 0.25}], "growth": 1.03}
SHADOWED, DEFAULTED, ACTIVE = (
    {"op": "mode", "mode": "shadow"},
    {"op": "mode", "mode": "default", "action": "base1"},
    {"op": "mode", "mode": "active"},
)


def play(worker: Worker, until: Callable[[], bool]) -> None:
    """Call until something public has happened, however busy the machine is.

    How many decisions an epoch takes depends on when the next one is planned: a fixed number of
    calls meets another history on every machine.
    """
    for _ in range(MOST_DECISIONS):
        if until():
            return
        worker.call(worker._drawn())
    raise AssertionError("it never came")


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "private"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Verdict, capri.Capri, Path]]:
    """A run in peace: one worker, nobody killed, all of it true."""
    file = tmp_path_factory.mktemp("faults") / "faults.db"
    rollback_guard = file.with_name("guard.json")
    setting = Setting(
        f"sqlite:///{file}",
        private=request.param,
        first_epoch=25,
        wait=10,
        rollback_guard=rollback_guard,
    )
    journal = Journal()
    worker = Worker(setting, "alone", 3, Here(journal))  # type: ignore[arg-type]
    play(worker, lambda: len(journal.visits) >= 10)
    worker.call(SETTINGS)
    visits = journal.visits.values()
    play(worker, lambda: any(visit.answer["name"] == "c1" for visit in visits))
    play(worker, lambda: len(worker._policy.epochs) >= 2)
    worker.call(SHADOWED)
    play(worker, lambda: bool(alone(journal, SHADOW)))
    worker._recent.clear()  # what came in shadow stays alone
    worker.call(DEFAULTED)
    play(worker, lambda: any(visit.answer["status"] == DEFAULT for visit in visits))
    worker.call(ACTIVE)

    def enough() -> bool:
        epochs = {record.epoch for record in worker._policy.epochs}
        return len(epochs) >= 3 and bool(counted(journal, epochs))

    play(worker, enough)
    worker._policy.close()
    verdict = Verdict(setting, Outcome(journal))
    verdict.check()
    with setting.open() as policy:
        yield verdict, policy, file


def doctored(verdict: Verdict, change: Callable[[Verdict], None]) -> Verdict:
    """A verdict on another history."""
    other = Verdict(verdict._setting, Outcome(deepcopy(verdict._journal)))
    other.releases, other.epochs = verdict.releases, verdict.epochs
    change(other)
    with verdict._setting.open() as policy:
        other.check_changes(policy)
    return other


def alone(journal: Journal, status: int) -> dict[tuple[str, str], int]:
    """Rewards that count and have a decision for themselves, with the epoch of it.

    Twice each of them is within bounds, so that every change of one shows in its sum.
    """
    epochs = {
        visit.answer["id"]: visit.answer["epoch"]
        for visit in journal.visits.values()
        if visit.answer["status"] == status
    }
    senders = Counter(number for number, _ in journal.rewards)
    return {
        place: epochs[place[0]]
        for place, sent in journal.rewards.items()
        if place[0] in epochs and senders[place[0]] == 1 and sent.counted and 0 < sent.value <= 0.5
    }


def counted(journal: Journal, released: set[int]) -> list[tuple[str, str]]:
    """Decision and key of rewards that were counted in a release."""
    return [place for place, epoch in alone(journal, SERVED).items() if epoch in released]


def test_what_is_true_passes(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, file = run
    assert len(verdict.releases) >= 3
    assert released_in(verdict._setting.url, policy.problem.kernel)
    same = doctored(verdict, lambda other: None)
    same.check_answers()
    same.check_epochs(policy)
    same.check_rewards(policy)
    same.check_account(policy)
    same.check_readers(policy)
    same.check_shadow(policy)
    assert policy.shadow
    assert {visit.answer["status"] for visit in same._journal.visits.values()} >= {0, 3, 4}
    assert any(visit.answer["name"] == "c1" for visit in same._journal.visits.values())
    same.check_forgotten(numbers_kept(verdict._setting, file), file)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda sent: replace(sent, answers=[], doubtful=0),  # counted, and never acknowledged
        lambda sent: replace(sent, value=sent.value + 2**-10),
        lambda sent: replace(sent, value=2 * sent.value),  # counted once, acknowledged twice
    ],
    ids=["lost", "changed", "twice"],
)
def test_a_reward_that_was_not_counted_once_is_found(
    run: tuple[Verdict, capri.Capri, Path], wrong: Callable[[Sent], Sent]
) -> None:
    verdict, policy, _ = run
    place = counted(verdict._journal, {each.epoch for each in verdict.releases})[0]

    def change(other: Verdict) -> None:
        other._journal.rewards[place] = wrong(other._journal.rewards[place])

    other = doctored(verdict, change)
    if verdict._setting.private:
        other.check_rewards(policy)  # noise hides it: this is what runs without a budget are for
    else:
        with pytest.raises(AssertionError, match="not that of what was acknowledged"):
            other.check_rewards(policy)


def test_a_reward_in_doubt_may_be_counted_or_not(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run
    place = counted(verdict._journal, {each.epoch for each in verdict.releases})[0]

    def change(other: Verdict) -> None:
        other._journal.rewards[place] = replace(
            other._journal.rewards[place], answers=[], doubtful=1
        )
        other._journal.rewards[place[0], "never sent"] = Sent(0.25, doubtful=1)

    doctored(verdict, change).check_rewards(policy)


def test_a_lost_decision_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run

    def forget(other: Verdict) -> None:
        other._journal.visits.pop(next(iter(other._journal.visits)))

    with pytest.raises(AssertionError, match="decisions released"):
        doctored(verdict, forget).check_epochs(policy)


def test_a_decision_in_another_epoch_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run

    def exchange(other: Verdict) -> None:
        first, *_, last = (
            visit
            for visit in other._journal.visits.values()
            if visit.answer["epoch"] < 3 and visit.answer["name"] in ("base0", "base1")
        )
        ours, theirs = first.answer["epoch"], last.answer["epoch"]
        assert ours != theirs
        first.answer["epoch"], last.answer["epoch"] = theirs, ours

    with pytest.raises(AssertionError, match="another epoch"):
        doctored(verdict, exchange).check_epochs(policy)


def test_two_decisions_in_a_slot_are_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, _, _ = run

    def double(other: Verdict) -> None:
        first, second, *_ = other._journal.visits.values()
        second.answer["number"] = first.answer["number"]

    with pytest.raises(AssertionError, match="share a slot"):
        doctored(verdict, double).check_answers()


def test_another_answer_for_a_key_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, _, _ = run

    def contradict(other: Verdict) -> None:
        visit = next(iter(other._journal.visits.values()))
        call = {"op": "act", "keys": [visit.key], "users": [0], "contexts": [0.0]}
        answer = [visit.answer | {"action": visit.answer["action"] + 1}]
        other._journal.take(0, {"op": "intent", "call": call})
        other._journal.take(0, {"op": "answer", "call": call, "answer": answer})

    with pytest.raises(AssertionError, match="another answer"):
        doctored(verdict, contradict).check_answers()


def test_a_second_release_and_a_missing_one_are_found(
    run: tuple[Verdict, capri.Capri, Path],
) -> None:
    verdict, policy, _ = run
    for releases in ((*verdict.releases, verdict.releases[-1]), verdict.releases[1:]):
        other = doctored(verdict, lambda other: None)
        other.releases = releases
        with pytest.raises(AssertionError, match="missing or released twice"):
            other.check_epochs(policy)


def test_a_ledger_that_disagrees_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run
    if not verdict._setting.private:
        return
    other = doctored(verdict, lambda other: None)
    other.releases = verdict.releases[:-1]
    with pytest.raises(AssertionError):
        other.check_account(policy)


def test_a_user_over_the_limit_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, _, _ = run

    def crowd(other: Verdict) -> None:
        for visit in other._journal.visits.values():
            visit.user = 1

    with pytest.raises(AssertionError, match="more often than allowed"):
        doctored(verdict, crowd).check_users()


def test_a_release_read_before_its_time_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run

    def too_early(other: Verdict) -> None:
        other._journal.published[len(verdict.releases) + 50] = {"epoch": 0}

    with pytest.raises(AssertionError, match="never committed"):
        doctored(verdict, too_early).check_readers(policy)


def test_rows_that_outlive_their_release_are_found(
    run: tuple[Verdict, capri.Capri, Path], tmp_path: Path
) -> None:
    verdict, _, file = run
    with pytest.raises(AssertionError, match="outlives"):
        verdict.check_forgotten({"rewards": [0]}, None)
    planted = next(
        visit.context
        for visit in verdict._journal.visits.values()
        if visit.answer["epoch"] == 1 and visit.context not in POOL
    )
    import struct

    left = tmp_path / file.name
    left.write_bytes(bytes(100) + struct.pack("<d", planted))
    with pytest.raises(AssertionError):
        verdict.check_forgotten({}, left)


def test_a_change_that_is_lost_made_twice_or_out_of_order_is_found(
    run: tuple[Verdict, capri.Capri, Path],
) -> None:
    verdict, _, _ = run

    def lost(other: Verdict) -> None:
        other._journal.changes.append(Change({"op": "mode", "mode": "shadow"}, 10_000, 10_001))

    def twice(other: Verdict) -> None:
        del other._journal.changes[2]

    def exchanged(other: Verdict) -> None:
        changes = other._journal.changes
        changes[1], changes[2] = changes[2], changes[1]

    for wrong in (lost, twice, exchanged):
        with pytest.raises(AssertionError, match="history of operations"):
            doctored(verdict, wrong)

    def in_doubt(other: Verdict) -> None:
        other._journal.changes.append(Change({"op": "mode", "mode": "shadow"}, 10_000))

    doctored(verdict, in_doubt)  # may have been made or not


def test_a_decision_by_a_mode_or_actions_of_another_time_is_found(
    run: tuple[Verdict, capri.Capri, Path],
) -> None:
    verdict, _, _ = run

    def early(other: Verdict) -> None:
        first = next(iter(other._journal.visits.values()))
        first.answer["status"] = SHADOW

    def late(other: Verdict) -> None:
        visits = other._journal.visits.values()
        next(each for each in visits if each.answer["status"] == SHADOW).answer["status"] = SERVED

    for wrong in (early, late):
        with pytest.raises(AssertionError, match="a mode that was over"):
            doctored(verdict, wrong)

    def before_its_epoch(other: Verdict) -> None:
        first = next(iter(other._journal.visits.values()))
        assert first.answer["epoch"] == 1
        first.answer["name"], first.answer["action"] = "c1", 2

    with pytest.raises(AssertionError, match="actions that its epoch does not have"):
        doctored(verdict, before_its_epoch)


def test_a_shadow_of_other_rewards_is_found(run: tuple[Verdict, capri.Capri, Path]) -> None:
    verdict, policy, _ = run
    if verdict._setting.private:
        return
    place = next(iter(alone(verdict._journal, SHADOW)))

    def change(other: Verdict) -> None:
        sent = other._journal.rewards[place]
        other._journal.rewards[place] = replace(sent, value=sent.value / 2)

    with pytest.raises(AssertionError, match="shadow's rewards"):
        doctored(verdict, change).check_shadow(policy)


def test_an_epoch_that_keeps_its_decisions_is_found(
    run: tuple[Verdict, capri.Capri, Path],
) -> None:
    """One without decisions releases nothing; one with some that is not released is a defect."""
    verdict, policy, _ = run
    other = doctored(verdict, lambda other: None)
    number = max(other.epochs) + 1
    last = other.epochs[number - 1].last or 1_000_000
    other.epochs[number - 1] = replace(other.epochs[number - 1], last=last)
    other.epochs[number] = Epoch(number, last, last + 5, "learnt", releases=False)
    other.check_epochs(policy)
    epoch = verdict.releases[-1].epoch
    other.releases = verdict.releases[:-1]
    assert other.epochs[epoch].state == "learnt"
    with pytest.raises(AssertionError, match="missing or released twice"):
        other.check_epochs(policy)


@pytest.mark.parametrize("wrong", ["behind", "other", "ahead"])
def test_a_rollback_guard_that_says_something_else_is_found(
    wrong: str, run: tuple[Verdict, capri.Capri, Path]
) -> None:
    """15."""
    verdict, _, file = run
    rollback_guard = file.with_name("guard.json")
    whole = rollback_guard.read_text()
    ((line, note),) = json.loads(whole).items()
    if wrong == "behind":
        first = rows_of(verdict._setting.url, "SELECT digest FROM history WHERE generation = 1")
        note = {"generation": 1, "digest": first[0][0]}
    elif wrong == "other":
        note["digest"] = note["digest"][::-1]
    else:
        note["generation"] += 1000
    rollback_guard.write_text(json.dumps({line: note}))
    try:
        with pytest.raises(AssertionError, match="last release" if wrong == "behind" else "else"):
            verdict.check_guard()
    finally:
        rollback_guard.write_text(whole)
    verdict.check_guard()


def test_a_rollback_guard_that_was_begun_twice_is_found(
    run: tuple[Verdict, capri.Capri, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """15."""
    verdict, _, _ = run
    monkeypatch.setattr(fault_verdict, "rows_of", lambda *_: [(2,)])
    with pytest.raises(AssertionError, match="begun twice"):
        verdict.check_guard()
