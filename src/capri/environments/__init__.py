"""Environments: a context distribution, actions and a mean reward that is known exactly."""

from capri.environments.base import Environment, TabularEnvironment, public_pool, tabulate
from capri.environments.functions import (
    ENVIRONMENT_NAMES,
    branin,
    environment_by_name,
    hartmann4,
    hartmann6,
    michalewicz,
    random_rkhs,
    six_hump_camel,
    styblinski_tang,
)

__all__ = [
    "ENVIRONMENT_NAMES",
    "Environment",
    "TabularEnvironment",
    "branin",
    "environment_by_name",
    "hartmann4",
    "hartmann6",
    "michalewicz",
    "public_pool",
    "random_rkhs",
    "six_hump_camel",
    "styblinski_tang",
    "tabulate",
]
