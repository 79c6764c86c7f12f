"""What must never be seen after any number of kills, and the checks that look for it.

1. an acknowledged decision that is lost, or has another answer for its key;
2. a decision in two epochs, or two decisions in one slot;
3. an acknowledged reward that is not counted, or counted twice; one for a released epoch counted;
4. an epoch that is released twice, or with other decisions than those that were made in it;
5. ledger and releases that disagree;
6. a user who counts more often than allowed, in all or in one epoch;
7. rows of decisions or rewards that outlive their epoch's release, or their values in the file;
8. a release that a process has read and that is not the one that was committed;
9. a process that outlives the killed one that started it (see run_faults.py);
10. an acknowledged change of mode or settings that is lost, or made twice;
11. changes that were made in another order than they were acknowledged;
12. a decision in a mode that was over before it was asked for, or not yet asked for when it was
    answered;
13. a decision by actions that its epoch does not have: a catalogue that takes effect before the
    next epoch is planned, or not with it;
14. an epoch that is not released although it has decisions, or is although it has none;
15. a rollback guard that does not know of the last release, says something else than its store,
    or was begun twice.

Runs without a budget release the exact integer sum, so 3 and 4 are checked to the last bit; private
runs have a ledger, so 5 is checked there.

How many visits an epoch had is public, so one that nobody came to, or nobody who teaches (leases
that died, mode "default"), passes through all its states and publishes nothing: there is nothing to
hide, and noise alone would spend budget and teach nothing.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from math import inf, isnan
from pathlib import Path
from typing import Any

import numpy as np

import capri
from fault_changes import OVER_LIMIT, SERVED, SHADOW, History
from fault_harness import Outcome
from fault_journal import Journal, Visit
from fault_worker import LIMIT, POOL, Setting, Worker, published
from recount import MOST_IN_DOUBT, Recount, Released, Row, released_in, rows_of
from stores import found_in

# The list above, an outcome each.
OUTCOMES = tuple(
    re.sub(r"\s+", " ", each).rstrip(";.")
    for each in re.findall(r"^\d+\. .*(?:\n {4}.*)*", __doc__ or "", flags=re.MULTILINE)
)
LEAST_RELEASES = 3
MOST_DECISIONS = 60_000  # until every epoch of the run must have been released
# The clock of who plays on to the end: ahead of all that were ever wrong, and fast.
AHEAD, PACE = timedelta(hours=4), timedelta(minutes=3)


@dataclass(frozen=True)
class Epoch:
    """An epoch as the store has it."""

    number: int
    first: int
    last: int | None
    state: str
    releases: bool


def epochs_of(url: str) -> dict[int, Epoch]:
    """All epochs of a store, read by SQL of our own."""
    rows = rows_of(
        url, "SELECT number, first, last, state, release IS NOT NULL FROM epochs ORDER BY number"
    )
    return {int(row[0]): Epoch(*row[:4], bool(row[4])) for row in rows}


class Here:
    """The parent's own end of a pipe: what is said goes into the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def send(self, line: dict[str, Any]) -> None:
        """Note a line as if a worker had said it."""
        self._journal.take(-1, line)


