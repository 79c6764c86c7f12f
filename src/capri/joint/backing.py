"""A policy on a store: opening it, serving from it, and stepping aside when it is closed."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from threading import RLock, Thread
from typing import Any, TypeVar

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.available import Sets
from capri.epoch.course import Course
from capri.epoch.decide import Decisions
from capri.epoch.ids import SIMULATED
from capri.epoch.modes import Logged, Mode, Operation
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardTerms
from capri.epoch.shadow import ShadowRecord
from capri.errors import ConfigurationError, HorizonError, PrivacyLeakWarning, StorageError
from capri.files import digest_of
from capri.joint.changes import Changes
from capri.joint.desk import Desk, Visits
from capri.joint.planner import Planner
from capri.joint.progress import Progress, UnderWay, end_by_clock
from capri.joint.record import TURNS, OvertakenError
from capri.joint.rewards import Rewards
from capri.joint.rounds import Rounds
from capri.learners.presets import checked_options
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.store.address import open_database
from capri.store.anchor import open_anchor
from capri.store.blobs import packed, unpacked
from capri.store.forgetting import Forgotten, forget_user
from capri.store.lineage import Seen
from capri.store.shelf import Shelf

DEFAULT_RETENTION = timedelta(days=30)
Result = TypeVar("Result")
Configuration = tuple[dict[str, Any], dict[str, Any]]
_WITHOUT_ANCHOR = (
    "this store has an anchor and was opened without it: an older copy would not be noticed, and "
    "release data again. Give anchor="
)


class Backing:
    """What stands behind a policy with a store."""

    def __init__(
        self,
        url: str,
        *,
        store_key: bytes | None,
        retention: float,
        after: Seen | None,
        anchor: str | None,
        new_anchor: bool,
        configuration: Configuration,
        problem: Problem,
        course: Course,
        streams: Streams,
        gate: Gate,
        ledger: Ledger | None,
        horizon: int | None,
        now: Callable[[], float],
        adopt: Callable[[Course], None],
    ) -> None:
        """``adopt`` is given the course whenever it has changed."""
        self.problem, self._streams, self._ledger = problem, streams, ledger
        self._horizon, self._adopt = horizon, adopt
        self._now = now
        self._lock = RLock()
        held = open_anchor(anchor, url)
        self.anchored = held is not None
        if new_anchor and held is None:
            raise ConfigurationError("new_anchor says that the anchor is new: give the anchor, too")
        self.shelf = Shelf(open_database(url), store_key, held, new_anchor=new_anchor)
        try:
            self._open(configuration, course, after)
            self._keeper = Rounds(
                self.shelf, problem, course, streams, gate, self._now, self._publish
            )
            self._keeper.clean_log()
            if store_key is None and self.shelf.database.exposure is not None:
                warnings.warn(self.shelf.database.exposure, PrivacyLeakWarning, stacklevel=4)
            if held is None and self.shelf.has_anchor():
                warnings.warn(_WITHOUT_ANCHOR, PrivacyLeakWarning, stacklevel=4)
        except BaseException:
            self.shelf.database.close()
            raise
        self.ids = SIMULATED if streams.simulated else self.shelf.ids
        self._desk = Desk(
            self.shelf,
            self._keeper,
            streams,
            self.ids,
            horizon=horizon,
            retention=retention,
            now=self._now,
        )
        self._rewards = Rewards(self.shelf, self._keeper, self._now)
        self._changes = Changes(self._keeper, self._now)
        self._planner = Planner(self._step)
        # How long it takes to add up an epoch must move nothing that the planner does.
        self._settler = Planner(self._keeper.settle_closed)
        self.closed = False
        if not streams.simulated:
            self._planner.start()  # epochs on a clock also close where nobody decides
            self._settler.start()

    def __repr__(self) -> str:
        return f"Backing({self.shelf.database!r})"

    # -- opening ----------------------------------------------------------------------------------

    def _open(self, configuration: Configuration, course: Course, after: Seen | None) -> None:
        """Fill an empty store, or check that it is this policy's."""
        values, arrays = configuration
        values = {**values, "simulated": self._streams.simulated}
        stored = self.shelf.configuration()
        if stored is None:
            course_values, course_arrays = course.state()
            law = packed({"course": course_values, "plan_seconds": 0.0, "played": 0}, course_arrays)
            state = self._streams.state()
            self.shelf.create((values, arrays), law, None if state is None else packed(state))
            stored = self.shelf.configuration()
            assert stored is not None
        differences = _differences(_completed(stored), unpacked(packed(values, arrays)))
        if differences:
            raise StorageError(
                f"{self.shelf.database!r} holds a policy of another configuration: "
                f"{', '.join(differences)} differ. Build the policy as it was built, or open it "
                "with Capri.open"
            )
        self.shelf.open(after)
        if self._streams.simulated:
            self._streams.restore(self.shelf.blob("SELECT state FROM streams", ())[0])

    def _publish(self, course: Course, events: list[ReleaseEvent]) -> None:
        """What this process has read or learnt, committed by whoever it was."""
        if self._ledger is not None:
            known = {(event.epoch, event.purpose) for event in self._ledger.events}
            for event in events:
                if (event.epoch, event.purpose) not in known:
                    self._ledger.record(event)
        self._adopt(course)

    @property
    def seen(self) -> Seen:
        """How far this store has come: for certificates."""
        return self.shelf.note()

    # -- serving ----------------------------------------------------------------------------------

    def decide(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[str] | None,
        keys: Sequence[str] | None,
        logged: Logged | None = None,
        wanted: IntArray | None = None,
        available: Sets | None = None,
    ) -> tuple[Decisions, BoolArray]:
        """Decide for some visits; users are given as digests."""
        digests = None if keys is None else [self.shelf.digest("key", key) for key in keys]
        visits = Visits(rows, valid, users, digests, logged, wanted, available)
        if self._streams.simulated:
            with self._lock:
                if keys is None and len(rows) > self.remaining:
                    self._desk.slots.refuse(len(rows), self.remaining)
                self._keeper.ready()
                return self._desk.decide(visits)
        # A key that is known has its decision, also where no epoch takes another one.
        self.check()
        if self._keeper.view.newest is None and self._desk.wanted(visits):
            self._step_now()
        decisions, kept = self._desk.decide(visits)
        if self._is_due(decisions):
            self._planner.wake()
        return decisions, kept

    def _is_due(self, decisions: Decisions) -> bool:
        """Whether these decisions have passed a slot at which something is to be done.

        Where many processes decide, the one that fills the slot goes ahead: if all did, each would
        compute the same. The others look by themselves a little later, should nothing come of it.
        """
        view = self._keeper.view
        due = [epoch.closes for epoch in view.waiting if epoch.closes is not None]
        if view.newest is not None:
            margin = self._keeper.margin(view.newest)
            due.append(view.newest.first + view.newest.length - margin - 1)
        if len(decisions) == 0:
            return False
        first, last = int(decisions.number.min()), int(decisions.number.max())
        if self.shelf.database.single_writer or not due:
            return last >= min(due, default=0)
        return any(first <= slot <= last for slot in due)

    def reward(self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None) -> IntArray:
        """Store rewards; a status for each."""
        self.check()
        return self._rewards.reward(numbers, values, keys)

    def check(self) -> None:
        """Raise where nothing is released or planned any more: decisions would be refused."""
        self._planner.check()
        self._settler.check()

    def look(self) -> None:
        """Read what is public now, and keys that were rotated; nothing heavier."""
        self._keeper.look()

    def forget_user(self, digest: str) -> Forgotten:
        """Delete what is kept of a user.

        Where a reader elsewhere keeps it from being overwritten, the planner tries again until
        nobody does.
        """
        done = forget_user(self.shelf, [digest])
        clean = False
        try:
            clean = self.shelf.database.forget()
        finally:
            if not clean:
                with self._keeper.lock:  # else a step that ends now may think otherwise
                    self._keeper.unclean = True
                self._planner.wake()
        return done

    def refresh(self) -> None:
        """Read what others have published since."""
        self._keeper.refresh()

    # -- operating --------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Who decides, as this process last read it."""
        return self._keeper.mode_of(self._keeper.look() if not self.closed else self._keeper.view)

    def set_mode(self, mode: Mode) -> None:
        """From the next decision on, in every process."""
        self._repeat(lambda: self._changes.set_mode(mode))

    def replace_actions(self, renewed: Callable[[Problem], Problem]) -> None:
        """From the next epoch on that is not planned yet, in every process."""
        self._repeat(lambda: self._changes.replace_actions(renewed))

    def operations(self) -> tuple[Operation, ...]:
        """What operators did."""
        return self._changes.operations()

    def shadows(self) -> tuple[ShadowRecord, ...]:
        """What the policy would have been worth."""
        return self._changes.shadows()

    # -- epochs -----------------------------------------------------------------------------------

    def _step(self) -> float | None:
        """All that is due, whoever else is at it; the seconds until more is."""
        soon = self._repeat(self._keeper.step)
        if self._settler.started:
            self._settler.wake()
        else:
            self._keeper.settle_closed()
        return soon

    def _repeat(self, step: Callable[[], Result]) -> Result:
        """Take a step, again where another process was faster."""
        for _ in range(TURNS):
            try:
                return step()
            except OvertakenError:
                continue
        raise self._keeper.never_current()

    def _step_now(self) -> None:
        """A step that a caller waits for."""
        self._step()
        if self._keeper.at_the_horizon():
            raise HorizonError(
                f"all {self._horizon} decisions of the horizon are taken: build a new policy, for "
                "new users or with a new budget, to go on"
            )

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        return self._keeper.has_data()

    @property
    def remaining(self) -> int:
        """Decisions that one call may ask for."""
        return self._keeper.remaining(self._horizon)

    def progress(self) -> Progress:
        """How far all processes of this store have come."""
        issued, view = self._keeper.survey_only()
        newest = max((epoch.number for epoch in view.epochs), default=0)
        released = view.epochs[0].number - 1 if view.epochs else len(self._keeper.course.records)
        lasts = self._keeper.problem.rewards.epoch_time
        return Progress(
            decided=issued,
            released=released,
            missed=self._keeper.missed(),
            under_way=tuple(
                UnderWay(
                    epoch=epoch.number,
                    length=epoch.length,
                    taken=max(0, min(issued, epoch.last or issued) - epoch.first),
                    open=epoch.number == newest and epoch.last is None,
                    closes=epoch.closes,
                    closes_at=epoch.closes_at,
                    ends_at=end_by_clock(epoch.began, lasts) if epoch.last is None else None,
                )
                for epoch in view.epochs
                if epoch.accepts and epoch.first <= issued
            ),
        )

    def plan(self) -> EpochPlan:
        """The plan of the epoch under way, planned now where there is none."""
        view = self._keeper.look()
        if view.newest is None:
            if self._streams.simulated:
                self._keeper.ready()
            else:
                self._step_now()
            view = self._keeper.look()
        if view.newest is None:
            raise HorizonError(f"all {self._horizon} decisions of the horizon are taken")
        return self._keeper.plan(view.newest.number)

    def warm(self) -> None:
        """Plan an epoch where there is none, and read the laws that the next decisions play."""
        self.plan()
        for epoch in self._keeper.view.epochs:
            for stretch in epoch.stretches:
                if epoch.accepts:
                    self._keeper.chooser(stretch.law)

    def close_epoch(self, *, early: bool) -> None:
        """Close every epoch whose decisions are all taken, or also the one under way."""
        self._repeat(lambda: self._keeper.close_all(early=early))

    def close_full_epoch(self) -> None:
        """Close epochs whose decisions are all taken, if none is under way."""
        self._repeat(self._keeper.close_full)

    def planned_by(self, thread: Thread) -> bool:
        """Whether a thread is the planner's."""
        return self._planner.runs_in(thread) or self._settler.runs_in(thread)

    def close(self) -> None:
        """Stop the planner and give the connections back."""
        if not self.closed:
            self.closed = True
            self.shelf.database.closing = True
            self._keeper.workshop.stop()
            self._planner.stop()
            self._settler.stop()
            self._keeper.workshop.close()
            self.shelf.database.close()


