"""The engine of an aggregator: reports and epochs over a repository, in memory or in a database.

    plan  ->  bundle  ->  reports  ->  end  ->  reading  ->  (next) plan

Every change is one unit of work of the repository (:mod:`capri.store.repository`), and any number
of processes make them. A report counts by being in the repository under a number; numbers have no
gaps. So what is known of an epoch follows from its rows: a process keeps their tokens and their
sum, and brings both up to date before it judges. Three kinds of units publish something:

    end        the last number of an epoch, with the report that fills it, by the clock or on demand
    reading    what was learnt of every sum up to that number, and the next epoch with its bundle
    operate    other actions, from the next bundle on

A reading is computed from what is committed, its public draws included, and holds no lock: whoever
finds an epoch that has ended makes it, to the same bits, and the first to commit has made it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, TypeVar

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.plan import EpochPlan, Notice
from capri.epoch.problem import Problem
from capri.epoch.storage import plan_state, version_state
from capri.errors import DataError, HorizonError
from capri.learners.learner import PracticalLearner
from capri.local import wire
from capri.local.bundle import make_bundle
from capri.local.noted import note_bundle
from capri.local.reports import (
    EpochReports,
    EpochSum,
    ReportStatus,
    Verdict,
    check_sum,
    judge,
    token_bytes,
)
from capri.local.state import CARRIED, ReportState, is_closed, law_of
from capri.store.repository import (
    OvertakenError,
    ReportRow,
    drop_laws,
    repeated,
)
from capri.store.reservation import Reservation
from capri.store.tables import Unit
from capri.store.view import LEARNT, OPEN, WAITING, EpochRow

Result = TypeVar("Result")


class ReportEngine:
    """Takes reports, ends epochs, makes readings. For one thread at a time."""

    def __init__(
        self, state: ReportState, horizon: int | None, reservation: Reservation | None = None
    ) -> None:
        """``reservation``: in the ledger of an organisation, which is told of every bundle."""
        self.state, self.repository, self._horizon = state, state.repository, horizon
        # By this process, for its operator.
        self.judged: Counter[int] = Counter()
        self.forged: tuple[Notice, ...] = ()
        self.reservation = reservation
        self.settle()

    def __repr__(self) -> str:
        return f"ReportEngine({self.repository!r})"

    # -- units of work ----------------------------------------------------------------------------

    def _repeated(self, step: Callable[[], Result]) -> Result:
        """Take a step on what is public now, again where another process was faster."""

        def settled() -> Result:
            self.settle()
            return step()

        return repeated(self.repository, settled)

    # -- reports ----------------------------------------------------------------------------------

    def receive(self, rows: wire.Messages) -> IntArray:
        """Add the reports that count, and do what is due on the way.

        What is due is due after a number of accepted reports, so batches do not matter.
        """
        self._hold()
        undamaged = wire.are_reports(rows)
        statuses = np.empty(len(rows), dtype=np.int64)
        start = 0
        while start < len(rows):
            found = self._repeated(partial(self._receive, rows[start:], undamaged[start:]))
            statuses[start : start + len(found)] = found
            start += len(found)
        self.judged.update(statuses.tolist())
        self.settle()
        return statuses

    def _hold(self) -> None:
        """Nothing is taken up in a period in which the population's budget is not held for it."""
        if self.reservation is not None:
            self.reservation.hold()

    def _receive(self, rows: wire.Messages, undamaged: BoolArray) -> IntArray:
        """The statuses of as many reports as come before the next thing that is due."""
        now = self.state.now()
        self.state.catch_up()
        taking = self.state.taking(self.state.issued, now)
        digests = (each[:CARRIED] for each in self.state.digests)
        verdict = judge(
            rows, undamaged, [self.state.reports_to[row.number] for row in taking], digests
        )
        if not (verdict.status == ReportStatus.ACCEPTED).any():
            return verdict.status
        known, own, statuses = self.repository.write(
            lambda unit: self._store(unit, rows, verdict, taking, now)
        )
        self.state.take_in([*known, *own])  # committed: until then it may be run again
        return statuses

    def _store(
        self,
        unit: Unit,
        rows: wire.Messages,
        verdict: Verdict,
        taking: list[EpochRow],
        now: float,
    ) -> tuple[list[ReportRow], list[ReportRow], IntArray]:
        """The part of a unit that stores reports.

        Returns reports of others since they were last read, own ones, and the statuses.
        """
        issued, generation = self.state.locked(unit)
        if self.state.taking(issued, now) != taking:
            raise OvertakenError
        others = self.repository.rows.reports(unit, self.state.seen)
        status = self._without_replays(rows, verdict, taking, others)
        room = self._room(taking, issued)
        accepted = np.flatnonzero(status == ReportStatus.ACCEPTED)[:room]
        end = int(accepted[-1]) + 1 if len(accepted) == room else len(status)
        own: list[ReportRow] = []
        for place, row in enumerate(taking):
            mine = accepted[verdict.place[accepted] == place]
            if len(mine):
                own.append(ReportRow(issued, row.number, len(mine), rows[mine].tobytes()))
                issued += len(mine)
        if own:
            self.repository.rows.write_reports(unit, own)
            unit.set_counter("issued", issued)
            self._note_progress(unit, issued, generation, now)
        return others, own, status[:end]

    def _without_replays(
        self,
        rows: wire.Messages,
        verdict: Verdict,
        taking: list[EpochRow],
        others: Sequence[ReportRow],
    ) -> IntArray:
        """Statuses where reports that others have stored meanwhile are known, too."""
        status = verdict.status.copy()
        for place, row in enumerate(taking):
            stored = [each.messages for each in others if each.epoch == row.number]
            known = set(token_bytes(wire.as_messages(b"".join(stored))))
            mine = np.flatnonzero((status == ReportStatus.ACCEPTED) & (verdict.place == place))
            again = [token in known for token in token_bytes(rows[mine])] if known else []
            status[mine[np.flatnonzero(again)]] = ReportStatus.REPLAYED
        return status

    def _note_progress(self, unit: Unit, issued: int, generation: int, now: float) -> None:
        """When the first report came, where a clock runs from it; and the end of an epoch."""
        newest = self.state.view.newest
        assert newest is not None
        begins = self.state.terms.epoch_time is not None and newest.began is None
        if begins:
            unit.update("epochs", {"began": now}, number=newest.number)
        if issued >= newest.first + newest.length:
            self._end(unit, newest, issued, now)
        elif not begins:
            return
        self.repository.publish(unit, generation, b"reports %d" % issued)

    def receive_sum(self, added: EpochSum, *, mixed: bool) -> None:
        """Take up what reports to one bundle add up to, all there will be of it.

        The newest epoch ends with it.
        """

        self._hold()

        def step() -> None:
            now = self.state.now()
            self.state.catch_up()
            taking = self.state.taking(self.state.issued, now)
            found = [
                row for row in taking if self.state.reports_to[row.number].digest == added.digest
            ]
            if not found:
                raise DataError(
                    f"a sum of epoch {added.epoch}, and no bundle of its digest takes reports now: "
                    "it was taken up before, its epoch is closed, or it is another aggregator's"
                )
            check_sum(added, self.state.reports_to[found[0].number], mixed=mixed)
            left = inf if self._horizon is None else self._horizon - self.state.issued
            if added.accepted > left:
                raise HorizonError(f"{added.accepted} reports, and {left} of the horizon are left")
            if added.accepted:
                self.repository.write(lambda unit: self._store_sum(unit, added, found[0], now))

        self._repeated(step)
        self.settle()

    def _store_sum(self, unit: Unit, added: EpochSum, row: EpochRow, now: float) -> None:
        issued, generation = self.state.locked(unit)
        if issued != self.state.issued:
            raise OvertakenError
        total = added.total.astype("<i8").tobytes()
        stored = ReportRow(issued, row.number, added.accepted, b"", total)
        issued += added.accepted
        self.repository.rows.write_reports(unit, [stored])
        unit.set_counter("issued", issued)
        if row.state == OPEN:
            self._end(unit, row, issued, now)
        unit.update("epochs", {"closes": issued}, number=row.number)
        self.repository.publish(unit, generation, b"sum of %d" % row.number)

    # -- epochs -----------------------------------------------------------------------------------

    def _room(self, taking: list[EpochRow], issued: int) -> int:
        """Reports before something is due: a reading, or the end of a wait."""
        ends = [row.first + row.length if row.state == OPEN else row.closes for row in taking]
        return min(end - issued for end in ends if end is not None)

    def settle(self) -> None:
        """Everything public that is due. If it is interrupted, the next call makes up for it."""
        while repeated(self.repository, self._settle):
            pass

    def _settle(self) -> bool:
        """The next step that is due; False where none is."""
        self.state.refresh()
        now, newest = self.state.now(), self.state.view.newest
        if newest is None:
            return self._follow(now)
        over = self._is_over(newest, now)
        if over:
            self.end()
        return over

    def _is_over(self, newest: EpochRow, now: float) -> bool:
        """Whether an epoch has ended by the public clock."""
        limit = self.state.terms.epoch_time
        if limit is None or newest.began is None:
            return False
        return now >= newest.began + limit.total_seconds()

    def end(self) -> None:
        """End the newest epoch now, if any report has come since it began."""
        newest, now = self.state.view.newest, self.state.now()

        def end(unit: Unit) -> None:
            issued, generation = self.state.locked(unit)
            if newest is not None and issued > newest.first:
                self._end(unit, newest, issued, now)
                self.repository.publish(unit, generation, b"end %d at %d" % (newest.number, issued))

        self.repository.write(end)

    def end_early(self) -> None:
        """The same for who asks, and the reading after it."""
        self._repeated(self.end)
        self.settle()

    def _end(self, unit: Unit, newest: EpochRow, issued: int, now: float) -> None:
        """The last number of an epoch, and until when late reports to its bundle still count."""
        wait = self.state.terms.wait
        closes, closes_at = issued + wait if isinstance(wait, int) else None, None
        if isinstance(wait, timedelta):
            closes_at = now + wait.total_seconds()
        ended = {"state": WAITING, "last": issued, "closes": closes, "closes_at": closes_at}
        unit.update("epochs", ended, number=newest.number)

    def _follow(self, now: float) -> bool:
        """The reading that is due, and the epoch after it; False where neither is.

        Learn from every sum (Alg. 1, lines 18-20), then plan anew. Reports are private already.
        Oldest first: what the newest law tells comes last, and is read with the most knowledge.
        """
        number = self.state.opened + 1
        if not self.state.view.epochs and not self.state.learning.length(number, self.state.issued):
            return False
        self.state.catch_up()
        self.state.public.bit_generator.state = self.state.head["public"]
        learning, version = self.state.learning.branch(), self.state.view.coming
        closed = [
            row.number for row in self.state.view.epochs if is_closed(row, self.state.issued, now)
        ]
        releases = [
            _entry(each, self.state.base) for each in self.state.reports_to.values() if each.unread
        ]
        for epoch, each in self.state.reports_to.items():
            if each.unread:
                release, forged = each.read(last=epoch in closed)
                self.forged = self.forged or forged
                learning.close(release)
        if version is not None:
            learning.adopt(self.state.versions[version])
        current = self.state.current if version is None else version
        plan = learning.plan(number, self.state.issued, more=self._more(number))
        bundle = b""
        if plan is None:  # the horizon: nothing takes reports any more
            closed = list(self.state.reports_to)
        else:
            assert isinstance(learning.learner, PracticalLearner)
            bundle = make_bundle(self.state.versions[current], plan, learning.learner.behaviour())
        if self.reservation is not None:
            read = [*self.state.head["releases"], *releases]
            note_bundle(self.reservation, self.state.base, plan, read)
        for epoch in closed:
            learning.learner.drop(epoch)
        made = [bundle[-32:].hex()] if bundle else []
        head = {
            "digests": [*self.state.head["digests"], *made],
            "releases": [*self.state.head["releases"], *releases],
            "catalogue": current,
        }
        head, arrays = law_of(learning, self.state.public, bundle, head)
        self._publish(learning, plan, closed, version, (head, arrays))
        return True

    def _publish(
        self,
        learning: LearningLoop,
        plan: EpochPlan | None,
        closed: Iterable[int],
        version: int | None,
        law: tuple[dict[str, Any], dict[str, Any]],
    ) -> None:
        """Commit a reading, if nobody was faster, and go on from it."""
        repository, codec = self.repository, self.repository.codec
        packed = codec.pack(*law)

        def publish(unit: Unit) -> int:
            issued, generation = self.state.locked(unit)
            unit.insert("laws", [(generation + 1, packed)])
            for epoch in closed:
                unit.update("epochs", {"state": LEARNT}, number=epoch)
                repository.drop_learnt(unit, epoch)
                repository.rows.drop_reports(unit, epoch)
            if plan is not None:
                length = min(learning.length(plan.epoch, issued), plan.length)
                kept, times, release = codec.pack(*plan_state(plan)), [None] * 6, [None] * 3
                unit.insert("epochs", [(plan.epoch, issued, length, OPEN, *times, kept, *release)])
                if version is not None:
                    unit.update("catalogues", {"epoch": plan.epoch}, version=version)
            drop_laws(unit)
            repository.publish(unit, generation, codec.mark(packed))
            return generation + 1

        generation = repository.write(publish)
        self.state.adopt(learning, generation, law[0], law[1]["bundle"].tobytes())

    def _more(self, number: int) -> int:
        """Reports to a bundle beyond those that make its reading due.

        A bundle is handed out until a reading is due, hence as often as reports come in meanwhile.
        Only the first is handed out before any report arrives: as many more answer it as are under
        way at once, and messages for so many are shaped otherwise.
        """
        wait, most = self.state.terms.wait, self._horizon
        if not isinstance(wait, int) or number > 1:
            return 0
        return wait if most is None else max(0, min(wait, most - self.state.learning.length(1, 0)))

    # -- operating --------------------------------------------------------------------------------

    def replace_actions(self, renewed: Callable[[Problem], Problem]) -> None:
        """From the next bundle on, in every process; ``renewed`` is given the latest problem."""
        repository = self.repository

        def step() -> None:
            version = self.state.view.coming
            problem = renewed(
                self.state.versions[self.state.current if version is None else version]
            )
            kept = repository.codec.pack(*version_state(problem))
            record = {"actions": problem.actions.count, "digest": repository.codec.mark(kept).hex()}

            def change(unit: Unit) -> None:
                _, generation = self.state.locked(unit)
                unit.delete("catalogues", epoch=None)  # one that was never played
                unit.insert("catalogues", [(generation + 1, None, kept)])
                said = record | {"version": generation + 1}
                repository.note_operation(unit, generation, "catalogue", said, time.time())

            repository.write(change)

        self._repeated(step)
        self.state.refresh()


def _entry(epoch: EpochReports, problem: Problem) -> dict[str, Any]:
    """A reading, as the certificate lists it."""
    plan, shuffle, mixed = epoch.plan, problem.shuffle, {}
    assert problem.budget is not None  # an aggregator has one
    if shuffle is not None:
        mixed = {
            "local_epsilon": epoch.sphere.epsilon,
            "reports_needed": shuffle.counted(plan.length),
        }
    return {
        "epoch": plan.epoch,
        "reports": epoch.unread,
        "mechanism": "sphere",
        "norm": str(plan.layout.norm),
        "coordinates": plan.dimension,
        "bytes": wire.SIZE,
        "noise": plan.noise_scale,
        "epsilon": problem.budget.epsilon,
        **mixed,
    }
