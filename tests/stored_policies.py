"""Small policies for tests of the store."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from capri import Budget, Capri, ContextPool, Decision, kernels

CONTEXTS = np.linspace(0, 1, 6)
SETTINGS: dict[str, Any] = {
    "kernel": kernels.Matern(nu=2.5, lengthscale=0.3),
    "actions": np.linspace(0, 1, 5)[:, None],
    "contexts": ContextPool(CONTEXTS[:, None]),
    "budget": Budget(epsilon=4.0, delta=1e-5),
    "first_epoch": 20,
    "horizon": None,
}


def policy(store: str | None, **changes: Any) -> Capri:
    settings = SETTINGS | {"store": store} | changes
    if settings.get("preset") == "paper":
        del settings["first_epoch"]  # of the other preset
    return Capri(**settings)


def building(settings: dict[str, Any]) -> Iterator[Callable[..., Capri]]:
    """For a fixture: builds policies with these settings, and closes them at the end."""
    built: list[Capri] = []

    def build(**changes: Any) -> Capri:
        built.append(Capri(**(settings | changes)))
        return built[-1]

    yield build
    for each in built:
        each.close()


def context(generator: np.random.Generator) -> list[float]:
    return [float(generator.choice(CONTEXTS))]


def learning(policy: Capri) -> list[tuple[Any, ...]]:
    """All that is public of the epochs, the clock aside."""
    return [
        tuple(value for name, value in record.to_dict().items() if name != "seconds")
        for record in policy.epochs
    ]


def decided(decision: Decision) -> tuple[str, int, int, float]:
    return decision.id, decision.epoch, decision.action_index, decision.propensity
