"""Tickets: a report's seed that nobody can search for, one for each ticket.

Who makes up a report may try tokens by the million until one names a direction that points where it
is wanted. With tickets a token is a hash of two numbers, one of which the device does not know
before it has fixed the other:

    device      secret     16 random bytes, for a decision under a bundle
                commitment SHA-256(secret, first 8 bytes of the bundle's digest)
    issuer      salt       first 16 bytes of HMAC-SHA-256(key, commitment)
    device      token      first 16 bytes of SHA-256(secret, salt)
    upload      report of 32 bytes with this token, then the secret

Who holds the key computes the salt again and sees whether the token is that of a ticket: nothing is
stored, and a ticket that is used twice brings a token that was seen. A device has one token for
each ticket, so what it can choose is one of the ``M`` numbers; how many tickets a person gets is up
to whoever issues them, behind a login, an attestation or a payment.

**Privacy.** The counting proof of the sphere holds for every token, whoever had a part in it: a
report is as private as without a ticket. But this is no blind signature: issuer and service, if
they compare notes, know which report came from whom. They learn who took part, and of the datum no
more than epsilon allows. A ticket is asked for when a decision is made, before its reward.
"""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest

from capri.errors import ConfigurationError
from capri.local import wire

SALT = 16
# Bytes of an upload: a report, and the secret of its ticket.
SIZE = wire.SIZE + SALT
_LEAST_KEY = 32


def commitment(secret: bytes, digest: bytes) -> bytes:
    """What a device shows of its secret; ``digest``: of the bundle that the report will answer."""
    return sha256(secret + digest[:8]).digest()


def token(secret: bytes, salt: bytes) -> bytes:
    """What the report's directions are made from."""
    return sha256(secret + salt).digest()[:SALT]


class Tickets:
    """The key of an issuer: makes salts for devices, and checks what they upload.

    Parameters
    ----------
    key:
        At least 32 random bytes, kept by whoever issues tickets and whoever receives reports. It
        protects what is learnt, not what people said: a key that is lost lets reports be made up.
    """

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) < _LEAST_KEY:
            raise ConfigurationError(f"the key of tickets must be at least {_LEAST_KEY} bytes")
        self._key = key

    def __repr__(self) -> str:
        return "Tickets()"

    def issue(self, commitment: bytes) -> bytes:
        """The salt of a ticket. Ask first who wants it, and count how many they had."""
        return hmac_digest(self._key, commitment, "sha256")[:SALT]

    def reports(self, uploads: Sequence[bytes]) -> list[bytes]:
        """The reports in some uploads; nothing, hence malformed, where there is no ticket."""
        return [each[: wire.SIZE] if self._fits(each) else b"" for each in uploads]

    def _fits(self, upload: bytes) -> bool:
        if not isinstance(upload, bytes) or len(upload) != SIZE:
            return False
        report, secret = upload[: wire.SIZE], upload[wire.SIZE :]
        salt = self.issue(commitment(secret, report[wire.DIGEST]))
        return compare_digest(report[wire.TOKEN], token(secret, salt))
