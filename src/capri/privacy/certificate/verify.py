"""Verify a certificate: against its schema, against its own digest, and against a run's digests.

The check of the schema knows the few words of JSON Schema that ours uses, and refuses a schema with
any other: what is not checked must not seem to be.

A signature is Ed25519 over the bytes of a certificate's file, in a small file beside it. What is
signed is the file as it is, JSON, page or text: any tool that knows Ed25519 can verify it. The file
of the signature is compared byte by byte with how it is written, so that neither file can be
changed. Keys are PEM files, PKCS 8 and SubjectPublicKeyInfo, as ``openssl genpkey -algorithm
ed25519`` makes them. A signature says which key signed; whose key that is has to be known by other
means: a certificate that an organisation signs of its own run is *self-issued*.
"""

import json
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capri.checks import need
from capri.errors import ConfigurationError, StorageError
from capri.files import digest_of, to_json, write_atomically
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.pages import CLOSING, OPENING, page
from capri.version import version_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE = "urn:capri:signature:1"
_LONGEST_SIGNATURE = 4096  # bytes
_NAMES = ("schema", "algorithm", "public_key", "signature")
_LARGEST = 64 << 20  # bytes: a hundred thousand releases
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = {"$schema", "$id", "title", "description"}


def read_certificate(path: str | PathLike[str]) -> Certificate:
    """The certificate in a JSON or HTML file, or an error that says what is wrong with it.

    Of JSON the content matters: every name and value, not blanks between them, the order of names
    or the spelling of a number. Of a page every byte matters: it must be exactly the page that its
    JSON gives, or a reader could be shown what the digest does not cover.
    """
    return verified(_read(path))


def verify_file(
    path: str | PathLike[str], public: str | PathLike[str] | None = None
) -> tuple[Certificate | None, str | None]:
    """The certificate in a file, and the name of the key that signed it, from one reading of it.

    Where ``FILE.sig`` is, it must be a signature of these bytes, whatever they are: any form can be
    signed. Only JSON and a page carry data, which must then be right as well; of other bytes the
    signature is all there is, and the certificate is None.
    """
    raw, place = _read(path), Path(f"{path}.sig")
    signature = _read(place) if place.exists() else None
    if signature is None and public is not None:
        raise StorageError(f"there is no signature at {place}")
    key = None if signature is None else check_signature(raw, signature, public)
    if key is not None and not _carries_data(raw):
        return None, key
    return verified(raw), key


def _carries_data(raw: bytes) -> bool:
    return raw.lstrip()[:1] in (b"{", b"<")


def verified(raw: bytes) -> Certificate:
    """The certificate in the bytes of a file."""
    if not _carries_data(raw):
        raise StorageError(
            "this is neither the JSON nor the page of a certificate. A text or any other form is "
            "verified by its signature, FILE.sig, which is not there"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise StorageError("this is not a certificate: it is no UTF-8 text") from None
    if not text.lstrip().startswith("<"):
        return _of_json(text)
    told = _of_json(_inside(text))
    _check_page(text, told)
    return told


def _of_json(text: str) -> Certificate:
    """The certificate in a JSON text whose content is what its digest says."""
    try:
        values = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise StorageError("this is not the JSON of a certificate, or it is damaged") from None
    check_schema(values, certificate_schema())
    content = {name: value for name, value in values.items() if name != "digest"}
    if digest_of(content) != values["digest"]:
        raise StorageError(
            "the certificate was changed: its content does not have the digest it states"
        )
    stated = [values, *([values["in_total"]] if "in_total" in values else [])]
    if any(len(each["assumptions"]) != len(each["kept_by"]) for each in stated):
        raise StorageError("the certificate does not say who keeps each assumption")
    return Certificate.from_dict(values)


def check_digests(told: Certificate, configuration: str, plans: list[str]) -> int:
    """Compare a certificate with the digests of a run; how many releases came after it.

    A run may have gone on since: the certificate's plans must be the first ones of the run.
    """
    if told.digests["configuration"] != configuration:
        raise StorageError(
            "the certificate is not of this policy: the digests of their configurations differ"
        )
    certified = told.digests["plans"]
    if len(certified) > len(plans):
        raise StorageError(
            f"the policy is older than the certificate: {len(plans)} releases against "
            f"{len(certified)}. Give the newest file"
        )
    for number, (ours, theirs) in enumerate(zip(certified, plans, strict=False), start=1):
        if ours != theirs:
            raise StorageError(
                f"the certificate is not of this run: the plans of release {number} differ"
            )
    return len(plans) - len(certified)


def _inside(text: str) -> str:
    """The JSON in a page."""
    _, opened, rest = text.partition(OPENING)
    inside, closed, _ = rest.partition(CLOSING)
    if not (opened and closed):
        raise StorageError("this is not the page of a certificate, or it is damaged")
    return inside


def _check_page(text: str, told: Certificate) -> None:
    if page(told) == text:
        return
    made, here = told.versions["capri-bandits"], version_of("capri-bandits")
    if made != here:
        raise StorageError(
            f"the page was made by capri {made} and cannot be compared by capri {here}: verify "
            "it there, or verify the JSON form"
        )
    raise StorageError("the page was changed: it does not show what its own data say")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that comes twice would let two readers read two certificates."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name comes twice")
    return values


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


