"""Worlds to play in: a context law, an action set and a mean reward that is known exactly."""

from capri.environments.base import Environment, TabularEnvironment, public_pool, tabulate
from capri.environments.clicks import rare_clicks
from capri.environments.drifting import CHANGES, DriftingEnvironment, drifting, stage_of
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
from capri.environments.untold import many_dimensions, unrelated_arms

__all__ = [
    "CHANGES",
    "ENVIRONMENT_NAMES",
    "DriftingEnvironment",
    "Environment",
    "TabularEnvironment",
    "branin",
    "drifting",
    "environment_by_name",
    "hartmann4",
    "hartmann6",
    "many_dimensions",
    "michalewicz",
    "public_pool",
    "random_rkhs",
    "rare_clicks",
    "six_hump_camel",
    "stage_of",
    "styblinski_tang",
    "tabulate",
    "unrelated_arms",
]
