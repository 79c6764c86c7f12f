"""What a contest shows, in a few words computed from its records."""

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


def price_of_trust(trusting: Run, wary: Run) -> str | None:
    """What noise by each user costs against noise by a curator; None where it costs nothing."""
    if not _beats_uniform_play(trusting):
        return None
    times = wary.result.ratio / trusting.result.ratio
    if times < 1 + _MARGIN or trusting.epsilon is None or wary.epsilon is None:
        return None
    shown = f"{times:.1f}" if times < 10 else f"{times:.0f}"
    if wary.epsilon == trusting.epsilon:
        return (
            f"At the same epsilon, trusting nobody costs {shown} times the regret of trusting the "
            "curator."
        )
    start = "Even at" if wary.epsilon > trusting.epsilon else "At"
    return (
        f"{start} epsilon {wary.epsilon:g}, trusting nobody costs {shown} times the regret of "
        f"trusting the curator at epsilon {trusting.epsilon:g}."
    )


def _beats_uniform_play(run: Run) -> bool:
    result = run.result
    losses = np.diff(result.regret, prepend=0.0) / result.uniform_regret_per_round
    chance = _STANDARD_ERRORS * float(losses.std()) / math.sqrt(result.rounds)
    return result.ratio < 1 - max(_MARGIN, chance)


def _reason(runs: Sequence[Run], reward_range: float) -> str:
    """Why nothing was learnt, as far as the records tell."""
    records = [record for run in runs for record in run.result.epochs]
    predicted = [record.predicted_error for record in records if record.predicted_error is not None]
    if predicted:
        gap = runs[0].result.uniform_regret_per_round
        if min(predicted) < gap / 2:
            return ""
        return (
            f"; the expected error of the estimate, never below {min(predicted):.2g}, hides the "
            f"mean gap between an action and the best, {gap:.2g}"
        )
    if any(run.active_share != 1.0 for run in runs):
        return ""
    smallest = min(4 * record.width for record in records)
    shown = f"{smallest:,.0f}" if smallest >= 100 else f"{smallest:.3g}"
    return (
        "; nothing was eliminated, as an action must trail by 4 x width, "
        f"never below {shown}, and rewards span {reward_range:g}"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
