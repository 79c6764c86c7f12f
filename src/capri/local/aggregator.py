"""The aggregator: hands out public bundles, adds up private reports, learns from the sums.

Nothing here could see a raw datum: it imports neither the device nor the encoder, and a contract in
pyproject.toml keeps it so.

Reports are all it sees of time. A *reading* is due after a scheduled number of reports, whichever
bundles they answer: every sum is read with its own plan and its real count, and the next bundle is
planned from all of them. Reports that are under way meanwhile answer an earlier bundle; they count
for its epoch in the next reading, until ``reward_wait`` is over.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from threading import RLock
from typing import Any

import numpy as np

from capri.arrays import IntArray, one_blas_thread
from capri.checks import whole
from capri.epoch.course import Course, PublicFace
from capri.epoch.limits import Limits
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import checked_problem
from capri.epoch.rewards import RewardTerms, checked_scale, checked_terms, rescaled
from capri.epoch.storage import configuration_digest, problem_state
from capri.errors import ConfigurationError, HorizonError
from capri.kernels import Kernel
from capri.learners.explain import explain
from capri.learners.explanation import Explanation
from capri.learners.options import PracticalOptions
from capri.learners.practical import PracticalLearner
from capri.learners.presets import checked_horizon, checked_options, first_length
from capri.learners.start import Prior, checked_prior
from capri.learners.start.releases import releases_prior
from capri.local import wire
from capri.local.bundle import make_bundle
from capri.local.gathering import EpochSum, Gathering, ReportStatus, as_rows, judge, open_for
from capri.local.saved import BundleDraws, SavedAggregator
from capri.privacy.budget import Budget
from capri.privacy.shuffle import Shuffle
from capri.schedule import Schedule
from capri.spaces import Contexts


class LocalCapri(SavedAggregator, PublicFace):
    """A contextual kernel bandit in the local model: the server that nobody has to trust.

    Devices fetch :meth:`bundle`, decide with :class:`~capri.LocalClient` and upload one report
    each; after its number of reports an epoch ends by itself, and there is a new bundle.

    Parameters
    ----------
    kernel, actions, contexts, reward_bound, reward_range, reward_transform, horizon, options:
        As in :class:`~capri.Capri` with preset "practical"; all of them are public. The horizon
        counts reports.
    budget:
        What each user is promised: pure epsilon, ``delta = 0``, in reports of 32 bytes. With
        ``shuffle``: what is promised against whoever sees the mixed reports, with a delta above 0.
    reward_wait:
        How long reports to an earlier bundle still count once there is a newer one: a number of
        reports, to whichever bundle, or a :class:`datetime.timedelta`. Later ones are stale.
    missing_reward:
        What a device reports that has seen no reward: a number within the range.
    epoch_time:
        An epoch also ends when this much time has passed since the first report in it.
    clock:
        The public clock, a function without arguments that gives a :class:`datetime.datetime`.
    prior:
        What is known beforehand, as in :class:`~capri.Capri`.
    shuffle:
        A :class:`~capri.Shuffle`: somebody mixes the reports of an epoch before they come here. The
        local epsilon of an epoch is then the largest that keeps the budget in a batch of its
        number of reports, and the epoch waits until all of them are in.
    limits:
        As in :class:`~capri.Capri`: they are in the bundle, and kept on the device.
    public_seed:
        Seed of the public draws (basis, Thompson draws), for reproducible runs. These draws are
        published in the bundle, so privacy does not rest on them.
    """

    def __init__(
        self,
        *,
        actions: object,
        contexts: Contexts,
        kernel: Kernel | str = "auto",
        budget: Budget,
        horizon: int | None = None,
        reward_bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        reward_transform: str | None = None,
        reward_wait: int | timedelta = 0,
        missing_reward: float | str = 0.0,
        epoch_time: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
        public_seed: int | None = None,
        limits: Limits | None = None,
        prior: Prior | None = None,
        shuffle: Shuffle | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(budget, Budget):
            raise ConfigurationError(
                f"the local model needs a capri.Budget, got {type(budget).__name__}"
            )
        if "reward_rule" in options:
            raise ConfigurationError(
                "reward_rule is for a curator who sees rewards: a device reports once, so the app "
                "combines several rewards to one before it calls report"
            )
        self._budget = budget
        scale = checked_scale(reward_bound, reward_range, reward_transform)
        self._terms = checked_terms(
            reward_wait=reward_wait,
            missing_reward=missing_reward,
            reward_rule="first",
            epoch_time=epoch_time,
            scale=scale,
        )
        self._problem = checked_problem(
            kernel=kernel,
            actions=actions,
            contexts=contexts,
            scale=scale,
            budget=budget,
            model="local",
            on_devices=True,
            # A bundle is one law from its first device to its last: plans need not know of waits.
            rewards=RewardTerms(missing=self._terms.missing),
            limits=limits,
            shuffle=shuffle,
        )
        if shuffle is not None and (self._terms.overlapping or epoch_time is not None):
            raise ConfigurationError(
                "shuffle takes neither reward_wait nor epoch_time: late reports, and those of an "
                "epoch that is cut short, are batches too small to hide in. Devices report at a "
                "fixed time, and an epoch waits for all of its reports"
            )
        self._clock = clock
        self._horizon = checked_horizon(horizon)
        checked = checked_options("practical", options)
        assert isinstance(checked, PracticalOptions)
        self._options = checked
        self._draws = BundleDraws(_generator(public_seed))
        with one_blas_thread():
            self._learner = PracticalLearner(self._problem, checked, self._draws.public)
            self._observed = checked_prior(prior, self._problem)
            if self._observed is not None:
                self._learner.begin(self._observed, self._draws.public)
        first = first_length(self._problem, checked, self._observed)
        schedule = Schedule(first, checked.growth, self._horizon)
        self._course = Course(schedule, self._learner, self._draws, timed=True)
        self._releases: list[dict[str, Any]] = []
        self._digests: list[bytes] = []
        self._lock = RLock()
        self._bundle = b""
        self._opened = 0
        # The reports to the newest bundle, and to those before it that still count, oldest first.
        self._newest: Gathering | None = None
        self._waiting: list[Gathering] = []
        self._accepted = 0  # reports in all
        self._received = 0  # since the last reading
        self._due = 0  # after so many of those the next one is due, as scheduled
        self._began: float | None = None  # when the first of those came
        self._ending = False  # whether a reading was asked for before it was due
        self._open_epoch()

    def __repr__(self) -> str:
        return f"LocalCapri({self.guarantee}; epoch {self._opened})"

    # -- what is public ---------------------------------------------------------------------------

    @property
    def remaining(self) -> int:
        """Reports until the next reading, after which there is a new bundle; 0 at the horizon."""
        with self._lock:
            return 0 if self._newest is None else max(0, self._due - self._received)

    def bundle(self) -> bytes:
        """The newest public bundle, for every device the same."""
        with self._lock:
            self._settle(self._now())
            if self._newest is None:
                raise HorizonError(
                    f"all {self._horizon} reports of the horizon are in: build a new aggregator, "
                    "for new users, to go on"
                )
            return self._bundle

    @property
    def digest(self) -> bytes:
        """SHA-256 of the newest bundle, to be published where devices can compare it."""
        return self.bundle()[-32:]

    @property
    def options(self) -> PracticalOptions:
        """The choices that its arguments left open."""
        return self._options

    def again(self, **changes: Any) -> "LocalCapri":
        """A fresh aggregator of the same configuration, with some arguments changed.

        Nothing that was reported to this one goes with it.
        """
        problem, terms = self._problem, self._terms.arguments()
        del terms["reward_rule"]  # a device reports once
        settings: dict[str, Any] = {
            "kernel": problem.kernel,
            "actions": problem.actions,
            "contexts": problem.contexts,
            "budget": self._budget,
            "horizon": self._horizon,
            **problem.scale.arguments(),
            "limits": problem.limits,
            "prior": self._observed,
            "shuffle": problem.shuffle,
            **terms,
            **asdict(self._options),
        }
        return type(self)(**rescaled(settings, changes))

    def as_prior(self) -> Prior:
        """What its readings say, for ``prior=`` of another policy: post-processing of reports."""
        with self._lock:
            budget = replace(self.device_budget, delta=0.0)
            digest = configuration_digest(*self._configuration())
            return releases_prior(self._course, budget, digest)

    def explain(self) -> Explanation:
        """What the reports made it believe: kernels, effects, columns that matter, noise."""
        with self._lock:
            return explain(self._learner)

    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""
        values, arrays = problem_state(self._problem)
        options = asdict(self._options)
        configuration = {
            "problem": values,
            "horizon": self._horizon,
            "options": options,
            "terms": self._terms.to_dict(),
        }
        if self._observed is not None:
            configuration["prior"], known = self._observed.state()
            arrays |= known
        return configuration, arrays

    # -- reports ----------------------------------------------------------------------------------

    def receive(self, report: bytes) -> ReportStatus:
        """Add one report, or say why not. A report that is not accepted changes nothing."""
        return ReportStatus(int(self.receive_many([report])[0]))

    def receive_many(self, reports: Sequence[bytes] | wire.Messages) -> IntArray:
        """Add reports in order; a :class:`ReportStatus` code for each.

        Also takes rows of bytes, ``(n, size)`` of ``uint8``.
        """
        with self._lock:
            return as_rows(reports, self._receive)

    def _receive(self, rows: wire.Messages) -> IntArray:
        """Add the reports that count, and do what is due on the way.

        What is due is due after a number of accepted reports, so batches do not matter.
        """
        now = self._now()
        self._settle(now)
        undamaged = wire.are_reports(rows)
        statuses = np.empty(len(rows), dtype=np.int64)
        start = 0
        while start < len(rows):
            part, pending, room = slice(start, None), self._pending, self._room()
            verdict = judge(rows[part], undamaged[part], pending, self._digests)
            accepted = np.flatnonzero(verdict.status == ReportStatus.ACCEPTED)[:room]
            end = int(accepted[-1]) + 1 if len(accepted) == room else len(verdict.status)
            statuses[start : start + end] = verdict.status[:end]
            for number, gathering in enumerate(pending):
                mine = accepted[verdict.place[accepted] == number]
                if len(mine):
                    gathering.add(rows[part][mine])
            if len(accepted) and self._began is None and self._terms.timed:
                self._began = now
            self._received += len(accepted)
            self._accepted += len(accepted)
            self._settle(now)
            start += end
        return statuses

    def receive_sum(self, added: EpochSum) -> None:
        """Take up what ``capri aggregate`` made of an epoch's reports, and end the epoch.

        Which tokens are in a sum is not known here, so it is all there is of its bundle: reports
        that were received one by one before are refused to be mixed with it, later ones are stale.
        What no reports add up to is refused before anything changes, and with ``shuffle`` a sum of
        fewer reports than the batch was planned for.
        """
        with self._lock:
            now = self._now()
            self._settle(now)
            gathering = open_for(added, self._pending, mixed=self._problem.shuffle is not None)
            if self._horizon is not None and self._accepted + added.accepted > self._horizon:
                raise HorizonError(
                    f"{added.accepted} reports, and {self._horizon - self._accepted} of the "
                    "horizon are left"
                )
            if added.accepted:
                gathering.add_sum(added.total, added.accepted)
                self._received += added.accepted
                self._accepted += added.accepted
                self._ending = gathering is self._newest
                self._settle(now)

    # -- epochs -----------------------------------------------------------------------------------

    @property
    def _pending(self) -> list[Gathering]:
        """What takes reports now."""
        newest = [] if self._newest is None else [self._newest]
        return [gathering for gathering in self._waiting if not gathering.closed] + newest

    def _room(self) -> int:
        """Reports before something is due: a reading, or the end of a wait."""
        ends = [
            each.closes for each in self._waiting if each.closes is not None and not each.closed
        ]
        return max(1, min([self.remaining, *(closes - self._accepted for closes in ends)]))

    def _now(self) -> float:
        """Seconds on the public clock, where one is needed."""
        if not self._terms.timed:
            return 0.0
        return time.time() if self._clock is None else self._clock().timestamp()

    def close_epoch(self, *, early: bool = False) -> None:
        """Read what has come in, now, and hand out a new bundle; earlier ones go on waiting.

        An epoch ends by itself after its number of reports, so this needs ``early``. Nothing
        happens where no report has come since the last reading.
        """
        with self._lock:
            now = self._now()
            self._settle(now)
            if self.remaining and self._problem.shuffle is not None:
                raise HorizonError(
                    f"{self.remaining} of {self._due} reports of this batch are still to come: a "
                    "smaller one would hide its users less than was promised. Wait for them"
                )
            if self.remaining and not early:
                raise HorizonError(
                    f"{self.remaining} reports of this epoch are still to come: an epoch ends by "
                    "itself after its number of reports. Give early=True to end it now"
                )
            self._ending = self._received > 0
            self._settle(now)

    def _settle(self, now: float) -> None:
        """Everything public that is due. If it is interrupted, the next call makes up for it."""
        self._course.learn()
        if self._newest is not None and self._is_over(now):
            self._read(self._newest, now)
        for gathering in self._waiting:
            gathering.close_if_due(self._accepted, now)
        self._forget()

    def _is_over(self, now: float) -> bool:
        """Whether a reading is due: by the number of reports, or by the public clock."""
        if self._ending or self._received >= self._due:
            return True
        limit = self._terms.epoch_time
        if limit is None or self._began is None:
            return False
        return now >= self._began + limit.total_seconds()

    def _read(self, newest: Gathering, now: float) -> None:
        """Learn from every sum (Alg. 1, lines 18-20), then plan anew. Reports are private already.

        Oldest first: what the newest law tells comes last, and is read with the most knowledge.
        """
        newest.supersede(self._accepted, now, self._terms.wait)
        for gathering in (*self._waiting, newest):
            gathering.close_if_due(self._accepted, now)
            if gathering.unread:
                self._releases.append(self._entry(gathering))
                self._course.close(gathering.release())
        self._open_epoch()

    def _open_epoch(self) -> None:
        """Plan the next epoch and write its bundle; at the horizon there is none.

        A bundle is handed out until a reading is due, hence as often as reports come in meanwhile.
        Only the first is handed out before any report arrives: as many more answer it as are under
        way at once, and messages for so many are shaped otherwise.
        """
        self._renew_actions()
        wait = self._terms.wait
        under_way = wait if isinstance(wait, int) and not self._opened else 0
        plan = self._course.plan(self._opened + 1, self._accepted, more=under_way)
        if self._newest is not None:
            self._waiting = [*self._waiting, self._newest]
        self._newest, self._bundle = None, b""
        self._received, self._began, self._ending = 0, None, False
        if plan is None:
            for gathering in self._waiting:
                gathering.closed = True
        else:
            self._newest = self._enter(plan)
            self._digests.append(self._newest.digest)
        self._forget()

    def _enter(self, plan: EpochPlan) -> Gathering:
        """An epoch whose bundle is handed out from now on."""
        self._bundle = make_bundle(self._problem, plan, self._learner.conduct())
        self._opened = plan.epoch
        due = self._course.length(plan.epoch, self._accepted - self._received)
        self._due = min(due, plan.length)
        return Gathering(plan, self._bundle[-32:][:8])

    def _forget(self) -> None:
        """Let go of epochs that take no more reports and were read to the last."""
        over = [each for each in self._waiting if each.closed and not each.unread]
        for gathering in over:
            self._learner.drop(gathering.plan.epoch)
        self._waiting = [each for each in self._waiting if each not in over]


def _generator(seed: int | None) -> np.random.Generator:
    if seed is not None:
        whole("public_seed", seed, least=0)
    return np.random.default_rng(seed)
