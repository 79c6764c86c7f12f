"""The seal on secret columns: authenticated encryption, bound to the place of a value.

AES-256-GCM of ``cryptography``. What is stored for a value is

    format (1) | key identifier (8) | nonce (12) | ciphertext | tag (16)

- **One key per column**: ``HKDF-SHA256(store key; store id | "column" | table | column)``. No
  two stores share a key even where their owner's is the same.
- **Bound to its row.** Store, table, column and row are associated data: a value that was moved to
  another row, column, table or store does not open.
- **Random nonces** of 96 bits from the operating system. Processes need no common counter and a
  restored copy repeats none. Two of ``2^32`` values of one column share one with probability
  ``2^-33``: the limit of NIST SP 800-38D, section 8.3.
- **A wrong key is not damage.** The key identifier is derived from key and store and says which key
  made a value; a value under the right identifier that does not open was changed.

Not hidden: that a value is there, how long it is, and under which key.
"""

import os
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from capri.checks import need
from capri.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
# Of the key of ids, and of the salt of digests.
SECRET_BYTES = 32
# The variable of the environment that a key is taken from.
STORE_KEY = "CAPRI_STORE_KEY"
_FORMAT = b"\x01"
_IDENTIFIER, _NONCE, _TAG = 8, 12, 16
_BODY = len(_FORMAT) + _IDENTIFIER  # where nonce and ciphertext begin
# Bytes that a sealed value is longer than what it seals.
OVERHEAD = _BODY + _NONCE + _TAG

Row = int | str | bytes


class Seal:
    """Seals the values of one store under its owner's key; without a key they stay as they are.

    >>> seal = Seal(bytes(range(32)), "a store")
    >>> stored = seal.seal("rewards", 7, "value", b"0.25")
    >>> b"0.25" in stored, len(stored) - len(b"0.25") == OVERHEAD
    (False, True)
    >>> seal.open("rewards", 7, "value", stored)
    b'0.25'
    >>> seal.open("rewards", 8, "value", stored)
    Traceback (most recent call last):
    capri.errors.StorageError: a sealed value of rewards.value is damaged or was moved ...
    """

    def __init__(self, key: bytes | None, store_id: str) -> None:
        self._store_id = store_id
        self._ciphers: dict[tuple[str, str], AESGCM] = {}
        self._key: bytes | None = None
        # Which key seals, for the store's own records: empty without one.
        self.identifier = b""
        if key is not None:
            self._key = checked_key(key)
            need("store_key", "cryptography", extra="capri-bandits[store]")
            self.identifier = self._derived(_IDENTIFIER, "identifier")
        self._head = _FORMAT + self.identifier

    def __repr__(self) -> str:
        return "Seal(none)" if self._key is None else f"Seal(key {self.identifier.hex()})"

    def __reduce__(self) -> str:
        """The key stays in its process."""
        raise TypeError("a seal holds the store's key and is not pickled: build it from store_key")

    def seal(self, table: str, row: Row, column: str, value: bytes) -> bytes:
        """What to store for a value, in this place and no other."""
        return self.seal_many(table, [row], column, [value])[0]

    def open(self, table: str, row: Row, column: str, stored: bytes) -> bytes:
        """The value that was sealed in this place."""
        return self.open_many(table, [row], column, [stored])[0]

    def seal_many(
        self, table: str, rows: Sequence[Row], column: str, values: Sequence[bytes]
    ) -> list[bytes]:
        """What to store for the values of one column, in the order of its rows."""
        if self._key is None:
            return list(values)
        encrypt = self._cipher(table, column).encrypt
        place = self._place(table, column)
        nonces = os.urandom(_NONCE * len(values))
        sealed = []
        for at, (row, value) in enumerate(zip(rows, values, strict=True)):
            nonce = nonces[at * _NONCE : (at + 1) * _NONCE]
            sealed.append(self._head + nonce + encrypt(nonce, value, place + _row(row)))
        return sealed

    def open_many(
        self, table: str, rows: Sequence[Row], column: str, stored: Sequence[bytes]
    ) -> list[bytes]:
        """The values that were sealed in the rows of one column."""
        if self._key is None:
            return [bytes(each) for each in stored]
        from cryptography.exceptions import InvalidTag

        decrypt = self._cipher(table, column).decrypt
        place = self._place(table, column)
        opened = []
        for row, each in zip(rows, stored, strict=True):
            sealed = bytes(each)  # drivers give a memoryview
            if sealed[:_BODY] != self._head:
                self._refuse(sealed, table, column)
            nonce, rest = sealed[_BODY : _BODY + _NONCE], sealed[_BODY + _NONCE :]
            if len(rest) < _TAG:
                raise _damaged(table, column)
            try:
                opened.append(decrypt(nonce, rest, place + _row(row)))
            except InvalidTag:
                raise _damaged(table, column) from None
        return opened

    def _refuse(self, sealed: bytes, table: str, column: str) -> None:
        if len(sealed) < OVERHEAD:
            raise _damaged(table, column)
        if sealed[: len(_FORMAT)] != _FORMAT:
            raise StorageError(
                f"a value of {table}.{column} is not sealed in a form that this version knows: "
                "it is damaged, was written without store_key, or by a newer version of capri"
            )
        raise StorageError(
            f"values of {table}.{column} were sealed under the key with identifier "
            f"{sealed[len(_FORMAT) : _BODY].hex()}, and store_key has {self.identifier.hex()}: "
            "open the store with the key that it was made with"
        )

    def _derived(self, length: int, *purpose: str) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        assert self._key is not None
        purpose_bytes = _joined(["capri store seal", self._store_id, *purpose])
        return HKDF(SHA256(), length, salt=None, info=purpose_bytes).derive(self._key)

    def _cipher(self, table: str, column: str) -> "AESGCM":
        found = self._ciphers.get((table, column))
        if found is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            found = AESGCM(self._derived(KEY_BYTES, "column", table, column))
            self._ciphers[table, column] = found
        return found

    def _place(self, table: str, column: str) -> bytes:
        return self._head + _joined([self._store_id, table, column])


