"""How callers come to an engine: decisions, rewards and epochs, checked before anything happens.

Shapes, types, keys and ids are public and may be refused. Values are private and never are.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import number_or_missing
from capri.choices import as_wanted
from capri.epoch.bounds import Sets, given_sets
from capri.epoch.decide import Logged, as_logged
from capri.epoch.decisions import NOBODY, Decision, DecisionIds, Decisions, decision_rewards
from capri.epoch.modes import Mode, Operation, checked_mode
from capri.epoch.plan import EpochPlan, Segment
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardStatus, warn_of_ignored
from capri.epoch.shadow import ShadowRecord
from capri.errors import BudgetError, ConfigurationError, ShapeError
from capri.joint.changes import changed, noted, plain, schedule_terms
from capri.joint.decisions import Visits
from capri.privacy.budget import UserId, check_users
from capri.spaces import Contexts, as_contexts, as_visits
from capri.store.persistence import Configuration
from capri.store.repository import Forgotten, repeated
from capri.streams import Streams

if TYPE_CHECKING:
    from capri.joint.engine import Engine, Progress, RepositoryUsers


class Serving(ABC):
    """What :class:`capri.Capri` does for users, over an engine."""

    _engine: "Engine"
    _configured: Configuration
    _streams: Streams
    _users: "RepositoryUsers | None"
    _ids: DecisionIds
    _contexts: Contexts
    _process: int | None

    @property
    @abstractmethod
    def preset(self) -> str:
        """The preset it was built from."""

    @property
    @abstractmethod
    def private(self) -> bool:
        """Whether users are really protected."""

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
        contexts = self._contexts
        visit = as_visits(context, contexts.dimension, schema=contexts.schema, single=True)
        users, keys = None if user is None else [user], None if key is None else [key]
        logged = None
        if chosen is not None or chosen_propensity is not None:
            logged = as_logged([chosen], [chosen_propensity], 1)
        sets = None if available is None else self._sets(available, 1, single=True)
        return self._serve(*visit, users, keys, logged, sets)[0][0]

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
        public = self._contexts
        visits = as_visits(contexts, public.dimension, schema=public.schema)
        logged = as_logged(chosen, chosen_propensities, len(visits[0]))
        sets = None if available is None else self._sets(available, len(visits[0]))
        return self._serve(*visits, users, keys, logged, sets)[0]

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made.

        For replaying a log in simulation; says which were kept. A private policy refuses: who is
        kept depends on what earlier users did, which no ledger here accounts for.
        """
        rows = as_contexts(contexts, self._contexts.dimension, self._contexts.schema)
        wanted = as_wanted(
            action_index, len(rows), self._engine.learning.learner.problem.actions.count
        )
        if self.private:
            raise ConfigurationError(
                "a private policy replays no log: who is kept would depend on other users' data. "
                "Build it with simulation_seed"
            )
        if not self._engine.mode.active:
            raise ConfigurationError('a log is replayed in mode "active" only')
        return self._serve(rows, None, None, None, None, wanted=wanted)

    def _check_process(self) -> None:
        """A private policy stays in its process: a forked copy would count users and data twice."""
        if self._process not in (None, os.getpid()):
            raise BudgetError(
                "this policy belongs to the process that built it, and was forked: "
                "build or load a policy in the child, for users of its own"
            )

    def _serve(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        keys: Sequence[str] | None,
        logged: Logged | None,
        available: Sets | None = None,
        wanted: IntArray | None = None,
    ) -> tuple[Decisions, BoolArray]:
        """Decide for visits that may have keys; which of them were kept."""
        if keys is not None:
            keys = _checked_texts("context", "decision", keys, len(rows))
        self._check_process()
        if users is not None or self._users is not None:
            self._check_users(users, len(rows))
        if len(rows) == 0:
            return self._no_decisions(), np.empty(0, dtype=np.bool_)
        engine = self._engine
        if engine.reservation is not None:
            engine.reservation.hold()
        digests = None if users is None or self._users is None else self._users.digests(users)
        names = None if keys is None else engine.repository.rows.key_digests(keys)
        return engine.pace.decide(Visits(rows, valid, digests, names, logged, wanted, available))

    def _sets(self, available: object, count: int, *, single: bool = False) -> Sets | None:
        """Sets of available actions, as they were given."""
        if self.preset == "paper":
            raise ConfigurationError(
                "available needs preset='practical': the paper's algorithm plays every active "
                "action alike"
            )
        return given_sets(available, count, single=single)

    def _check_users(self, users: Sequence[UserId] | None, count: int) -> None:
        if count and (users is None) != (self._users is None):
            raise ConfigurationError(
                "user ids are needed with contributions_per_user, and only then"
            )
        if isinstance(users, str | bytes):
            raise ConfigurationError("users must be a sequence of ids, got a single string")
        if users is not None and len(users) != count:
            raise ShapeError(f"one user id per context is needed: {count}, got {len(users)}")
        if users is not None and self._users is not None:
            check_users(users)  # before a full epoch is closed by this visit

    def _no_decisions(self) -> Decisions:
        nobody, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        actions, state = self._engine.learning.learner.problem.actions, self._engine.state
        features, epoch = np.empty((0, actions.dimension)), max(1, state.following() - 1)
        return Decisions(nobody, epoch, nobody, features, nothing, nobody, self._ids, actions.names)

    # -- rewards ----------------------------------------------------------------------------------

    def update(
        self, decision: Decision | str, reward: float | None, *, key: str | None = None
    ) -> RewardStatus:
        """Add the reward of one decision, given as such or by its id; says what became of it.

        Rules other than "first" take several rewards and need a ``key`` with each: one with a key
        that came before changes nothing, so a reward may be sent any number of times.
        """
        keys = None
        if key is not None or self._engine.keyed:
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
        if (found[0] == NOBODY).any():
            self._engine.state.look()
            found = decision_rewards(decisions, rewards, self._ids)
        return found

    def _checked_keys(self, keys: Sequence[str] | None, count: int) -> Sequence[str] | None:
        """The keys of some rewards; they are public in kind and number, never shown."""
        rule = self._engine.state.problem.rewards.rule
        if keys is None:
            if rule.keyed and count:
                raise ConfigurationError(
                    f"reward_rule={str(rule)!r} takes several rewards for a decision: give each a "
                    "key, so that one that is sent twice counts once"
                )
            return None
        keys = _checked_texts("reward", "reward", keys, count)
        return keys if rule.keyed else None

    def _reward(
        self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None
    ) -> IntArray:
        self._check_process()
        self._engine.pace.check()
        statuses = self._engine.rewards.reward(numbers, values, keys)
        if self._streams.simulated:
            warn_of_ignored(statuses, stacklevel=3)  # the caller of update or update_many
        return statuses

    # -- epochs -----------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether an epoch with decisions is under way."""
        return self._engine.state.has_data()

    @property
    def progress(self) -> "Progress":
        """How far it has come; all of it is public."""
        return self._engine.progress()

    @property
    def remaining(self) -> int:
        """Decisions that the next call of :meth:`act_many` may ask for; 0 at the horizon.

        As many as come before the next public event: an epoch that is full, a release that is due.
        Where a release is due first that may tell of a change, as many as fit in any case.
        """
        return self._engine.state.remaining()

    def warm(self) -> None:
        """Do now what the next decision would wait for: planning, and reading what is played."""
        self._check_process()
        self._engine.warm()

    def probe(self) -> None:
        """Write to the store and change nothing; raises where it takes no write."""
        self._check_process()
        self._engine.probe()

    def check(self) -> None:
        """Raise where nothing is released and planned any more, and decisions are refused."""
        self._engine.pace.check()

    def plan(self) -> EpochPlan:
        """The public plan of the epoch under way; opens one where there is none, closes none."""
        self._check_process()
        return self._engine.plan()

    @property
    def playing(self) -> tuple[EpochPlan, Segment] | None:
        """Plan and segment that new decisions are made by, as anybody may know them.

        None where no epoch is open. Opens nothing.
        """
        return self._engine.playing()

    def close_epoch(self, *, early: bool = False) -> None:
        """Close every epoch whose decisions are all taken: their rewards count up to now.

        Else each closes by itself, ``reward_wait`` after its last decision. Never when the last
        reward comes: whether all of them came is not for others to know. Call it after the last
        decision of the horizon. ``early`` ends the epoch under way, too: what is read of it is
        scaled by the decisions that were made.
        """
        self._check_process()
        engine = self._engine
        repeated(engine.repository, lambda: engine.loop.close_all(early=early))

    def close_full_epoch(self) -> None:
        """Close epochs whose decisions are all taken, if none is under way; else nothing happens.

        Those that wait for rewards go on waiting while another epoch takes decisions.
        """
        self._check_process()
        repeated(self._engine.repository, self._engine.loop.close_full)

    # -- operating --------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Who decides; on a store as this process last read it."""
        return self._engine.mode

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Every change of mode, catalogue and keys, in order."""
        return self._engine.repository.operations()

    @property
    def shadow(self) -> tuple[ShadowRecord, ...]:
        """What the policy would have been worth, for each released epoch with shadow visits."""
        return self._engine.shadows()

    def set_mode(
        self, mode: str, *, action: str | int | None = None, by: str = "", why: str = ""
    ) -> None:
        """Let the policy decide ("active"), another system ("shadow"), or nobody ("default").

        From the next decision on, in every process of a store. In mode "shadow" callers give
        ``chosen`` and ``chosen_propensity`` and are told what the policy would have done; what that
        would be worth is estimated in private, see :attr:`shadow`. In mode "default" everybody
        gets ``action``, with propensity 1. In mode "frozen" the policy decides by what it has
        learnt, learns nothing more, and goes on beyond its horizon. Visits take slots in all modes
        and teach in "active" alone; users' limits are used up in "active" and "shadow".
        :attr:`operations` note ``by`` whom and ``why``.
        """
        self._check_process()
        wanted = checked_mode(mode, action, self._engine.learning.learner.problem)
        self._engine.set_mode(wanted, noted(by, why))

    def freeze(self, *, by: str = "", why: str = "") -> None:
        """Mode "frozen", unless it is that already: another process may have been first."""
        self._check_process()
        self._engine.set_mode(Mode("frozen"), noted(by, why), unless="frozen")

    def change(self, *, by: str = "", why: str = "", **settings: Any) -> None:
        """Change what may change while a policy runs, from the next epoch on, in one publication.

        ``settings`` as in the constructor: ``actions``, ``limits``, ``reward_wait``,
        ``missing_reward`` (not to or from "as-estimated"), ``epoch_time``, ``horizon``,
        ``first_epoch``, ``growth``. Every epoch keeps what it was planned with, so what was asked
        for takes effect with the next one that is not planned yet, in every process of a store;
        asking again before replaces it. Whatever else is asked for is refused with the reason.
        :attr:`operations` note what was changed, ``by`` whom and ``why``.
        """
        self._check_process()
        first = self._configured

        def renewed(latest: Problem, planned: int) -> Problem:
            terms = schedule_terms(latest, first.horizon, first.options)
            found = changed(latest, terms, settings, planned)
            self._engine.learning.learner.accepts(found)
            self.mode.check(found.actions)
            return found

        def configured(problem: Problem) -> tuple[dict[str, Any], dict[str, Any]]:
            base = replace(
                self._engine.state.problem,
                rewards=problem.rewards,
                limits=problem.limits,
                schedule=problem.schedule,
            )
            values, arrays = first.described(base)
            return {**values, "simulated": self._streams.simulated}, arrays

        alone = settings.keys() == {"actions"}
        done = {} if alone else {"changed": {k: plain(k, v) for k, v in settings.items()}}
        record = done | noted(by, why)
        self._engine.change(renewed, None if alone else configured, record)

    def replace_actions(self, actions: object) -> None:
        """Offer other actions from the next epoch on; those of the epoch under way stay.

        ``actions`` as in the constructor. What was learnt stays, by the kernel: a new action is
        believed to be as good as what is like it, and one of which nothing is known starts from
        the prior. Names keep their meaning where actions are names, and a table is read by the
        schema of the first. Only public data are touched, and no decision that was made changes.
        See :meth:`change`.
        """
        self.change(actions=actions)

    def forget(self, user: UserId) -> Forgotten:
        """Delete what a store keeps of a user, as far as that can be; says what was found.

        Decisions of epochs that are not closed keep their slots and count for nothing, their
        rewards and all keyed decisions of the user go. What was released stays: it was made
        private before. How often the user took part stays, too, under a digest: the limit is for
        life. Needs a store, and ids of users.
        """
        self._check_process()
        if self._users is None:
            raise ConfigurationError(
                "only a store with contributions_per_user knows what belongs to whom: without "
                "ids of users nothing that is kept can be found, and goes with its release"
            )
        check_users([user])
        return self._engine.forget_user(self._users.digests([user])[0])


def _checked_texts(
    of: str, what: str, keys: Sequence[str] | None, count: int
) -> Sequence[str] | None:
    """One text each. Keys are the caller's and never shown."""
    if keys is None:
        return None
    if isinstance(keys, str | bytes) or len(keys) != count:
        raise ShapeError(f"one key per {of} is needed, {count} in all")
    if not all(isinstance(key, str) for key in keys):
        raise ConfigurationError(f"the key of a {what} must be a text")
    return keys
