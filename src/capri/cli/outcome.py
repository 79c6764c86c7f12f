"""The outcome of ``capri simulate`` as JSON, and what every command says of its numbers."""

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean, stdev
from typing import Any

from capri.simulation import SimulationResult

PRIVACY_CLAIM = "none: this is a seeded simulation"

# What the numbers depend on.
_LIBRARIES = ("capri-bandits", "numpy", "scipy", "opendp")


def outcome(
    parameters: Mapping[str, Any], first_seed: int, results: Sequence[SimulationResult]
) -> dict[str, Any]:
    """Parameters, results by seed and their mean, in values that JSON can hold."""
    return {
        "parameters": dict(parameters),
        "privacy_claim": PRIVACY_CLAIM,
        "seeds": [
            {"seed": seed, **result.to_dict()} for seed, result in enumerate(results, first_seed)
        ],
        "mean": mean(results),
        "versions": versions(),
    }


def mean(results: Sequence[SimulationResult]) -> dict[str, Any]:
    """Means over seeds; the standard error of the ratio is None for a single seed."""
    ratios = [result.ratio for result in results]
    return {
        "regret_per_round": fmean(result.regret_per_round for result in results),
        "uniform_regret_per_round": fmean(result.uniform_regret_per_round for result in results),
        "ratio": fmean(ratios),
        "ratio_standard_error": (
            stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
        ),
        "seconds": fmean(result.seconds for result in results),
        "peak_memory_bytes": fmean(result.peak_memory_bytes for result in results),
        "epochs": fmean(len(result.epochs) for result in results),
    }


def versions() -> dict[str, str | None]:
    """Of Python and of the libraries behind the numbers."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # running from a source tree
            versions[name] = None
    return versions
