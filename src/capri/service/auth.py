"""Who may ask for what, and how much of it: keys with roles, hosts, limits, rates.

A key is 32 random bytes, so a plain digest hides it: nobody can try them out. Digests are compared
in constant time. A file of keys has a line for each, ``name roles sha256:digest``, and is read
again when it changes. Several lines may have the same name: the old key and the new one are both
good until the old line is deleted.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from capri.errors import ConfigurationError
from capri.files import secret

Headers = dict[bytes, bytes]

DECIDE, REWARD, READ, OPERATOR, ADMIN = "decide", "reward", "read", "operator", "admin"
ROLES = (DECIDE, REWARD, READ, OPERATOR, ADMIN)
# What a role may do beside what its own name says.
_MEANS = {OPERATOR: (READ,), ADMIN: (DECIDE, REWARD, READ, OPERATOR)}
ENVIRONMENT = "CAPRI_KEYS"
_PREFIX = "capri_"
_DIGEST = "sha256:"
_EVERY = 0.5  # seconds after which a file may be looked at again
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
# Headers that a proxy adds: behind one, "local" is everybody.
_FORWARDED = re.compile(
    rb"(x-)?forwarded(-.*)?|via|x-real-ip|(x-)?(cluster-)?client-ip|(true|cf)-.*ip|x-original-.*"
)
# Bytes of a body that is out of the ordinary, and those that each of its items may have beyond.
LARGE, HEAVY = 64 << 10, 1 << 10
_KEPT = 100_000  # decisions whose rewards are surely counted

_log = logging.getLogger("capri.service")


class RefusalError(Exception):
    """A request whose envelope is not as it must be. ``problem`` quotes nothing of it."""

    def __init__(self, status: int, problem: str, field: str = "", *, wait: int = 0) -> None:
        super().__init__(problem)
        self.status, self.problem, self.field, self.wait = status, problem, field, wait


@dataclass(frozen=True)
class Holder:
    """Who holds a key: a name for limits, and what the key is good for."""

    name: str
    roles: frozenset[str]


EVERYBODY = Holder("everybody", frozenset(ROLES))
# One holder for all devices: a limit for each would need to know which is which.
DEVICES = Holder("devices", frozenset())


# -- keys -----------------------------------------------------------------------------------------


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return _DIGEST + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(text: str, source: str) -> list[tuple[bytes, Holder]]:
    """The keys of a file, or of the environment; no message quotes a digest."""
    found = []
    lines = text.replace(";", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or not parts[2].startswith(_DIGEST) or len(parts[2]) != 71:
            raise ConfigurationError(
                f"{source}, line {number}: a key is 'name roles sha256:digest', as `capri key` "
                "writes it"
            )
        roles = parts[1].split(",")
        unknown = [role for role in roles if role not in ROLES]
        if unknown:
            raise ConfigurationError(
                f"{source}, line {number}: unknown role {unknown[0]!r}; allowed: {', '.join(ROLES)}"
            )
        every = {role for own in roles for role in (own, *_MEANS.get(own, ()))}
        found.append((parts[2].encode(), Holder(parts[0], frozenset(every))))
    return found


class KeyRing:
    """The keys that are good now."""

    def __init__(self, file: Path | None) -> None:
        """Keys of the file and of the environment; a file that is not there has none."""
        self._file = file
        self._state: tuple[int, int, int] | None = None
        self._looked = -_EVERY
        self._told = False
        self._fixed = read_keys(secret(ENVIRONMENT) or "", ENVIRONMENT)
        self._keys = list(self._fixed)
        if file is not None and file.exists():
            self._read(file)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({len(self)} keys)"

    def holder(self, key: bytes) -> Holder | None:
        """Who holds a key; compared with all keys, found or not."""
        self._look()
        digest = _DIGEST.encode() + hashlib.sha256(key).hexdigest().encode()
        found = None
        for known, holder in self._keys:
            if hmac.compare_digest(known, digest):
                found = holder
        return found

    def _look(self) -> None:
        """Read the file again where it has changed; one that is damaged or gone changes nothing."""
        now = time.monotonic()
        if self._file is None or now - self._looked < _EVERY:
            return
        self._looked = now
        try:
            if self._stamp(self._file) != self._state:
                self._read(self._file)
            self._told = False
        except (OSError, ValueError) as problem:  # bytes that are no text, too
            if not self._told:  # once, not with every look
                _log.warning("keys stay as they were: %s", type(problem).__name__)
            self._told = True

    def _read(self, file: Path) -> None:
        stamp = self._stamp(file)
        self._keys = [*self._fixed, *read_keys(file.read_text(encoding="utf-8"), str(file))]
        self._state = stamp

    @staticmethod
    def _stamp(file: Path) -> tuple[int, int, int]:
        found = file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def add_key(file: Path, name: str, roles: Iterable[str]) -> str:
    """A new key in a file that its owner alone may read; returned once, kept nowhere."""
    key = _PREFIX + secrets.token_urlsafe(32)
    line = f"{name} {','.join(roles)} {digest_of(key)}\n"
    read_keys(line, "the new key")  # names and roles are sound
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(line)
    return key


# -- limits ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceLimits:
    """What one request, one key and one process may ask for: public.

    Sizes are in bytes, times in seconds.
    ``largest_body``: of one request. ``largest_batch``: items of one list.
    ``deepest``: levels of a list of visits that are read; those of one visit are one less. No cell
    that means anything is a list, so what lies deeper costs nobody any time.
    ``header_seconds``, ``body_seconds``: a connection that takes longer for them is closed, and so
    is one that leaves answers unread for ``body_seconds``.
    ``idle_seconds``: a connection that asks for nothing is closed.
    ``answer_seconds``: a request that waits longer is refused.
    ``rate``: items (decisions or rewards) a second and key. ``rate_bytes``: bytes a second and key,
    in bodies with more than 64 KiB and 1 KiB an item, each counted as ``largest_body``.
    ``connections``: of one process.
    ``waiting`` items of ``waiting_bytes`` in all may wait in one micro-batcher.
    ``rewards_each``: of one decision, those that go on to what others share; a process counts by
    itself.
    """

    largest_body: int = 1 << 20
    largest_batch: int = 1000
    deepest: int = 4
    header_seconds: float = 10.0
    body_seconds: float = 10.0
    idle_seconds: float = 60.0
    answer_seconds: float = 10.0
    rate: float = 20_000.0
    rate_bytes: float = float(32 << 20)
    connections: int = 512
    waiting: int = 20_000
    waiting_bytes: int = 32 << 20
    rewards_each: int = 100


class Bucket:
    """A rate with room for a burst of one second's worth: refilled as time goes by.

    >>> bucket = Bucket(2.0)
    >>> [bucket.take(1, now) for now in (0.0, 0.0, 0.0, 0.5)]
    [True, True, False, True]
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left, self._at = rate, 0.0

    def take(self, count: int, now: float) -> bool:
        """Whether so many items may come now. One request may borrow, and those after it wait."""
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < min(count, 1) or self._left < 0:
            return False
        self._left -= count
        return True


