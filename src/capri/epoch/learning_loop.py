"""The learning loop: plan, learn, record. Shared by the curator and the aggregator.

Everything here is public. Where the sum of an epoch comes from, and how it was made private, is not
its business.

A function of the user's own is told of every release, once that is public and learnt from. It must
not cost a release or a decision: what it raises ends in the log ``capri.hooks``. It is told the
public record alone, so whatever it does with it is post-processing.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from capri.arrays import BoolArray, FloatArray, one_blas_thread
from capri.epoch.learner import Learner
from capri.epoch.plan import (
    EpochPlan,
    EpochRecord,
    Epochs,
    Notice,
    Release,
    Schedule,
    ScheduleTerms,
    Segment,
    say,
    unheard,
)
from capri.epoch.problem import Problem
from capri.epoch.storage import configuration_digest, plan_digest
from capri.errors import ConfigurationError
from capri.kernels import Kernel
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, Declaration
from capri.spaces import Actions, Contexts, FixedActions, as_contexts
from capri.streams import Streams

if TYPE_CHECKING:
    from capri.local.state import BundleDraws

# Where public draws come from.
Draws: TypeAlias = "Streams | BundleDraws"
ReleaseFunction = Callable[[EpochRecord], object]

_LOG = logging.getLogger("capri.hooks")


class Hooks:
    """Who wants to be told, in the order in which they asked. Copies and files keep none."""

    def __init__(self, told: int = 0, *, aloud: bool = True, said: Iterable[str] = ()) -> None:
        """``told``: how many records are old news already.

        ``aloud``: warn of notices, but of kinds that were ``said`` before.
        """
        self._functions: list[ReleaseFunction] = []
        self._told = told
        self._aloud = aloud
        self._said = set(said)

    def add(self, function: ReleaseFunction) -> None:
        """Tell this function from the next release on."""
        if not callable(function):
            raise ConfigurationError(
                f"on_release takes a function of one epoch record, got {type(function).__name__}"
            )
        self._functions.append(function)

    def skip(self, count: int) -> None:
        """The first records are old news: a policy that was read from a file has them."""
        self._told = count

    def tell(self, records: Sequence[EpochRecord]) -> None:
        """Tell of the records that are new, each once, and warn of what they notice.

        One function that fails keeps nobody else from being told.
        """
        while self._told < len(records):
            record = records[self._told]
            self._told += 1  # first: a function that comes back here is not told again
            for function in tuple(self._functions):
                try:
                    function(record)
                except Exception:
                    _LOG.exception(
                        "a function given to on_release failed on epoch %d; the release itself "
                        "is complete",
                        record.epoch,
                    )
            self.warn(record.notices)  # last: who makes errors of warnings loses nothing else

    def warn(self, notices: Iterable[Notice]) -> None:
        """Warn of notices, of each kind once."""
        new = [notice for notice in notices if notice.kind not in self._said]
        if self._aloud:
            self._said |= {notice.kind for notice in new}
            say(new)

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions are code of this process: a copy of a policy tells nobody until it is asked."""
        return partial(Hooks, aloud=self._aloud, said=tuple(self._said)), (self._told,)


