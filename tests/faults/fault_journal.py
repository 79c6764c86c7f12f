"""What the parent of the workers knows: all that was announced, and all that was acknowledged.

A call that was announced and never answered is in doubt: it may have been committed. It is made
again with the same keys by the next worker, as a client would, and so turns into a known one. What
stays in doubt is a reward whose second try comes late: nobody can know whether the first one was
counted, and either is allowed.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from capri import RewardStatus
from fault_worker import CHANGES

ACCEPTED, DUPLICATE = int(RewardStatus.ACCEPTED), int(RewardStatus.DUPLICATE)
LATE, UNCOUNTED = int(RewardStatus.LATE), int(RewardStatus.UNCOUNTED)


@dataclass
class Visit:
    """A decision as it was acknowledged, and what the parent asked for."""

    key: str
    user: int
    context: float
    answer: dict[str, Any]
    asked: int = 0  # the line with which it was announced first, and that of its first answer
    told: int = 0


@dataclass
class Change:
    """What an operator asked for, once: a change that was not acknowledged may have been made."""

    call: dict[str, Any]
    sent: int
    told: float = inf

    @property
    def acknowledged(self) -> bool:
        """Whether it is known to have been made."""
        return self.told < inf


@dataclass
class Sent:
    """All sends of one reward key for one decision."""

    value: float
    doubtful: int = 0  # sends that were never answered, or failed
    answers: list[int] = field(default_factory=list)

    @property
    def counted(self) -> bool | None:
        """Whether the value is in the release; None where that cannot be known."""
        if ACCEPTED in self.answers or DUPLICATE in self.answers:
            return True
        return None if self.doubtful else False


class Journal:
    """Everything that crossed the pipes of a run."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}
        self.rewards: dict[tuple[str, str], Sent] = {}
        self.published: dict[int, Any] = {}
        self.broken: list[str] = []  # impossible outcomes that were seen on the way
        self.failures: dict[str, int] = {}
        self.answered = 0
        self.changes: list[Change] = []  # in the order in which they were sent, one after the other
        self._asked: dict[str, int] = {}
        self._line = 0
        self._open: dict[int, list[dict[str, Any]]] = {}  # announced and not answered

    def take(self, worker: int, line: dict[str, Any]) -> None:
        """Note a line of a worker."""
        self._line += 1
        if line["op"] != "published" and line["call"]["op"] in CHANGES:
            self._change(line)
            return
        mine = self._open.setdefault(worker, [])
        if line["op"] == "intent":
            if line["call"] not in mine:
                mine.append(line["call"])
            self._announce(line["call"])
        elif line["op"] == "answer":
            if not isinstance(line["answer"], dict):  # it failed: the worker makes it again
                mine.remove(line["call"])
            self._answer(line["call"], line["answer"])
        elif line["op"] == "published":
            self._publish(line["seen"])

    def doubtful(self, worker: int) -> list[dict[str, Any]]:
        """What a worker that is gone has left unanswered: until its heir is answered, too."""
        calls = list(self._open.get(worker, []))
        for call in calls:
            if call["op"] == "reward":
                self._sent(call).doubtful += 1
        return calls

    def all_doubtful(self) -> list[dict[str, Any]]:
        """What all workers have left unanswered."""
        return [call for worker in list(self._open) for call in self.doubtful(worker)]

    def recent(self, count: int) -> list[tuple[str, str]]:
        """Keys and ids of the newest decisions."""
        newest = list(self.visits.values())[-count:]
        return [(visit.key, str(visit.answer["id"])) for visit in newest]

    def _change(self, line: dict[str, Any]) -> None:
        if line["op"] == "intent":
            self.changes.append(Change(line["call"], self._line))
        elif line["answer"] == "changed":
            self.changes[-1].told = self._line

    def _announce(self, call: dict[str, Any]) -> None:
        for key in call.get("keys", ()):
            self._asked.setdefault(key, self._line)
        if call["op"] == "reward":
            self.rewards.setdefault((call["id"], call["key"]), Sent(call["value"]))

    def _sent(self, call: dict[str, Any]) -> Sent:
        return self.rewards[call["id"], call["key"]]

    def _answer(self, call: dict[str, Any], answer: Any) -> None:
        if isinstance(answer, dict):
            said = answer["failed"]
            self.failures[said] = self.failures.get(said, 0) + 1
            if call["op"] == "reward":
                self._sent(call).doubtful += 1
            return
        self.answered += 1
        if call["op"] == "reward":
            sent = self._sent(call)
            if answer == ACCEPTED and ACCEPTED in sent.answers:
                self.broken.append("an acknowledged reward was accepted twice for one key")
            sent.answers.append(answer)
            return
        rows = zip(call["keys"], call["users"], call["contexts"], answer, strict=True)
        for key, user, context, given in rows:
            known = self.visits.get(key)
            if known is None:
                asked = self._asked.get(key, self._line)
                self.visits[key] = Visit(key, user, context, given, asked, self._line)
            elif known.answer != given:
                self.broken.append("an acknowledged decision has another answer for its key")

    def _publish(self, seen: dict[int, Any]) -> None:
        for epoch, record in seen.items():
            if self.published.setdefault(epoch, record) != record:
                self.broken.append("an epoch was published twice, differently")
