"""Pictures. Figures are built as objects: no global state, no screen needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.simulation import SimulationResult
from capri.typing import FloatArray

# Okabe and Ito: distinguishable with any colour vision, and in print by their lightness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_REFERENCE = "#444444"
_QUIET = "#666666"
_REACHABLE = "#EAF3EA"

# Points drawn per curve: more than the picture has columns only makes the file larger.
_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One run in a picture; ``errors`` holds the largest error of each epoch's estimate."""

    label: str
    result: SimulationResult
    errors: tuple[float, ...] = ()
    reference: bool = False


def contest_figure(
    runs: Sequence[Contest], *, reward_range: float, headline: str, footnote: str
) -> Figure:
    """Left: cumulative regret. Right: what an action must trail by to go, and the true error."""
    figure = Figure(figsize=(13, 5.8), dpi=150, facecolor="white")
    figure.subplots_adjust(left=0.055, right=0.84, top=0.74, bottom=0.16, wspace=0.61)
    left, right = figure.subplots(1, 2, width_ratios=(0.9, 1.0))
    colours = _colours(runs)
    _draw_regret(figure, left, runs, colours)
    _draw_widths(figure, right, [run for run in runs if run.result.epochs], colours, reward_range)
    figure.text(0.02, 0.965, headline, size=13, weight="bold", va="top")
    figure.text(0.02, 0.02, footnote, size=9.5, color=_QUIET, va="bottom")
    return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file: "png", "svg" or "pdf"."""
    buffer = BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def _colours(runs: Sequence[Contest]) -> dict[str, str]:
    palette = iter(_COLOURS)
    return {run.label: _REFERENCE if run.reference else next(palette) for run in runs}


def _draw_regret(
    figure: Figure, axes: Axes, runs: Sequence[Contest], colours: dict[str, str]
) -> None:
    _prepare(
        axes,
        "Cumulative regret",
        "mean reward lost to the best action, summed\nperfect play would stay at 0",
    )
    ends = [float(run.result.regret[-1]) for run in runs]
    solid = [end for run, end in zip(runs, ends, strict=True) if not run.reference]
    labels = []
    for run, end in zip(runs, ends, strict=True):
        colour = colours[run.label]
        if run.reference:
            axes.plot(
                *_thinned(run.result.regret),
                color=colour,
                linewidth=1.6,
                linestyle=(0, (3, 4)),
                zorder=4,
            )
        else:
            solid.remove(end)
            # Curves may lie on top of each other: the broader ones below stay visible.
            above = sum(abs(other - end) < 0.05 * max(ends) for other in solid)
            axes.plot(
                *_thinned(run.result.regret),
                color=colour,
                linewidth=2.4 + 3.0 * above,
                zorder=3,
                solid_capstyle="butt",
            )
        labels.append((end, f"{run.label}  {end:,.0f}", colour))
    axes.set_xlabel("rounds played")
    axes.set_xlim(0, max(run.result.rounds for run in runs))
    axes.set_ylim(0, 1.2 * max(ends))
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _label_right(figure, axes, labels)


def _draw_widths(
    figure: Figure,
    axes: Axes,
    runs: Sequence[Contest],
    colours: dict[str, str],
    reward_range: float,
) -> None:
    _prepare(
        axes,
        "Gap at which an action is dropped",
        "solid: 4 x width, the gap that is asked for\ndotted: largest true error of the estimate",
    )
    axes.set_yscale("log")
    axes.set_xscale("log")
    labels, values = [], [reward_range]
    for run in runs:
        colour, epochs = colours[run.label], run.result.epochs
        ends = list(accumulate(record.length for record in epochs))
        thresholds = [4 * record.width for record in epochs]
        axes.plot(ends, thresholds, color=colour, linewidth=2, marker="o", markersize=5)
        labels.append((thresholds[-1], run.label, colour))
        values += thresholds
        if run.errors:
            errors = run.errors
            axes.plot(
                ends, errors, color=colour, linewidth=1.8, linestyle=":", marker="o", markersize=3.5
            )
            labels.append((errors[-1], f"{run.label}, error", colour))
            values += errors
    low, high = min(values) / 3, max(values) * 3
    axes.set_ylim(low, high)
    axes.axhspan(low, reward_range, color=_REACHABLE, linewidth=0, zorder=0)
    axes.axhline(reward_range, color=_REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    labels.append((reward_range, f"reward range: {reward_range:g}", _REFERENCE))
    axes.annotate(
        "true gaps between actions lie in here", (0, 0), xytext=(6, 6),
        xycoords="axes fraction", textcoords="offset points", size=9.5, color=_QUIET,
    )  # fmt: skip
    axes.set_xlabel("rounds played when the epoch closed")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _label_right(figure, axes, labels)


def _prepare(axes: Axes, title: str, subtitle: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10.5, length=3)
    axes.xaxis.label.set_fontsize(11)
    lines = subtitle.count("\n") + 1
    axes.annotate(
        title, (0, 1), xytext=(0, 12 + 14 * lines), xycoords="axes fraction",
        textcoords="offset points", size=12.5, weight="bold",
    )  # fmt: skip
    axes.annotate(
        subtitle, (0, 1), xytext=(0, 8), xycoords="axes fraction",
        textcoords="offset points", size=10, color=_QUIET, linespacing=1.3,
    )  # fmt: skip


def _label_right(figure: Figure, axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Write each label beside the end of its line, moved apart where lines end together."""
    labels = sorted(labels)
    height = axes.get_window_extent().height / figure.dpi * 72  # in points
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [to_axes.transform((1.0, value))[1] * height for value, _, _ in labels]
    placed = spread(np.array(wanted), gap=15.0)
    for (_, text, colour), at, moved in zip(labels, wanted, placed, strict=True):
        axes.annotate(
            text, (1, at / height), xytext=(16, moved - at), xycoords="axes fraction",
            textcoords="offset points", size=10, color=colour, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 1,
                        "shrinkB": 2, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(positions: FloatArray, gap: float) -> FloatArray:
    """Move sorted positions at least ``gap`` apart, each group about its own centre.

    >>> spread(np.array([0.0, 10.0, 10.0, 50.0]), gap=6.0)
    array([ 0.,  7., 13., 50.])
    """
    # Least squares under a minimal distance is isotonic regression of position - rank * gap.
    steps = gap * np.arange(len(positions))
    groups: list[tuple[float, int]] = []
    for value in positions - steps:
        total, count = float(value), 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            before, members = groups.pop()
            total, count = total + before, count + members
        groups.append((total, count))
    level = np.repeat([total / count for total, count in groups], [count for _, count in groups])
    return np.asarray(level + steps)


def _thinned(regret: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rounds and regret at evenly spaced rounds, from round 0 to the last."""
    rounds = np.unique(np.linspace(0, len(regret), min(_POINTS, len(regret) + 1)).astype(np.int64))
    return rounds.astype(np.float64), np.concatenate([[0.0], regret])[rounds]
