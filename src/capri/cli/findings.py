"""What a contest shows, in one sentence computed from its records."""

import math
from collections.abc import Sequence

import numpy as np

from capri.cli.contest import Run

# A ratio counts as better than uniform play from this far below 1, and not by chance: chance moves
# it by so many standard errors less than once in 10,000 runs.
_MARGIN = 0.05
_STANDARD_ERRORS = 4.0


def finding(runs: Sequence[Run], reward_range: float) -> str:
    """Who beat uniform play, and why the others did not."""
    learners = [run for run in runs if run.result.epochs]
    better = [run for run in learners if _beats_uniform_play(run)]
    alike = [run for run in learners if run not in better]
    parts = []
    if better:
        cuts = [f"{run.label} {1 - run.result.ratio:.0%}" for run in better]
        parts.append(f"Less regret than uniform play: {_listed(cuts)}")
    if alike:
        names = _listed([run.label for run in alike])
        parts.append(f"No better than uniform play: {names}{_reason(alike, reward_range)}")
    return ". ".join(parts) + "."


def _beats_uniform_play(run: Run) -> bool:
    result = run.result
    losses = np.diff(result.regret, prepend=0.0) / result.uniform_regret_per_round
    chance = _STANDARD_ERRORS * float(losses.std()) / math.sqrt(result.rounds)
    return result.ratio < 1 - max(_MARGIN, chance)


def _reason(runs: Sequence[Run], reward_range: float) -> str:
    if any(run.active_share != 1.0 for run in runs):
        return ""
    smallest = min(4 * record.width for run in runs for record in run.result.epochs)
    shown = f"{smallest:,.0f}" if smallest >= 100 else f"{smallest:.3g}"
    return (
        "; nothing was eliminated, as an action must trail by 4 x width, "
        f"never below {shown}, and rewards span {reward_range:g}"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