def checked_key(key: object) -> bytes:
    """32 bytes. The key itself is never quoted.

    >>> checked_key(b"short")
    Traceback (most recent call last):
    capri.errors.ConfigurationError: store_key must be 32 random bytes, such as ...
    """
    if isinstance(key, bytes) and len(key) == KEY_BYTES:
        return key
    given = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
    raise ConfigurationError(
        f"store_key must be {KEY_BYTES} random bytes, such as secrets.token_bytes({KEY_BYTES}), "
        f"kept apart from the store: got {given}"
    )


def key_from(given: bytes, where: str) -> bytes:
    """A store key as people keep one: plain, in hexadecimal digits or in base64. Never quoted.

    >>> key_from(b"00" * 32, "a file") == key_from(b"A" * 43 + b"=", "a file") == bytes(32)
    True
    """
    if len(given) == KEY_BYTES:
        return given
    text = given.strip()
    try:
        key = bytes.fromhex(text.decode("ascii")) if len(text) == 2 * KEY_BYTES else b64decode(text)
    except ValueError:
        key = b""
    if len(key) == KEY_BYTES:
        return key
    raise ConfigurationError(
        f"{where} must hold a store key of {KEY_BYTES} bytes: plain, in {2 * KEY_BYTES} "
        "hexadecimal digits, or in base64"
    )


def _joined(parts: Iterable[str]) -> bytes:
    """Texts as bytes that no other texts give: each after its length."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(each).to_bytes(4) + each for each in encoded)


def _row(row: Row) -> bytes:
    """A row's key as bytes, so that 7, "7" and b"7" are three rows."""
    if isinstance(row, bytes):
        return b"b" + row
    if isinstance(row, str):
        return b"s" + row.encode("utf-8", "surrogatepass")
    return b"i%d" % row


def _damaged(table: str, column: str) -> StorageError:
    return StorageError(
        f"a sealed value of {table}.{column} is damaged or was moved from another row: "
        "restore the store from a backup, none of its rows can be trusted"
    )
