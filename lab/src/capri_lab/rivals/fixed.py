"""The best fixed action: what a policy without contexts could reach at best, told in advance."""

from typing import ClassVar, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.environments import Environment
from capri.errors import ConfigurationError
from capri.privacy.budget import NOTHING, Promise
from capri.simulation import Blind

BEST_FIXED = "best-fixed"


@final
class FixedPlay(Blind):
    """Plays one action, always: a line of reference, and no policy that anybody could run.

    >>> FixedPlay(actions=[[0.0], [1.0]], horizon=3, action=1).act_many([[0.5], [0.7]]).action_index
    array([1, 1])
    """

    promise: ClassVar[Promise] = NOTHING
    guarantee: ClassVar[str] = "no privacy: the action was chosen knowing what everybody would earn"

    def __init__(self, *, actions: object, horizon: int, action: int = 0) -> None:
        super().__init__(actions=actions, horizon=horizon)
        if not 0 <= action < self._actions.count:
            raise ConfigurationError(
                f"action must be from 0 to {self._actions.count - 1}, got {action}"
            )
        self.action = action

    def _draw(self, count: int) -> IntArray:
        return np.full(count, self.action, dtype=np.int64)

    def _chance(self) -> float:
        return 1.0


def best_fixed_action(environment: Environment) -> int:
    """``argmax_x E_c f(c, x)`` under the law of the contexts: known to the simulation only."""
    users = np.arange(len(environment.contexts))

    def value(action: int) -> FloatArray:
        return environment.weights @ environment.mean(users, np.full_like(users, action))

    return int(np.argmax([value(action) for action in range(len(environment.actions))]))
