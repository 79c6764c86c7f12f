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

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key

    def __repr__(self) -> str:
        return "DecisionIds()"

    def __reduce__(self) -> Any:
        """The key stays in its process: whoever has it can name any user's decision."""
        if self is not SIMULATED:
            raise TypeError("ids of a private run stay in their process: send decisions.id instead")
        return _simulated, ()

    def text(self, number: int) -> str:
        """The id of a decision."""
        head = number.to_bytes(_NUMBER)
        tag = blake2b(head, key=self._key, digest_size=_TAG).digest()
        return urlsafe_b64encode(head + tag).decode()

    def texts(self, numbers: IntArray) -> NDArray[np.str_]:
        """The ids of several decisions."""
        return np.array([self.text(int(number)) for number in numbers], dtype=f"U{_LENGTH}")

    def number(self, text: str) -> int:
        """The decision that an id names, or :data:`NOBODY` for any text that was not made here."""
        if len(text) != _LENGTH or not text.isascii():
            return NOBODY
        try:
            number = int.from_bytes(urlsafe_b64decode(text)[:_NUMBER])
        except ValueError:
            return NOBODY
        return number if secrets.compare_digest(self.text(number), text) else NOBODY


SIMULATED = DecisionIds(b"simulation")


def _simulated() -> DecisionIds:
    return SIMULATED
