"""What is public of an aggregator, as one process has read it: epochs, reports, what was learnt.

Nothing here changes the repository; the steps that do are in :mod:`capri.local.engine`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.checks import whole
from capri.epoch.decisions import SIMULATED
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardTerms
from capri.epoch.storage import in_version, plan_from_state, problem_arguments, version_state
from capri.learners.prior import stored_prior
from capri.local import wire
from capri.local.reports import EpochReports, token_bytes
from capri.spaces import Contexts
from capri.store.memory import MemoryRepository
from capri.store.repository import OvertakenError, ReportRow, Repository
from capri.store.tables import Unit
from capri.store.view import EpochRow, View

if TYPE_CHECKING:
    from capri.store.persistence import Described

# Bytes of a bundle's digest that a report carries.
CARRIED = 8


def first_law(
    learning: LearningLoop, public: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known before the first report."""
    return law_of(learning, public, b"", {"digests": [], "releases": [], "catalogue": 0})


def law_of(
    learning: LearningLoop, public: np.random.Generator, bundle: bytes, head: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known from a reading on, and the bundle that tells devices of it."""
    values, arrays = learning.state()
    known = {
        "course": values,
        "plan_seconds": learning.plan_seconds,
        "public": public.bit_generator.state,
    }
    return head | known, arrays | {"bundle": np.frombuffer(bundle, dtype=np.uint8)}


@dataclass(frozen=True)
class BundleDraws:
    """The generator of everything in a bundle that is drawn."""

    public: np.random.Generator


def generator(seed: int | None) -> np.random.Generator:
    """Of public draws."""
    if seed is not None:
        whole("public_seed", seed, least=0)
    return np.random.default_rng(seed)


def settings_of(
    values: dict[str, Any], arrays: dict[str, Any], contexts: Contexts | None
) -> dict[str, Any]:
    """The arguments that an aggregator was built with."""
    arguments = problem_arguments(values["problem"], arrays, contexts)
    arguments |= RewardTerms.from_dict(values["terms"]).arguments()
    for name in ("model", "contributions_per_user", "contributions_per_epoch", "reward_rule"):
        del arguments[name]
    prior = stored_prior(values, arrays)
    return {**arguments, "horizon": values["horizon"], "prior": prior, **values["options"]}


def in_memory(law: "Described", problem: Problem, saved: "Described | None") -> MemoryRepository:
    """A repository in this process, new or as a file says; ``problem``: that of now."""
    actions = version_state(problem)
    repository = MemoryRepository(0, SIMULATED, law, actions)
    if saved is not None:
        repository.restore(saved[0]["repository"], saved[1], actions)
    return repository


class ReportState:
    """Epochs and reports of an aggregator, as this process sees them."""

    def __init__(
        self,
        repository: Repository,
        problem: Problem,
        learning: LearningLoop,
        public: np.random.Generator,
        terms: RewardTerms,
        *,
        clock: Callable[[], datetime] | None,
    ) -> None:
        """``learning``: before the first report; ``public``: the generator it draws from."""
        self.repository, self.learning, self.public = repository, learning, public
        self.hooks = learning.hooks
        self.terms, self._clock = terms, clock
        current = 0
        if repository.own_law >= 0:
            current = repository.codec.unpack(
                repository.value("laws", "state", generation=repository.own_law)
            )[0]["catalogue"]
        self.versions = {current: problem}
        self.base, self.current = problem, current
        self.view, self._law = View(-1, -1, ()), -1
        self.issued = 0  # reports that counted
        self.seen = 0  # those of them that the epochs below know of
        self.reports_to: dict[int, EpochReports] = {}
        self.head: dict[str, Any] = {}
        self.bundle = b""
        self.refresh()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def problem(self) -> Problem:
        """With the actions of the newest bundle."""
        return self.versions[self.current]

    @property
    def releases(self) -> tuple[dict[str, Any], ...]:
        """Readings so far, as a certificate lists them."""
        return tuple(self.head["releases"])

    @property
    def opened(self) -> int:
        """The number of the newest bundle."""
        return len(self.head["digests"])

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Of all bundles, oldest first."""
        return tuple(bytes.fromhex(each) for each in self.head["digests"])

    @property
    def remaining(self) -> int:
        """Reports until the next reading; 0 at the horizon."""
        newest = self.view.newest
        return 0 if newest is None else max(0, newest.first + newest.length - self.issued)

    @property
    def epochs(self) -> tuple[EpochReports, ...]:
        """Epochs that were not read to the last, oldest first, with all reports to them."""
        self.refresh()
        self.catch_up()
        return tuple(self.reports_to.values())

    def now(self) -> float:
        """Seconds on the public clock, where one is needed."""
        if not self.terms.timed:
            return 0.0
        return time.time() if self._clock is None else self._clock().timestamp()

    def refresh(self) -> None:
        """Read what others have published since, and how many reports there are."""
        self.issued, generation = self.repository.counter(self.view)
        while generation != self.view.generation:
            issued, view, actions = self.repository.look(self.view, self.versions)
            for version, kept in actions.items():
                self.versions[version] = in_version(self.base, *self.repository.codec.unpack(kept))
            if view.law != self._law and not self._restore(view.law):
                continue  # a newer reading has taken its place
            self._look_at(view)
            self.issued, generation = issued, view.generation

    def _restore(self, law: int) -> bool:
        """Go on from a law; False where it is gone."""
        found = self.repository.value("laws", "state", generation=law)
        if found is None:
            return False
        head, arrays = self.repository.codec.unpack(found)
        learning = self.learning.branch()
        if head["catalogue"] != self.current:
            learning.learner = learning.learner.on(self.versions[head["catalogue"]])
        bundle = arrays["bundle"].tobytes()
        learning.restore(head["course"], arrays, head["plan_seconds"])
        self.adopt(learning, law, head, bundle)
        return True

    def adopt(self, learning: LearningLoop, law: int, head: dict[str, Any], bundle: bytes) -> None:
        """What a reading has come to, by whoever it was."""
        learning.hooks, begun = self.hooks, self._law >= 0
        self.learning, self._law, self.head, self.bundle = learning, law, head, bundle
        self.current = head["catalogue"]
        for each in self.reports_to.values():
            each.start_anew()
        if begun:
            self.hooks.tell(learning.records)
            self.hooks.warn(learning.learner.notices)
        else:  # of before this process came
            self.hooks.skip(learning.learnt)

    def _look_at(self, view: View) -> None:
        digests = self.digests
        self.view = view
        self.reports_to = {
            row.number: self.reports_to.get(row.number)
            or EpochReports(self._plan(row.number), digests[row.number - 1])
            for row in view.epochs
        }

    def _plan(self, epoch: int) -> EpochPlan:
        values, arrays = self.repository.codec.unpack(
            self.repository.value("epochs", "plan", number=epoch)
        )
        return plan_from_state(values, arrays, self.base.kernel)

    def catch_up(self) -> None:
        """Reports that others have stored, as of the view: a newer one has other sums."""

        def read(unit: Unit) -> list[ReportRow]:
            if unit.counter()[1] != self.view.generation:
                raise OvertakenError
            return self.repository.rows.reports(unit, self.seen)

        if self.seen < self.issued:
            self.take_in(self.repository.read(read))

    def take_in(self, rows: Sequence[ReportRow]) -> None:
        """Tokens of all, and the sum of those that no reading has seen."""
        unread = self.view.epochs[-1].first if self.view.epochs else 0
        for row in rows:
            self.seen = row.first + row.size
            epoch = self.reports_to.get(row.epoch)
            if epoch is None:
                continue  # read to the last meanwhile
            messages = wire.as_messages(row.messages)
            epoch.tokens.update(token_bytes(messages))
            if row.first < unread:
                continue
            if row.total is None:
                epoch.add(messages)
            else:
                epoch.add_sum(np.frombuffer(row.total, dtype="<i8"), row.size)

    def locked(self, unit: Unit) -> tuple[int, int]:
        """Reports and generation, which stay so until the end of the unit."""
        issued, generation = unit.lock()
        if generation != self.view.generation:
            raise OvertakenError
        return issued, generation

    def taking(self, issued: int, now: float) -> list[EpochRow]:
        """Epochs that take reports, oldest first."""
        return [row for row in self.view.epochs if not is_closed(row, issued, now)]


def is_closed(row: EpochRow, issued: int, now: float) -> bool:
    """Whether an epoch takes no more reports: a public number of them has come, or by time."""
    by_number = row.closes is not None and issued >= row.closes
    return by_number or (row.closes_at is not None and now >= row.closes_at)
