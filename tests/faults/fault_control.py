"""A few bytes that a worker shares with whoever torments it: where to die, and what time it is.

They lie in a file that both have mapped, so that they take effect at once, also in the middle of a
call, and so that the dead can still tell where they died.
"""

import mmap
import os
import struct
from pathlib import Path

_NUMBERS = struct.Struct("<dqq")  # clock, times, statement
_NAME = 64
_ARMED, _DIED, _SIZE = _NUMBERS.size, _NUMBERS.size + _NAME, _NUMBERS.size + 2 * _NAME


class Control:
    """One block, of the processes of one worker."""

    def __init__(self, path: Path) -> None:
        """Opened, and made where it is not there."""
        with open(path, "a+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.path = path

    def arm(self, point: str, nth: int = 1, statement: int = 1) -> None:
        """Have somebody die at a point, the n-th time; inside a transaction after a statement."""
        self._map[_ARMED:_DIED] = bytes(_NAME)  # nobody meets a point with another one's numbers
        clock, _, _ = _NUMBERS.unpack_from(self._map)
        _NUMBERS.pack_into(self._map, 0, clock, nth, statement)
        self._map[_ARMED:_DIED] = point.encode().ljust(_NAME, b"\0")

    @property
    def armed(self) -> str:
        """The point, "" for none."""
        return self._map[_ARMED:_DIED].rstrip(b"\0").decode()

    @property
    def statement(self) -> int:
        """After how many statements a transaction counts as begun."""
        return int(_NUMBERS.unpack_from(self._map)[2])

    def met(self) -> bool:
        """Whether this was the last time that the point is passed alive."""
        clock, left, statement = _NUMBERS.unpack_from(self._map)
        _NUMBERS.pack_into(self._map, 0, clock, left - 1, statement)
        return bool(left <= 1)

    def note_death(self, point: str) -> None:
        """The last words of who dies here; nobody else is to."""
        self._map[_ARMED:_DIED] = bytes(_NAME)
        self._map[_DIED:_SIZE] = f"{point} {os.getpid()}".encode().ljust(_NAME, b"\0")

    def died(self) -> tuple[str, int]:
        """Where somebody has died since this was asked last, and who; "" for nowhere."""
        point, _, process = self._map[_DIED:_SIZE].rstrip(b"\0").decode().partition(" ")
        self._map[_DIED:_SIZE] = bytes(_NAME)
        return point, int(process or 0)

    @property
    def clock(self) -> float:
        """By how many seconds the worker's clock is wrong."""
        return float(_NUMBERS.unpack_from(self._map)[0])

    @clock.setter
    def clock(self, seconds: float) -> None:
        _, left, statement = _NUMBERS.unpack_from(self._map)
        _NUMBERS.pack_into(self._map, 0, seconds, left, statement)
