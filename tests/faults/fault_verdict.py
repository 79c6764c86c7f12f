"""What must never be seen after any number of kills, and the checks that look for it.

1. an acknowledged decision that is lost, or has another answer for its key;
2. a decision in two epochs, or two decisions in one slot;
3. an acknowledged reward that is not counted, or counted twice; one for a released epoch counted;
4. an epoch that is released twice, or with other decisions than those that were made in it;
5. ledger and releases that disagree;
6. a user who counts more often than allowed, in all or in one epoch;
7. rows of decisions or rewards that outlive their epoch's release, or their values in the file;
8. a release that a process has read and that is not the one that was committed;
9. a process that outlives the killed one that started it (see run_faults.py).

Runs without a budget release the exact integer sum, so 3 and 4 are checked to the last bit; private
runs have a ledger, so 5 is checked there.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import capri
from fault_harness import Outcome
from fault_journal import Journal, Visit
from fault_worker import LIMIT, POOL, Setting, Worker, published
from recount import Recount, Released, Row, released_in
from stores import found_in

SERVED = int(capri.VisitStatus.SERVED)
LEAST_RELEASES = 3
MOST_DECISIONS = 60_000  # until every epoch of the run must have been released


def newest_of(policy: capri.Capri) -> int:
    """The newest epoch that was learnt from."""
    return max((record.epoch for record in policy.epochs), default=0)


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

    def check(self) -> None:
        """All of them, after what was in doubt is settled and every epoch is released."""
        self.settle()
        self.check_answers()
        with self._setting.open() as policy:
            self.releases = released_in(self._setting.url, policy.problem.kernel)
            self.check_epochs(policy)
            self.check_rewards(policy)
            self.check_account(policy)
            self.check_readers(policy)
        self.check_users()

    def settle(self) -> None:
        """Ask again for what is in doubt and for every key, and play until all is released."""
        worker = Worker(self._setting, "parent", 1, Here(self._journal))  # type: ignore[arg-type]
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
        epochs = [visit.answer["epoch"] for visit in self._journal.visits.values()]
        last = max(LEAST_RELEASES, *epochs)
        for _ in range(MOST_DECISIONS):
            if newest_of(worker._policy) >= last:
                break
            worker.call(worker._visit(1))
        worker._policy.close()
        assert newest_of(worker._policy) >= last, "epochs are not released any more"

    def check_answers(self) -> None:
        """1 and 2: every key has one answer, every slot one key."""
        assert not self._journal.broken, "; ".join(self._journal.broken)
        numbers = Counter(visit.answer["number"] for visit in self._journal.visits.values())
        assert max(numbers.values()) == 1, "two decisions share a slot"

    def check_epochs(self, policy: capri.Capri) -> None:
        """2 and 4: every epoch is released once, with the decisions that were made in it."""
        epochs = [released.epoch for released in self.releases]
        made = Counter(visit.answer["epoch"] for visit in self._journal.visits.values())
        # One that was closed before anybody came, or whose leases died, releases nothing.
        known = {epoch for epoch in made if epoch <= max(epochs, default=0)}
        assert epochs == sorted(known), "an epoch is missing or released twice"
        for released in self.releases:
            assert released.release.participants == made[released.epoch], (
                f"epoch {released.epoch}: {released.release.participants} decisions released, "
                f"{made[released.epoch]} made"
            )
        records = {record.epoch: record.length for record in policy.epochs}
        assert records == {epoch: made[epoch] for epoch in epochs}
        bounds = [released.starts[0] for released in self.releases]
        for visit in self._journal.visits.values():
            place = int(np.searchsorted(bounds, visit.answer["number"], side="right"))
            if place < len(bounds) or visit.answer["epoch"] <= epochs[-1]:
                assert place
                assert visit.answer["epoch"] == epochs[place - 1], "a slot of another epoch"

    def check_rewards(self, policy: capri.Capri) -> None:
        """3: the sums are those of what was acknowledged, no more and no less."""
        if self._setting.private:
            return
        rows = self.rows()
        for released in self.releases:
            mine = [row for row in rows if row.epoch == released.epoch]
            Recount(policy.problem, released).check(mine)

    def check_account(self, policy: capri.Capri) -> None:
        """5: the ledger has one event for each release, and the release has the same."""
        if not self._setting.private:
            return
        events = {event.epoch: event for event in policy.ledger.events}
        assert len(events) == len(policy.ledger.events), "two events for one epoch"
        assert sorted(events) == [released.epoch for released in self.releases]
        for released in self.releases:
            assert released.release.event == events[released.epoch], "another event than released"
            assert events[released.epoch].participants == released.release.participants

    def check_users(self) -> None:
        """6: nobody counts more often than allowed."""
        served = [
            visit for visit in self._journal.visits.values() if visit.answer["status"] == SERVED
        ]
        total = Counter(visit.user for visit in served)
        each = Counter((visit.user, visit.answer["epoch"]) for visit in served)
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
        released = len(self.releases)
        numbers = {visit.answer["number"]: visit for visit in self._journal.visits.values()}
        for table, kept in tables.items():
            for number in kept:
                epoch = numbers[number].answer["epoch"]
                assert epoch > released, f"a row of {table} outlives the release of its epoch"
        if file is None:
            return
        raw = b"\0".join(path.read_bytes() for path in file.parent.glob(f"*{file.name}*"))
        pool = set(POOL[:, 0].tolist())
        planted = [
            visit.context
            for visit in numbers.values()
            if visit.answer["epoch"] <= released and visit.context not in pool
        ]
        assert planted
        assert found_in(raw, planted[:: max(1, len(planted) // 300)]) == []

    def rows(self) -> list[Row]:
        """Every decision with the rewards that count, and those that may."""
        rows = {
            visit.answer["id"]: Row(
                id=visit.answer["id"],
                number=visit.answer["number"],
                epoch=visit.answer["epoch"],
                action=visit.answer["action"],
                context=np.array([visit.context]),
                counts=visit.answer["status"] == SERVED,
            )
            for visit in self._journal.visits.values()
        }
        for (decision, _), sent in self._journal.rewards.items():
            if not rows[decision].counts:
                continue
            if sent.counted:
                rows[decision].rewards.append(sent.value)
            elif sent.counted is None:
                rows[decision].doubtful.append(sent.value)
        return list(rows.values())


def _chunks(visits: list[Visit], size: int) -> Iterator[list[Visit]]:
    return (visits[start : start + size] for start in range(0, len(visits), size))
