"""Functions that are told of every release, once it is public and learnt from.

A function of the user's own must not cost a release or a decision: it is called when both are safe,
and what it raises ends in the log ``capri.hooks``. It is told the public record alone, so whatever
it does with it is post-processing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from capri.epoch.notice import Notice, say
from capri.epoch.plan import EpochRecord
from capri.errors import ConfigurationError

ReleaseFunction = Callable[[EpochRecord], object]

_LOG = logging.getLogger("capri.hooks")


class Hooks:
    """Who wants to be told, in the order in which they asked. Copies and files keep none."""

    def __init__(self, told: int = 0, *, aloud: bool = True, said: Iterable[str] = ()) -> None:
        """``told``: how many records are old news already.

        ``aloud``: warn of notices, but of kinds that were ``said`` before.
        """
        self._functions: list[ReleaseFunction] = []
        self._told = told
        self._aloud = aloud
        self._said = set(said)

    def add(self, function: ReleaseFunction) -> None:
        """Tell this function from the next release on."""
        if not callable(function):
            raise ConfigurationError(
                f"on_release takes a function of one epoch record, got {type(function).__name__}"
            )
        self._functions.append(function)

    def skip(self, count: int) -> None:
        """The first records are old news: a policy that was read from a file has them."""
        self._told = count

    def tell(self, records: Sequence[EpochRecord]) -> None:
        """Tell of the records that are new, each once, and warn of what they notice.

        One function that fails keeps nobody else from being told.
        """
        while self._told < len(records):
            record = records[self._told]
            self._told += 1  # first: a function that comes back here is not told again
            for function in tuple(self._functions):
                try:
                    function(record)
                except Exception:
                    _LOG.exception(
                        "a function given to on_release failed on epoch %d; the release itself "
                        "is complete",
                        record.epoch,
                    )
            self.warn(record.notices)  # last: who makes errors of warnings loses nothing else

    def warn(self, notices: Iterable[Notice]) -> None:
        """Warn of notices, of each kind once."""
        new = [notice for notice in notices if notice.kind not in self._said]
        if self._aloud:
            self._said |= {notice.kind for notice in new}
            say(new)

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions are code of this process: a copy of a policy tells nobody until it is asked."""
        return partial(Hooks, aloud=self._aloud, said=tuple(self._said)), (self._told,)
