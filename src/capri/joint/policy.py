"""The curator: decides, collects rewards, and lets one noisy vector per epoch out of the gate."""

import os
from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime, timedelta
from threading import RLock
from typing import Any, Self

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.blas import one_blas_thread
from capri.cells import number_or_missing
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.available import Sets
from capri.epoch.course import Course
from capri.epoch.decide import (
    Chooser,
    Decision,
    Decisions,
    RewardStatus,
    decision_rewards,
    warn_of_ignored,
)
from capri.epoch.history import History
from capri.epoch.ids import NOBODY, SIMULATED, DecisionIds
from capri.epoch.limits import Limits
from capri.epoch.modes import Logged, Mode, Operation, as_logged, serve
from capri.epoch.problem import checked_problem
from capri.epoch.rewards import checked_terms
from capri.epoch.scale import checked_scale
from capri.epoch.shadow import ShadowRecord
from capri.errors import BudgetError, ConfigurationError, HorizonError, ShapeError
from capri.joint.backing import Backing
from capri.joint.flights import Flights
from capri.joint.keys import KeyBook
from capri.joint.stored import checked_retention, participation_of
from capri.kernels import Kernel
from capri.learners.presets import build, checked_horizon, checked_options, settled
from capri.learners.start import Prior, checked_prior
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate
from capri.privacy.gate import Gate, Observer, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import Contexts, as_visits, as_wanted


