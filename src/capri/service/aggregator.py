"""An aggregator behind HTTP: every report that was answered survives, and so does every bundle.

What is in memory is what the file says: a report counts in memory, then in the file, then it is
answered. Where the file cannot be written, memory is given up and read from the file again. A
bundle is handed out once the state that it belongs to is in the file, so that no restart forgets
it.

The file is one SQLite database with a saved aggregator and the reports since. With a new bundle
the aggregator is saved anew and takes the place of the reports that are in it, within one
transaction. Nothing of a request is kept but the bytes of its reports, which are private by
themselves; and the time of their arrival only where epochs end by the clock.
"""

import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any, NamedTuple

from capri.errors import ConfigurationError, HorizonError, KernelWarning, StorageError
from capri.local.aggregator import LocalCapri
from capri.local.reports import ReportStatus
from capri.privacy.budget import Budget
from capri.service.messages import apart

_BRIEF = 1.0  # seconds after which the clock is looked at again
_TABLES = (
    "CREATE TABLE IF NOT EXISTS collected_state "
    "(id INTEGER PRIMARY KEY CHECK (id = 1), configuration TEXT NOT NULL, saved BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS collected_reports "
    "(number INTEGER PRIMARY KEY, at REAL, messages BLOB NOT NULL)",
)
# Rows of what was read are overwritten; the lock is kept: one process serves a file.
_SETTINGS = ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL")
_SECURE = "secure_delete = ON"
_PATIENCE = 5.0
_PREFIX = "sqlite:///"


# -- the aggregator --------------------------------------------------------------------------------


