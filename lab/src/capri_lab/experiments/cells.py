"""The smallest piece of a study: one policy, one environment, one budget, one horizon, one seed."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import capri


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """All that determines a result, and what the result is called.

    ``study``, ``environment`` and ``policy`` are labels and ``maps`` asks for pictures of the
    pairs in play: none of them changes a number, so none is part of the identity.
    """

    study: str
    environment: str
    world: dict[str, Any]
    policy: str
    player: dict[str, Any]
    epsilon: float | None
    delta: float | None
    rounds: int
    seed: int
    maps: bool = False
    code: str | None = None

    @property
    def hash(self) -> str:
        """The first 64 bits of SHA-256 over the canonical JSON of the identity, as hex."""
        identity: dict[str, Any] = {
            # A file is known by what is in it, not by where it lies.
            "world": {key: value for key, value in self.world.items() if key != "path"},
            "player": self.player,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rounds": self.rounds,
            "seed": self.seed,
        }
        if self.code is not None:
            identity["code"] = self.code
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def group(self) -> tuple[str, int, str]:
        """Cells of one group take about the same time."""
        return self.environment, self.rounds, self.policy

    def __str__(self) -> str:
        budget = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        return f"{self.policy}{budget} on {self.environment}, T = {self.rounds:g}, seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a worker in another process."""
        return asdict(self)


@cache
def code_digest() -> str:
    """A digest of the source of the product and of the laboratory."""
    digest = hashlib.sha256()
    for package in (Path(capri.__file__).parent, Path(__file__).parents[1]):
        for file in sorted(package.rglob("*.py")):
            name = file.relative_to(package.parent)
            digest.update(str(name).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
