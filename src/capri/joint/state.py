"""What is public of a policy, as one process has read it: epochs, laws, plans, events.

Nothing here changes the repository by itself; the steps that do are in :mod:`capri.joint.steps`
and :mod:`capri.joint.release`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from capri.epoch.decide import Chooser
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardTerms
from capri.epoch.storage import (
    in_version,
    plan_from_state,
    segment_from_state,
)
from capri.errors import HorizonError
from capri.privacy.ledger import ReleaseEvent
from capri.store.repository import OvertakenError, OwnLock, Repository
from capri.store.tables import Unit
from capri.store.view import OPEN, EpochRow, View
from capri.streams import Streams

if TYPE_CHECKING:
    from capri.epoch.learning_loop import LearningLoop

# A change of law or epoch takes effect at a multiple of this share of an epoch: when exactly the
# computation behind it was ready is nobody's business.
_SHARE = 64


class StepLock(OwnLock):  # type: ignore[misc]
    """Of steps: one thread of a process takes them, and none of a forked child."""

    def __init__(self, check_process: Callable[[], None] | None = None) -> None:
        self._check = check_process

    def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._check is not None:
            self._check()
        return self.acquire(blocking, timeout)

    def __reduce__(self) -> tuple[type["StepLock"], tuple[()]]:
        return StepLock, ()  # a policy on a store is never copied


class PublicState:
    """Epochs, laws and releases of a policy, as this process sees them."""

    def __init__(
        self,
        repository: Repository,
        problem: Problem,
        learning: "LearningLoop",
        streams: Streams,
        now: Callable[[], float],
        publish: "Callable[[LearningLoop, list[ReleaseEvent]], None]",
        horizon: int | None,
    ) -> None:
        """``publish`` is told what this process has learnt or read, after it is committed."""
        self.repository, self.problem = repository, problem
        self.learning, self._streams = learning, streams
        self._learnt = learning.learnt  # releases behind the learning loop
        self.now, self._tell, self._horizon = now, publish, horizon
        # Whether all that is due is done before the next decision.
        self.synchronous = repository.synchronous or streams.simulated
        self.drawing = repository.drawing(streams)  # around all that is drawn
        self.law = repository.own_law  # generation of the law that the learning loop stands at
        self._accounted = 0  # releases whose events were told
        # The problem with each version of what may change, and that of the learning loop.
        self.versions = {0: problem}
        self.catalogue = 0
        if self.law < 0 and repository.value("catalogues", "version", version=0) is not None:
            self.versions, self.catalogue = {}, -1  # it was built otherwise at first
        self.played = 0  # releases behind the law of the newest segment
        self._noted = -1
        if self.law >= 0:  # the learning loop is where the repository is
            head, _ = repository.codec.unpack(
                repository.value("laws", "state", generation=self.law)
            )
            self.played, self.catalogue = head["played"], head.get("catalogue", 0)
            self.versions = {self.catalogue: problem}
        self.timed = problem.rewards.timed
        self.choosers: dict[int, Chooser] = {}  # of laws that were read already
        self._plans: dict[int, EpochPlan] = {}
        self._segments: dict[tuple[int, int], Segment] = {}
        self.lock = StepLock(repository.check_process)
        self._loading = OwnLock()
        # Who serves visits goes by the newest view; a step by the one that it began with.
        self.view = self.ground = View(-1, -1, ())
        self.issued = 0
        self._played_by = self.view, 0, problem
        self.refresh()

    # -- reading ----------------------------------------------------------------------------------

    def look(self) -> View:
        """Read the view of now, and nothing heavier, for who serves visits."""
        self.read()
        return self.view

    def survey(self) -> View:
        """Read the ground that the next steps stand on."""
        self.issued, self.ground = self.read()
        return self.ground

    def read(self) -> tuple[int, View]:
        """Slots handed out and the view of now, for who only wants to know."""
        # The view before reading: other threads may see more meanwhile.
        issued, view, actions = self.repository.look(self.view, self.versions)
        with self._loading:
            for version, kept in actions.items():
                found = in_version(self.problem, *self.repository.codec.unpack(kept))
                self.versions = {**self.versions, version: found}
                self.timed = self.timed or found.rewards.timed
            if view.generation > self.view.generation:
                self.view = view
        return issued, view

    def problem_of(self, view: View, epoch: int) -> Problem:
        """What an epoch plays, with its own version of the actions."""
        known, number, problem = self._played_by
        if known is not view or number != epoch:
            problem = self.versions[view.catalogue(epoch)]
            self._played_by = view, epoch, problem
        return problem

    def terms(self, view: View, epoch: int) -> RewardTerms:
        """The rules for rewards that an epoch was planned with."""
        return self.versions[view.catalogue(epoch)].rewards

    def latest(self, view: View) -> Problem:
        """What the next epoch to be planned is for."""
        version = view.coming
        if version is None:
            version = max((each for each, _ in view.catalogues), default=0)
        return self.versions[version]

    @property
    def horizon(self) -> int | None:
        """Decisions there may be; None for any number, as where visits count for nothing."""
        if self.view.mode.endless:
            return None
        schedule = self.latest(self.view).schedule
        return self._horizon if schedule is None else schedule.horizon

    def length(self, number: int, first: int) -> int:
        """Decisions of an epoch that begins at a slot; 0 at the horizon."""
        schedule, endless = self.latest(self.ground).schedule, self.ground.mode.endless
        return self.learning.length(number, first, schedule, endless=endless)

    def problems(self, view: View) -> list[Problem]:
        """With every version of the actions that is played, or about to be."""
        played = {view.catalogue(epoch.number) for epoch in view.epochs} | {self.catalogue}
        coming = {view.coming} if view.coming is not None else set[int]()
        return [self.versions[version] for version in sorted(played | coming)]

    def refresh(self) -> None:
        """Read what others have published: epochs, laws, the ledger."""
        with self.lock:
            issued, generation = self.repository.counter(self.view)
            if generation == self._noted == self.ground.generation:
                self.issued = issued
                return
            found = None
            while found is None:  # a law that is played no more may go while we look
                view = self.survey()
                if view.generation == self._noted:
                    return
                found = ({}, {}) if view.law == self.law else self._law_of(view.law)
            self.repository.note()
            if view.law != self.law:
                values, arrays = found
                learning, version = self.learning.branch(), int(values.get("catalogue", 0))
                if version != self.catalogue:
                    learning.learner = learning.learner.on(self.versions[version])
                    self.catalogue = version
                learning.restore(values["learning"], arrays, values["plan_seconds"])
                self.learning, self.law, self.played = learning, view.law, values["played"]
                self._learnt = learning.learnt
            self._tell(self.learning, self._new_events())
            self._noted = view.generation
            self._drop_old(view)

    def _law_of(self, law: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """A law, None if no epoch plays it any more."""
        found = self.repository.value("laws", "state", generation=law)
        return None if found is None else self.repository.codec.unpack(found)

    def _new_events(self) -> list[ReleaseEvent]:
        """Events of the ledger that were not told yet."""
        releases = self.repository.read(self.repository.releases)
        new, self._accounted = releases[self._accounted :], len(releases)
        return self.events_of(new)

    def events_of(self, releases: Sequence[Any]) -> list[ReleaseEvent]:
        """Events of some releases, in their order."""
        events: list[dict[str, Any] | None] = []
        for kept in releases:
            values, _ = self.repository.codec.unpack(kept)
            events += [values.get("shadow_event"), values["event"]]
        return [ReleaseEvent(**event) for event in events if event is not None]

    def chooser(self, law: int) -> Chooser:
        """Draws by the law of a generation."""
        found = self.choosers.get(law)
        if found is None:
            with self._loading:
                if law not in self.choosers:
                    found_law = self._law_of(law)
                    if found_law is None:
                        raise OvertakenError
                    values, arrays = found_law
                    # Learners replace what they know piece by piece: a copy goes its own way.
                    problem = self.versions[int(values.get("catalogue", 0))]
                    learner = self.learning.learner.on(problem)
                    learner.restore((values["learning"]["learner"], arrays))
                    chooser = Chooser(problem, learner.probabilities, learner.pool_law())
                    self.choosers = {**self.choosers, law: chooser}
                found = self.choosers[law]
        return found

    def adopt(
        self,
        learning: "LearningLoop",
        *,
        law: int,
        played: int,
        catalogue: int,
        chooser: Chooser | None,
        plan: EpochPlan | None,
    ) -> None:
        """Go on from what was computed and published here: it need not be read again."""
        self.learning, self.law, self.played, self.catalogue = learning, law, played, catalogue
        self._learnt = learning.learnt
        with self._loading:
            if chooser is not None:
                self.choosers = {**self.choosers, law: chooser}
            if plan is not None:
                self._plans[plan.epoch] = plan
        self.refresh()

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch."""
        found = self._plans.get(epoch)
        if found is None:
            kept = self.repository.value("epochs", "plan", number=epoch)
            values, arrays = self.repository.codec.unpack(kept)
            found = self._plans[epoch] = plan_from_state(values, arrays, self.problem.kernel)
        return found

    def segment(self, epoch: int, number: int) -> Segment:
        """A segment of an epoch."""
        found = self._segments.get((epoch, number))
        if found is None:
            kept = self.repository.value("segments", "segment", epoch=epoch, number=number)
            values, arrays = self.repository.codec.unpack(kept)
            found = segment_from_state(values, arrays, self.plan(epoch))
            self._segments[epoch, number] = found
        return found

    def recall(self, other: "PublicState") -> None:
        """What another process of thought has read already, and is public."""
        self.choosers = dict(other.choosers)
        self._plans, self._segments = dict(other._plans), dict(other._segments)

    def _drop_old(self, view: View) -> None:
        """Forget laws and plans of epochs that are over."""
        oldest = view.epochs[0].number if view.epochs else 0
        laws = {segment.law for epoch in view.epochs for segment in epoch.segments}
        self.choosers = {law: each for law, each in self.choosers.items() if law in laws}
        self._plans = {epoch: plan for epoch, plan in self._plans.items() if epoch >= oldest}
        self._segments = {key: each for key, each in self._segments.items() if key[0] >= oldest}

    # -- units of work ----------------------------------------------------------------------------

    def current(self, unit: Unit) -> tuple[int, int]:
        """Slots handed out and generation, both locked; refused if the ground is an older one."""
        issued, generation = unit.lock()
        if generation != self.ground.generation:
            raise OvertakenError
        return issued, generation

    def write(self, function: Callable[[Unit], Any]) -> Any:
        """Run a step as one unit of work, and look at what it has come to."""
        result = self.repository.write(function)
        self.survey()
        return result

    def move(self, unit: Unit, epoch: int, before: str, after: str) -> None:
        """An epoch from one state to the next, and from no other: each step is taken once."""
        if not unit.update("epochs", {"state": after}, number=epoch, state=before):
            raise OvertakenError

    # -- conditions -------------------------------------------------------------------------------

    def is_over(self, epoch: EpochRow, issued: int) -> bool:
        """Whether an epoch has taken its decisions: by their number, or by the public clock."""
        if issued >= epoch.first + epoch.length:
            return True
        if issued > epoch.first and self.learning.learner.obsolete(epoch.number):
            return True  # what it plays and clips at belongs to a function that has changed
        limit = self.terms(self.ground, epoch.number).epoch_time
        if limit is None or epoch.began is None:
            return False
        return self.now() >= epoch.began + limit.total_seconds()

    def limit(self, epoch: EpochRow) -> int:
        """The slot at which an epoch takes no more decisions, whatever is planned."""
        length = epoch.length if self.synchronous else self.plan(epoch.number).capacity
        end = epoch.first + length
        horizon = self.horizon
        return end if horizon is None else min(end, horizon)

    def horizon_reached(self) -> HorizonError:
        """What to say where no decision is left."""
        return HorizonError(
            f"all {self.horizon} decisions of the horizon are taken: raise it by "
            'policy.change(horizon=...), or go on without learning by set_mode("frozen")'
        )

    def is_quiet(self, count: int) -> bool:
        """Whether so many decisions come before the next public event, and nothing is due."""
        epochs = self.ground.epochs
        if len(epochs) != 1 or self.timed or self.played != self._learnt:
            return False
        issued, generation = self.repository.counter(self.ground)
        if generation != self._noted or generation != self.ground.generation:
            return False
        epoch, self.issued = epochs[0], issued
        return epoch.state == OPEN and issued + count <= epoch.first + epoch.length

    def at_the_horizon(self) -> bool:
        """Whether no epoch takes the next slot, and none will."""
        with self.lock:
            view, issued = self.survey(), self.issued
            return view.of(issued) is None and not self.length(self.following(), issued)

    def following(self) -> int:
        """The number of the next epoch."""
        return max(self.repository.epoch_values("number"), default=0) + 1

    def effect(self, epoch: EpochRow, issued: int) -> int:
        """The public slot at which a change takes effect: the next multiple that nobody holds."""
        unit = 1 if self.synchronous else max(1, epoch.length // _SHARE)
        return epoch.first + -(-(issued - epoch.first) // unit) * unit

    def has_data(self) -> bool:
        """Whether an epoch that is not released yet has decisions."""
        first = min((epoch.first for epoch in self.look().epochs), default=None)
        return first is not None and self.repository.rows.any_from(first)

    def _shortest(self, issued: int) -> int:
        """Decisions of the next epoch at least, whatever a release says that is due before it."""
        return self.learning.learner.shortest(self.length(self.following(), issued))

    def remaining(self) -> int:
        """Decisions before the next public event; 0 at the horizon."""
        with self.lock:
            view, issued = self.survey(), self.issued
            newest, epoch = view.newest, view.of(issued)
            if self.synchronous:
                over = newest is not None and self.is_over(newest, issued)
                due = [each.closes - issued for each in view.waiting if each.closes is not None]
                if newest is not None and over:
                    wait = self.terms(view, newest.number).wait
                    due += [wait] if isinstance(wait, int) else []
                told_first = over or any(number <= 0 for number in due)
                if newest is None or over:
                    room = self.length(self.following(), issued)
                else:
                    room = newest.first + newest.length - issued
                if told_first:
                    room = min(room, self._shortest(issued))
                return min([room, *(number for number in due if number > 0)])
            if epoch is None or not epoch.accepts:
                return self._shortest(issued)
            until = epoch.until(issued)
            if until is not None:
                return until - issued
            if issued < epoch.first + epoch.length:
                return epoch.first + epoch.length - issued
            return self.limit(epoch) - issued