class LearningLoop:
    """Epoch after epoch of one learner."""

    def __init__(
        self, schedule: Schedule, learner: Learner, draws: "Draws", *, timed: bool
    ) -> None:
        """``timed``: records say how long an epoch took. A clock near private data tells of it."""
        self.learner = learner
        self.hooks = Hooks()
        self._timed = timed
        self._schedule = schedule
        self._draws = draws
        self._records: list[EpochRecord] = []
        self.plans: list[str] = []  # the digest of each record's plan
        self._unlearnt: Release | None = None
        self._plan_seconds = 0.0
        self.hooks.warn(learner.notices)

    def branch(self, draws: "Draws | None" = None) -> "LearningLoop":
        """The learning from here on, apart, with these draws: nobody is told of what comes of it.

        Learners replace what they know, piece by piece, and never write into it: a shallow copy
        goes its own way.
        """
        branch = copy(self)
        branch.learner = copy(self.learner)
        branch._records = list(self._records)
        branch.hooks = Hooks(len(self._records), aloud=draws is not None)
        if draws is not None:
            branch._draws, branch._timed = draws, False
        return branch

    @property
    def records(self) -> Epochs:
        """One record per epoch that was learnt from, shown as a table."""
        return Epochs(self._records)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit, each kind once: in the configuration, then in releases."""
        return unheard((*self._told, *self.learner.notices), ())

    @property
    def _told(self) -> list[Notice]:
        """Notices of the records."""
        return [notice for record in self._records for notice in record.notices]

    @property
    def learnt(self) -> int:
        """How many releases were learnt from."""
        return len(self._records)

    @property
    def closed(self) -> int:
        """Epochs that were released, learnt from or not yet."""
        return len(self._records) + (self._unlearnt is not None)

    @property
    def schedule(self) -> Schedule:
        """Lengths of epochs and the horizon, as they are now."""
        return self._by(self.learner.problem.schedule)

    def _by(self, terms: ScheduleTerms | None) -> Schedule:
        if terms is None:
            return self._schedule
        first = terms.first_epoch or self.learner.first_epoch
        return Schedule(first, min(terms.growth, self.learner.growth), terms.horizon)

    def length(
        self,
        epoch: int,
        decided: int,
        terms: ScheduleTerms | None = None,
        *,
        endless: bool = False,
    ) -> int:
        """Decisions in an epoch that begins after so many; 0 beyond the horizon.

        ``terms``: others than those of now. ``endless``: whatever the horizon is.
        """
        schedule = self.schedule if terms is None else self._by(terms)
        schedule = replace(schedule, horizon=None) if endless else schedule
        return self.learner.length(schedule, epoch, decided)

    def plan(
        self, epoch: int, decided: int, *, more: int = 0, endless: bool = False
    ) -> EpochPlan | None:
        """Plan an epoch from earlier releases and public draws; None at the horizon.

        ``more``: contributions that are expected beyond its length. ``endless``: there is none.
        """
        self.learn()
        started = perf_counter()
        length = self.length(epoch, decided, endless=endless)
        plan = None
        if length:
            with one_blas_thread():
                plan = self.learner.plan(epoch, length + more, self._draws.public)
        self._plan_seconds = perf_counter() - started
        return plan

    def adopt(self, problem: Problem) -> None:
        """Go on with other actions, limits or terms from the next plan on."""
        self.learn()
        known = self.notices
        with one_blas_thread():
            if same_actions(self.learner.problem.actions, problem.actions):
                self.learner.amend(problem)
            else:
                self.learner.adopt(problem, self._draws.public)
        self.hooks.warn(unheard(self.learner.notices, known))

    def turn(self) -> Segment | None:
        """How the newest epoch goes on after a release; None where it keeps to its plan."""
        with one_blas_thread():
            return self.learner.turn(self._draws.public)

    def close(self, release: Release) -> None:
        """Learn from what an epoch released, and record it."""
        self._unlearnt = release
        self.learn()

    def learn(self) -> None:
        """Learn from a release. If that is interrupted, the next call makes up for it."""
        if self._unlearnt is None:
            return
        # Timed from here: how long the noise took depends on how many rewards were missing.
        started = perf_counter()
        # Alg. 1, lines 18-20.
        with one_blas_thread():
            lesson = self.learner.learn(self._unlearnt, self._draws.public)
        plan = self._unlearnt.plan
        record = EpochRecord(
            epoch=plan.epoch,
            length=self._unlearnt.participants,
            rank=plan.features.rank,
            tau=plan.tau,
            sigma_max=plan.sigma_max,
            noise_scale=plan.noise_scale,
            width=lesson.width,
            active_share=lesson.active_share,
            predicted_error=lesson.predicted_error,
            noise_share=lesson.noise_share,
            seconds=self._plan_seconds + perf_counter() - started if self._timed else None,
            segments=len(self._unlearnt.segments),
            response_rate=lesson.response_rate,
            mismatch=lesson.mismatch,
            notices=unheard((*self.learner.notices, *lesson.notices), self._told),
        )
        self.plans = [*self.plans[: len(self._records)], plan_digest(plan)]
        self._records.append(record)
        self._unlearnt = None
        self.hooks.tell(self._records)

    @property
    def plan_seconds(self) -> float:
        """Time the open epoch took to plan; 0 where nothing is timed."""
        return self._plan_seconds if self._timed else 0.0

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Records and learner, as JSON values and arrays."""
        self.learn()
        values, arrays = self.learner.state()
        records = [record.to_dict() for record in self._records]
        return {"epochs": records, "plans": list(self.plans), "learner": values}, arrays

    def restore(
        self, values: dict[str, Any], arrays: dict[str, FloatArray], plan_seconds: float
    ) -> None:
        """Go on from :meth:`state`, in an epoch that took so long to plan."""
        self._records = [EpochRecord.from_dict(record) for record in values["epochs"]]
        self.hooks.skip(len(self._records))
        self.plans = values["plans"]
        with one_blas_thread():  # as when it was learnt: a loaded policy goes on to the bit
            self.learner.restore((values["learner"], arrays))
        self._plan_seconds = plan_seconds


