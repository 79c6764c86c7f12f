"""What a policy was told before its first user, as its ledger and its certificate state it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PriorEvent:
    """Not a release of this policy, and not paid from its budget: that of others, or none at all.

    ``kind``: "rows" that are public, the releases of a "fit" or of a "policy". ``count``: of rows
    or of releases. ``epsilon`` and ``delta`` are what the people behind releases were promised;
    None where nothing was, as for public rows and simulations.
    """

    kind: str
    digest: str
    count: int
    epsilon: float | None = None
    delta: float | None = None

    @property
    def assumption(self) -> str:
        """What has to be true of it, in a sentence."""
        if self.kind == "rows":
            return (
                f"the {self.count} rows that the policy was told beforehand (SHA-256 "
                f"{self.digest[:12]}) are public, or of people who agreed: they are not protected"
            )
        if self.epsilon is None:
            return (
                f"the releases that the policy was told beforehand (SHA-256 {self.digest[:12]}) "
                "carry no promise: they are public, or made up"
            )
        return (
            f"the releases of another {self.kind} that the policy was told beforehand (SHA-256 "
            f"{self.digest[:12]}) are of other people; whoever is behind them and takes part here, "
            f"too, has spent that promise, epsilon {self.epsilon:g} at delta {self.delta:g}, in "
            "addition to this one (sequential composition)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
