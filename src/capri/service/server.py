"""Running the service: one process, or several that share a socket and a store."""

import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO, TypeVar

import uvicorn

from capri.errors import (
    AwayError,
    CapriError,
    ConfigurationError,
    InDoubtError,
    KernelWarning,
    StorageError,
)
from capri.files import secret
from capri.service.app import Application
from capri.service.auth import ENVIRONMENT, KeyRing
from capri.service.changes import PolicyFile
from capri.service.connections import PatientProtocol
from capri.service.devices import TICKET_KEY, tickets_of_environment
from capri.service.settings import Settings, load_settings, read_forecast, write_forecast
from capri.service.telemetry import log_to_standard_error, tell_warning, tracer
from capri.store.seal import STORE_KEY, key_from

Opened = TypeVar("Opened")

# Seconds after which a store that is away is tried again.
_AGAIN = 1.0
# When the service is told to stop, in seconds: who waits for longer is told what became of it; all
# requests are over; the store is left.
_PATIENT, _PARTING, _CLOSING = 10.0, 12, 8.0
# A thread that has waited for the disk goes on within this many seconds.
_SWITCH = 0.0005
# Objects that may be made, more than are gone again, before cycles are looked for.
_COLLECTED = 50_000
_LOOK = 0.2  # seconds after which workers are looked at again
# A worker that ends sooner than this after its start is not started again at once.
_SOON, _REST = 5.0, 1.0
_ENDING = 25.0  # seconds for workers to end


@dataclass(frozen=True)
class Start:
    """All that a worker needs to know; no key and no password is shown."""

    file: Path
    store: str | None
    keys: Path | None
    insecure_local: bool
    rollback_guard: str | None = None
    site: Path | None = None
    json_log: bool = False
    traces: bool = False

    def __repr__(self) -> str:
        return f"Start({str(self.file)!r})"

    def _application(self, settings: Settings) -> Application:
        """The application of a worker, in its own process."""
        policy = open_policy(settings, self.store, self.rollback_guard)
        warnings.showwarning = tell_warning
        made = Application(
            policy,
            name=settings.name,
            keys=None if self.insecure_local else self.ring(),
            hosts=settings.hosts,
            limits=settings.limits,
            expected=partial(read_forecast, self.file),
            site=self.site,
            file=None if settings.local else PolicyFile(self.file, self.store),
            told=tracer() if self.traces else None,
        )
        _collect_seldom()
        return made

    def run(self, listening: socket.socket) -> None:
        """Serve at a socket until told to stop, in this process."""
        sys.setswitchinterval(_SWITCH)
        log_to_standard_error(as_json=self.json_log)
        settings = load_settings(self.file, thorough=False)
        PatientProtocol.header_seconds = settings.limits.header_seconds
        PatientProtocol.body_seconds = settings.limits.body_seconds
        PatientProtocol.most = settings.limits.connections
        config = uvicorn.Config(
            # Before uvicorn minds the signals: whoever waits may be told to stop.
            opened(lambda: self._application(settings)),
            http=PatientProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(settings.limits.idle_seconds),
            timeout_graceful_shutdown=_PARTING,
        )
        server = EndingServer(config)
        server.run(sockets=[listening])
        if not server.started:  # it ends in silence else
            raise StorageError("the service could not be started: the lines above name the kind")

    def ring(self) -> KeyRing:
        """The keys; none at all is an error."""
        ring = KeyRing(self.keys)
        if not len(ring):
            raise ConfigurationError(
                f"there is no key in {self.keys} or in {ENVIRONMENT}: make one by "
                f"`capri key shop --roles decide,reward --file {self.keys}`, or give "
                "--insecure-local to try things out on this machine without keys"
            )
        return ring


class EndingServer(uvicorn.Server):
    """Ends within a grace period, whatever the store does.

    A store that hangs holds threads that nothing ends. A process that is killed loses nothing that
    was acknowledged, so one that has waited for long enough ends itself.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End now, or when the grace period is over."""
        Thread(target=_end_at_last, name="capri-ending", daemon=True).start()
        if isinstance(self.config.app, Application):
            self.config.app.hurry(_PATIENT)
        await super().shutdown(sockets)


def _end_at_last() -> None:
    time.sleep(_PARTING + _CLOSING)
    _say("capri: ended without the store, which does not answer", sys.stderr)
    os._exit(1)