class Clock:
    """The public clock, which a replay sets back to when reports came."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self) -> datetime:
        """Now, or then."""
        return datetime.fromtimestamp(time.time() if self.at is None else self.at, UTC)


def new_aggregator(arguments: Mapping[str, Any], clock: Clock | None = None) -> LocalCapri:
    """What a policy file with ``model = "local"`` describes."""
    given = {name: value for name, value in arguments.items() if name != "model"}
    for name in ("contributions_per_user", "contributions_per_epoch"):
        if given.pop(name, None) is not None:
            raise ConfigurationError(
                "contributions are limited by the devices of model 'local', each of which reports "
                "once: leave [users] out"
            )
    if given.pop("reward_rule", "first") != "first":
        raise ConfigurationError(
            "reward_rule must be 'first' with model 'local': a device reports once, so the app "
            "combines several rewards to one before it reports"
        )
    given["budget"] = Budget(epsilon=given["budget"].epsilon)  # the sphere keeps delta = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)  # the page and /v1/policy tell of them
        return LocalCapri(**given, clock=clock)


class DurableAggregator:
    """Takes reports for an aggregator, and hands out its bundles."""

    def __init__(self, arguments: Mapping[str, Any], path: Path) -> None:
        self._clock, self._lock = Clock(), RLock()
        self._fresh: Callable[[], LocalCapri] = lambda: new_aggregator(arguments, self._clock)
        waits = (arguments.get("reward_wait", 0), arguments.get("epoch_time"))
        self._timed = any(each is not None and not isinstance(each, int) for each in waits)
        self._looked = 0.0
        self._log = ReportLog(path)
        self._aggregator: LocalCapri | None = None
        self._shown: bytes | HorizonError = b""
        try:
            self._read()
        except BaseException:
            self._log.close()
            raise

    # -- what is there ----------------------------------------------------------------------------

    def _read(self) -> LocalCapri:
        """The aggregator as the file says it; a new one where there is none."""
        kept, fresh = self._log.read(), self._fresh()
        configuration = str(fresh.certificate().to_dict()["digests"]["configuration"])
        if kept is None:
            found = fresh
            self._log.begin(configuration, _saved(found))
        elif kept.configuration != configuration:
            raise ConfigurationError(
                "this store was made for another policy: the file says another one now. Give "
                "another store, or the file as it was"
            )
        else:
            found = _loaded(kept.saved, self._clock)
            self._replay(found, kept.reports)
        self._aggregator, self._shown = found, _bundle(found)
        return found

    def _replay(self, found: LocalCapri, reports: list[tuple[float | None, bytes]]) -> None:
        for at, messages in reports:
            self._clock.at = at
            try:
                statuses = found.receive_many(apart(messages))
            finally:
                self._clock.at = None
            if (statuses != ReportStatus.ACCEPTED).any():
                raise StorageError("the store is damaged: a report that counted does not any more")
        # The bundle of a reading that was interrupted is made now, and kept before it is shown.
        self._log.replace(_saved(found))

    @property
    def aggregator(self) -> LocalCapri:
        """The aggregator, all of which is public."""
        with self._lock:
            return self._aggregator or self._read()

    def check(self) -> None:
        """Raise where the file does not serve; memory that was given up is read again."""
        if self._aggregator is None:
            assert self.aggregator

    # -- what is done -----------------------------------------------------------------------------

    def bundle(self) -> bytes:
        """The newest bundle that is durable."""
        self.look()
        if isinstance(self._shown, HorizonError):
            raise HorizonError(str(self._shown))
        return self._shown

    def look(self) -> None:
        """Where epochs end by the clock: whether one has, unless somebody is at it."""
        now = time.monotonic()
        if self._timed and now - self._looked > _BRIEF and self._lock.acquire(blocking=False):
            try:
                self._looked = now
                self._change(lambda aggregator: aggregator.remaining)
            finally:
                self._lock.release()

    def receive(self, reports: list[bytes]) -> list[ReportStatus]:
        """What became of each report; those that count are durable."""
        accepted: list[bytes] = []

        def take(aggregator: LocalCapri) -> list[ReportStatus]:
            statuses = [ReportStatus(code) for code in aggregator.receive_many(reports).tolist()]
            accepted.extend(
                report
                for report, status in zip(reports, statuses, strict=True)
                if status is ReportStatus.ACCEPTED
            )
            return statuses

        return self._change(take, accepted)  # type: ignore[no-any-return]

    def close_epoch(self, *, early: bool) -> int:
        """End the epoch now where that is due or ``early``; how many readings there are."""
        self._change(lambda aggregator: aggregator.close_epoch(early=early))
        return len(self.aggregator.epochs)

    def replace_actions(self, actions: object) -> None:
        """Other actions, from the next bundle on."""
        self._change(lambda aggregator: aggregator.replace_actions(actions), kept=True)

    def _change(
        self,
        change: Callable[[LocalCapri], Any],
        accepted: list[bytes] | None = None,
        *,
        kept: bool = False,
    ) -> Any:
        """Do something, and make it last before anybody hears of it."""
        with self._lock:
            aggregator, now = self.aggregator, time.time()
            self._clock.at = now if self._timed else None
            try:
                result = change(aggregator)
                shown = _bundle(aggregator)
                if kept or _digest(shown) != _digest(self._shown):
                    self._log.replace(_saved(aggregator))
                elif accepted:
                    self._log.append(b"".join(accepted), self._clock.at)
            except (ConfigurationError, HorizonError):
                raise  # refused before anything was changed
            except BaseException as problem:
                self._aggregator = None  # what the file does not say did not happen
                if isinstance(problem, OSError):
                    raise StorageError(f"the state cannot be kept: {problem.strerror}") from None
                raise
            finally:
                self._clock.at = None
            self._shown = shown
            return result

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._log.close()


def _bundle(aggregator: LocalCapri) -> bytes | HorizonError:
    try:
        return aggregator.bundle()
    except HorizonError as problem:
        return problem


def _digest(shown: bytes | HorizonError) -> bytes:
    return shown[-32:] if isinstance(shown, bytes) else b""


def _saved(aggregator: LocalCapri) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.capri"
        aggregator.save(path)
        return path.read_bytes()


def _loaded(saved: bytes, clock: Clock) -> LocalCapri:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.capri"
        path.write_bytes(saved)
        return LocalCapri.load(path, clock=clock)


# -- the file --------------------------------------------------------------------------------------


class SavedReports(NamedTuple):
    """A saved aggregator, what it was built from, and the reports since, with their times."""

    configuration: str
    saved: bytes
    reports: list[tuple[float | None, bytes]]


def report_file(store: str) -> Path:
    """The file at an address."""
    if not store.startswith(_PREFIX) or len(store) == len(_PREFIX):
        raise ConfigurationError(
            "a policy with model = 'local' is kept in one SQLite file: store must be "
            "'sqlite:///file.db'"
        )
    return Path(store.removeprefix(_PREFIX))


class ReportLog:
    """The file, held by this process alone. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _problems(path):
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
        try:
            with _problems(path):
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        run = self._connection.execute
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "collected_state" not in tables:
            raise ConfigurationError(
                f"{self._path} holds a policy of another model: give another store, or the model "
                "that it was made with"
            )
        for setting in (*_SETTINGS, _SECURE):
            run(f"PRAGMA {setting}")
        self._write(*((table, ()) for table in _TABLES))

    def _write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """All of them or none: durable when this returns."""
        run = self._connection.execute
        with _problems(self._path):
            run("BEGIN EXCLUSIVE")
            try:
                for sql, values in statements:
                    run(sql, values)
                run("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled back already
                    run("ROLLBACK")
                raise

    def read(self) -> SavedReports | None:
        """All of it; None where there is nothing."""
        with _problems(self._path):
            run = self._connection.execute
            found = run("SELECT configuration, saved FROM collected_state").fetchone()
            if found is None:
                return None
            rows = run("SELECT at, messages FROM collected_reports ORDER BY number").fetchall()
            return SavedReports(found[0], found[1], rows)

    def begin(self, configuration: str, saved: bytes) -> None:
        """The first state."""
        self._write(("INSERT INTO collected_state VALUES (1, ?, ?)", (configuration, saved)))

    def append(self, messages: bytes, at: float | None) -> None:
        """Reports that were accepted."""
        row = (at, messages)
        self._write(("INSERT INTO collected_reports (at, messages) VALUES (?, ?)", row))

    def replace(self, saved: bytes) -> None:
        """A newer state, which holds all reports."""
        self._write(
            ("UPDATE collected_state SET saved = ?", (saved,)),
            ("DELETE FROM collected_reports", ()),
        )

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):
            self._connection.close()


@contextmanager
def _problems(path: Path) -> Iterator[None]:
    """What SQLite raises, in our words: none of its own, which may quote values."""
    try:
        yield
    except (sqlite3.Error, OSError) as problem:
        held = "locked" in str(problem)
        why = "another process serves it" if held else type(problem).__name__
        raise StorageError(f"{path} cannot be used: {why}") from None
