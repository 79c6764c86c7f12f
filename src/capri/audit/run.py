"""One private run: a target among bystanders, played as users play and read as anybody may.

Runs begin in a late epoch that a simulation has planned. They go through ``act`` and ``update``
alone, and what the theorem calls public is read: the vectors that leave the gate, and whatever
others can tell for certain, such as the epoch they are in or what became of their rewards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import cdist

from capri.arrays import FloatArray
from capri.audit.attacker import Reader, Visit, outside
from capri.audit.proof import EXCESS
from capri.epoch.decisions import Decision, Decisions
from capri.epoch.plan import unsaid
from capri.errors import CapriError
from capri.privacy.budget import PrivacyModel
from capri.privacy.layout import Norm
from capri.privacy.ledger import ReleaseEvent
from capri.spaces import ContextPool

if TYPE_CHECKING:
    from capri.joint.policy import Capri

# Epochs that are rehearsed on made-up users before private runs begin, and decisions at most.
_EPOCHS, _DECISIONS = 8, 100_000
_SUPPORT = 256
# Bystanders whose rewards come in one batch with the target's.
_NEIGHBOURS = 8
# What `act_many` calls what `act` is told.
_MANY = {
    "available": "available",
    "chosen": "chosen",
    "chosen_propensity": "chosen_propensities",
}


class RehearsedStage:
    """Where every run begins: a late epoch of a simulation, planned, and nobody has come yet."""

    def __init__(self, policy: "Capri", *, rehearsed: int = _EPOCHS, **changes: Any) -> None:
        with unsaid():  # made-up users, made-up rewards
            self._simulation = policy.again(simulation_seed=0, **changes)
            self.problem = self._simulation.problem
            self._rehearse(rehearsed)
        self.reader = Reader(self._simulation.plan(), self.problem)
        generator = np.random.default_rng(0)
        self.rows, _ = self.problem.contexts.support(generator, _SUPPORT)
        self.bystander = Visit(self.rows[0], self.problem.scale.at(0.25))

    def _rehearse(self, epochs: int) -> None:
        """Epochs of users whose rewards are a wave and noise, as long as two more will follow."""
        simulation, generator, decided = self._simulation, np.random.default_rng(1), 0
        for _ in range(epochs):
            length = simulation.plan().length  # opened, so that nothing changes it any more
            most = simulation.horizon or _DECISIONS
            if decided + 4 * length > most:
                return
            rows, place = self.problem.contexts.draw(generator, length)
            contexts = rows[place]
            users = None if self.problem.limit is None else range(decided, decided + length)
            decisions = simulation.act_many(contexts, users=users)
            phase = 3 * (contexts.sum(axis=1) + decisions.action.sum(axis=1))
            rewards = np.sin(phase) / 4 + generator.uniform(-0.25, 0.25, length)
            simulation.update_many(decisions, self.problem.scale.at(rewards))
            simulation.close_epoch()
            decided += length

    @property
    def local(self) -> bool:
        """Whether reports are public one by one."""
        return self.problem.model is PrivacyModel.LOCAL

    def begin(self) -> "Capri":
        """A private run of its own noise."""
        return self._simulation.go_live()

    def stored(self, url: str) -> "Capri":
        """A private run of the same configuration on a store: it begins with its first epoch."""
        return self._simulation.again(simulation_seed=None, store=url)

    def law(self, contexts: FloatArray) -> FloatArray:
        """The public law in the epoch where runs begin."""
        return self._simulation.probabilities(contexts)

    @property
    def rewards(self) -> tuple[float, float]:
        """Far below and far above the range: clipping must take care of it."""
        scale = self.problem.scale
        return scale.at(-EXCESS), scale.at(EXCESS)

    def extremes(self, *, in_pool: bool = True) -> tuple[Visit, Visit]:
        """Rewards far below and far above the bound, at the context where they tell most."""
        candidates = self.rows if in_pool else outside(self.rows)
        low, high = self.rewards
        context, _ = self.reader.worst(candidates, self.law(candidates), low, high)
        return Visit(context, low), Visit(context, high)

    def absence(self, missing: float | None) -> tuple[Visit, Visit]:
        """No reward, or one: whichever sign and context lie farthest from a missing reward."""
        law = self.law(self.rows)
        found = [
            (*self.reader.worst(self.rows, law, self.problem.rewards.stand_in, reward), reward)
            for reward in self.rewards
        ]
        context, _, reward = max(found, key=lambda each: each[1])
        return Visit(context, missing), Visit(context, reward)

    def apart(self) -> tuple[Visit, Visit]:
        """Corners of public ranges whose messages lie farthest apart, of some; and far rewards."""
        pool, actions = self.problem.contexts, self.problem.actions
        assert isinstance(pool, ContextPool)
        assert pool.ranges is not None
        sides = np.random.default_rng(0).integers(0, 2, (_SUPPORT, len(pool.ranges)))
        low, high = pool.ranges.T
        corners = np.where(sides, high, low)
        shares = self.reader.shares(actions.chosen(corners, np.zeros(_SUPPORT, dtype=int)), 0.0)
        length = "cityblock" if self.reader.norm is Norm.L1 else "euclidean"
        one, other = np.unravel_index(cdist(shares, shares, length).argmax(), (_SUPPORT,) * 2)
        below, above = self.rewards
        return Visit(corners[one], below), Visit(corners[other], above)


class _Over(Exception):  # noqa: N818 - an end, not an error
    """The last release of a run has been read: what follows is post-processing."""


class PrivateRun:
    """One run. ``seen`` are the vectors that left the gate, ``noticed`` what others can tell."""

    def __init__(
        self, policy: "Capri", reader: Reader | None, bystander: Visit, *, stored: bool = False
    ) -> None:
        """``stored``: on a store, which plans ahead in its own time."""
        self.seen: list[FloatArray] = []
        self.noticed: list[object] = []
        self._reader, self._bystander, self._stored = reader, bystander, stored
        self._last = False
        self._came = 0  # bystanders
        self._early: list[_Crowd] = []  # of the epoch under way, come while an older one waited
        self.goes_on(policy)

    def goes_on(self, policy: "Capri") -> None:
        """With this policy from here on: read what leaves its gate."""
        self.policy = policy
        policy.observe(self._see)

    def _see(self, public: FloatArray, event: ReleaseEvent | None) -> None:
        self.seen.append(public)
        if event is not None:
            # The rest of an event is random where its plan follows a release of this run.
            self.noticed.append((event.epoch, event.participants))
        if self._last:
            raise _Over

    @property
    def reader(self) -> Reader:
        """Of the epoch under way, and of its newest segment."""
        plan = self.policy.plan()
        if self._reader is None or self._reader.plan is not plan:
            self._reader = Reader(plan, self.policy.problem)
        self._reader = self._at(self._reader)
        return self._reader

    def _at(self, reader: Reader) -> Reader:
        """Of the segment in which the last visits came."""
        playing = self.policy.playing
        if playing is None:
            return reader
        plan, segment = playing
        if plan is reader.plan and segment.number == reader.segment.number:
            return reader
        return Reader(plan, self.policy.problem, segment)

    def act(self, visit: Visit, user: str | None = None, **more: Any) -> Decision | None:
        """The target comes; None where it is sent away, which should never happen."""
        try:
            return self.policy.act(visit.context, user=user, **visit.given, **more)
        except CapriError:
            return None

    def epoch(
        self,
        targets: Sequence[Visit],
        *,
        decisions: Sequence[Decision | None] | None = None,
        late: Sequence[tuple[Decision | None, float | None]] = (),
        user: str | None = None,
        last: bool = True,
    ) -> tuple[FloatArray, list[Decision | None]]:
        """Targets come, bystanders fill the epoch, rewards come and come again, the epoch closes.

        Returns the release without the bystanders' shares, and the targets' decisions. ``late``:
        decisions of an earlier epoch whose rewards are sent once more. ``decisions``: of targets
        who came already. ``last``: nothing of this run is read after its release. Where epochs
        wait for rewards, these come while the next epoch is under way.
        """
        policy, reader, before = self.policy, self.reader, len(self.seen)
        own = list(decisions) if decisions is not None else [self.act(v, user) for v in targets]
        policy.plan()  # opened, so that all of it is there to be filled
        crowds, self._early = self._early, []
        count = policy.remaining
        crowds.append(self._crowd(count, user))
        others = crowds[-1].decisions
        self.noticed += [count, others.epoch, *self._passed()]
        self._last = last
        try:
            self._pass_by(max(0, self._wait - 1), user)
            self._rewards(targets, own, late, [crowd.decisions for crowd in crowds])
            self.noticed += self._passed()
            self._close(user)
        except _Over:
            self.noticed.append("released before it was closed")
        released = self.seen[before:]
        # There should be one; of several the attacker takes the mean, in units of its noise.
        times = sqrt(max(len(released), 1))
        vector = sum(released, reader.nothing) / (reader.deviations * times)
        others_add = sum((crowd.shares(self._bystander) for crowd in crowds), reader.nothing)
        return np.asarray(vector - times * others_add), own

    @property
    def _wait(self) -> int:
        wait = self.policy.problem.rewards.wait
        return wait if isinstance(wait, int) else 0

    def _passed(self) -> list[object]:
        """How far others see the policy come."""
        if self._stored:
            return [self.policy.progress.decided]
        return [self.policy.remaining, self.policy.pending, len(self.policy.epochs)]

    def _crowd(self, count: int, user: str | None) -> "_Crowd":
        """Bystanders come, all at once."""
        reader, first = self.reader, self._came
        self._came += count
        contexts = np.repeat(self._bystander.context[None], count, axis=0)
        users = None if user is None else [f"{first + n}" for n in range(count)]
        given = {_MANY[name]: [each] * count for name, each in self._bystander.given.items()}
        decisions = self.policy.act_many(contexts, users=users, **given)
        return _Crowd(self._at(reader), decisions)

    def _pass_by(self, count: int, user: str | None) -> None:
        """Bystanders of the next epoch, while the one before waits for its rewards."""
        while part := min(count, self.policy.remaining):  # none at the horizon
            self._early.append(self._crowd(part, user))
            count -= part

    def _close(self, user: str | None) -> None:
        """By the visits that end its wait, or by a call."""
        before = len(self.seen)
        try:
            if self._wait:
                self._pass_by(2, user)
            if len(self.seen) == before:
                self.policy.close_epoch()
        except _Over:
            self.noticed.append("closed")

    def _rewards(
        self,
        targets: Sequence[Visit],
        own: Sequence[Decision | None],
        late: Sequence[tuple[Decision | None, float | None]],
        crowds: Sequence[Decisions],
    ) -> None:
        """In one batch with some bystanders', by themselves, and again. Others note their own."""
        policy, reward = self.policy, self._bystander.reward
        assert reward is not None
        due = [*zip(own, (visit.reward for visit in targets), strict=True), *late]
        sent = [
            (decision.id, value)
            for decision, value in due
            if decision is not None and value is not None
        ]
        near = crowds[-1][:_NEIGHBOURS]
        batch = [*sent, *((str(name), reward) for name in near.id), *sent]
        statuses = self._sent(
            lambda: policy.update_many([name for name, _ in batch], [value for _, value in batch])
        )
        self.noticed.append(
            statuses if isinstance(statuses, str) else statuses[len(sent) :][: len(near)]
        )
        for name, value in sent:
            self._sent(partial(policy.update_many, [name], [value]))
            self._sent(partial(self._update, name, value))
        for rest in (*crowds[:-1], crowds[-1][len(near) :]):
            told = self._sent(partial(policy.update_many, rest, np.full(len(rest), reward)))
            self.noticed.append(set(told))
        self.noticed.append(self._sent(partial(self._update, near[0].id, reward)))

    def _update(self, name: str, reward: float) -> list[int]:
        return [self.policy.update(name, reward)]

    @staticmethod
    def _sent(send: Callable[[], Any]) -> Any:
        """What a caller is told: statuses, or a refusal."""
        try:
            return [int(status) for status in send()]
        except CapriError as refusal:
            return type(refusal).__name__


@dataclass(frozen=True, eq=False)
class _Crowd:
    """Bystanders of one segment, whose actions the attacker knows."""

    reader: Reader
    decisions: Decisions

    def shares(self, bystander: Visit) -> FloatArray:
        """What they add."""
        times = np.bincount(self.decisions.action_index)
        shares = [n * self.reader.share(bystander, a) for a, n in enumerate(times) if n]
        return np.asarray(sum(shares, self.reader.nothing))
