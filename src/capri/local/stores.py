"""Where a device keeps what outlives its process: texts by name, changed in one step each.

The folder is that of the JavaScript client, so that programs of both languages may share it. Every
change is a file of the next number, linked into its place: the first process to do so has made it,
the others take their step again. A crash leaves what was there, and perhaps a file nobody reads.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from capri.errors import StorageError

Result = TypeVar("Result")
Texts = list[str | None]
# So many numbers stay taken, by empty files: a process that was held up must not take one of them
# for free.
_TAKEN = 100


class DeviceStore(Protocol):
    """A place for texts; a store of one's own has this one method."""

    def change(self, names: Sequence[str], step: Callable[[Texts], Result]) -> Result:
        """Give ``step`` the texts of these names, None where there is none, in a list it changes.

        Then keep the list, all of it or nothing, durable before this returns, one step at a time
        for everybody; what ``step`` raises leaves everything as it was. ``step`` may run again
        where another process was faster.
        """


class MemoryStore:
    """For one process: forgets at its end. ``texts`` is all that it holds."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self.texts = dict(texts or {})
        self._lock = Lock()

    def change(self, names: Sequence[str], step: Callable[[Texts], Result]) -> Result:
        """See :class:`DeviceStore`."""
        with self._lock:
            found = [self.texts.get(name) for name in names]
            result = step(found)
            self.texts = _changed(self.texts, names, found)
            return result


class FolderStore:
    """For any number of processes of one machine."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = Path(folder)

    def __repr__(self) -> str:
        return f"FolderStore({str(self._folder)!r})"

    def change(self, names: Sequence[str], step: Callable[[Texts], Result]) -> Result:
        """See :class:`DeviceStore`."""
        with self._reported():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            with self._reported():
                numbers = [int(each) for each in os.listdir(self._folder) if each.isdecimal()]
                latest = max(numbers, default=0)
                texts = self._read(latest)
            if texts is None:
                continue  # another process has made the next change
            found = [texts.get(name) for name in names]
            result = step(found)
            with self._reported():
                if self._linked(latest + 1, _changed(texts, names, found)):
                    self._tidy(latest)
                    return result

    def _read(self, number: int) -> dict[str, str] | None:
        if not number:
            return {}
        try:
            text = (self._folder / str(number)).read_text(encoding="utf-8")
            texts = json.loads(text) if text else None
        except FileNotFoundError:
            return None
        except ValueError:
            texts = []
        if texts is None or isinstance(texts, dict):
            return texts
        raise StorageError(f"{self._folder} is damaged: nothing was reported")

    def _linked(self, number: int, texts: dict[str, str]) -> bool:
        """Whether this change is the one of its number, durably."""
        draft = self._folder / f"{uuid4()}.new"
        try:
            with open(draft, "x", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps(texts))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._folder / str(number))
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return True

    def _tidy(self, number: int) -> None:
        """What a change has replaced is emptied, and goes in the end."""
        if number:
            os.truncate(self._folder / str(number), 0)
        if number > _TAKEN:
            (self._folder / str(number - _TAKEN)).unlink(missing_ok=True)

    @contextmanager
    def _reported(self) -> Any:
        try:
            yield
        except OSError as problem:
            raise StorageError(
                f"cannot use {self._folder}: {problem.strerror}. Nothing was reported"
            ) from problem


def _changed(texts: dict[str, str], names: Sequence[str], found: Texts) -> dict[str, str]:
    changes = dict(zip(names, found, strict=True))
    return {name: text for name, text in (texts | changes).items() if text is not None}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
