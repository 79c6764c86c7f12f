"""The picture of a contest: who lost how much, and what each came to know."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.plots.results import Run
from capri.plots.style import COLOURS, QUIET, REFERENCE, label_right, new_figure, prepare, thinned

_REACHABLE = "#EAF3EA"


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One run in a picture; ``errors`` holds the true error of each epoch's estimate.

    Where the policy predicts its error, the root mean square over the pairs it played, which is
    what it predicts; else the largest error over all pairs, which the paper's width bounds.
    """

    label: str
    result: Run
    errors: tuple[float, ...] = ()
    reference: bool = False

    @property
    def predicted(self) -> tuple[float, ...]:
        """The error the policy expected in each epoch; empty where it does not say."""
        errors = [record.predicted_error for record in self.result.epochs]
        return tuple(error for error in errors if error is not None)


def contest_figure(
    runs: Sequence[Contest], *, reward_range: float, headline: str, footnote: str
) -> Figure:
    """Left: cumulative regret. Right: predicted and true error, or the paper's widths."""
    figure = new_figure(13, 5.8, headline, footnote)
    figure.subplots_adjust(left=0.05, right=0.845, wspace=0.72)
    left, right = figure.subplots(1, 2, width_ratios=(0.9, 1.0))
    colours = _colours(runs)
    _draw_regret(figure, left, runs, colours)
    learners = [run for run in runs if run.result.epochs]
    if learners and all(run.predicted for run in learners):
        _draw_errors(figure, right, learners, colours)
    else:
        _draw_widths(figure, right, learners, colours, reward_range)
    return figure


def _colours(runs: Sequence[Contest]) -> dict[str, str]:
    palette = iter(COLOURS)
    return {run.label: REFERENCE if run.reference else next(palette) for run in runs}


def _draw_regret(
    figure: Figure, axes: Axes, runs: Sequence[Contest], colours: dict[str, str]
) -> None:
    prepare(
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
                *thinned(run.result.regret),
                color=colour,
                linewidth=1.6,
                linestyle=(0, (3, 4)),
                zorder=4,
            )
        else:
            solid.remove(end)
            # Curves may lie on top of each other: the broader ones below stay visible.
            above = sum(abs(other - end) < 0.03 * max(ends) for other in solid)
            axes.plot(
                *thinned(run.result.regret),
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
    label_right(figure, axes, labels)


def _draw_errors(
    figure: Figure, axes: Axes, runs: Sequence[Contest], colours: dict[str, str]
) -> None:
    prepare(
        axes,
        "Error of the estimate",
        "root mean square over the pairs that are played; line: predicted\n"
        "circles: true; dashed: mean gap between an action and the best",
    )
    axes.set_yscale("log")
    axes.set_xscale("log")
    gap = runs[0].result.uniform_regret_per_round
    labels, values = [], [gap]
    for run in runs:
        colour = colours[run.label]
        ends = list(accumulate(record.length for record in run.result.epochs))
        axes.plot(ends, run.predicted, color=colour, linewidth=2)
        axes.plot(
            ends[: len(run.errors)], run.errors, color=colour, linestyle="", marker="o",
            markersize=5.5, markerfacecolor="white", markeredgewidth=1.8,
        )  # fmt: skip
        labels.append((run.predicted[-1], run.label, colour))
        values += [*run.predicted, *run.errors]
    axes.axhline(gap, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    labels.append((gap, f"mean gap: {gap:.2g}", REFERENCE))
    low, high = min(values) / 2, max(values) * 2
    axes.set_ylim(low, high)
    axes.axhspan(low, gap, color=_REACHABLE, linewidth=0, zorder=0)
    axes.annotate(
        "good and bad actions can be told apart in here", (0, 0), xytext=(6, 6),
        xycoords="axes fraction", textcoords="offset points", size=9.5, color=QUIET,
    )  # fmt: skip
    axes.set_xlabel("rounds played when the epoch closed")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    label_right(figure, axes, labels)


def _draw_widths(
    figure: Figure,
    axes: Axes,
    runs: Sequence[Contest],
    colours: dict[str, str],
    reward_range: float,
) -> None:
    prepare(
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
            values += errors
    low, high = min(values) / 3, max(values) * 3
    axes.set_ylim(low, high)
    axes.axhspan(low, reward_range, color=_REACHABLE, linewidth=0, zorder=0)
    axes.axhline(reward_range, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    labels.append((reward_range, f"reward range: {reward_range:g}", REFERENCE))
    axes.annotate(
        "true gaps between actions lie in here", (0, 0), xytext=(6, 6),
        xycoords="axes fraction", textcoords="offset points", size=9.5, color=QUIET,
    )  # fmt: skip
    axes.set_xlabel("rounds played when the epoch closed")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    label_right(figure, axes, labels)
