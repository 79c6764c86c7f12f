"""What the tests of private rivals share: one small problem, and plain play on it."""

from collections.abc import Callable
from typing import Any

import numpy as np

import capri
from capri import ContextPool
from capri.environments import random_rkhs
from capri.kernels import RBF
from capri.spaces import FixedActions
from capri_lab.rivals.base import Rival
from capri_lab.rivals.features import feature_rows

KERNEL = RBF(lengthscale=0.4)
WORLD = random_rkhs(KERNEL, contexts=8, actions=6, seed=3)
PAIRS = FixedActions(WORLD.actions).pairs(WORLD.contexts).reshape(48, 2)
FEATURES = feature_rows("kernel", PAIRS, kernel=KERNEL, count=5)
HORIZON = 300


def build(kind: type[Rival], epsilon: float | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "actions": WORLD.actions,
        "contexts": ContextPool(WORLD.contexts, weights=WORLD.weights),
        "horizon": HORIZON,
        "simulation_seed": 1,
        "budget": None if epsilon is None else capri.Budget(epsilon=epsilon, delta=1e-5),
    }
    if kind.needs == "features":
        settings["features"] = FEATURES
    elif kind.needs == "kernel":
        settings["kernel"] = KERNEL
    return kind(**(settings | changes))


def played(policy: Any, seed: int = 2) -> np.ndarray:
    """The actions of a whole run; rewards are drawn from the world."""
    return history(policy, seed)[1]


def history(policy: Any, seed: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, actions and rewards of a whole run."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    while policy.remaining:
        context = WORLD.draw_contexts(rng, policy.remaining)
        decisions = policy.act_many(WORLD.contexts[context])
        reward = WORLD.rewards(rng, context, decisions.action_index)
        policy.update_many(decisions, reward)
        rows.append((context, decisions.action_index, reward))
    context, action, reward = (np.concatenate(column) for column in zip(*rows, strict=True))
    return context, action, reward


Choice = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def replay(
    lengths: np.ndarray, context: np.ndarray, action: np.ndarray, reward: np.ndarray, index: Choice
) -> None:
    """A second implementation, ``index(context, seen contexts, actions, rewards)``, plays the same.

    It sees what the policy saw, all rounds of earlier batches; the action played is the first of
    largest index, up to rounding.
    """
    start = 0
    for length in lengths:
        for t in range(start, start + int(length)):
            values = index(int(context[t]), context[:start], action[:start], reward[:start])
            assert action[t] == np.flatnonzero(values >= values.max() - 1e-8)[0], t
        start += int(length)
    assert start == len(context)


def linucb(features: np.ndarray, ridge: float, width: float) -> Choice:
    """``x^T theta + width |x|_{M^-1}`` with ``M = ridge I + sum x x^T``, by solving."""
    table = features.reshape(8, 6, -1)

    def index(context: int, contexts: np.ndarray, actions: np.ndarray, y: np.ndarray) -> np.ndarray:
        x = table[contexts, actions]
        matrix = ridge * np.eye(table.shape[2]) + x.T @ x
        rows = table[context]
        spread = np.sqrt(np.sum(rows * np.linalg.solve(matrix, rows.T).T, axis=1))
        return np.asarray(rows @ np.linalg.solve(matrix, x.T @ y) + width * spread)

    return index
