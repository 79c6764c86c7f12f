"""An aggregator behind HTTP: every report that was answered survives, and so does every bundle.

What is in memory is what the file says: a report counts in memory, then in the file, then it is
answered. Where the file cannot be written, memory is given up and read from the file again. A
bundle is handed out once the state that it belongs to is in the file, so that no restart forgets
it.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

from capri.errors import ConfigurationError, HorizonError, KernelWarning, StorageError
from capri.local.aggregator import LocalCapri
from capri.local.gathering import ReportStatus
from capri.privacy.budget import Budget
from capri.service.journal import Journal

REPORT_SIZE = 32
_BRIEF = 1.0  # seconds after which the clock is looked at again


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


class Collector:
    """Takes reports for an aggregator, and hands out its bundles."""

    def __init__(self, arguments: Mapping[str, Any], path: Path) -> None:
        self._clock, self._lock = Clock(), RLock()
        self._fresh: Callable[[], LocalCapri] = lambda: new_aggregator(arguments, self._clock)
        waits = (arguments.get("reward_wait", 0), arguments.get("epoch_time"))
        self._timed = any(each is not None and not isinstance(each, int) for each in waits)
        self._looked = 0.0
        self._journal = Journal(path)
        self._aggregator: LocalCapri | None = None
        self._shown: bytes | HorizonError = b""
        try:
            self._read()
        except BaseException:
            self._journal.close()
            raise

    # -- what is there ----------------------------------------------------------------------------

    def _read(self) -> LocalCapri:
        """The aggregator as the file says it; a new one where there is none."""
        kept, fresh = self._journal.read(), self._fresh()
        configuration = str(fresh.certificate().to_dict()["digests"]["configuration"])
        if kept is None:
            found = fresh
            self._journal.begin(configuration, _saved(found))
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
                statuses = found.receive_many(_apart(messages))
            finally:
                self._clock.at = None
            if (statuses != ReportStatus.ACCEPTED).any():
                raise StorageError("the store is damaged: a report that counted does not any more")
        # The bundle of a reading that was interrupted is made now, and kept before it is shown.
        self._journal.replace(_saved(found))

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
                    self._journal.replace(_saved(aggregator))
                elif accepted:
                    self._journal.append(b"".join(accepted), self._clock.at)
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
            self._journal.close()


def _apart(messages: bytes) -> list[bytes]:
    return [messages[start : start + REPORT_SIZE] for start in range(0, len(messages), REPORT_SIZE)]


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
