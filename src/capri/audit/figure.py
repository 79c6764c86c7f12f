"""The picture of an audit: what an attacker sees in two neighbouring worlds."""

from math import pi, sqrt

import numpy as np
from matplotlib.figure import Figure

from capri.arrays import FloatArray
from capri.audit.proof import AuditResult
from capri.plots.style import COLOURS, QUIET, REFERENCE, new_figure, prepare

_LOW, _HIGH = COLOURS[0], COLOURS[1]
_FAR = 1e3


def audit_figure(result: AuditResult, *, footnote: str) -> Figure:
    """Histograms of the attack on the release, with the bell curves that the claim predicts.

    A claim of ``mu`` says: two unit Gaussians whose means are ``mu`` apart.
    """
    figure = new_figure(9.5, 5.8, _headline(result), footnote)
    figure.subplots_adjust(left=0.065, right=0.975)
    axes = figure.subplots()
    attack = result.attacks[0]
    prepare(
        axes,
        "What an attacker sees of a release",
        "histograms: the real pipeline, one user's reward far below or far above the bound\n"
        "curves: what the claim predicts; worlds farther apart than this would break it",
    )
    # What leaves no doubt is infinite: draw it far out.
    worlds = [np.clip(values, -_FAR, _FAR) for values in (attack.low, attack.high)]
    both = np.concatenate(worlds)
    # Statistics of a broken pipeline may lie anywhere; those of a sound one within this frame.
    frame = np.quantile(np.abs(both), 0.999) * 1.1 + 0.5
    bins = np.linspace(-frame, frame, _bins(attack.trials) + 1)
    points = np.linspace(-frame, frame, 400)
    tallest = 0.5
    for side, values, colour, label in (
        (-1, worlds[0], _LOW, "reward as low\nas possible"),
        (1, worlds[1], _HIGH, "reward as high\nas possible"),
    ):
        centre = side * result.claimed / 2
        heights, _, _ = axes.hist(
            values, bins.tolist(), density=True, color=colour, alpha=0.3, linewidth=0
        )
        tallest = max(tallest, 1.1 * float(np.max(heights)))
        axes.plot(points, _bell(points - centre), color=colour, linewidth=2.2)
        axes.annotate(
            label, (centre + 0.75 * side, _bell(np.array(0.75))), xytext=(26 * side, 14),
            textcoords="offset points", size=10.5, color=colour,
            ha="left" if side > 0 else "right", va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8},
        )  # fmt: skip
    axes.axvline(0, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    axes.set_ylim(0, tallest)
    axes.annotate(
        "threshold,\nfixed in advance", (0, 0.985), xytext=(6, 0), va="top", size=9.5, color=QUIET,
        xycoords=axes.get_xaxis_transform(), textcoords="offset points",
    )  # fmt: skip
    axes.set_xlim(-frame, frame)
    axes.set_xlabel("the attacker's statistic, in standard deviations of the noise")
    axes.set_ylabel("density", size=11)
    return figure


def _headline(result: AuditResult) -> str:
    words = "Passed" if result.passed else "FAILED: an attack proves more loss than is claimed"
    return (
        f"{words}. {result.model.capitalize()} model, {100 * result.confidence:g} % confidence\n"
        f"claimed  epsilon {result.epsilon:.3g}, mu {result.claimed:.3f}     "
        f"proven by attack  epsilon {result.proven_epsilon:.3g}, mu {result.proven:.3f}"
    )


def _bell(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-(x**2) / 2) / sqrt(2 * pi))


def _bins(trials: int) -> int:
    """Narrow enough to show the shape, wide enough to be smooth."""
    # An even number: the threshold lies between two bins.
    return 2 * int(np.clip(trials ** (1 / 3), 10, 40))
