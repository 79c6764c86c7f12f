"""A line to a Postgres server on which every wait ends.

A server that hangs keeps its connections, and so does a network that swallows everything. The
server itself ends the wait for a lock and for a statement; this process ends the wait for a word of
the server, and takes the connection for lost.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from capri.store.transaction import Row

# How many times as long as for a lock a statement may take, and the server may say nothing.
STATEMENT, _SILENCE = 2, 3
# Seconds for a connection at most, and after which a line without a word is tried out.
_CONNECT, _IDLE = 10, 30
# What a server says to a login that it will never take. Before a session there is no SQLSTATE to
# ask for; a server that speaks another language is taken to be away, and tried again.
_NEVER = {
    r'database ".*" does not exist': "has no database of this name: create it, or mend the address",
    r'role ".*" (does not exist|is not permitted to log in)|no pg_hba\.conf entry|'
    r"permission denied for database": "does not let the user log in: mend the address, or the "
    "rights of the user",
    r"authentication failed|no password supplied": "does not take the password of the user: mend "
    "the address",
}


class Line(Connection[Row]):
    """A connection that is lost where the server has said nothing for ``silence`` seconds."""

    silence = inf

    def wait(self, gen: Any, *how: Any, **more: Any) -> Any:
        """As ever, and not for ever."""
        return super().wait(self._heard(gen), *how, **more)

    def _heard(self, gen: Any) -> Any:
        """The same conversation, looked at whenever the server speaks and ten times a second."""
        heard = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = monotonic()
                if ready:
                    heard = now
                elif now - heard > self.silence:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server says nothing")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """For what may take an hour."""
        usual, self.silence = self.silence, inf
        self.execute("SET statement_timeout = 0")
        try:
            yield
        finally:
            self.silence = usual
            if not self.broken:
                self.execute(_limit(usual / _SILENCE))


def open_line(url: str, name: str, patience: float) -> Line:
    """A line that waits for a lock so long, and for nothing for ever."""
    given = conninfo_to_dict(url)
    how: dict[str, Any] = {
        "connect_timeout": max(1, min(_CONNECT, int(patience))),
        "keepalives_idle": _IDLE,
        "keepalives_interval": _CONNECT,
        "keepalives_count": 3,
        "tcp_user_timeout": int(_SILENCE * patience * 1000),
    }
    how = {key: value for key, value in how.items() if key not in given}
    line = Line.connect(url, autocommit=True, prepare_threshold=2, application_name=name, **how)
    line.silence = _SILENCE * patience
    # One width of integers: each other one would be another prepared statement.
    line.adapters.register_dumper(int, Int8Dumper)
    line.adapters.register_dumper(int, Int8BinaryDumper)
    line.execute("SET synchronous_commit = on")
    line.execute(f"SET lock_timeout = {int(patience * 1000)}")
    line.execute(_limit(patience))
    line.execute("SET idle_in_transaction_session_timeout = '10min'")
    return line


def turned_away(problem: psycopg.Error) -> str:
    """Why a login will never be taken, in words without its user and password; else nothing."""
    if problem.sqlstate is not None:
        return ""
    said = str(problem)
    return next((why for words, why in _NEVER.items() if re.search(words, said)), "")


def _limit(patience: float) -> str:
    return f"SET statement_timeout = {int(STATEMENT * patience * 1000)}"
