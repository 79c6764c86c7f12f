"""A simple model of rewards, for doubly robust estimates."""

from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.kernels.algebra import positive


class RewardModel(Protocol):
    """Learns from some rounds and predicts the reward of every action on others."""

    def predict(
        self,
        train_contexts: FloatArray,
        train_actions: IntArray,
        train_rewards: FloatArray,
        contexts: FloatArray,
        actions: int,
    ) -> FloatArray:
        """Predicted rewards, ``(n, actions)``, from training rounds."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class RidgeModel:
    """One linear model per action, shrunk towards the mean reward of all rounds.

    With ``m`` the mean reward and ``Z`` the rows ``(1, c)`` of the rounds with action ``x``,

        y(c, x) = m + (1, c) b_x,     b_x = (Z^T Z + ridge I)^-1 Z^T (y - m).

    An action without rounds is predicted to earn ``m``.
    """

    ridge: float = 1.0

    def __post_init__(self) -> None:
        positive("ridge", self.ridge)

    def predict(
        self,
        train_contexts: FloatArray,
        train_actions: IntArray,
        train_rewards: FloatArray,
        contexts: FloatArray,
        actions: int,
    ) -> FloatArray:
        """Predicted rewards, ``(n, actions)``."""
        if len(train_rewards) == 0:
            raise ConfigurationError("a reward model needs at least one round to learn from")
        middle = float(train_rewards.mean())
        rows, train_rows = _with_one(contexts), _with_one(train_contexts)
        predicted = np.full((len(contexts), actions), middle)
        penalty = self.ridge * np.eye(rows.shape[1])
        for action in range(actions):
            own = train_actions == action
            z = train_rows[own]
            slope = np.linalg.solve(z.T @ z + penalty, z.T @ (train_rewards[own] - middle))
            predicted[:, action] += rows @ slope
        return predicted


def _with_one(contexts: FloatArray) -> FloatArray:
    return np.hstack([np.ones((len(contexts), 1)), contexts])
