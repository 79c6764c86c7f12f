"""Numbers of decisions as short texts that nobody can guess.

A decision leaves the process as text: numbers near ``2^60`` do not survive JSON in JavaScript, and
a number that counts up would let anybody name somebody else's decision.

    text = base64url( number, 6 bytes  |  BLAKE2b(key, number), 9 bytes )      20 characters

The key is drawn by the operating system and never stored, so that a text made before a restart is
unknown afterwards instead of being taken for another decision. How many decisions there were is
public, hence the number may be read.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capri.arrays import IntArray

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

    def text(self, number: int) -> str:
        """The id of a decision."""
        return _text(number, self._key)

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
            known = secrets.compare_digest(_text(number, self._previous), text)
        return number if known else NOBODY


def _text(number: int, key: bytes) -> str:
    head = number.to_bytes(_NUMBER)
    return urlsafe_b64encode(head + blake2b(head, key=key, digest_size=_TAG).digest()).decode()


SIMULATED = DecisionIds(b"simulation")


def _simulated() -> DecisionIds:
    return SIMULATED
