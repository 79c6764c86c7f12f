"""What a policy tells its owner about its own configuration: notices, which are all public.

A notice is a function of public data, options and releases. It changes nothing that is played or
released, and it is said while a policy is built or while it learns from a release, never at a
moment that somebody's data choose.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, final

from capri.errors import KernelWarning

_PACKAGE = str(Path(__file__).parents[1])
_UNSAID = ContextVar("unsaid", default=False)


@final
@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that does not fit, in words and in numbers.

    ``kind`` names it, one heading of docs/warnings.md each. ``text`` says what was seen, what it
    means and what to do. ``numbers`` are those of the text.
    """

    kind: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "text": self.text, "numbers": dict(self.numbers)}


def unheard(notices: Iterable[Notice], known: Iterable[Notice]) -> tuple[Notice, ...]:
    """Notices of kinds that are not known yet, each kind once.

    >>> first, second = Notice(kind="rank", text="1"), Notice(kind="rank", text="2")
    >>> [notice.text for notice in unheard([first, second], [])]
    ['1']
    """
    kinds = {notice.kind for notice in known}
    found: dict[str, Notice] = {}
    for notice in notices:
        if notice.kind not in kinds:
            found.setdefault(notice.kind, notice)
    return tuple(found.values())


@contextmanager
def unsaid() -> Iterator[None]:
    """Within it notices are recorded and nobody is warned.

    For policies that play made-up functions: whoever forecasts, audits or studies knows already.
    """
    before = _UNSAID.set(True)
    try:
        yield
    finally:
        _UNSAID.reset(before)


def say(notices: Iterable[Notice]) -> None:
    """Warn of each, at the line outside of this package that led here."""
    if not _UNSAID.get():
        for notice in notices:
            warnings.warn(str(notice), KernelWarning, stacklevel=_levels_inside() + 1)


def _levels_inside() -> int:
    """How many callers of :func:`say`, and itself, belong to this package.

    In a thread of our own nobody's line led here: the thread's first line stands for it.
    """
    levels = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        levels, frame = levels + 1, frame.f_back
    ours = frame is None or frame.f_globals.get("__name__") == "threading"
    return levels - 1 if ours else levels
