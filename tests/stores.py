"""The places a policy may be kept, behind one face: open it, restart it, look at its raw bytes."""

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import capri
from builders import small_policy
from memory import MEMORY
from postgres_server import PostgresServer

STORE_KEY = bytes(range(32))
# Sealed columns are what tests of forgetting and of refusals are about; elsewhere they take time.
_SEALED = pytest.param("sqlite-sealed", marks=pytest.mark.slow)
KINDS = ("memory", "sqlite", _SEALED, "postgres")
DURABLE = KINDS[1:]


@dataclass
class Place:
    """A store of one test, and the policies that were opened on it."""

    kind: str
    url: str | None
    file: Path | None = None
    server: PostgresServer | None = None
    _opened: list[capri.Capri] = field(default_factory=list)

    @property
    def sealed(self) -> bool:
        """Whether its secret columns are encrypted."""
        return self.kind == "sqlite-sealed"

    def settings(self, **changes: Any) -> dict[str, Any]:
        """What a policy is built with to live here."""
        key = {"store_key": STORE_KEY} if self.sealed else {}
        return {"store": self.url, **key, **changes}

    def open(self, **changes: Any) -> capri.Capri:
        """The small policy of the tests on this store."""
        policy = small_policy(**self.settings(**changes))
        self._opened.append(policy)
        return policy

    def restarted(self, policy: capri.Capri, **changes: Any) -> capri.Capri:
        """The policy as another process finds it after this one has gone; in memory it stays."""
        if self.url is None:
            return policy
        policy.close()
        return self.open(**changes)

    def close(self) -> None:
        """Close all policies that are open."""
        for policy in self._opened:
            policy.close()
        self._opened.clear()

    def raw(self) -> bytes:
        """Every byte that is kept: files with all their pages, or all live rows of a server.

        Rows are read in both forms of the wire, numbers in binary and texts as texts.
        """
        if self.file is not None:
            beside = self.file.parent.glob(f"*{self.file.name}*")
            return b"\0".join(path.read_bytes() for path in sorted(beside))
        assert self.server is not None
        parts: list[bytes] = []
        with self.server.connection(self.database) as connection:
            found = connection.execute(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
                "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            ).fetchall()
            for (table,) in found:
                for form in ("binary", "text"):
                    with connection.cursor().copy(
                        f"COPY {table} TO STDOUT (FORMAT {form})"
                    ) as rows:
                        parts += [bytes(part) for part in rows]
        return b"\0".join(parts)

    @property
    def database(self) -> str:
        """The name of a server's database."""
        assert self.url is not None
        return self.url.partition("?")[0].rpartition("/")[2]


def traces(value: float | str | bytes) -> list[bytes]:
    """How a value looks in raw bytes: a number in both byte orders, a text, and their digits.

    No form is shorter than eight bytes: none is there by chance.
    """
    if isinstance(value, bytes):
        return [value, value.hex().encode()]
    if isinstance(value, str):
        return [value.encode(), value.encode("utf-16-le"), value.encode().hex().encode()]
    packed = [struct.pack(form, value) for form in ("<d", ">d")]
    return [*packed, *(each.hex().encode() for each in packed), repr(value).encode()]


def found_in(raw: bytes, values: list[float | str | bytes]) -> list[float | str | bytes]:
    """Which of some planted values occur in raw bytes, in any form."""
    return [value for value in values if any(trace in raw for trace in traces(value))]


def in_a_process(script: str, *arguments: str) -> str:
    """What a program prints in a process of its own, whose limits it may change."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here / "contracts"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_place(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A fresh store of this kind, with its policies closed at the end."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        if kind == "memory":
            place = Place(kind, None)
        elif kind.startswith("sqlite"):
            file = Path(folder) / "doses.db"
            place = Place(kind, f"sqlite:///{file}", file=file)
        else:
            server = request.getfixturevalue("postgres_server")
            place = Place(kind, request.getfixturevalue("postgres_url"), server=server)
        try:
            yield place
        finally:
            place.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every place, memory included."""
    yield from make_place(request.param, request)


@pytest.fixture(params=DURABLE)
def store(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Every place that outlives its process."""
    yield from make_place(request.param, request)