def same_actions(one: Actions, other: Actions) -> bool:
    """Whether two versions of the actions are alike."""
    if not (isinstance(one, FixedActions) and isinstance(other, FixedActions)):
        return one == other
    return one.names == other.names and np.array_equal(one.rows, other.rows)


class PublicFace(ABC):
    """What anybody may ask of a policy, whoever adds up its epochs."""

    _problem: Problem
    _learning: LearningLoop
    _horizon: int | None
    _lock: RLock

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse public attributes: a setting that is assigned later would be a promise unkept."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        known = sorted(
            each
            for kind in type(self).__mro__
            for each, thing in vars(kind).items()
            if isinstance(thing, property) and not each.startswith("_")
        )
        what = "cannot be changed" if name in known else "does not exist"
        raise AttributeError(
            f"{name!r} {what}: a {type(self).__name__} is fixed once it is built. It can be read "
            f"for {', '.join(dict.fromkeys(known))}; other settings make another policy"
        )

    @property
    def problem(self) -> Problem:
        """Spaces, bounds and the promise: what was known before the first user."""
        return self._problem

    @property
    def kernel(self) -> Kernel:
        """The kernel on pairs (context, action)."""
        return self._problem.kernel

    @property
    def actions(self) -> Actions:
        """What may be done: feature rows, names, schema."""
        return self._problem.actions

    @property
    def contexts(self) -> Contexts:
        """The public law of the contexts, and their schema."""
        return self._problem.contexts

    @property
    def budget(self) -> Budget | None:
        """What each user is promised; None without privacy."""
        return self._problem.budget

    def on_release(self, function: ReleaseFunction) -> ReleaseFunction:
        """Call this function with the public :class:`EpochRecord` of every release from now on.

        It is called once a release is complete and learnt from, by the thread that closed the
        epoch, while others wait: keep it short. It may read the policy. What it raises is logged
        under ``capri.hooks`` and changes nothing. Not kept in files: register again after a load.
        Returns the function, so ``@policy.on_release`` stands before a definition.
        """
        with self._lock:
            self._learning.hooks.add(function)
        return function

    @property
    def epochs(self) -> Epochs:
        """One record per closed epoch, shown as a table."""
        return self._learning.records

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit, each kind once: kernel, basis, pool (docs/reference/glossary.md).

        Known from the configuration, or since a release; the records say since which. Each was
        also a :class:`~capri.KernelWarning` when it came up. Nothing is played by them.
        """
        return self._learning.notices

    @property
    def horizon(self) -> int | None:
        """Decisions or reports the policy was built for; None for any number."""
        return self._horizon

    def _rows(self, contexts: object) -> FloatArray:
        public = self._problem.contexts
        return as_contexts(contexts, public.dimension, public.schema)

    def estimate(self, contexts: object) -> FloatArray:
        """Public estimates of ``f`` for every action, ``(n, n_actions)``; 0 before any release.

        With a ``reward_range`` they lie in it, as means of rewards do.
        """
        rows, scale = self._rows(contexts), self._problem.scale
        with self._lock:
            values = self._learning.learner.estimate(rows)
        return scale.told(values if scale.symmetric else np.clip(values, -scale.bound, scale.bound))

    def active(self, contexts: object) -> BoolArray:
        """Which actions no test has ruled out, ``(n, n_actions)`` of True and False."""
        rows = self._rows(contexts)
        with self._lock:
            return self._learning.learner.active(rows)

    def probabilities(self, contexts: object) -> FloatArray:
        """The public law actions are drawn from now, ``(n, n_actions)``; rows sum to 1."""
        rows = self._rows(contexts)
        with self._lock:
            return self._learning.learner.probabilities(rows)

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee with its assumptions, mechanism and noise, for a reader and for a machine.

        ``declaration`` says who promises and what for; ``audit`` is the result of an audit, or the
        values of its JSON. Refused to a run without a budget and to a simulation: neither protects
        anybody.
        """
        with self._lock:
            digests: dict[str, Any] = {
                "configuration": configuration_digest(*self._configuration()),
                "plans": list(self._learning.plans),
            }
            if (checkpoint := self._checkpoint()) is not None:
                digests["store"] = checkpoint
            return self._certify(declaration=declaration, audit=audit, digests=digests)

    def _checkpoint(self) -> dict[str, Any] | None:
        """How far the store of this policy has come; None without one."""
        return None

    @abstractmethod
    def _certify(self, **wanted: Any) -> Certificate:
        """The certificate of this kind of policy."""

    @abstractmethod
    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it: values and arrays."""

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which no copy shares."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = RLock()
