"""A signature on a certificate: Ed25519 over the bytes of its file, in a small file beside it.

What is signed is the file as it is, JSON, page or text: any tool that knows Ed25519 can verify it.
The file of the signature is compared byte by byte with how it is written, so that neither file can
be changed. Keys are PEM files, PKCS 8 and SubjectPublicKeyInfo, as ``openssl genpkey -algorithm
ed25519`` makes them.

A signature says which key signed. Whose key that is has to be known by other means: a certificate
that an organisation signs of its own run is *self-issued*.
"""

import json
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capri.checks import need
from capri.errors import ConfigurationError, StorageError
from capri.files import to_json, write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = "urn:capri:signature:1"
_LARGEST = 4096  # bytes
_NAMES = ("schema", "algorithm", "public_key", "signature")


def make_keys(private: str | PathLike[str], public: str | PathLike[str]) -> str:
    """Write a new pair of keys, the private one for its owner alone; the name of the public one."""
    _need()
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if Path(private).exists():
        raise ConfigurationError(f"{private} is there already: give a new name")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    shown = key.public_key().public_bytes(
        forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
    )
    write_atomically(Path(private), secret, confidential=True)
    write_atomically(Path(public), shown)
    return key_name(key.public_key().public_bytes_raw())


def key_name(public: bytes) -> str:
    """By which people compare a public key: SHA-256 of its 32 bytes."""
    return sha256(public).hexdigest()


def sign(file: str | PathLike[str], private: str | PathLike[str]) -> Path:
    """Sign a file; where the signature is."""
    key, content = _private_key(private), _read(file)
    told = {
        "schema": SCHEMA,
        "algorithm": "Ed25519",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(content).hex(),
    }
    place = Path(f"{file}.sig")
    write_atomically(place, to_json(told).encode())
    return place


def check_signature(
    content: bytes, signature: bytes, public: str | PathLike[str] | None = None
) -> str:
    """The name of the key that signed these bytes; an error if none did, or not the ``public`` one.

    Without ``public`` the key is the one that the signature names: compare the name.
    """
    _need()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    told = _parsed(signature)
    key = bytes.fromhex(told["public_key"])
    if public is not None and _public_key(public) != key:
        raise StorageError(
            f"it was signed by the key {key_name(key)[:16]}, which is not the one in {public}"
        )
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(told["signature"]), content)
    except InvalidSignature:
        raise StorageError("the signature is not of this file: one of them was changed") from None
    return key_name(key)


def _parsed(signature: bytes) -> dict[str, str]:
    """What a file of a signature says; refused unless it is written as we write it."""
    damaged = StorageError("this is not the signature of a certificate, or it is damaged")
    if len(signature) > _LARGEST:
        raise damaged
    try:
        told: Any = json.loads(signature)
        values = [bytes.fromhex(told[name]) for name in _NAMES[2:]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    written = dict(zip(_NAMES, (SCHEMA, "Ed25519", *(v.hex() for v in values)), strict=True))
    if [len(value) for value in values] != [32, 64] or to_json(written).encode() != signature:
        raise damaged
    return dict(told)


def _private_key(path: str | PathLike[str]) -> "Ed25519PrivateKey":
    _need()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError):  # never quoted
        raise ConfigurationError(f"{path} is no private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{path} is a key of another kind than Ed25519")
    return key


def _public_key(path: str | PathLike[str]) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path))
    except ValueError:
        raise ConfigurationError(f"{path} is no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path} is a key of another kind than Ed25519")
    return key.public_bytes_raw()


def _read(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None


def _need() -> None:
    need("a signature", "cryptography", extra="capri-bandits[store]")
