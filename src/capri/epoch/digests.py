"""What a certificate identifies a run by: digests of its configuration and of its plans."""

from collections.abc import Mapping
from typing import Any

from capri.epoch.plan import EpochPlan
from capri.epoch.storage import plan_state
from capri.files import digest_of

_VALUES = ("problem", "horizon", "preset", "options", "terms", "prior")
_ARRAYS = ("actions", "contexts", "weights")


def configuration_digest(values: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Of what a policy was built from, given as its saved file says it.

    Kernel, reward bound, budget, model, limits, horizon, preset, options, terms of devices, actions
    and context pool. A sampler of contexts is code and has no digest: its number of columns stands
    for it.
    """
    return digest_of(
        {name: values[name] for name in _VALUES if name in values},
        {name: arrays[name] for name in _ARRAYS if name in arrays},
    )


def plan_digest(plan: EpochPlan) -> str:
    """Of everything about an epoch that was fixed before its data."""
    return digest_of(*plan_state(plan))
