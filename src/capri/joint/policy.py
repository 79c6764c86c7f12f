"""The curator: decides, collects rewards, and lets one noisy vector per epoch out of the gate."""

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from os import PathLike
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.decide import (
    Decision,
    Decisions,
    LawTable,
    RewardStatus,
    decision_rewards,
    warn_of_ignored,
)
from capri.epoch.plan import EpochRecord, Release
from capri.epoch.problem import PrivacyModel, checked_problem
from capri.epoch.storage import (
    damage_as_storage_error,
    ledger_from_state,
    ledger_state,
    plan_from_state,
    plan_state,
    problem_arguments,
    problem_state,
    read_bundle,
    write_bundle,
)
from capri.errors import (
    BudgetError,
    ConfigurationError,
    DataError,
    HorizonError,
    ShapeError,
)
from capri.kernels import Kernel
from capri.learners.presets import build, checked_horizon, checked_options
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, certify
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.promise import NOTHING, Promise
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import (
    ContextPool,
    Contexts,
    as_contexts,
    as_numbers,
    as_wanted,
    context_chunks,
)

if TYPE_CHECKING:
    from capri.forecast.result import Forecast

# The sampling law of a pool is kept as a table up to this many pairs, else computed when needed.
_TABLE_PAIRS = 1 << 20


