"""The curator: decides, collects rewards, and lets one noisy vector per epoch out of the gate."""

import os
from collections.abc import Sequence
from threading import RLock
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.course import Course
from capri.epoch.decide import (
    Chooser,
    Decision,
    Decisions,
    RewardStatus,
    VisitStatus,
    decision_rewards,
    warn_of_ignored,
)
from capri.epoch.history import History
from capri.epoch.ids import SIMULATED, DecisionIds
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import checked_problem
from capri.errors import BudgetError, ConfigurationError, HorizonError, ShapeError
from capri.joint.saved import Saved
from capri.kernels import Kernel
from capri.learners.presets import build, checked_horizon, checked_options
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import Contexts, as_visits, as_wanted

# Plain numbers: looking up a member of an enumeration takes long.
_, INVALID_CONTEXT, OVER_LIMIT = (int(status) for status in VisitStatus)


class Capri(Saved):
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
        self._course = Course(schedule, learner, self._streams, timed=self._streams.simulated)
        self._participation = None if limit is None else Participation(limit)
        self._ledger: Ledger | None = None
        if budget is not None:
            self._ledger = Ledger(
                budget,
                composition=self._problem.composition,
                participation=self._participation,
            )
        self._gate = Gate(noise_source(self._streams.noise), self._ledger)
        self._ids = SIMULATED if self._streams.simulated else DecisionIds()
        self._history = History.new() if self.private else None
        self._decided = 0
        self._open: OpenEpoch | None = None
        self._chooser: Chooser | None = None
        # Servers call from many threads; a decision or a reward must be counted once.
        self._lock = RLock()
        self._process = os.getpid() if self.private else None

    def __repr__(self) -> str:
        return f"Capri({self.guarantee}; epoch {len(self.epochs) + 1})"

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        with self._lock:
            return self._open is not None and self._open.issued > 0

    def plan(self) -> EpochPlan:
        """The public plan of the epoch under way; opens one where there is none, closes none."""
        with self._lock:
            self._check_process()
            return (self._epoch_with_room() if self._open is None else self._open).plan

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

    # -- deciding ---------------------------------------------------------------------------------

    def act(self, context: object, *, user: UserId | None = None) -> Decision:
        """Decide for one context, given as a row of numbers.

        Any numbers are served: a context that is none (NaN, infinite, beyond 1e100) is played by
        the default law, every action alike, and counts for nothing, as its ``status`` says.
        """
        visit = as_visits(context, self._problem.contexts.dimension, single=True)
        with self._lock:
            return self._decide(*visit, None if user is None else [user])[0][0]

    def act_many(self, contexts: object, *, users: Sequence[UserId] | None = None) -> Decisions:
        """Decide for at most :attr:`remaining` contexts, ``(n, d)``, whatever their values."""
        visits = as_visits(contexts, self._problem.contexts.dimension)
        with self._lock:
            return self._decide(*visits, users)[0]

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
            return self._decide(rows, None, None, wanted)

    def _check_process(self) -> None:
        """A private policy stays in its process: a forked copy would count users and data twice."""
        if self._process not in (None, os.getpid()):
            raise BudgetError(
                "this policy belongs to the process that built it, and was forked: "
                "build or load a policy in the child, for users of its own"
            )

    def _decide(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        wanted: IntArray | None = None,
    ) -> tuple[Decisions, BoolArray]:
        self._check_process()
        self._check_room(len(rows))
        self._check_users(users, len(rows))
        if len(rows) == 0:
            return self._no_decisions(), np.empty(0, dtype=np.bool_)
        epoch = self._epoch_with_room()
        if self._chooser is None:
            learner = self._course.learner
            self._chooser = Chooser(self._problem, learner.probabilities, learner.pool_law())
        status = np.zeros(len(rows), dtype=np.int64)
        if self._participation is not None and users is not None:
            status[~self._participation.take(users, epoch.plan.epoch)] = OVER_LIMIT
        if valid is not None:
            status[~valid] = INVALID_CONTEXT
        uniform = self._streams.actions.random(len(rows))
        place, actions, propensity = self._chooser.draw(rows, valid, uniform)
        kept = np.ones(len(rows), dtype=np.bool_) if wanted is None else actions == wanted
        if wanted is not None:
            rows, place, actions, propensity, status = (
                rows[kept], place[kept], actions[kept], propensity[kept], status[kept]
            )  # fmt: skip
        numbers = epoch.issue(rows, place, actions, status)
        self._decided += len(rows)
        features = self._problem.actions.features_of(rows, actions)
        return Decisions(
            numbers, epoch.plan.epoch, actions, features, propensity, status, self._ids
        ), kept

    def _check_users(self, users: Sequence[UserId] | None, count: int) -> None:
        if count and (users is None) != (self._participation is None):
            raise ConfigurationError(
                "user ids are needed with contributions_per_user, and only then"
            )
        if isinstance(users, str | bytes):
            raise ConfigurationError("users must be a sequence of ids, got a single string")
        if users is not None and len(users) != count:
            raise ShapeError(f"one user id per context is needed: {count}, got {len(users)}")
        if users is not None and self._participation is not None:
            self._participation.check(users)  # before a full epoch is closed by this visit

    def _no_decisions(self) -> Decisions:
        nobody, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        features = np.empty((0, self._problem.actions.dimension))
        return Decisions(
            nobody, self._course.closed + 1, nobody, features, nothing, nobody, self._ids
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

    def update(self, decision: Decision | str, reward: float | None) -> RewardStatus:
        """Add the reward of one decision, given as such or by its id; says what became of it."""
        if (
            isinstance(decision, Decision)
            and decision.ids is self._ids
            and isinstance(reward, float)
        ):  # the usual call
            statuses = self._reward(np.array([decision.number]), np.array([reward]))
        else:
            statuses = self._reward(*decision_rewards([decision], [reward], self._ids))
        return RewardStatus(statuses[0])

    def update_many(
        self, decisions: Decisions | Sequence[Decision | str], rewards: object
    ) -> IntArray:
        """Add many rewards and return :class:`RewardStatus` codes, one for each.

        Every reward is judged by itself. One that is late, repeated, for nobody, or not a number
        (which is a reward that is missing) changes nothing; simulations then raise a
        :class:`RewardIgnoredWarning`, private runs stay silent.
        """
        return self._reward(*decision_rewards(decisions, rewards, self._ids))

    def _reward(self, numbers: IntArray, values: FloatArray) -> IntArray:
        with self._lock:
            self._check_process()
            if self._open is None:
                known = (numbers >= 0) & (numbers < self._decided)
                statuses = np.where(known, int(RewardStatus.LATE), int(RewardStatus.UNKNOWN))
            else:
                statuses = self._open.reward(numbers, values)
        if self._streams.simulated:
            warn_of_ignored(statuses, stacklevel=3)  # the caller of update or update_many
        return statuses

    # -- epochs -----------------------------------------------------------------------------------

    def close_epoch(self) -> None:
        """Close an epoch whose decisions are all taken: its rewards count up to now.

        Else it closes with the next decision. Never by itself when the last reward comes: whether
        all of them came is not for others to know. Call it after the last decision of the horizon.
        """
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

    def close_full_epoch(self) -> None:
        """Close the open epoch if its decisions are all taken; else nothing happens."""
        with self._lock:
            if self._open is not None and self._open.remaining == 0:
                self.close_epoch()

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
        self._open = OpenEpoch(plan, first, self._problem, self._gate)
        self._chooser = None

    def _close(self, epoch: OpenEpoch) -> None:
        """Release the epoch, forget it, and learn from the release."""
        release = epoch.release()
        self._open = None
        self._course.close(release)
