"""Environments by name: what the shell speaks."""

from typing import Any

from capri.environments.base import TabularEnvironment
from capri.environments.functions import (
    branin,
    hartmann4,
    hartmann6,
    michalewicz,
    random_rkhs,
    six_hump_camel,
    styblinski_tang,
)
from capri.errors import ConfigurationError
from capri.kernels import Kernel

_FIXED = {
    "branin": (branin, 2),
    "hartmann4": (hartmann4, 4),
    "hartmann6": (hartmann6, 6),
    "camel": (six_hump_camel, 2),
}
_ANY = {"styblinski-tang": styblinski_tang, "michalewicz": michalewicz}

ENVIRONMENT_NAMES = ("rkhs", *_FIXED, *_ANY)


def environment_by_name(
    name: str,
    *,
    kernel: Kernel | None = None,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int | None = None,
    action_dimension: int | None = None,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """The environment behind a short name.

    ``kernel`` shapes "rkhs" only. A dimension that is None is chosen: the other half of a function
    with a fixed number of dimensions, 1 elsewhere.

    >>> environment_by_name("hartmann6", contexts=5, actions=4).contexts.shape
    (5, 3)
    """
    common: dict[str, Any] = {
        "contexts": contexts,
        "actions": actions,
        "noise": noise,
        "reward_bound": reward_bound,
        "seed": seed,
    }
    if name in _FIXED:
        constructor, dimension = _FIXED[name]
        context_dimension = _context_share(name, dimension, context_dimension, action_dimension)
        return constructor(context_dimension=context_dimension, **common)
    split: dict[str, Any] = {
        "context_dimension": 1 if context_dimension is None else context_dimension,
        "action_dimension": 1 if action_dimension is None else action_dimension,
    }
    if name in _ANY:
        return _ANY[name](**split, **common)
    if name != "rkhs":
        raise ConfigurationError(
            f"environment must be one of {', '.join(ENVIRONMENT_NAMES)}, got {name!r}"
        )
    if kernel is None:
        raise ConfigurationError("the environment rkhs needs a kernel, got none")
    return random_rkhs(kernel, **split, **common)


def _context_share(name: str, dimension: int, context: int | None, action: int | None) -> int:
    """Context dimensions of a function with ``dimension`` in all, from what was asked for."""
    if context is None and action is None:
        return dimension // 2
    if context is None or action is None:
        return context if context is not None else dimension - (action or 0)
    if context + action != dimension:
        raise ConfigurationError(
            f"{name} has {dimension} dimensions: context_dimension + action_dimension must be "
            f"{dimension}, got {context} + {action}"
        )
    return context
