"""Where a stored policy takes rewards: each durable before it is answered.

How often rewards come for a decision is private. So they are combined when they arrive: a decision
has at most one row of rewards, of one size. Adding an epoch up is then the same work however often
a user was rewarded.
"""

from collections.abc import Callable, Sequence

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import ACCEPTED, DUPLICATE, INVALID, LATE, UNCOUNTED, UNKNOWN
from capri.epoch.rewards import MOST_REWARDS
from capri.joint.record import TURNS, OvertakenError
from capri.joint.rounds import Rounds
from capri.store.records import is_counted, read_reward, reward_blob
from capri.store.shelf import Shelf
from capri.store.transaction import Transaction
from capri.store.view import View

# Statuses, what is to be stored by the number of its decision, and what is stored there now.
_Accepted = tuple[list[int], dict[int, bytes], dict[int, bytes]]
_NOTHING: tuple[float, tuple[bytes, ...]] = (float("nan"), ())
# The last slot of an epoch whose end is open.
_ENDLESS = 1 << 62


class Rewards:
    """Takes the rewards of one process."""

    def __init__(self, shelf: Shelf, keeper: Rounds, now: Callable[[], float]) -> None:
        self._shelf, self._keeper, self._now = shelf, keeper, now
        self._rule = keeper.problem.rewards.rule

    def reward(self, numbers: IntArray, values: FloatArray, keys: Sequence[str] | None) -> IntArray:
        """Store the rewards that are awaited; a status for each."""
        names = [b""] * len(numbers) if keys is None else self._shelf.reward_digests(keys)
        for _ in range(TURNS):
            view = self._keeper.view
            try:
                return self._shelf.database.write(
                    lambda transaction, view=view: self._reward(  # type: ignore[misc]
                        transaction, view, numbers, values, names
                    )
                )
            except OvertakenError:
                self._keeper.look()
        raise self._keeper.never_current()

    def _reward(
        self,
        transaction: Transaction,
        view: View,
        numbers: IntArray,
        values: FloatArray,
        names: list[bytes],
    ) -> IntArray:
        open_for = [
            (epoch, (numbers >= epoch.first) & (numbers < (epoch.last or _ENDLESS)))
            for epoch in view.epochs
            if epoch.accepts
        ]
        issued, generation = transaction.join_epochs(
            [epoch.number for epoch, own in open_for if own.any()]
        )
        if generation != view.generation:
            raise OvertakenError
        known = (numbers >= 0) & (numbers < issued)
        now, awaited = self._now(), np.zeros(len(numbers), dtype=np.bool_)
        for epoch, own in open_for:
            if not epoch.is_past(issued, now):
                awaited |= own & known
        statuses = np.where(known, LATE, UNKNOWN)
        places = np.flatnonzero(awaited)
        if len(places):
            chosen = [names[place] for place in places.tolist()]
            statuses[places] = self._accept(transaction, numbers[places], values[places], chosen)
        return statuses

    def _accept(
        self, transaction: Transaction, numbers: IntArray, values: FloatArray, names: list[bytes]
    ) -> list[int]:
        """Store rewards whose epochs take them; a status for each."""
        decisions = self._shelf.read_decisions(transaction, numbers)
        # A slot that nobody filled is unknown; of the others some count for nothing.
        standing = {
            number: ACCEPTED if is_counted(blob) else UNCOUNTED
            for number, blob in decisions.items()
        }
        if self._rule.keyed:
            accepted = self._combine(transaction, standing, numbers, values, names)
        else:
            accepted = self._take_first(transaction, standing, numbers, values)
        statuses, blobs, before = accepted
        if not self._shelf.write_rewards(transaction, blobs, before):
            raise OvertakenError  # another process was faster with a reward for the same decision
        return statuses

    def _take_first(
        self,
        transaction: Transaction,
        standing: dict[int, int],
        numbers: IntArray,
        values: FloatArray,
    ) -> _Accepted:
        """The first reward of a decision that is a number."""
        rows = transaction.among("SELECT number FROM rewards WHERE number", list(standing))
        standing.update((row[0], DUPLICATE) for row in rows if standing[row[0]] == ACCEPTED)
        finite = np.isfinite(values).tolist()
        content = values.tobytes()
        blobs: dict[int, bytes] = {}
        statuses = []
        for place, number in enumerate(numbers.tolist()):
            status = standing.get(number, UNKNOWN)
            if status == ACCEPTED and not finite[place]:
                status = INVALID
            elif status == ACCEPTED:
                standing[number] = DUPLICATE
                blobs[number] = content[8 * place : 8 * place + 8]
            statuses.append(status)
        return statuses, blobs, {}

    def _combine(
        self,
        transaction: Transaction,
        standing: dict[int, int],
        numbers: IntArray,
        values: FloatArray,
        names: list[bytes],
    ) -> _Accepted:
        """Each reward with what came before for its decision."""
        before = self._shelf.read_rewards(transaction, list(standing))
        totals = {number: read_reward(opened) for number, (_, opened) in before.items()}
        finite = np.isfinite(values).tolist()
        changed: set[int] = set()
        statuses = []
        rows = zip(numbers.tolist(), values.tolist(), names, finite, strict=True)
        for number, value, name, is_number in rows:
            status = standing.get(number, UNKNOWN)
            if status == ACCEPTED:
                total, digests = totals.get(number, _NOTHING)
                if not is_number:
                    status = INVALID
                elif name in digests:
                    status = DUPLICATE
                elif len(digests) == MOST_REWARDS:
                    status = UNCOUNTED
                else:
                    totals[number] = self._rule.combined(total, value), (*digests, name)
                    changed.add(number)
            statuses.append(status)
        blobs = {number: reward_blob(*totals[number]) for number in changed}
        return statuses, blobs, {number: before[number][0] for number in changed & before.keys()}
