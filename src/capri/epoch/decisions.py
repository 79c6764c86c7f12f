"""Decisions as users know them: what was played, and ids that nobody can guess.

A decision leaves the process as text: numbers near ``2^60`` do not survive JSON in JavaScript, and
a number that counts up would let anybody name somebody else's decision.

    text = base64url( number, 6 bytes  |  BLAKE2b(key, number), 9 bytes )      20 characters

The key is drawn by the operating system and never stored, so that a text made before a restart is
unknown afterwards instead of being taken for another decision. How many decisions there were is
public, hence the number may be read.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from capri.arrays import FloatArray, IntArray
from capri.cells import as_numbers
from capri.errors import ConfigurationError, ShapeError

_NUMBER, _TAG, _LENGTH = 6, 9, 20
# What an id that was not made here stands for: no decision has this number.
NOBODY = -1


class DecisionIds:
    """The ids of one policy; simulations share :data:`SIMULATED` and repeat their ids.

    >>> ids = DecisionIds()
    >>> ids.number(ids.text(7)), ids.number("AAAAAAAAAAAAAAAAAAAA"), ids.number("seven")
    (7, -1, -1)
    """

    def __init__(self, key: bytes | None = None, previous: bytes | None = None) -> None:
        """``previous``: a key whose ids are still understood, while it is rotated out."""
        self._key = secrets.token_bytes(32) if key is None else key
        self._previous = previous

    def __repr__(self) -> str:
        return "DecisionIds()"

    def __reduce__(self) -> Any:
        """The key stays in its process: whoever has it can name any user's decision."""
        if self is not SIMULATED:
            raise TypeError("ids of a private run stay in their process: send decisions.id instead")
        return _simulated, ()

    def change(self, key: bytes, previous: bytes | None) -> None:
        """Make ids by another key from now on."""
        self._key, self._previous = key, previous

    def text(self, number: int, key: bytes | None = None) -> str:
        """The id of a decision, by the key of now or by another."""
        head = number.to_bytes(_NUMBER)
        tag = blake2b(head, key=self._key if key is None else key, digest_size=_TAG).digest()
        return urlsafe_b64encode(head + tag).decode()

    def texts(self, numbers: IntArray) -> NDArray[np.str_]:
        """The ids of several decisions."""
        return np.array(self.listed(numbers.tolist()), dtype=f"U{_LENGTH}")

    def listed(self, numbers: Sequence[int]) -> list[str]:
        """The same in a list: fifteen bytes are twenty letters, so all are written at once."""
        key = self._key
        heads = [number.to_bytes(_NUMBER) for number in numbers]
        parts = [head + blake2b(head, key=key, digest_size=_TAG).digest() for head in heads]
        letters = urlsafe_b64encode(b"".join(parts)).decode()
        return [letters[at : at + _LENGTH] for at in range(0, len(letters), _LENGTH)]

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """What several ids name: all at once where they are as made here, else one by one."""
        joined = "".join(texts)
        if not joined.isascii() or set(map(len, texts)) != {_LENGTH}:
            return [self.number(text) for text in texts]
        try:
            content = urlsafe_b64decode(joined)
        except ValueError:
            return [self.number(text) for text in texts]
        step = _NUMBER + _TAG
        found = [int.from_bytes(content[at : at + _NUMBER]) for at in range(0, len(content), step)]
        known = len(found) == len(texts)
        if known and secrets.compare_digest("".join(self.listed(found)), joined):
            return found
        return [self.number(text) for text in texts]

    def number(self, text: str) -> int:
        """The decision that an id names, or :data:`NOBODY` for any text that was not made here."""
        if len(text) != _LENGTH or not text.isascii():
            return NOBODY
        try:
            number = int.from_bytes(urlsafe_b64decode(text)[:_NUMBER])
        except ValueError:
            return NOBODY
        known = secrets.compare_digest(self.text(number), text)
        if not known and self._previous is not None:
            known = secrets.compare_digest(self.text(number, self._previous), text)
        return number if known else NOBODY


SIMULATED = DecisionIds(b"simulation")


def _simulated() -> DecisionIds:
    return SIMULATED


class VisitStatus(IntEnum):
    """How a visit was served. Every visit takes a slot and gets a decision."""

    SERVED = 0
    INVALID = 1  # its context is no row of numbers: played by the default law, counts for nothing;
    # or nothing of its set of available actions can be offered
    OVER_LIMIT = 2  # its user has contributed as often as allowed: counts for nothing
    DEFAULT = 3  # mode "default": the named action was played, nothing is learnt
    SHADOW = 4  # mode "shadow": another system decided, and counts in the shadow estimate alone
    FROZEN = 5  # mode "frozen": played by what was learnt before, nothing is learnt from it

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


# Plain numbers: looking up a member of an enumeration takes long.
_, INVALID_CONTEXT, OVER_LIMIT, DEFAULT, SHADOW, FROZEN = (int(status) for status in VisitStatus)