class Capri(Flights):
    """A differentially private contextual kernel bandit.

    Parameters
    ----------
    kernel:
        Kernel on pairs (context, action), with ``k(w, w) <= 1``.
    actions:
        Feature rows of the actions, ``(n_actions, d)``; names or a number, for actions that have
        nothing to do with each other; a table whose column ``name`` names them; or
        :class:`VaryingActions` where every context brings its own.
    contexts:
        The public law of contexts: a :class:`ContextPool` or a :class:`ContextSampler`. With a
        :class:`Schema` in it, contexts are records with named columns.
    reward_bound:
        ``B``, 1 by default: rewards beyond ``[-B, B]`` are clipped. Also the bound on the RKHS norm
        of ``f``. It is the short form of ``reward_range=(-B, B)``.
    reward_range:
        ``(low, high)``: rewards beyond are clipped. The privacy noise goes with its width, so give
        the range that is needed: ``(0, 1)`` for clicks has half the noise of ``reward_bound=1``.
    reward_transform:
        "log1p" or "sqrt": rewards are clipped to their range and learnt by this public transform,
        for counts and durations. Estimates are then of the transformed reward.
    budget:
        What each user is promised, or None to run without privacy.
    horizon:
        Number of decisions. None for a run without end, which preset "paper" cannot do.
    model:
        "joint": a trusted curator adds noise once per epoch. "local", of preset "paper" alone:
        noise is added to every single report before it is summed. This class sees contexts and
        rewards either way; where nobody is trusted, :class:`~capri.LocalCapri` takes its place.
    preset:
        "practical", which learns at horizons people run, or "paper", Algorithm 1 with its printed
        constants.
    contributions_per_user, contributions_per_epoch:
        None: each user comes once, no ids are kept. A number: users carry ids, contribute at most
        so often in all and per epoch (once by default), and the noise covers all of a user's
        contributions together.
    reward_wait:
        How long an epoch that has taken its decisions stays open for rewards while later epochs
        already play: a number of decisions, or a :class:`datetime.timedelta`. Rewards that come
        later are lost.
    missing_reward:
        What a reward that never comes counts as: a number, or "as-estimated" for what the last
        estimate expected; the rate of rewards that come is then measured in private.
    reward_rule:
        What several rewards for one decision make together: "first", "last", "sum" or "max". All
        but the first need a key with every reward; the same key counts once.
    epoch_time:
        An epoch also ends when this much time has passed since its first decision.
    clock:
        The public clock, a function without arguments that gives a :class:`datetime.datetime`.
    store:
        None: the policy lives in the memory of this process. "sqlite:///file.db" or
        "postgresql://...": what was answered is durable, and any number of processes that open the
        same store are one policy. See :meth:`open` and :meth:`close`.
    store_key:
        32 bytes that seal the secret columns of the store, kept elsewhere.
    key_retention:
        How long the decision of a key is kept; None for the wait plus 30 days.
    after:
        A certificate of this store: a copy of the store that is older is refused.
    limits:
        Public :class:`Limits` that every decision keeps: floors, ceilings and shares of actions,
        rules on who is offered them, and which sets of available actions are to be expected.
    anchor:
        Where, outside of the store, is noted how far it has come: a file, or the address of another
        database. An older copy of the store is then refused by every process and machine.
    new_anchor:
        The anchor may know nothing of a store that has published something. Else it is refused: it
        may be the wrong one, or lost. Give it once, if the store is certainly the newest copy.
    prior:
        What is known beforehand, a :class:`Prior`: public rows, a fitted model, another policy's
        releases. Believed as far as releases bear it out.
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
        actions: object,
        contexts: Contexts,
        kernel: Kernel | str = "auto",
        budget: Budget | None,
        horizon: int | None = None,
        reward_bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        reward_transform: str | None = None,
        model: str = "joint",
        preset: str = "practical",
        contributions_per_user: int | None = None,
        contributions_per_epoch: int | None = None,
        reward_wait: int | timedelta = 0,
        missing_reward: float | str = 0.0,
        reward_rule: str = "first",
        epoch_time: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
        simulation_seed: int | None = None,
        store: str | None = None,
        store_key: bytes | None = None,
        key_retention: timedelta | None = None,
        after: Certificate | None = None,
        limits: Limits | None = None,
        anchor: str | None = None,
        new_anchor: bool = False,
        prior: Prior | None = None,
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
        scale = checked_scale(reward_bound, reward_range, reward_transform)
        self._problem = checked_problem(
            kernel=kernel,
            actions=actions,
            contexts=contexts,
            scale=scale,
            budget=budget,
            model=model,
            limit=limit,
            limits=limits,
            rewards=checked_terms(
                reward_wait=reward_wait,
                missing_reward=missing_reward,
                reward_rule=reward_rule,
                epoch_time=epoch_time,
                scale=scale,
            ),
        )
        if clock is not None and not callable(clock):
            raise ConfigurationError(
                "clock must be a function without arguments that gives a datetime.datetime, got "
                f"{type(clock).__name__}"
            )
        self._clock = clock
        self._horizon = checked_horizon(horizon)
        self._preset = preset
        self._blocks = options.get("blocks")
        self._options = settled(self._problem, checked_options(preset, options))
        self._streams = Streams(simulation_seed)
        self._observed = checked_prior(prior, self._problem)
        with one_blas_thread():
            schedule, learner = build(
                self._problem,
                self._options,
                self._horizon,
                self._streams.public,
                self._observed,
            )
        self._course = Course(schedule, learner, self._streams, timed=self._streams.simulated)
        self._participation = None if limit is None else participation_of(limit, store)
        self._begin_run()
        self._keyed = self._problem.rewards.rule.keyed
        self._timed = self._problem.rewards.timed
        self._decided = 0
        self._opened = 0
        # The epoch that takes decisions, and those that wait for rewards, oldest first.
        self._open: OpenEpoch | None = None
        self._waiting: list[OpenEpoch] = []
        self._chooser: Chooser | None = None
        self._played = 0  # releases behind the law that the open epoch plays
        self._mode, self._operations = Mode(), list[Operation]()
        self._shadows: list[ShadowRecord] = []
        # Servers call from many threads; a decision or a reward must be counted once.
        self._lock = RLock()
        self._process = os.getpid() if self.private or store is not None else None
        self._retention = checked_retention(key_retention, self._problem.rewards.wait)
        self._keys = KeyBook(self._retention)
        self._backing: Backing | None = None
        if store is not None:
            self._attach(store, store_key, after, anchor, new_anchor)
        elif store_key is not None or after is not None or anchor is not None or new_anchor:
            raise ConfigurationError("store_key, after and anchor are of use with a store only")

    def _begin_run(self) -> None:
        """What belongs to one run alone: its account, its noise and its ids."""
        self._ledger: Ledger | None = None
        if self._problem.budget is not None:
            self._ledger = Ledger(
                self._problem.budget,
                composition=self._problem.composition,
                participation=self._participation,
                prior=None if self._observed is None else self._observed.event,
            )
        self._gate = Gate(noise_source(self._streams.noise), self._ledger)
        self._ids = SIMULATED if self._streams.simulated else DecisionIds()
        self._history = History.new() if self.private else None

    def go_live(self) -> Self:
        """A private run that starts where this simulation stands, as often as one likes.

        It takes over what the simulation learnt, its epochs and the plan of an epoch that nobody
        has come to yet. Noise, draws, ids, keys, ledger and users are its own, and the simulation
        stays as it is. What a simulation learnt is taken for public here: it must have served
        made-up users, not recorded ones.
        """
        if self.private or self._problem.budget is None:
            raise ConfigurationError(
                "only a simulation with a budget can go live: give the policy both a budget and a "
                "simulation_seed"
            )
        if self.pending:
            raise ConfigurationError(
                f"an epoch of this simulation is under way: fill it with {self.remaining} more "
                "decisions and call close_epoch() before it goes live"
            )
        run, limit = copy(self), self._problem.limit
        run._streams = Streams(None)
        run._course = self._course.branch(run._streams)
        run._participation = None if limit is None else Participation(limit)
        run._begin_run()
        run._keys = KeyBook(self._retention)
        run._process = os.getpid()
        if run._open is not None:
            run._enter(run._open.plan, run._decided)
        return run

    def observe(self, observer: Observer) -> None:
        """Show this function every vector that leaves the gate in this process from now on.

        It is given what the theorem calls public, once it is: for audits, and for whoever wants to
        check a release by other means. What it raises ends the call that released, and leaves a
        policy that must not be used any more. Not kept in files and copies.
        """
        self._gate.observe(observer)

    def __repr__(self) -> str:
        return f"Capri({self.guarantee}; epoch {len(self._course.records) + 1})"

    # -- deciding ---------------------------------------------------------------------------------

    def act(
        self,
        context: object,
        *,
        user: UserId | None = None,
        key: str | None = None,
        available: object = None,
        chosen: str | int | None = None,
        chosen_propensity: float | None = None,
    ) -> Decision:
        """Decide for one context: a row of numbers or, with a schema, a record by name.

        Any cells are served: a context that is no row of numbers up to 1e100 is played by
        the default law, every action alike, and counts for nothing, as its ``status`` says. The
        same ``key`` gets the same decision while it is kept, whatever the context is then and
        whoever sends it: make keys that nobody can guess, as ``secrets.token_urlsafe()`` does.

        ``available``: the actions that this visit may get, by name or number, or one truth value
        for each; None for all. It belongs to the user and is never refused for what is in it: a set
        of which nothing can be offered is served as if there were none, and counts for nothing.

        ``chosen`` and ``chosen_propensity``: what another system did and how probable that was, of
        use in mode "shadow" alone (:meth:`set_mode`).
        """
        contexts = self._problem.contexts
        visit = as_visits(contexts.encoded(context, single=True), contexts.dimension, single=True)
        users, keys = None if user is None else [user], None if key is None else [key]
        logged = None
        if chosen is not None or chosen_propensity is not None:
            logged = as_logged([chosen], [chosen_propensity], 1)
        sets = self._sets(available, 1, single=True)
        return self._serve(*visit, users, keys, logged, sets)[0]

    def act_many(
        self,
        contexts: object,
        *,
        users: Sequence[UserId] | None = None,
        keys: Sequence[str] | None = None,
        available: object = None,
        chosen: Sequence[str | int | None] | None = None,
        chosen_propensities: Sequence[float | None] | None = None,
    ) -> Decisions:
        """Decide for at most :attr:`remaining` contexts, ``(n, d)``, whatever their values.

        ``available``: an array of truth values, ``(n, n_actions)``, or a list with a set for each.
        """
        public = self._problem.contexts
        visits = as_visits(public.encoded(contexts), public.dimension)
        logged = as_logged(chosen, chosen_propensities, len(visits[0]))
        return self._serve(*visits, users, keys, logged, self._sets(available, len(visits[0])))

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
        if not self.mode.active:
            raise ConfigurationError('a log is replayed in mode "active" only')
        if self._backing is not None:
            return self._serve_stored(rows, None, None, None, None, wanted)
        with self._lock:
            return self._decide(rows, None, None, None, wanted)

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
        logged: Logged | None = None,
        wanted: IntArray | None = None,
        available: Sets | None = None,
    ) -> tuple[Decisions, BoolArray]:
        self._check_process()
        self._check_room(len(rows))
        self._check_users(users, len(rows))
        if len(rows) == 0:
            return self._no_decisions(), np.empty(0, dtype=np.bool_)
        epoch = self._epoch_with_room()
        sets = None if available is None else available.among(self._problem.actions)
        if self._chooser is None:
            learner = self._course.learner
            self._chooser = Chooser(self._problem, learner.probabilities, learner.pool_law())
        if self._timed:  # before anything is reserved: a clock is code of the caller
            self._keep_time(epoch, len(rows))
        mode, within = self._mode, None
        if self._participation is not None and users is not None and mode.contributes:
            within = self._participation.take(users, epoch.plan.epoch)
        uniform = self._streams.actions.random(len(rows))
        served = serve(
            mode, self._problem, self._chooser, rows, valid, within, uniform, logged, sets
        )
        place, actions, propensity = served.place, served.action, served.propensity
        status = served.status
        kept = np.ones(len(rows), dtype=np.bool_) if wanted is None else actions == wanted
        if wanted is not None:
            rows, place, actions, propensity, status = (
                rows[kept], place[kept], actions[kept], propensity[kept], status[kept]
            )  # fmt: skip
        pairs = self._problem.actions.chosen(rows, actions)
        if mode.active:
            numbers = epoch.issue(pairs, place, actions, status)
        else:
            numbers = epoch.issue_apart(pairs, actions, status, served.weights)
        self._decided += len(rows)
        features = pairs[:, pairs.shape[1] - self._problem.actions.dimension :]
        names = self._problem.actions.names
        return Decisions(
            numbers, epoch.plan.epoch, actions, features, propensity, status, self._ids, names
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
        opened, names = max(1, self._opened), self._problem.actions.names
        return Decisions(nobody, opened, nobody, features, nothing, nobody, self._ids, names)

    def _check_room(self, count: int) -> None:
        epoch = self._open
        usual = epoch is not None and not self._waiting and not self._timed
        if usual and epoch is not None and count <= epoch.plan.length - epoch.issued:
            return
        if count <= self.remaining:
            return
        if self.remaining == 0:
            raise self._at_the_horizon()
        raise HorizonError(
            f"{count} decisions were asked for, {self.remaining} are left in this epoch: "
            "ask for at most policy.remaining at once"
        )

    # -- rewards ----------------------------------------------------------------------------------

    def update(
        self, decision: Decision | str, reward: float | None, *, key: str | None = None
    ) -> RewardStatus:
        """Add the reward of one decision, given as such or by its id; says what became of it.

        Rules other than "first" take several rewards and need a ``key`` with each: one with a key
        that came before changes nothing, so a reward may be sent any number of times.
        """
        keys = None
        if key is not None or self._keyed:
            keys = self._checked_keys(None if key is None else [key], 1)
        if isinstance(decision, Decision) and decision.ids is self._ids:  # the usual call
            value = reward if type(reward) is float else number_or_missing(reward)
            statuses = self._reward(np.array([decision.number]), np.array([value]), keys)
        else:
            statuses = self._reward(*self._numbered([decision], [reward]), keys)
        return RewardStatus(statuses[0])

    def update_many(
        self,
        decisions: Decisions | Sequence[Decision | str],
        rewards: object,
        *,
        keys: Sequence[str] | None = None,
    ) -> IntArray:
        """Add many rewards and return :class:`RewardStatus` codes, one for each.

        Every reward is judged by itself. One that is late, repeated, for nobody, or not a number
        (which is a reward that is missing) changes nothing; simulations then raise a
        :class:`RewardIgnoredWarning`, private runs stay silent.
        """
        numbers, values = self._numbered(decisions, rewards)
        return self._reward(numbers, values, self._checked_keys(keys, len(numbers)))

    def _numbered(
        self, decisions: Decisions | Sequence[Decision | str], rewards: object
    ) -> tuple[IntArray, FloatArray]:
        """Numbers of decisions and their rewards.

        An id that is nobody's may be made by a key that another process has rotated in.
        """
        found = decision_rewards(decisions, rewards, self._ids)
        if self._backing is not None and (found[0] == NOBODY).any():
            self._backing.look()
            found = decision_rewards(decisions, rewards, self._ids)
        return found

    def _checked_keys(self, keys: Sequence[str] | None, count: int) -> Sequence[str] | None:
        """The keys of some rewards; they are public in kind and number, never shown."""
        rule = self._problem.rewards.rule
        if keys is None:
            if rule.keyed and count:
                raise ConfigurationError(
                    f"reward_rule={str(rule)!r} takes several rewards for a decision: give each a "
                    "key, so that one that is sent twice counts once"
                )
            return None
        if isinstance(keys, str | bytes) or len(keys) != count:
            raise ShapeError(f"one key per reward is needed, {count} in all")
        if not all(isinstance(key, str) for key in keys):
            raise ConfigurationError("the key of a reward must be a text")
        return keys if rule.keyed else None

    def _reward(
        self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None
    ) -> IntArray:
        self._check_process()
        if self._backing is not None:
            statuses = self._backing.reward(numbers, values, keys)
            if self._streams.simulated:
                warn_of_ignored(statuses, stacklevel=3)
            return statuses
        with self._lock:
            if self._open is not None and not self._waiting and not self._timed:  # nearly always
                statuses = self._open.reward(numbers, values, keys)
            else:
                statuses = self._reward_apart(numbers, values, keys)
        if self._streams.simulated:
            warn_of_ignored(statuses, stacklevel=3)  # the caller of update or update_many
        return statuses