class RewardQuota:
    """How many rewards of one decision go on to what others share: a queue, a commit, a rate.

    Whether, when and how often a reward comes is private. One that comes a thousand times must not
    make others wait, so after the first few the service answers it at once. Of the ids, the newest
    are kept: a flood for one decision forgets none of its own.

    >>> quota = RewardQuota(2)
    >>> quota.takes(["a", "a", "a", "b"])
    [True, True, False, True]
    >>> quota.refund(["a"])
    >>> quota.takes(["a", "a"])
    [True, False]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: dict[str, int] = {}
        self._older: dict[str, int] = {}

    def takes(self, decisions: Sequence[str]) -> list[bool]:
        """Whether one more goes on, of each."""
        if len(self._newest) >= _KEPT:
            self._older, self._newest = self._newest, {}
        newest, older, most = self._newest, self._older, self._most
        first = dict.fromkeys(decisions, 1)
        if len(first) == len(decisions) and not (newest.keys() & first or older.keys() & first):
            newest.update(first)  # nearly always
            return [True] * len(decisions)
        found = []
        for decision in decisions:
            count = newest.get(decision)
            if count is None:
                count = older.get(decision, 0)
            newest[decision] = min(count + 1, most)
            found.append(count < most)
        return found

    def refund(self, decisions: Iterable[str]) -> None:
        """Some did not arrive: they may be sent again."""
        for decision in decisions:
            self._newest[decision] = max(0, self._newest.get(decision, 0) - 1)


class Guard:
    """Who may come in: the keys, hosts and limits of one service."""

    def __init__(self, keys: KeyRing | None, hosts: tuple[str, ...], limits: ServiceLimits) -> None:
        """Without ``keys`` everybody on this machine may do everything."""
        self._keys, self.limits = keys, limits
        self._hosts = frozenset((*_LOCAL, *hosts))
        self._buckets: dict[str, Bucket] = {}
        self._failures = Bucket(50.0)

    def check_host(self, headers: Headers, *, foreign: bool = False) -> None:
        """Refuse names that are not ours, and proxies in front of a service without keys.

        ``foreign``: what is asked for is for the pages of other sites, too.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts:
            raise RefusalError(
                421, "must be localhost or one of the hosts of [service] in the policy file", "Host"
            )
        if self._keys is None:
            if any(_FORWARDED.fullmatch(name) for name in headers):
                raise RefusalError(
                    403, "a service without keys is for this machine alone: it answers no proxy"
                )
            other = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
            if other and not foreign:
                raise RefusalError(403, "other sites may not ask a service without keys")

    def holder(self, headers: Headers, role: str | None) -> Holder:
        """Whose key came with a request, if it is good for this."""
        if role is None or self._keys is None:
            return EVERYBODY
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        found = self._keys.holder(key.strip()) if scheme.lower() == b"bearer" else None
        if found is None:
            if not self._failures.take(1, time.monotonic()):
                raise RefusalError(429, "too many requests without a key that is known", wait=1)
            raise RefusalError(401, "must be 'Bearer' and a key of this service", "Authorization")
        if role not in found.roles:
            raise RefusalError(403, f"this key has not the role {role!r}", "Authorization")
        return found

    def admit(self, holder: Holder, items: int) -> None:
        """Refuse more items a second than a key may have."""
        if not self._bucket(holder.name, self.limits.rate).take(items, time.monotonic()):
            raise RefusalError(429, f"at most {self.limits.rate:g} items a second", wait=1)

    def admit_bytes(self, holder: Holder, size: int) -> None:
        """Refuse a large body where its key has sent too many that are out of the ordinary."""
        if size > LARGE and not self._heavy(holder).take(0, time.monotonic()):
            rate = self.limits.rate_bytes
            raise RefusalError(429, f"at most {rate:g} bytes a second in large bodies", wait=1)

    def count_bytes(self, holder: Holder, size: int, items: int) -> None:
        """Count a body with more than so many bytes an item as one of the largest.

        How large a body is follows from private values, so it must not refuse others: lists of the
        usual items count for nothing, however long, and of the others one is like the next.
        """
        if size > LARGE + items * HEAVY:
            self._heavy(holder).take(self.limits.largest_body, time.monotonic())

    def _heavy(self, holder: Holder) -> "Bucket":
        return self._bucket(f"{holder.name} bytes", self.limits.rate_bytes)

    def _bucket(self, name: str, rate: float) -> Bucket:
        found = self._buckets.get(name)
        if found is None:
            found = self._buckets[name] = Bucket(rate)
        return found
