"""Who may ask for what: keys with roles, kept as digests and compared in constant time.

A key is 32 random bytes, so a plain digest hides it: nobody can try them out. A file of keys has a
line for each, ``name roles sha256:digest``, and is read again when it changes. Several lines may
have the same name: the old key and the new one are both good until the old line is deleted.
"""

import base64
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from capri.errors import ConfigurationError

DECIDE, REWARD, READ, OPERATOR, ADMIN = "decide", "reward", "read", "operator", "admin"
ROLES = (DECIDE, REWARD, READ, OPERATOR, ADMIN)
# What a role may do beside what its own name says.
_MEANS = {OPERATOR: (READ,), ADMIN: (DECIDE, REWARD, READ, OPERATOR)}
ENVIRONMENT = "CAPRI_KEYS"
_PREFIX = "capri_"
_DIGEST = "sha256:"
_EVERY = 0.5  # seconds after which a file may be looked at again

_log = logging.getLogger("capri.service")


@dataclass(frozen=True)
class Holder:
    """Who holds a key: a name for limits, and what the key is good for."""

    name: str
    roles: frozenset[str]


EVERYBODY = Holder("everybody", frozenset(ROLES))


def new_key() -> str:
    """A fresh key, to be shown once."""
    return _PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return _DIGEST + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def line_of(name: str, roles: Iterable[str], key: str) -> str:
    """The line of a key in a file."""
    return f"{name} {','.join(roles)} {digest_of(key)}"


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
        self._fixed = read_keys(os.environ.get(ENVIRONMENT, ""), ENVIRONMENT)
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
    listed = list(roles)
    key = new_key()
    read_keys(line_of(name, listed, key), "the new key")  # names and roles are sound
    line = line_of(name, listed, key) + "\n"
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(line)
    return key
