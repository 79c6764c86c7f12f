"""What operators do to a policy while it serves: another catalogue, another mode."""

from collections.abc import Callable

from capri.choices import successor
from capri.epoch.modes import Mode, Operation, checked_mode
from capri.epoch.problem import Problem, with_actions
from capri.epoch.shadow import ShadowRecord
from capri.errors import ConfigurationError
from capri.joint.backing import StoredParticipation
from capri.joint.stored import Stored
from capri.privacy.users import UserId
from capri.spaces import FixedActions
from capri.store.forgetting import Forgotten


class Operated(Stored):
    """The part of :class:`capri.Capri` for operators. All of it is public."""

    @property
    def mode(self) -> Mode:
        """Who decides; on a store as this process last read it."""
        return self._mode if self._backing is None else self._backing.mode

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Every change of mode, catalogue and keys, in order."""
        if self._backing is not None:
            return self._backing.operations()
        return tuple(self._operations)

    @property
    def shadow(self) -> tuple[ShadowRecord, ...]:
        """What the policy would have been worth, for each released epoch with shadow visits."""
        if self._backing is not None:
            return self._backing.shadows()
        return tuple(self._shadows)

    def set_mode(self, mode: str, *, action: str | int | None = None) -> None:
        """Let the policy decide ("active"), another system ("shadow"), or nobody ("default").

        From the next decision on, in every process of a store. In mode "shadow" callers give
        ``chosen`` and ``chosen_propensity`` and are told what the policy would have done; what that
        would be worth is estimated in private, see :attr:`shadow`. In mode "default" everybody
        gets ``action``, with propensity 1. Visits take slots in all modes and teach in "active"
        alone; users' limits are used up in "active" and "shadow".
        """
        self._check_process()
        wanted = checked_mode(mode, action, self._problem)
        if self._backing is not None:  # without our lock: its steps take theirs before ours
            self._backing.set_mode(wanted)
            return
        with self._lock:
            wanted.check(self._problem.actions)
            if self._next is not None:
                wanted.check(self._next.actions)
            self._mode = wanted
            self._note("mode", wanted.to_dict())

    def replace_actions(self, actions: object) -> None:
        """Offer other actions from the next epoch on; those of the epoch under way stay.

        ``actions`` as in the constructor. What was learnt stays, by the kernel: a new action is
        believed to be as good as what is like it, and one of which nothing is known starts from
        the prior. Names keep their meaning where actions are names, and a table is read by the
        schema of the first. Only public data are touched, and no decision that was made changes.
        On a store a new version is published for every process: it takes effect with the next
        epoch that is not planned yet, and late rewards and keys of older epochs keep their own.
        """
        self._check_process()
        renewed = self._renewed(actions)
        if self._backing is not None:
            self._backing.replace_actions(renewed)
            return
        with self._lock:
            latest = self._problem if self._next is None else self._next
            self._next = renewed(latest)
            self._note("catalogue", {"actions": self._next.actions.count})

    def forget(self, user: UserId) -> Forgotten:
        """Delete what a store keeps of a user, as far as that can be; says what was found.

        Decisions of epochs that are not closed keep their slots and count for nothing, their
        rewards and all keyed decisions of the user go. What was released stays: it was made
        private before. How often the user took part stays, too, under a digest: the limit is for
        life. Needs a store, and ids of users.
        """
        self._check_process()
        if self._backing is None or not isinstance(self._participation, StoredParticipation):
            raise ConfigurationError(
                "only a store with contributions_per_user knows what belongs to whom: without "
                "ids of users nothing that is kept can be found, and goes with its release"
            )
        self._participation.check([user])
        return self._backing.forget_user(self._participation.digests([user])[0])

    def _renewed(self, actions: object) -> Callable[[Problem], Problem]:
        """A problem with these actions in the place of the latest, or why that cannot be."""

        def renewed(latest: Problem) -> Problem:
            found = with_actions(latest, successor(latest.actions, actions))
            self._course.learner.accepts(found)
            assert isinstance(found.actions, FixedActions)
            self.mode.check(found.actions)
            return found

        return renewed

    def _note(self, kind: str, record: dict[str, object]) -> None:
        """One line in the history of operations."""
        # A simulation without a clock of its own repeats to the byte.
        made = self._now() if self.private or self._clock is not None else 0.0
        self._operations = [*self._operations, Operation(kind, made, record)]