class Capri:
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
            self._schedule, self._learner = build(
                self._problem, self._options, self._horizon, self._streams.public
            )
        self._participation = None if limit is None else Participation(limit)
        self._ledger: Ledger | None = None
        if budget is not None:
            self._ledger = Ledger(
                budget,
                composition=self._problem.composition,
                participation=self._participation,
            )
        self._gate = Gate(self._problem.model, self._streams.noise, self._ledger)
        self._records: list[EpochRecord] = []
        # Private runs start at a random number, so that a decision made before a restart is unknown
        # to the restarted policy instead of being taken for somebody else's.
        self._origin = 0 if self._streams.simulated else secrets.randbelow(1 << 62)
        self._decided = 0
        self._open: OpenEpoch | None = None
        self._table: LawTable | None = None
        self._plan_seconds = 0.0
        self._unlearnt: Release | None = None
        # Servers call from many threads; a decision or a reward must be counted once.
        self._lock = RLock()
        self._process = os.getpid()

    # -- what is public ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Capri({self.guarantee}; epoch {len(self._records) + 1})"

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

    def certificate(self) -> Certificate:
        """The guarantee with its assumptions, mechanism and noise, for a reader and for a machine.

        Refused to a run without a budget and to a simulation: neither protects anybody.
        """
        return certify(self._problem, self._ledger, private=self._streams.noise.private)

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """One record per closed epoch."""
        return tuple(self._records)

    @property
    def horizon(self) -> int | None:
        """Number of decisions the policy was built for; None for any number."""
        return self._horizon

    @property
    def remaining(self) -> int:
        """Decisions that the next call of :meth:`act_many` may ask for; 0 at the horizon."""
        with self._lock:
            if self._open is not None and self._open.remaining:
                return self._open.remaining
            return self._schedule.length(self._next_epoch)

    @property
    def _next_epoch(self) -> int:
        """Number of the epoch that a decision would open once the present one is full."""
        under_way = self._open is not None or self._unlearnt is not None
        return len(self._records) + 1 + under_way

    def estimate(self, contexts: object) -> FloatArray:
        """Public estimates of ``f`` for every action, ``(n, n_actions)``; 0 before any release."""
        return self._learner.estimate(as_contexts(contexts, self._problem.contexts.dimension))

    def active(self, contexts: object) -> BoolArray:
        """Which actions no test has ruled out, ``(n, n_actions)`` of True and False."""
        return self._learner.active(as_contexts(contexts, self._problem.contexts.dimension))

    def forecast(
        self,
        *,
        horizons: Sequence[int] = (1_000, 10_000, 100_000),
        epsilons: Sequence[float] | None = None,
        functions: int = 10,
        noise: float = 0.1,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Forecast":
        """What to expect of this configuration, from play against random functions.

        Touches neither users nor this policy. See :func:`capri.forecast.forecast`.
        """
        from capri.forecast.run import forecast

        return forecast(
            self,
            horizons=horizons,
            epsilons=epsilons,
            functions=functions,
            noise=noise,
            seed=seed,
            progress=progress,
        )

    def probabilities(self, contexts: object) -> FloatArray:
        """The public law actions are drawn from now, ``(n, n_actions)``; rows sum to 1."""
        return self._learner.probabilities(as_contexts(contexts, self._problem.contexts.dimension))

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
        rows = as_contexts(contexts, self._problem.contexts.dimension)
        with self._lock:
            return self._decide(rows, users)[0]

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made.

        For replaying a log in simulation; says which were kept. A private policy refuses: who is
        kept depends on what earlier users did, which no ledger here accounts for.
        """
        rows = as_contexts(contexts, self._problem.contexts.dimension)
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
            number = len(self._records) + 1 if room else self._next_epoch
            self._participation.check(users, number)
        epoch = self._epoch_with_room()
        if self._participation is not None and users is not None:
            self._participation.add(users, epoch.plan.epoch)
        # Alg. 1, line 12.
        place = self._locate(rows)
        actions, propensity = self._draw_actions(rows, place)
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
            nobody, len(self._records) + 1, nobody, np.empty((0, features)), np.empty(0)
        )

    def _check_room(self, count: int) -> None:
        if count <= self.remaining:
            return
        if self.remaining == 0:
            raise HorizonError(
                f"all {self._horizon} decisions of the horizon are taken: build a new policy, for "
                "new users or with a new budget, to go on"
            )
        raise HorizonError(
            f"{count} decisions were asked for, {self.remaining} are left in this epoch: "
            "ask for at most policy.remaining at once"
        )

    def _locate(self, rows: FloatArray) -> IntArray:
        """Where each context stands in the pool, -1 where it does not or where there is none."""
        contexts = self._problem.contexts
        if isinstance(contexts, ContextPool):
            return contexts.locate(rows)
        return np.full(len(rows), -1)

    def _draw_actions(self, rows: FloatArray, place: IntArray) -> tuple[IntArray, FloatArray]:
        """Draw from the sampling law, one uniform number per decision."""
        uniform = self._streams.actions.random(len(rows))
        actions = np.empty(len(rows), dtype=np.int64)
        propensity = np.empty(len(rows))
        inside = place >= 0 if self._table is not None else np.zeros(len(rows), dtype=np.bool_)
        if self._table is not None and inside.any():
            pool = place if inside.all() else place[inside]
            actions[inside], propensity[inside] = self._table.draw(pool, uniform[inside])
        outside = np.flatnonzero(~inside)
        for part in context_chunks(len(outside), self._problem.actions.count):
            which = outside[part]
            law = LawTable(self._learner.probabilities(rows[which]))
            actions[which], propensity[which] = law.draw(np.arange(len(which)), uniform[which])
        return actions, propensity

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
            statuses = self._count(ids, values)
        warn_of_ignored(statuses, stacklevel=3)  # the caller of update or update_many
        return statuses

    def _count(self, ids: IntArray, values: FloatArray) -> IntArray:
        self._check_process()
        if self._open is None:
            known = (ids >= self._origin) & (ids < self._origin + self._decided)
            return np.where(known, RewardStatus.LATE, RewardStatus.UNKNOWN).astype(np.int64)
        statuses = self._open.reward(ids, values)
        if self._open.complete:
            self._close(self._open)
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
        self._learn()
        if self._open is not None and self._open.remaining == 0:
            self._close(self._open)
        if self._open is None:
            started = perf_counter()
            number = len(self._records) + 1
            length = self._schedule.length(number)
            with one_blas_thread():
                plan = self._learner.plan(number, length, self._streams.public)
            first_id = self._origin + self._decided
            self._open = OpenEpoch(plan, first_id, self._problem, self._gate, self._origin)
            self._fill_table()
            self._plan_seconds = perf_counter() - started
        return self._open

    def _fill_table(self) -> None:
        """Tabulate the law of pool contexts; only public rows, so a look-up tells nothing."""
        contexts, count = self._problem.contexts, self._problem.actions.count
        law = self._learner.pool_law()
        if (
            law is None
            and isinstance(contexts, ContextPool)
            and contexts.size * count <= _TABLE_PAIRS
        ):
            law = np.empty((contexts.size, count))
            for part in context_chunks(contexts.size, count):
                law[part] = self._learner.probabilities(contexts.rows[part])
        self._table = None if law is None else LawTable(law)

    def _close(self, epoch: OpenEpoch) -> None:
        """Release the epoch, forget it, and learn from the release."""
        self._unlearnt = epoch.release()
        self._open = None
        self._learn()

    def _learn(self) -> None:
        """Learn from a release. If that is interrupted, the next call makes up for it."""
        if self._unlearnt is None:
            return
        # Timed from here: how long the noise took depends on how many rewards were missing.
        started = perf_counter()
        # Alg. 1, lines 18-20.
        with one_blas_thread():
            lesson = self._learner.learn(self._unlearnt, self._streams.public)
        plan = self._unlearnt.plan
        record = EpochRecord(
            epoch=plan.epoch,
            length=plan.length,
            rank=plan.features.rank,
            tau=plan.tau,
            sigma_max=plan.sigma_max,
            noise_scale=plan.noise_scale,
            width=lesson.width,
            active_share=lesson.active_share,
            predicted_error=lesson.predicted_error,
            noise_share=lesson.noise_share,
            seconds=self._plan_seconds + perf_counter() - started,
        )
        self._records.append(record)
        self._unlearnt = None

    # -- storage ----------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to one file.

        A simulation is stored whole and continues bit for bit. A private run stores only what is
        public: the un-noised sum of an open epoch and its pending decisions are dropped, and the
        dropped decisions contribute nothing. Save when an epoch has just closed to lose nothing.
        """
        with self._lock:
            self._learn()
            # Digests of user ids can be guessed from: only the owner may read such a file.
            write_bundle(path, *self._state(), confidential=self._participation is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Let simulations be copied and pickled; two copies of private data would both release."""
        if self.private:
            raise TypeError(
                "a private policy is neither pickled nor copied: use policy.save and Capri.load"
            )
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = RLock()

    @classmethod
    def load(cls, path: str | PathLike[str], *, contexts: Contexts | None = None) -> "Capri":
        """Read a saved policy. A context sampler is code and must be given again."""
        values, arrays = read_bundle(path)
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
        problem_values, problem_arrays = problem_state(self._problem)
        learner_values, learner_arrays = self._learner.state()
        values: dict[str, Any] = {
            "problem": problem_values,
            "horizon": self._horizon,
            "preset": self._preset,
            "options": asdict(self._options),
            "simulated": self._streams.simulated,
            "streams": self._streams.state(),
            "decided": self._decided,
            "epochs": [record.to_dict() for record in self._records],
            "ledger": None if self._ledger is None else ledger_state(self._ledger),
            "participation": None if self._participation is None else self._participation.state(),
            "learner": learner_values,
            "open": None,
        }
        arrays: dict[str, Any] = learner_arrays | problem_arrays
        if self._open is not None:
            plan_values, plan_arrays = plan_state(self._open.plan)
            values["open"] = {
                "plan": plan_values,
                "first_decision": self._decided - self._open.issued,
                "issued": self._open.issued,
                "plan_seconds": self._plan_seconds,
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
        self._records = [EpochRecord(**record) for record in values["epochs"]]
        self._learner.restore((values["learner"], arrays))
        if values["open"] is not None:
            stored = values["open"]
            plan = plan_from_state(stored["plan"], arrays, self._problem.kernel)
            first_id = self._origin + stored["first_decision"]
            self._open = OpenEpoch(plan, first_id, self._problem, self._gate, self._origin)
            if values["simulated"]:
                self._open.restore(arrays)
            else:
                self._open.forsake(stored["issued"])
            self._plan_seconds = stored["plan_seconds"]
            self._fill_table()
