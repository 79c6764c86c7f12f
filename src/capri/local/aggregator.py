"""The aggregator: hands out public bundles, adds up private reports, learns from the sums.

Nothing here could see a raw datum: a contract keeps it from importing the device or the encoder.

Reports are all it sees of time. A *reading* is due after a scheduled number of reports, whichever
bundles they answer: every sum is read with its own plan and its real count, and the next bundle is
planned from all of them. Reports that are under way meanwhile answer an earlier bundle; they count
for its epoch in the next reading, until ``reward_wait`` is over.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from os import PathLike
from threading import RLock
from typing import Any, Self

import numpy as np

from capri.arrays import IntArray, one_blas_thread
from capri.choices import successor
from capri.epoch.learning_loop import LearningLoop, PublicFace
from capri.epoch.limits import Limits
from capri.epoch.plan import Notice, Schedule
from capri.epoch.problem import Problem, checked_problem, with_actions
from capri.epoch.rewards import RewardTerms, checked_scale, rescaled
from capri.epoch.storage import configuration_digest, damage_as_storage_error, read_policy_file
from capri.errors import ConfigurationError, HorizonError
from capri.kernels import Kernel
from capri.learners.explain import explain
from capri.learners.explanation import Explanation
from capri.learners.learner import PracticalLearner
from capri.learners.options import PracticalOptions
from capri.learners.presets import checked_horizon, checked_options, first_length, releases_prior
from capri.learners.prior import Prior, checked_prior
from capri.local import wire
from capri.local.engine import ReportEngine
from capri.local.reports import EpochSum, ReportStatus, as_rows, device_terms, stale_notices
from capri.local.state import BundleDraws, ReportState, first_law, generator, in_memory, settings_of
from capri.privacy.budget import Budget, Promise
from capri.privacy.certificate import Certificate, certify_devices
from capri.privacy.shuffle import Shuffle
from capri.spaces import Contexts
from capri.store.organisation import OrganisationLedger
from capri.store.persistence import (
    AGGREGATOR,
    Described,
    described,
    ledger_arguments,
    open_aggregator,
    reserved,
    save_aggregator,
    stored_configuration,
)
from capri.store.repository import Repository
from capri.store.reservation import joined, joined_values


class LocalCapri(PublicFace):
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
        reports, to whichever bundle, or a :class:`datetime.timedelta`. Later ones are stale. By
        default 10,000 reports, as many as may well be under way; 0 with ``shuffle``.
    missing_reward:
        What a device reports that has seen no reward: a number within the range.
    epoch_time:
        An epoch also ends when this much time has passed since the first report in it.
    clock:
        The public clock, a function without arguments that gives a :class:`datetime.datetime`.
    shuffle:
        A :class:`~capri.Shuffle`: somebody mixes the reports of an epoch before they come here. The
        local epsilon of an epoch is then the largest that keeps the budget in a batch of its
        number of reports, and the epoch waits until all of them are in.
    tickets:
        Reports come with :mod:`capri.local.tickets`: directions leave a forger little choice.
    limits, prior:
        As in :class:`~capri.Capri`; limits are in the bundle, and kept on the device.
    store:
        None: the aggregator lives in the memory of this process. "sqlite:///file.db" or
        "postgresql://...": a report that was answered is durable, and any number of processes that
        open the same store are one aggregator. See :meth:`open` and :meth:`close`.
    ledger, population:
        As in :class:`~capri.Capri`; with ``shuffle`` the promise is counted that holds against
        whoever sees the mixed reports.
    public_seed:
        Seed of the public draws, which are in the bundle, for reproducible runs.
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
        reward_wait: int | timedelta | None = None,
        missing_reward: float | str = 0.0,
        epoch_time: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
        public_seed: int | None = None,
        limits: Limits | None = None,
        prior: Prior | None = None,
        shuffle: Shuffle | None = None,
        tickets: bool = False,
        store: str | None = None,
        ledger: OrganisationLedger | str | None = None,
        population: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(budget, Budget):
            raise ConfigurationError(f"budget must be a capri.Budget, got {type(budget).__name__}")
        if "reward_rule" in options:
            raise ConfigurationError(
                "reward_rule is for a curator who sees rewards: a device reports once, so the app "
                "combines several rewards to one before it calls report"
            )
        self._budget = budget
        scale = checked_scale(reward_bound, reward_range, reward_transform)
        self._terms = device_terms(reward_wait, missing_reward, epoch_time, scale, shuffle)
        problem = checked_problem(
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
            tickets=tickets,
            noise=options.get("noise"),
        )
        self._horizon = checked_horizon(horizon)
        checked = checked_options("practical", options)
        assert isinstance(checked, PracticalOptions)
        self._options = checked
        self._observed = checked_prior(prior, problem)
        self._lock = RLock()
        self._joined = joined(ledger, population, budget, True, store is not None)
        self._assemble(problem, generator(public_seed), store, clock, None)

    def _assemble(
        self,
        problem: Problem,
        public: np.random.Generator,
        store: str | None,
        clock: Callable[[], datetime] | None,
        saved: Described | None,
    ) -> None:
        """Put together what is known beforehand and the place where the rest is kept."""
        with one_blas_thread():
            learner = PracticalLearner(problem, self._options, public)
            if self._observed is not None:
                learner.begin(self._observed, public)
        first = first_length(problem, self._options, self._observed)
        schedule = Schedule(first, self._options.growth, self._horizon)
        learning = LearningLoop(schedule, learner, BundleDraws(public), timed=True)
        law = first_law(learning, public)
        if store is None:
            repository: Repository = in_memory(law, problem, saved)
        else:
            repository = open_aggregator(store, self._configuration(problem), law)
        # Mixed reports promise an epsilon and a delta, and are no release of either kind.
        pure = problem.shuffle is None
        held = reserved(self._joined, problem, repository, "fleet", gaussian=False, pure=pure)
        state = ReportState(repository, problem, learning, public, self._terms, clock=clock)
        self._state, self._engine = state, ReportEngine(state, self._horizon, held)

    def __repr__(self) -> str:
        return f"LocalCapri({self.guarantee}; epoch {self._state.opened})"

    @property
    def _problem(self) -> Problem:  # type: ignore[override]
        return self._newest.problem

    @property
    def _learning(self) -> LearningLoop:  # type: ignore[override]
        return self._newest.learning

    @property
    def _newest(self) -> ReportState:
        """What is public now, by whichever process."""
        with self._lock:
            self._state.refresh()
            return self._state

    # -- what is public ---------------------------------------------------------------------------

    @property
    def remaining(self) -> int:
        """Reports until the next reading, after which there is a new bundle; 0 at the horizon."""
        with self._lock:
            self._engine.settle()
            return self._state.remaining

    @property
    def reports(self) -> int:
        """How many reports counted so far, to whichever bundle."""
        return self._newest.issued

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Number of the newest bundle, reports since, and how many of them end its epoch."""
        with self._lock:
            self._engine.settle()
            newest = self._state.view.newest
            if newest is None:
                return self._state.opened, 0, 0
            return newest.number, self._state.issued - newest.first, newest.length

    def bundle(self) -> bytes:
        """The newest public bundle, for all the same; while a reading is made, the one before."""
        if not self._lock.acquire(blocking=False):
            if found := self._state.bundle:
                return found
            self._lock.acquire()
        try:
            self._engine.settle()
            if not self._state.bundle:
                raise HorizonError(
                    f"all {self._horizon} reports of the horizon are in: build a new aggregator, "
                    "for new users, to go on"
                )
            return self._state.bundle
        finally:
            self._lock.release()

    @property
    def digest(self) -> bytes:
        """SHA-256 of the newest bundle, to be published where devices can compare it."""
        return self.bundle()[-32:]

    @property
    def digests(self) -> tuple[str, ...]:
        """Those of all bundles so far, oldest first, in hexadecimals: a log for everybody."""
        return tuple(each.hex() for each in self._newest.digests)

    @property
    def options(self) -> PracticalOptions:
        """The choices that its arguments left open."""
        return self._options

    def again(self, **changes: Any) -> "LocalCapri":
        """A fresh aggregator of the same configuration, with some arguments changed."""
        problem, terms = self._problem, self._terms.arguments()
        terms.pop("reward_rule")  # a device reports once
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
            "tickets": problem.tickets,
            **terms,
            **asdict(self._options),
        }
        return type(self)(**rescaled(settings, changes))

    def as_prior(self) -> Prior:
        """What its readings say, for ``prior=`` of another policy: post-processing of reports."""
        with self._lock:
            budget = replace(self.device_budget, delta=0.0)
            digest = configuration_digest(*self._configuration())
            return releases_prior(self._learning, budget, digest)

    def explain(self) -> Explanation:
        """What the reports made it believe: kernels, effects, columns that matter, noise."""
        with self._lock:
            return explain(self._learning.learner)

    def _configuration(self, problem: Problem | None = None) -> Described:
        """What it was built from, as its file says it."""
        more = {"kind": AGGREGATOR, "terms": self._terms.to_dict(), **joined_values(self._joined)}
        return described(
            problem or self._problem, self._horizon, self._options, self._observed, **more
        )

    def replace_actions(self, actions: object) -> None:
        """Offer other actions from the next bundle on; those of the newest one stay.

        As :meth:`capri.Capri.replace_actions`; every process of a store plays them.
        """

        def renewed(latest: Problem) -> Problem:
            problem = with_actions(latest, successor(latest.actions, actions))
            self._learning.learner.accepts(problem)
            return problem

        with self._lock:
            self._engine.replace_actions(renewed)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What does not fit, each kind once: stale and forged reports, too."""
        return (*super().notices, *stale_notices(self._engine.judged), *self._engine.forged)

    # -- reports ----------------------------------------------------------------------------------

    def receive(self, report: bytes) -> ReportStatus:
        """Add one report, or say why not. A report that is not accepted changes nothing."""
        return ReportStatus(int(self.receive_many([report])[0]))

    def receive_many(self, reports: Sequence[bytes] | wire.Messages) -> IntArray:
        """Add reports in order; a :class:`ReportStatus` code for each.

        Also takes rows of bytes, ``(n, size)`` of ``uint8``.
        """
        with self._lock:
            return as_rows(reports, self._engine.receive)

    def receive_sum(self, added: EpochSum) -> None:
        """Take up what ``capri aggregate`` made of an epoch's reports, and end the epoch.

        Which tokens are in a sum is not known here, so it is all there is of its bundle: reports
        that were received one by one before are refused to be mixed with it, later ones are stale.
        What no reports add up to is refused before anything changes, and so is a short batch.
        """
        with self._lock:
            self._engine.receive_sum(added, mixed=self._problem.shuffle is not None)

    def close_epoch(self, *, early: bool = False) -> None:
        """Read what has come in, now, and hand out a new bundle; earlier ones go on waiting.

        An epoch ends by itself after its number of reports, so this needs ``early``. Nothing
        happens where no report has come since the last reading.
        """
        with self._lock:
            remaining = self.remaining
            if remaining and self._problem.shuffle is not None:
                raise HorizonError(
                    f"{remaining} of {self.under_way[2]} reports of this batch are still to come: "
                    "a smaller one would hide its users less than was promised. Wait for them"
                )
            if remaining and not early:
                raise HorizonError(
                    f"{remaining} reports of this epoch are still to come: an epoch ends by "
                    "itself after its number of reports. Give early=True to end it now"
                )
            self._engine.end_early()

    # -- files and stores -------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the aggregator to one file, reports of open epochs included: they are private.

        A loaded aggregator continues bit for bit. One in a store is copied with its database.
        """
        with self._lock:
            self._engine.settle()
            save_aggregator(path, self._configuration(), self._engine.repository)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        contexts: Contexts | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> Self:
        """Read a saved aggregator. A context sampler and a clock are code: give them again."""
        saved = read_policy_file(path, AGGREGATOR)
        with damage_as_storage_error(path):
            loaded = cls(**settings_of(*saved, contexts), clock=clock)
            loaded._assemble(loaded._problem, generator(None), None, clock, saved)
        return loaded

    @classmethod
    def open(
        cls,
        store: str,
        *,
        contexts: Contexts | None = None,
        clock: Callable[[], datetime] | None = None,
        ledger: OrganisationLedger | str | None = None,
    ) -> Self:
        """The aggregator of a store, as it was built. Sampler and clock as in :meth:`load`."""
        found = stored_configuration(store, AGGREGATOR, ledger)
        settings = settings_of(*found, contexts) | ledger_arguments(found[0], ledger)
        return cls(**settings, store=store, clock=clock)

    def close(self) -> None:
        """Give the connections of a store back; nothing needs to be saved."""
        with self._lock:
            self._engine.repository.close()

    # -- what is promised -------------------------------------------------------------------------

    @property
    def guarantee(self) -> str:
        """In one line, what every user of a :class:`~capri.LocalClient` is promised."""
        epsilon, delta = self._budget.epsilon, self._budget.delta
        if self._problem.shuffle is not None:
            return (
                f"({epsilon:g}, {delta:g})-privacy of each user behind a shuffler, and pure "
                f"{self._problem.shuffle.most:g}-local privacy, made on the device"
            )
        return f"pure {epsilon:g}-local privacy of each user, made on the device"

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared."""
        if self._problem.shuffle is not None:
            return Promise(model="shuffle", kind="approximate")
        return Promise(model="local", kind="pure")

    @property
    def device_budget(self) -> Budget:
        """What a device must be willing to spend: the local promise, whoever reads a report."""
        shuffle = self._problem.shuffle
        return self._budget if shuffle is None else Budget(epsilon=shuffle.most)

    def terms(self) -> dict[str, Any]:
        """What real devices certify, without what was reported so far."""
        with self._lock:
            return self._certify().terms()

    def _certify(self, **wanted: Any) -> Certificate:
        return certify_devices(
            self._budget,
            self._state.releases,
            reported=self._state.issued > 0,
            prior=None if self._observed is None else self._observed.event,
            shuffle=self._problem.shuffle,
            reservation=self._engine.reservation,
            **wanted,
        )