@dataclass(frozen=True)
class Decision:
    """One decision. Only ``id`` and ``epoch`` are shown: the rest belongs to the user."""

    id: str
    epoch: int
    action_index: int = field(repr=False)
    action: FloatArray = field(repr=False, compare=False)
    propensity: float = field(repr=False)
    status: VisitStatus = field(repr=False, default=VisitStatus.SERVED)
    number: int = field(repr=False, compare=False, default=NOBODY)
    ids: DecisionIds | None = field(repr=False, compare=False, default=None)
    action_name: str | None = field(repr=False, compare=False, default=None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Outside of its process a decision is known by its id alone."""
        shown = (self.id, self.epoch, self.action_index, self.action, self.propensity, self.status)
        return Decision, (*shown, NOBODY, None, self.action_name)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of one epoch as arrays; ``decisions[i]`` and iteration give single ones.

    ``number`` counts the decisions of a policy; ``id`` is what may leave the process.
    """

    number: IntArray = field(repr=False)
    epoch: int
    action_index: IntArray = field(repr=False)
    action: FloatArray = field(repr=False)
    propensity: FloatArray = field(repr=False)
    status: IntArray = field(repr=False)
    ids: DecisionIds = field(repr=False)
    names: tuple[str, ...] | None = field(repr=False, default=None)
    # Where some were made in earlier epochs and are known by their key; else None.
    epochs: IntArray | None = field(repr=False, default=None)
    # What each is called, where some were made before the actions were replaced.
    called: tuple[str | None, ...] | None = field(repr=False, default=None)

    @property
    def action_name(self) -> NDArray[np.str_] | None:
        """What the actions are called; None where they have no names."""
        if self.called is not None:
            return np.array(self.called)
        return None if self.names is None else np.array(self.names)[self.action_index]

    @classmethod
    def simulated(
        cls,
        number: IntArray,
        epoch: int,
        action_index: IntArray,
        action: FloatArray,
        propensity: FloatArray,
        names: tuple[str, ...] | None = None,
    ) -> "Decisions":
        """Decisions of a policy that serves nobody but simulated users, all alike."""
        served = np.zeros(len(number), dtype=np.int64)
        return cls(number, epoch, action_index, action, propensity, served, SIMULATED, names)

    @property
    def id(self) -> NDArray[np.str_]:
        """A short text for each."""
        return self.ids.texts(self.number)

    def __len__(self) -> int:
        return len(self.number)

    @overload
    def __getitem__(self, position: int) -> Decision: ...

    @overload
    def __getitem__(self, position: slice) -> "Decisions": ...

    def __getitem__(self, position: int | slice) -> "Decision | Decisions":
        if isinstance(position, slice):
            return Decisions(
                self.number[position],
                self.epoch,
                self.action_index[position],
                self.action[position],
                self.propensity[position],
                self.status[position],
                self.ids,
                self.names,
                None if self.epochs is None else self.epochs[position],
                None if self.called is None else self.called[position],
            )
        number, action = int(self.number[position]), int(self.action_index[position])
        called = None if self.called is None else self.called[position]
        if self.called is None and self.names is not None:
            called = self.names[action]
        return Decision(
            self.ids.text(number),
            self.epoch if self.epochs is None else int(self.epochs[position]),
            action,
            self.action[position],
            float(self.propensity[position]),
            _VISITS[self.status[position]],
            number,
            self.ids,
            called,
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[position] for position in range(len(self)))


# Looking a member up by its value takes longer than encoding a reward.
_VISITS = tuple(VisitStatus)


def decision_numbers(decisions: Decisions | Sequence[Decision | str], ids: DecisionIds) -> IntArray:
    """The numbers of some decisions, given as such or by id; -1 for an id that is nobody's."""
    if isinstance(decisions, Decisions):
        if decisions.ids is ids:
            return decisions.number
        decisions = decisions.id.tolist()  # of another policy: its ids are nobody's here
    if isinstance(decisions, Decision):
        raise ConfigurationError("update_many takes a sequence of decisions: use update for one")
    if set(map(type, decisions)) == {str}:
        return np.array(ids.numbers(decisions), dtype=np.int64)  # type: ignore[arg-type]
    return np.array([_number(each, ids) for each in decisions], dtype=np.int64)


def _number(decision: Decision | str, ids: DecisionIds) -> int:
    if isinstance(decision, Decision):
        return decision.number if decision.ids is ids else ids.number(decision.id)
    if isinstance(decision, str):
        return ids.number(decision)
    raise ConfigurationError(
        "a reward needs the decision that policy.act gave, or its id, which is a text: "
        f"got {type(decision).__name__}"
    )


def decision_rewards(
    decisions: Decisions | Sequence[Decision | str], rewards: object, ids: DecisionIds
) -> tuple[IntArray, FloatArray]:
    """Numbers of some decisions and the reward of each, NaN where it is none."""
    numbers = decision_numbers(decisions, ids)
    values = as_numbers(rewards)
    if values.shape != numbers.shape:
        raise ShapeError(f"one reward per decision is needed: {len(numbers)}, got {values.shape}")
    return numbers, values