class Verdict:
    """The checks, on the store that a run has left."""

    def __init__(self, setting: Setting, outcome: Outcome) -> None:
        self._setting, self._journal = setting, outcome.journal
        self._left = outcome.left
        self.releases: tuple[Released, ...] = ()
        self.epochs: dict[int, Epoch] = {}
        self.history: History | None = None
        self._decided: dict[int, list[tuple[Visit, set[str]]]] = {}  # by epoch, and who decided

    def check(self) -> None:
        """All of them, after what was in doubt is settled and every epoch is released."""
        self.settle()
        self.check_answers()
        with self._setting.open() as policy:
            policy._engine.pace.planner.stop()  # type: ignore[union-attr]  # nothing changes any more
            self.releases = released_in(self._setting.url, policy.problem.kernel)
            self.epochs = epochs_of(self._setting.url)
            self.check_changes(policy)
            self.check_epochs(policy)
            self.check_rewards(policy)
            self.check_shadow(policy)
            self.check_account(policy)
            self.check_readers(policy)
        self.check_users()
        self.check_guard()

    def check_guard(self) -> None:
        """15, once all processes have ended and one was in peace."""
        if self._setting.rollback_guard is None:
            return
        url = self._setting.url
        begun = rows_of(url, "SELECT count(*) FROM operations WHERE kind = 'rollback_guard'")
        assert [int(count) for (count,) in begun] == [1], (
            "the rollback guard was begun twice, or never"
        )
        history = dict(rows_of(url, "SELECT generation, digest FROM history"))
        ((line,),) = rows_of(url, "SELECT store_id FROM policy")
        ((released,),) = rows_of(url, "SELECT max(released) FROM epochs")
        known = json.loads(self._setting.rollback_guard.read_text())[line]
        assert history.get(known["generation"]) == known["digest"], (
            "the rollback guard says something else than its store"
        )
        assert known["generation"] >= released, (
            "the rollback guard does not know of the last release"
        )

    def settle(self) -> None:
        """Ask again for what is in doubt and for every key, and play until all is released."""
        now = [datetime.now(UTC) + AHEAD]

        def clock() -> datetime:
            return now[0]

        pipe: Any = Here(self._journal)
        worker = Worker(self._setting, "parent", 1, pipe, clock)
        worker.call({"op": "mode", "mode": "active"})  # where nobody teaches nothing is released
        for call in self._left:
            worker.call(call)
        for visits in _chunks(list(self._journal.visits.values()), 20):
            worker.call(
                {
                    "op": "act",
                    "keys": [visit.key for visit in visits],
                    "users": [visit.user for visit in visits],
                    "contexts": [0.123 for _ in visits],  # not learnt: the first one is
                }
            )
        made = [visit.answer["epoch"] for visit in self._journal.visits.values()]
        last, open_ones = max([LEAST_RELEASES, *made]), [0]
        for count in range(MOST_DECISIONS):
            if count % 8 == 0:  # by SQL, which takes longer than a decision
                epochs = epochs_of(self._setting.url)
                open_ones = [each for each in range(1, last + 1) if _is_open(epochs.get(each))]
            if not open_ones:
                break
            now[0] += PACE
            worker.call(worker._visit(1))
        worker._policy.close()
        assert not open_ones, "epochs are not released any more"

    # -- decisions, epochs and changes ------------------------------------------------------------

    def check_answers(self) -> None:
        """1 and 2: every key has one answer, every slot one key."""
        assert not self._journal.broken, "; ".join(self._journal.broken)
        numbers = Counter(visit.answer["number"] for visit in self._journal.visits.values())
        assert max(numbers.values()) == 1, "two decisions share a slot"

    def check_changes(self, policy: capri.Capri) -> None:
        """10 to 13: what operators changed was made once, in order, and in time."""
        self.history = History(self._setting.url, policy.problem, self._journal)
        self._decided = {}
        for visit in self._journal.visits.values():
            modes = self.history.modes(visit)
            self.history.check_actions(visit)
            self._decided.setdefault(visit.answer["epoch"], []).append((visit, modes))

    def _of(self, epoch: int, mode: str) -> tuple[list[Visit], list[Visit]]:
        """Visits of an epoch in a mode; and those of which nobody can know, since both fit."""
        sure: list[Visit] = []
        perhaps: list[Visit] = []
        for visit, modes in self._decided.get(epoch, ()):
            if mode in modes:
                (sure if len(modes) == 1 else perhaps).append(visit)
        return sure, perhaps

    def check_epochs(self, policy: capri.Capri) -> None:
        """2, 4 and 14: every epoch is released once, with the decisions that were made in it."""
        rows = list(self.epochs.values())
        assert [row.number for row in rows] == list(range(1, len(rows) + 1)), "epochs have gaps"
        for row, following in pairwise(rows):
            assert row.last == following.first, "slots between two epochs"
        for visit in self._journal.visits.values():
            own = self.epochs[visit.answer["epoch"]]
            last = inf if own.last is None else own.last
            assert own.first <= visit.answer["number"] < last, "a slot of another epoch"
        over = [row.number for row in rows if not _is_open(row)]
        teaching = {epoch: self._of(epoch, "active") for epoch in over}
        epochs = [released.epoch for released in self.releases]
        due = [epoch for epoch in over if teaching[epoch][0]]
        may = [epoch for epoch in over if any(teaching[epoch])]
        once = len(set(epochs)) == len(epochs)
        exact = set(due) <= set(epochs) <= set(may)
        assert (once, exact) == (True, True), "an epoch is missing or released twice"
        for released in self.releases:
            sure, perhaps = teaching[released.epoch]
            participants = released.release.participants
            assert len(sure) <= participants <= len(sure) + len(perhaps), (
                f"epoch {released.epoch}: {participants} decisions released, {len(sure)} made"
            )
        records = {record.epoch: record.length for record in policy.epochs}
        assert records == {each.epoch: each.release.participants for each in self.releases}

    # -- rewards ----------------------------------------------------------------------------------

    def check_rewards(self, policy: capri.Capri) -> None:
        """3: the sums are those of what was acknowledged, no more and no less."""
        if self._setting.private:
            return
        assert self.history is not None
        for released in self.releases:
            sure, perhaps = self._of(released.epoch, "active")
            recount = Recount(self.history.problem(released.epoch), released)
            recount.check(self.rows(sure), self.rows(perhaps))

    def check_shadow(self, policy: capri.Capri) -> None:
        """3, 4 and 14 for visits in shadow mode: one record an epoch, with what they earned."""
        records = {record.epoch: record for record in policy.shadow}
        assert len(records) == len(policy.shadow), "an epoch's shadow is released twice"
        for epoch in (row.number for row in self.epochs.values() if not _is_open(row)):
            sure, perhaps = self._of(epoch, "shadow")
            record = records.pop(epoch, None)
            visits = 0 if record is None else record.visits
            assert len(sure) <= visits <= len(sure) + len(perhaps), "a shadow of other visits"
            if record is not None and not self._setting.private:
                rows = self.rows([each for each in sure if each.answer["status"] == SHADOW])
                self._check_earned(policy, rows, record.earned * record.visits)
        assert not records, "a shadow of an epoch that is not over"

    def _check_earned(self, policy: capri.Capri, rows: list[Row], earned: float) -> None:
        terms, scale = policy.problem.rewards, policy.problem.scale

        def worth(row: Row, extra: tuple[float, ...]) -> float:
            value = row.combined(terms.rule, extra)
            value = terms.stand_in if isnan(value) else value
            return 0.0 if isnan(value) else float(scale.learnt(np.array([value]))[0])

        choices = []
        for row in rows:
            picks = product((False, True), repeat=len(row.doubtful))
            choices.append(
                sorted(
                    {
                        worth(row, tuple(v for v, t in zip(row.doubtful, pick, strict=True) if t))
                        for pick in picks
                    }
                )
            )
        assert sum(len(each) > 1 for each in choices) <= MOST_IN_DOUBT
        sure = sum(each[0] for each in choices if len(each) == 1)
        open_ones = [each for each in choices if len(each) > 1]
        found = any(
            abs(sure + sum(pick) - earned) < 0.25 * 2**-10 for pick in product(*open_ones)
        )  # rewards are multiples of 2^-10
        assert found, "the shadow's rewards are not those that were acknowledged"

    def check_account(self, policy: capri.Capri) -> None:
        """5: the ledger has one event for each release, and the release has the same."""
        if not self._setting.private:
            return
        events = {(event.epoch, event.purpose): event for event in policy.ledger.events}
        assert len(events) == len(policy.ledger.events), "two events for one release"
        purposes = {released.release.event.purpose for released in self.releases}  # type: ignore[union-attr]
        assert len(purposes) == 1
        (purpose,) = purposes
        expected = {(released.epoch, purpose) for released in self.releases}
        expected |= {(record.epoch, "shadow") for record in policy.shadow}
        assert set(events) == expected, "ledger and releases disagree"
        for released in self.releases:
            event = events[released.epoch, purpose]
            assert released.release.event == event, "another event than released"
            assert event.participants == released.release.participants
        for record in policy.shadow:
            assert events[record.epoch, "shadow"].participants == record.visits

    def check_users(self) -> None:
        """6: nobody counts more often than allowed."""
        counted = [
            visit
            for visit in self._journal.visits.values()
            if visit.answer["status"] in (SERVED, SHADOW)
        ]
        total = Counter(visit.user for visit in counted)
        each = Counter((visit.user, visit.answer["epoch"]) for visit in counted)
        assert max(total.values()) <= LIMIT, "a user counts more often than allowed"
        assert max(each.values()) == 1, "a user counts twice in one epoch"

    def check_readers(self, policy: capri.Capri) -> None:
        """8: what any process has read of a release is what is there now."""
        final = published(policy)
        for epoch, record in self._journal.published.items():
            assert final.get(epoch) == record, "a release was read that was never committed"

    def check_forgotten(self, tables: dict[str, list[int]], file: Path | None) -> None:
        """7: no row of a released epoch is left, and none of its contexts in the file.

        ``tables``: the numbers of decisions that have rows in each table of secrets.
        """
        over = {row.number for row in self.epochs.values() if not _is_open(row)}
        numbers = {visit.answer["number"]: visit for visit in self._journal.visits.values()}
        for table, kept in tables.items():
            for number in kept:
                epoch = numbers[number].answer["epoch"]
                assert epoch not in over, f"a row of {table} outlives the release of its epoch"
        if file is None:
            return
        raw = b"\0".join(path.read_bytes() for path in file.parent.glob(f"*{file.name}*"))
        pool = set(POOL[:, 0].tolist())
        planted = [
            visit.context
            for visit in numbers.values()
            if visit.answer["epoch"] in over and visit.context not in pool
        ]
        assert planted
        assert found_in(raw, planted[:: max(1, len(planted) // 300)]) == []

    def rows(self, visits: list[Visit]) -> list[Row]:
        """Some decisions with the rewards that count, and those that may."""
        rows = {
            visit.answer["id"]: Row(
                id=visit.answer["id"],
                number=visit.answer["number"],
                epoch=visit.answer["epoch"],
                action=visit.answer["action"],
                context=np.array([visit.context]),
                counts=visit.answer["status"] != OVER_LIMIT,
            )
            for visit in visits
        }
        for (decision, _), sent in self._journal.rewards.items():
            row = rows.get(decision)
            if row is None or not row.counts:
                continue
            if sent.counted:
                row.rewards.append(sent.value)
            elif sent.counted is None:
                row.doubtful.append(sent.value)
        return list(rows.values())


def _is_open(epoch: Epoch | None) -> bool:
    """Whether something of an epoch may still change; also of one that is still to come."""
    return epoch is None or epoch.state != "learnt"


def _chunks(visits: list[Visit], size: int) -> Iterator[list[Visit]]:
    return (visits[start : start + size] for start in range(0, len(visits), size))
