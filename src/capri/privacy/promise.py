"""What a policy promises to a user: whom to trust, and in words that can be compared."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from capri.privacy.budget import Budget


class PrivacyModel(StrEnum):
    """Whom a user has to trust: the curator (joint) or nobody (local)."""

    JOINT = "joint"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a policy promises to a user. Only equal promises may be compared without a word.

    ``model`` is who is trusted, ``unit`` what one user is, ``protects`` which of their data,
    ``kind`` whether a delta is involved.

    >>> print(Promise(model="joint", kind="approximate", protects="contexts and rewards"))
    joint, approximate, one round, contexts and rewards
    """

    model: Literal["none", "perfect", "joint", "local", "shuffle", "central"]
    kind: Literal["none", "pure", "approximate"]
    protects: str = "contexts and rewards"
    unit: str = "one round"

    def __str__(self) -> str:
        if self.model == "none":
            return "none"
        if self.model == "perfect":
            return "perfect: no data are used"
        return f"{self.model}, {self.kind}, {self.unit}, {self.protects}"

    def with_numbers(self, budget: Budget) -> str:
        """The promise in words, with its numbers.

        >>> promise = Promise(model="local", kind="pure", protects="rewards")
        >>> promise.with_numbers(Budget(epsilon=1.0, delta=1e-5))
        '1-local privacy of rewards, per one round'
        """
        numbers = f"{budget.epsilon:g}"
        if self.kind == "approximate":
            numbers = f"({budget.epsilon:g}, {budget.delta:g})"
        return f"{numbers}-{self.model} privacy of {self.protects}, per {self.unit}"


NOTHING = Promise(model="none", kind="none", protects="nothing")
PERFECT = Promise(model="perfect", kind="pure")