# -- the schema ------------------------------------------------------------------------------------


@cache
def certificate_schema() -> dict[str, Any]:
    """The schema of certificates."""
    file = files("capri.privacy.certificate").joinpath("certificate.schema.json")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema


def check_schema(value: Any, schema: dict[str, Any], place: str = "certificate") -> None:
    """Say where a value is not what the schema asks for; nothing where it is."""
    for word, wanted in schema.items():
        if word not in _NOTES and not _holds(word, wanted, value, schema, place):
            raise StorageError(f"{place} does not follow the schema: {word} is {wanted!r} there")


def _holds(word: str, wanted: Any, value: Any, schema: dict[str, Any], place: str) -> bool:
    match word:
        case "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            return any(_is(value, name) for name in names)
        case "const":
            return bool(value == wanted)
        case "pattern":
            return not isinstance(value, str) or re.search(wanted, value) is not None
        case "minimum":
            return not _is(value, "number") or value >= wanted
        case "maximum":
            return not _is(value, "number") or value <= wanted
        case "minItems":
            return not isinstance(value, list | tuple) or len(value) >= wanted
        case "required":
            return not isinstance(value, dict) or set(wanted) <= set(value)
        case "properties":
            for name, below in wanted.items() if isinstance(value, dict) else ():
                if name in value:
                    check_schema(value[name], below, f"{place}.{name}")
            return True
        case "additionalProperties":
            return _others_hold(wanted, value, schema, place)
        case "items":
            for number, item in enumerate(value if isinstance(value, list | tuple) else ()):
                check_schema(item, wanted, f"{place}[{number}]")
            return True
    raise StorageError(f"the schema uses {word!r}, which is not known here")


def _is(value: Any, name: str) -> bool:
    # True is an int in Python and no number in JSON.
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _others_hold(wanted: Any, value: Any, schema: dict[str, Any], place: str) -> bool:
    if not isinstance(value, dict):
        return True
    others = set(value) - set(schema.get("properties", ()))
    if wanted is False:
        return not others
    for name in sorted(others):
        check_schema(value[name], wanted, f"{place}.{name}")
    return True


# -- signatures -----------------------------------------------------------------------------------


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
        "schema": SIGNATURE,
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
    if len(signature) > _LONGEST_SIGNATURE:
        raise damaged
    try:
        told: Any = json.loads(signature)
        values = [bytes.fromhex(told[name]) for name in _NAMES[2:]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    written = dict(zip(_NAMES, (SIGNATURE, "Ed25519", *(v.hex() for v in values)), strict=True))
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
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as problem:
        raise StorageError(f"cannot read {path}: {problem.strerror}") from None
    if len(content) > _LARGEST:
        raise StorageError(f"{path} is too large for a certificate")
    return content


def _need() -> None:
    need("a signature", "cryptography", extra="capri-bandits[store]")
