"""Peak memory of a stretch of code."""

import sys
from contextlib import suppress
from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Largest resident memory between entry and exit.

    Linux can reset the high-water mark of a process; elsewhere the mark covers its whole life.

    >>> with PeakMemory() as memory:
    ...     _ = bytearray(10_000_000)
    >>> memory.peak_bytes > 10_000_000
    True
    """

    peak_bytes: int = 0

    def __enter__(self) -> "PeakMemory":
        with suppress(OSError):
            _CLEAR.write_text("5")  # see proc(5): resets VmHWM
        return self

    def __exit__(self, *_: object) -> None:
        self.peak_bytes = _high_water_mark()


def _high_water_mark() -> int:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on every platform, and not needed where /proc is

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
