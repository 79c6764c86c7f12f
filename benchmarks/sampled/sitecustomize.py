"""Loaded by every Python that starts with this folder on its path: samples its own lock waits.

A hundred times a second each thread that serves requests is looked at: is it at work, and is the
line it stands at one that waits for a lock of ours? Counts go to files named after the process in
the folder ``CAPRI_SAMPLES``; without it nothing happens.
"""

import json
import linecache
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import FrameType

PERIOD = 0.01
_NAMES = "lock|leading|queue|leasing|loading|reading"
LOCK = re.compile(rf"^\s*with self\._?(\w*_)?({_NAMES})\b|\.acquire\(")


def _state(frame: FrameType) -> str | None:
    """ "waits" or "works" for a thread that serves a lane's items, None for any other."""
    serves, above = False, frame
    while above is not None and not serves:
        serves = above.f_code.co_name == "_results" and above.f_code.co_filename.endswith("lane.py")
        above = above.f_back  # type: ignore[assignment]
    if not serves:
        return None
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    return "waits" if LOCK.search(line) else "works"


def _sample(folder: Path) -> None:
    counts = {"works": 0, "waits": 0, "samples": 0}
    file = folder / f"{os.getpid()}.json"
    written = time.monotonic()
    while True:
        time.sleep(PERIOD)
        counts["samples"] += 1
        for frame in sys._current_frames().values():
            state = _state(frame)
            if state is not None:
                counts[state] += 1
        if time.monotonic() - written > 0.25:
            written = time.monotonic()
            file.write_text(json.dumps(counts))


if "CAPRI_SAMPLES" in os.environ:
    threading.Thread(
        target=_sample, args=(Path(os.environ["CAPRI_SAMPLES"]),), name="samples", daemon=True
    ).start()
