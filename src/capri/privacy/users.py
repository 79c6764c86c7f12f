"""Users who come back: at most so many contributions each, and what they need in noise."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from numbers import Integral

from capri.errors import ConfigurationError

UserId = str | int


@dataclass(frozen=True, kw_only=True)
class UserLimit:
    """At most ``total`` contributions per user, at most ``per_epoch`` of them in one epoch.

    >>> UserLimit(total=4).composition()
    2.0
    >>> UserLimit(total=4, per_epoch=4).composition()
    4.0
    """

    total: int
    per_epoch: int = 1

    def __post_init__(self) -> None:
        for name in ("total", "per_epoch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ConfigurationError(
                    f"{name} contributions must be a whole number of at least 1, got {value!r}"
                )
        if self.per_epoch > self.total:
            raise ConfigurationError(
                f"per_epoch contributions ({self.per_epoch}) cannot exceed the total ({self.total})"
            )

    def composition(self, *, local: bool = False) -> float:
        """How much more noise such a user needs than one who contributes once.

        ``a_e`` contributions to epoch ``e`` have sensitivity ``a_e`` times that of one, and
        Gaussian releases compose as ``mu^2 = sum_e (a_e mu_1)^2`` (Dong, Roth & Su 2019, Cor. 3.3;
        with ``a_e`` chosen as one goes: Smith & Thakurta 2022, arXiv 2210.17520). The worst split
        of ``total`` under ``a_e <= per_epoch`` fills epochs to the brim. In the local model every
        report carries noise of its own: ``sqrt(total)``.
        """
        if local:
            return sqrt(self.total)
        full, rest = divmod(self.total, self.per_epoch)
        return sqrt(full * self.per_epoch**2 + rest**2)


def user_digest(user: UserId, salt: bytes) -> str:
    """What stands for a user: nobody can guess it without the salt."""
    if isinstance(user, Integral):
        user = int(user)  # NumPy's integers are the same users as Python's
    text = f"{'int' if isinstance(user, int) else 'str'}:{user}"
    # "surrogatepass": any string is an id, and no error may carry one.
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=salt, digest_size=16).hexdigest()


def check_users(users: Sequence[UserId]) -> None:
    """Refuse ids of other types, before anything happens."""
    for user in users:
        if isinstance(user, bool) or not isinstance(user, str | Integral):
            raise ConfigurationError(
                f"a user id must be a string or an integer, got {type(user).__name__}"
            )
