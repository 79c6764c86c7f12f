"""The curator: decides, collects rewards, and lets one noisy vector per epoch out of the gate."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from os import PathLike
from threading import RLock
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.course import Course, PublicFace
from capri.epoch.decide import (
    Chooser,
    Decision,
    Decisions,
    RewardStatus,
    decision_rewards,
    warn_of_ignored,
)
from capri.epoch.digests import configuration_digest
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import checked_problem
from capri.epoch.storage import (
    damage_as_storage_error,
    ledger_from_state,
    ledger_state,
    plan_from_state,
    plan_state,
    problem_arguments,
    problem_state,
    read_policy_file,
    write_policy_file,
)
from capri.errors import BudgetError, ConfigurationError, DataError, HorizonError, ShapeError
from capri.forecast.result import Forecast
from capri.forecast.run import forecast
from capri.kernels import Kernel
from capri.learners.presets import Options, build, checked_horizon, checked_options
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, Declaration, certify_policy
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.promise import NOTHING, PrivacyModel, Promise
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import Contexts, as_numbers, as_wanted


class Capri(PublicFace):
    """A differentially private contextual kernel bandit.

    Parameters
    ----------
    kernel:
        Kernel on pairs (context, action), with ``k(w, w) <= 1``.
    actions:
        Feature rows of the actions, ``(n_actions, d)``, or :class:`VaryingActions` where every
        context brings its own.
    contexts:
        The public law of contexts: a :class:`ContextPool` or a :class:`ContextSampler`.
    reward_bound:
        ``B``: rewards beyond ``[-B, B]`` are clipped. Also the bound on the RKHS norm of ``f``.
    budget:
        What each user is promised, or None to run without privacy.
    horizon:
        Number of decisions. None for a run without end, which preset "paper" cannot do.
    model:
        "joint": a trusted curator adds noise once per epoch. "local": noise is added to every
        single report before it is summed. This class sees contexts and rewards either way: the
        local model protects users from everyone who sees the reports, not from this process.
    preset:
        "practical", which learns at horizons people run, or "paper", Algorithm 1 with its printed
        constants.
    contributions_per_user, contributions_per_epoch:
        None: each user comes once, no ids are kept. A number: users carry ids, contribute at most
        so often in all and per epoch (once by default), and the noise covers all of a user's
        contributions together.
    simulation_seed:
        None for a private run on operating-system entropy. A number makes a reproducible
        simulation, which carries no privacy claim.
    options:
        What the preset leaves open, as keywords: see :class:`~capri.PracticalOptions` and
        :class:`~capri.PaperOptions`.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        actions: object,
        contexts: Contexts,
        budget: Budget | None,
        horizon: int | None = None,
        reward_bound: float = 1.0,
        model: str = "joint",
        preset: str = "practical",
        contributions_per_user: int | None = None,
        contributions_per_epoch: int | None = None,
        simulation_seed: int | None = None,
        **options: Any,
    ) -> None:
        limit = None
        if contributions_per_user is not None:
            limit = UserLimit(total=contributions_per_user, per_epoch=contributions_per_epoch or 1)
        elif contributions_per_epoch is not None:
            raise ConfigurationError(
                "contributions_per_epoch needs contributions_per_user: without user ids every user "
                "comes once"
            )
        self._problem = checked_problem(
            kernel=kernel,
            actions=actions,
            contexts=contexts,
            reward_bound=reward_bound,
            budget=budget,
            model=model,
            limit=limit,
        )
        self._horizon = checked_horizon(horizon)
        self._preset = preset
        self._options = checked_options(preset, options)
        self._streams = Streams(simulation_seed)
        with one_blas_thread():
            schedule, learner = build(
                self._problem, self._options, self._horizon, self._streams.public
            )
        self._course = Course(schedule, learner, self._streams)
        self._participation = None if limit is None else Participation(limit)
        self._ledger: Ledger | None = None
        if budget is not None:
            self._ledger = Ledger(
                budget,
                composition=self._problem.composition,
                participation=self._participation,
            )
        self._gate = Gate(noise_source(self._streams.noise), self._ledger)
        # Private runs start at a random number, so that a decision made before a restart is unknown
        # to the restarted policy instead of being taken for somebody else's.
        self._origin = 0 if self._streams.simulated else secrets.randbelow(1 << 62)
        self._decided = 0
        self._open: OpenEpoch | None = None
        self._chooser: Chooser | None = None
        # Servers call from many threads; a decision or a reward must be counted once.
        self._lock = RLock()
        self._process = os.getpid()

    # -- what is public ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Capri({self.guarantee}; epoch {len(self.epochs) + 1})"

    @property
    def guarantee(self) -> str:
        """In one line, what this policy promises to its users."""
        budget = self._problem.budget
        if budget is None:
            return "no privacy: runs without noise"
        promise = f"({budget.epsilon:g}, {budget.delta:g})-{self._problem.model} privacy"
        if self._problem.model is PrivacyModel.LOCAL:
            promise += " of reports"
        if self._streams.simulated:
            return f"simulation of {promise}: seeded noise, no privacy claim"
        return promise

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared; nothing for a run without budget."""
        if self._problem.budget is None:
            return NOTHING
        unit = "one round" if self._problem.limit is None else "one user"
        return Promise(model=self.model.value, kind="approximate", unit=unit)

    @property
    def model(self) -> PrivacyModel:
        """Joint or local."""
        return self._problem.model

    @property
    def private(self) -> bool:
        """Whether users are really protected: a budget, and noise that nobody can reproduce."""
        return self._gate.private

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        with self._lock:
            return self._open is not None and self._open.issued > 0

    @property
    def ledger(self) -> Ledger:
        """What was spent, by whom, under which model."""
        if self._ledger is None:
            raise BudgetError("this policy runs without privacy (budget=None): it has no ledger")
        return self._ledger

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee with its assumptions, mechanism and noise, for a reader and for a machine.

        ``declaration`` says who promises and what for; ``audit`` is the result of an audit, or the
        values of its JSON. Refused to a run without a budget and to a simulation: neither protects
        anybody.
        """
        with self._lock:
            digests = {
                "configuration": configuration_digest(*self._configuration()),
                "plans": self._course.plans,
            }
            return self._certify(
                private=not self._streams.simulated,
                declaration=declaration,
                audit=audit,
                digests=digests,
            )

    def terms(self) -> dict[str, Any] | None:
        """What a private run of this configuration certifies; None without a budget.

        Without what was spent and released, and hence no claim about this run.
        """
        if self._ledger is None:
            return None
        return self._certify(private=True, accounted=False).terms()

    def _certify(self, **wanted: Any) -> Certificate:
        return certify_policy(
            model=self._problem.model,
            limit=self._problem.limit,
            composition=self._problem.composition,
            ledger=self._ledger,
            **wanted,
        )

    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""
        values, arrays = problem_state(self._problem)
        return {
            "problem": values,
            "horizon": self._horizon,
            "preset": self._preset,
            "options": asdict(self._options),
        }, arrays

    @property
    def preset(self) -> str:
        """The preset it was built from."""
        return self._preset

    @property
    def options(self) -> Options:
        """The choices of its preset."""
        return self._options

    def again(self, **changes: Any) -> "Capri":
        """A fresh policy of the same configuration, with some arguments changed.

        Nothing that this one has learnt goes with it.
        """
        limit = self._problem.limit
        settings: dict[str, Any] = {
            "kernel": self._problem.kernel,
            "actions": self._problem.actions,
            "contexts": self._problem.contexts,
            "budget": self._problem.budget,
            "horizon": self._horizon,
            "reward_bound": self._problem.reward_bound,
            "model": str(self._problem.model),
            "preset": self._preset,
            "contributions_per_user": None if limit is None else limit.total,
            "contributions_per_epoch": None if limit is None else limit.per_epoch,
            **asdict(self._options),
        }
        return Capri(**(settings | changes))

    def plan(self) -> EpochPlan:
        """The public plan of the epoch under way; opens one where there is none."""
        with self._lock:
            return self._epoch_with_room().plan

    @property
    def remaining(self) -> int:
        """Decisions that the next call of :meth:`act_many` may ask for; 0 at the horizon."""
        with self._lock:
            if self._open is not None and self._open.remaining:
                return self._open.remaining
            return self._course.length(self._next_epoch)

    @property
    def _next_epoch(self) -> int:
        """Number of the epoch that a decision would open once the present one is full."""
        return self._course.closed + 1 + (self._open is not None)

    def forecast(
        self,
        *,
        horizons: Sequence[int] = (1_000, 10_000, 100_000),
        epsilons: Sequence[float] | None = None,
        functions: int = 10,
        noise: float = 0.1,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Forecast:
        """What to expect of this configuration, from play against random functions.

        Touches neither users nor this policy. See :func:`capri.forecast.forecast`.
        """
        return forecast(
            self,
            horizons=horizons,
            epsilons=epsilons,
            functions=functions,
            noise=noise,
            seed=seed,
            progress=progress,
        )

    # -- deciding ---------------------------------------------------------------------------------

    def act(self, context: object, *, user: UserId | None = None) -> Decision:
        """Decide for one context, given as a row of numbers."""
        dimension = self._problem.contexts.dimension
        row = as_numbers(context, "a context must be a row of finite numbers").reshape(1, -1)
        if row.shape[1] != dimension:
            raise DataError(f"a context must have {dimension} numbers, got {row.shape[1]}")
        return self.act_many(row, users=None if user is None else [user])[0]

    def act_many(self, contexts: object, *, users: Sequence[UserId] | None = None) -> Decisions:
        """Decide for at most :attr:`remaining` contexts, ``(n, d)``."""
        rows = self._rows(contexts)
        with self._lock:
            return self._decide(rows, users)[0]

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made.

        For replaying a log in simulation; says which were kept. A private policy refuses: who is
        kept depends on what earlier users did, which no ledger here accounts for.
        """
        rows = self._rows(contexts)
        wanted = as_wanted(action_index, len(rows), self._problem.actions.count)
        if self.private:
            raise ConfigurationError(
                "a private policy replays no log: who is kept would depend on other users' data. "
                "Build it with simulation_seed"
            )
        with self._lock:
            return self._decide(rows, None, wanted)

    def _check_process(self) -> None:
        """A private policy stays in its process: a forked copy would count users and data twice."""
        if self.private and os.getpid() != self._process:
            raise BudgetError(
                "this policy belongs to the process that built it, and was forked: "
                "build or load a policy in the child, for users of its own"
            )

    def _decide(
        self,
        rows: FloatArray,
        users: Sequence[UserId] | None,
        wanted: IntArray | None = None,
    ) -> tuple[Decisions, BoolArray]:
        kept = np.ones(len(rows), dtype=np.bool_)
        self._check_process()
        if self._problem.kernel.constant_diagonal is None:
            try:
                self._problem.check_kernel(rows)
            except ConfigurationError:
                raise DataError("k(w, w) <= 1 is needed, a context exceeds it") from None
        self._check_room(len(rows))
        if len(rows) == 0:
            return self._no_decisions(), kept
        if (users is None) != (self._participation is None):
            raise ConfigurationError(
                "user ids are needed with contributions_per_user, and only then"
            )
        if isinstance(users, str | bytes):
            raise ConfigurationError("users must be a sequence of ids, got a single string")
        if users is not None and len(users) != len(rows):
            raise ShapeError(f"one user id per context is needed: {len(rows)}, got {len(users)}")
        if self._participation is not None and users is not None:
            # Checked before anything changes: asking for a decision may close an epoch.
            room = self._open is not None and self._open.remaining > 0
            number = self._course.closed + 1 if room else self._next_epoch
            self._participation.check(users, number)
        epoch = self._epoch_with_room()
        if self._participation is not None and users is not None:
            self._participation.add(users, epoch.plan.epoch)
        if self._chooser is None:
            learner = self._course.learner
            self._chooser = Chooser(self._problem, learner.probabilities, learner.pool_law())
        uniform = self._streams.actions.random(len(rows))
        place, actions, propensity = self._chooser.draw(rows, uniform)
        if wanted is not None:
            kept = actions == wanted
            rows, place, actions, propensity = (
                rows[kept], place[kept], actions[kept], propensity[kept]
            )  # fmt: skip
        ids = epoch.issue(rows, place, actions)
        self._decided += len(rows)
        features = self._problem.actions.features_of(rows, actions)
        return Decisions(ids, epoch.plan.epoch, actions, features, propensity), kept

    def _no_decisions(self) -> Decisions:
        nobody = np.empty(0, dtype=np.int64)
        features = self._problem.actions.dimension
        return Decisions(
            nobody, self._course.closed + 1, nobody, np.empty((0, features)), np.empty(0)
        )

    def _check_room(self, count: int) -> None:
        if count <= self.remaining:
            return
        if self.remaining == 0:
            raise self._at_the_horizon()
        raise HorizonError(
            f"{count} decisions were asked for, {self.remaining} are left in this epoch: "
            "ask for at most policy.remaining at once"
        )

    def _at_the_horizon(self) -> HorizonError:
        return HorizonError(
            f"all {self._horizon} decisions of the horizon are taken: build a new policy, for "
            "new users or with a new budget, to go on"
        )

    # -- rewards ----------------------------------------------------------------------------------

    def update(self, decision: Decision | int, reward: float) -> RewardStatus:
        """Add the reward of one decision, given as such or by its id; says what became of it."""
        return RewardStatus(self._reward([decision], [reward])[0])

    def update_many(
        self, decisions: Decisions | Sequence[Decision | int], rewards: object
    ) -> IntArray:
        """Add many rewards and return :class:`RewardStatus` codes.

        Late, duplicate and unknown rewards change nothing and raise a
        :class:`RewardIgnoredWarning`.
        """
        return self._reward(decisions, rewards)

    def _reward(self, decisions: Decisions | Sequence[Decision | int], rewards: object) -> IntArray:
        ids, values = decision_rewards(decisions, rewards)
        with self._lock:
            self._check_process()
            if self._open is None:
                known = (ids >= self._origin) & (ids < self._origin + self._decided)
                statuses = np.where(known, int(RewardStatus.LATE), int(RewardStatus.UNKNOWN))
            else:
                statuses = self._open.reward(ids, values)
                if self._open.complete:
                    self._close(self._open)
        warn_of_ignored(statuses, stacklevel=3)  # the caller of update or update_many
        return statuses

    # -- epochs -----------------------------------------------------------------------------------

    def close_epoch(self) -> None:
        """Close an epoch whose decisions are all taken without waiting for missing rewards."""
        with self._lock:
            self._check_process()
            if self._open is None:
                return
            if self._open.remaining:
                raise HorizonError(
                    f"{self._open.remaining} decisions of this epoch are still to be taken: an "
                    "epoch closes on its number of decisions, never earlier"
                )
            self._close(self._open)

    def _epoch_with_room(self) -> OpenEpoch:
        """The open epoch, after closing one whose decisions are all taken."""
        self._course.learn()
        if self._open is not None and self._open.remaining == 0:
            self._close(self._open)
        if self._open is None:
            plan = self._course.plan()
            if plan is None:
                raise self._at_the_horizon()
            self._enter(plan, self._decided)
        assert self._open is not None
        return self._open

    def _enter(self, plan: EpochPlan, first: int) -> None:
        """Open an epoch whose first decision has this number."""
        self._open = OpenEpoch(plan, self._origin + first, self._problem, self._gate, self._origin)
        self._chooser = None

    def _close(self, epoch: OpenEpoch) -> None:
        """Release the epoch, forget it, and learn from the release."""
        release = epoch.release()
        self._open = None
        self._course.close(release)

    # -- storage ----------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to one file.

        A simulation is stored whole and continues bit for bit. A private run stores only what is
        public: the un-noised sum of an open epoch and its pending decisions are dropped, and the
        dropped decisions contribute nothing. Save when an epoch has just closed to lose nothing.
        """
        with self._lock:
            # Digests of user ids can be guessed from: only the owner may read such a file.
            write_policy_file(path, *self._state(), confidential=self._participation is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Let simulations be copied and pickled; two copies of private data would both release."""
        if self.private:
            raise TypeError(
                "a private policy is neither pickled nor copied: use policy.save and Capri.load"
            )
        return super().__getstate__()

    @classmethod
    def load(cls, path: str | PathLike[str], *, contexts: Contexts | None = None) -> "Capri":
        """Read a saved policy. A context sampler is code and must be given again."""
        values, arrays = read_policy_file(path)
        with damage_as_storage_error(path):
            policy = cls(
                **problem_arguments(values["problem"], arrays, contexts),
                horizon=values["horizon"],
                preset=values["preset"],
                simulation_seed=0 if values["simulated"] else None,
                **values["options"],
            )
            policy._restore(values, arrays)
        return policy

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        configuration, problem_arrays = self._configuration()
        course_values, course_arrays = self._course.state()
        values: dict[str, Any] = {
            **configuration,
            "simulated": self._streams.simulated,
            "streams": self._streams.state(),
            "decided": self._decided,
            **course_values,
            "ledger": None if self._ledger is None else ledger_state(self._ledger),
            "participation": None if self._participation is None else self._participation.state(),
            "open": None,
        }
        arrays: dict[str, Any] = course_arrays | problem_arrays
        if self._open is not None:
            plan_values, plan_arrays = plan_state(self._open.plan)
            values["open"] = {
                "plan": plan_values,
                "first_decision": self._decided - self._open.issued,
                "issued": self._open.issued,
                "plan_seconds": self._course.plan_seconds,
            }
            arrays |= plan_arrays
            if self._streams.simulated:
                arrays |= self._open.state()
        return values, arrays

    def _restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        if values["simulated"]:
            self._streams.restore(values["streams"])
        if self._participation is not None:
            self._participation.restore(values["participation"])
        if self._ledger is not None:
            ledger_from_state(self._ledger, values["ledger"])
        self._decided = values["decided"]
        stored = values["open"]
        self._course.restore(values, arrays, 0.0 if stored is None else stored["plan_seconds"])
        if stored is not None:
            plan = plan_from_state(stored["plan"], arrays, self._problem.kernel)
            self._enter(plan, stored["first_decision"])
            assert self._open is not None
            if values["simulated"]:
                self._open.restore(arrays)
            else:
                self._open.forsake(stored["issued"])
