"""Waiting for what another thread or process does in its own time, on a machine that may be busy.

Tests wait for what is to happen, never for a time; the limit only ends what hangs.
"""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds; nothing that passes takes a tenth of them


def eventually(holds: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE:g} seconds"
        time.sleep(0.005)