class StoredParticipation(Participation):
    """Users' counts in the store, under digests with the store's salt."""

    def __init__(self, limit: UserLimit) -> None:
        super().__init__(limit)
        self._shelf: Shelf | None = None

    def attach(self, shelf: Shelf) -> None:
        """Count in this store from now on."""
        self._shelf, self.salt = shelf, shelf.salt

    def digests(self, users: Sequence[UserId]) -> list[str]:
        """What stands for the users in the store."""
        return [self._digest(user) for user in users]

    def epochs_of(self, user: UserId) -> Counter[int]:
        """Contributions of a user by epoch."""
        self.check([user])
        assert self._shelf is not None
        return Counter(self._shelf.visits_of(self._digest(user)))


def _completed(stored: Configuration) -> Configuration:
    """With the defaults of options that are newer than the store."""
    values, arrays = stored
    defaults, _ = unpacked(packed(asdict(checked_options(values["preset"], {}))))
    return {**values, "options": defaults | values["options"]}, arrays


def _differences(stored: Configuration, own: Configuration) -> list[str]:
    """Names of what two configurations do not share."""
    flat = [_flat(values) for values, _ in (stored, own)]
    names = [
        name
        for name in sorted(set(flat[0]) | set(flat[1]))
        if flat[0].get(name, ...) != flat[1].get(name, ...)
    ]
    digests = [
        {name: digest_of({}, {name: array}) for name, array in arrays.items()}
        for _, arrays in (stored, own)
    ]
    both = sorted(set(digests[0]) | set(digests[1]))
    names += [name for name in both if digests[0].get(name) != digests[1].get(name)]
    return names


def _flat(values: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    flat: dict[str, Any] = {}
    if "kernel" in values:  # of a problem: terms that nobody asked for are left out there
        values = {"rewards": RewardTerms().to_dict()} | values
    for key, value in values.items():
        if isinstance(value, dict) and key in ("problem", "options", "rewards"):
            flat |= _flat(value, f"{name}{key}.")
        else:
            flat[f"{name}{key}"] = value
    return flat