def _collect_seldom() -> None:
    """Requests make no cycles: looking for some after every few hundred objects takes longer than
    reading a list, and a look at everything that was loaded holds up whoever asks meanwhile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED, 20, 20)


def opened(opening: Callable[[], Opened]) -> Opened:
    """What is opened, tried until the store serves; every new reason is told in a line.

    A store that is away, held by another or without room comes back. One that is damaged, or of
    another policy, does not: its problem ends the service, which says so.
    """
    told = ""
    while True:
        try:
            return opening()
        except (AwayError, InDoubtError) as problem:
            if str(problem) != told:
                told = str(problem)
                _say(f"capri: not ready, and trying again: {told}", sys.stderr)
            time.sleep(_AGAIN)


def _say(text: str, to: TextIO) -> None:
    """A line for the operator. No service ends since its log has no room."""
    with suppress(OSError):
        print(text, file=to, flush=True)


def open_policy(
    settings: Settings,
    store: str | None,
    rollback_guard: str | None = None,
    *,
    new_rollback_guard: bool = False,
) -> Any:
    """The policy in its store, filled where it is empty; or the aggregator of a local one."""
    if settings.local:
        keyed = tickets_of_environment() is not None  # a key that is none is told of now
        if settings.arguments.get("tickets") and not keyed:
            raise ConfigurationError(f"tickets = true needs their key in {TICKET_KEY}")
        return settings.aggregator(store or settings.default_store)
    key = secret(STORE_KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)  # the page and /v1/policy tell of them
        place = store or settings.default_store
        return settings.policy(
            **PolicyFile(settings.path, place).arguments(),
            store=place,
            store_key=key_from(key.encode(), STORE_KEY) if key else None,
            rollback_guard=rollback_guard or settings.rollback_guard,
            new_rollback_guard=new_rollback_guard,
            population=settings.population,
        )


def serve(
    start: Start,
    *,
    host: str,
    port: int,
    workers: int,
    forecast: bool = False,
    new_rollback_guard: bool = False,
) -> None:
    """Serve until told to stop.

    ``new_rollback_guard`` holds for the first opening alone: a worker that comes later
    finds the guard.
    """
    settings = load_settings(start.file)
    if start.insecure_local and host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigurationError(
            f"--insecure-local answers on this machine alone: --host must be 127.0.0.1, got {host}"
        )
    if not start.insecure_local:
        start.ring()
    _check_model(start, settings.local, forecast, new_rollback_guard)
    # Filled and found sound before a worker starts; also tells of a store that is another's.
    opened(lambda: _fill(settings, start, new_rollback_guard))
    if forecast and read_forecast(start.file) is None:
        start_process(_forecast, start.file, daemon=True)
    log_to_standard_error(as_json=start.json_log)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    _say(f"capri: {settings.name} at http://{shown}:{listening.getsockname()[1]}/", sys.stdout)
    if workers == 1:
        start.run(listening)
    else:
        supervise(start.run, listening, workers)


def _forecast(file: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the service
    os.nice(19)
    write_forecast(file)


def _fill(settings: Settings, start: Start, new_rollback_guard: bool) -> None:
    policy = open_policy(
        settings, start.store, start.rollback_guard, new_rollback_guard=new_rollback_guard
    )
    try:
        settings.begin(policy)
    finally:
        policy.close()


def _check_model(start: Start, local: bool, forecast: bool, new_rollback_guard: bool) -> None:
    """Refuse what is of no use to a policy of this model."""
    if start.site is not None and not local:
        raise ConfigurationError("--site is for a policy with model = 'local'")
    if forecast and local:
        raise ConfigurationError("--forecast is for model = 'joint': see capri forecast")
    if (start.rollback_guard is not None or new_rollback_guard) and local:
        raise ConfigurationError(
            "--rollback-guard is for model = 'joint': an older copy of reports harms nobody's "
            "privacy"
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as problem:
        listening.close()
        raise StorageError(
            f"{host}:{port} cannot be listened at: {problem.strerror}. Give another --port"
        ) from None
    listening.listen(2048)
    listening.set_inheritable(True)
    return listening


# -- processes: started in one way, kept running, ended with the process they serve ----------------


def start_process(
    target: Callable[..., None], *arguments: Any, daemon: bool = False
) -> BaseProcess:
    """Run a function in a process of its own; ``daemon``: ended, not waited for, at the end.

    It is forked from a process that has imported everything and opened nothing: a forked policy
    would be of no use, and imports are most of what a start takes.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(["capri.service.server"])
    process: BaseProcess = context.Process(target=_run, args=(target, *arguments), daemon=daemon)
    process.start()
    return process


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """End when the parent has: nobody else would end a process that was left over."""
    Thread(target=_end_with_parent, name="capri-parent", daemon=True).start()
    try:
        target(*arguments)
    except CapriError as problem:  # such as a store that cannot be opened
        _say(f"capri: {problem}", sys.stderr)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def supervise(work: Callable[[socket.socket], None], listening: socket.socket, count: int) -> None:
    """Keep so many workers running until this process is told to stop; all end together."""
    ended = Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ended.set())

    def worker() -> tuple[BaseProcess, float]:
        return start_process(work, listening), time.monotonic()

    workers = [worker() for _ in range(count)]
    while not ended.wait(_LOOK):
        for place, (process, since) in enumerate(workers):
            if not process.is_alive():
                process.join()
                if time.monotonic() - since < _SOON and ended.wait(_REST):
                    break
                workers[place] = worker()
    for process, _ in workers:
        process.terminate()
    deadline = time.monotonic() + _ENDING
    for process, _ in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
