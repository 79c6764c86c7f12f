"""How long workers wait for locks: the server's, and those of our own threads, sampled at 100 Hz.

The server's: sessions of workers in ``pg_stat_activity`` that are under way, and those of them that
wait for a heavyweight lock (rows and advisory ones) or for a lightweight one. Our own: threads that
serve requests and stand at a line that waits for a mutex (``sampled/sitecustomize.py``).
"""

import json
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg

PERIOD = 0.01
# A session between two statements waits for its client, and not for a lock.
_SESSIONS = (
    "SELECT state, wait_event_type FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND application_name LIKE 'capri-%'"
)


class LockWaits:
    """Samples while it is entered; ``shares`` are of the time in which something is under way."""

    def __init__(self, url: str, samples: Path) -> None:
        self._url, self._samples = url, samples
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._server: Counter[str] = Counter()
        self.shares: dict[str, float] = {}

    def __enter__(self) -> "LockWaits":
        self._before = self._own()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        time.sleep(0.3)  # workers write their counts four times a second
        own = {name: count - self._before[name] for name, count in self._own().items()}
        total = max(1, self._server["sessions"])
        self.shares = {
            "in the server's locks": self._server["Lock"] / total,
            "in its lightweight locks": self._server["LWLock"] / total,
            "in our own mutexes": own["waits"] / max(1, own["works"] + own["waits"]),
        }

    def _own(self) -> Counter[str]:
        found: Counter[str] = Counter({"works": 0, "waits": 0})
        for file in self._samples.glob("*.json"):
            try:
                found.update(json.loads(file.read_text()))
            except ValueError:  # it is being written
                continue
        return found

    def _watch(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(PERIOD):
                rows: list[tuple[Any, ...]] = connection.execute(_SESSIONS).fetchall()
                for state, waits in rows:
                    if state is not None and state != "idle":
                        self._server["sessions"] += 1
                        self._server[str(waits)] += 1
