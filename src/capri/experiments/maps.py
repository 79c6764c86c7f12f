"""Coarse pictures of the pairs in play, one per epoch, for problems with two dimensions."""

from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.environments import Environment
from capri.joint.policy import Capri
from capri.local.fleet import Fleet
from capri.simulation import Policy

BINS = 24


class Maps:
    """Looks at a policy whenever it has closed an epoch.

    A map has a row per group of contexts and a digit per group of actions: the share of their pairs
    that the next epoch may play, 0 for none to 9 for all.
    """

    def __init__(self, policy: Policy, world: Environment) -> None:
        self._policy = policy
        self._epochs: list[dict[str, Any]] = []
        self._seen = 0
        self._source: Any = policy.aggregator if isinstance(policy, Fleet) else policy
        self._fits = (
            isinstance(policy, Capri | Fleet)
            and world.contexts.shape[1] == 1
            and world.actions.shape[1] == 1
            and len(world.contexts) > 1
        )
        self._contexts = np.array_split(np.argsort(world.contexts[:, 0]), _groups(world.contexts))
        self._actions = np.array_split(np.argsort(world.actions[:, 0]), _groups(world.actions))
        self._world = world

    def look(self) -> None:
        """Draw a map if an epoch has closed since the last one."""
        if not self._fits or len(self._policy.epochs) == self._seen:
            return
        self._seen = len(self._policy.epochs)
        playable = self._source.probabilities(self._world.contexts) > 0
        rows = [
            "".join(str(int(9 * playable[np.ix_(some, few)].mean())) for few in self._actions)
            for some in self._contexts
        ]
        self._epochs.append({"epoch": self._seen, "rows": rows})

    def to_dict(self) -> dict[str, Any] | None:
        """The maps, or None where there are none."""
        if not self._epochs:
            return None
        return {
            "contexts": [float(self._world.contexts[some, 0].mean()) for some in self._contexts],
            "actions": [float(self._world.actions[few, 0].mean()) for few in self._actions],
            "epochs": self._epochs,
        }


def _groups(rows: FloatArray) -> int:
    return min(BINS, len(rows))
