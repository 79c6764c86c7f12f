"""The pictures of one run and of a contest: who lost how much, and what each came to know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.plots import style
from capri.plots.style import COLOURS, REFERENCE

if TYPE_CHECKING:
    from capri.simulation import SimulationResult

_REACHABLE = "#EAF3EA"
_LOST = "mean reward lost to the best action"


def run_figure(result: "SimulationResult") -> Figure:
    """Left: cumulative regret beside that of uniform play. Right: the epochs, where there are."""
    share = "" if np.isnan(result.ratio) else f", {result.ratio:.3g} of that of uniform play"
    figure = style.new_figure(
        13 if result.epochs else 7.5,
        5.8,
        f"Regret {result.regret[-1]:,.3g} after {result.rounds:,} rounds{share}",
        f"One simulation, {result.seconds:.2g} s, peak memory "
        f"{result.peak_memory_bytes / 1e6:,.0f} MB",
    )
    figure.subplots_adjust(left=0.06 if result.epochs else 0.11, right=0.85, wspace=0.5)
    panels = figure.subplots(1, 2 if result.epochs else 1, squeeze=False)[0]
    _draw_run(figure, panels[0], result)
    if result.epochs:
        _draw_epochs(figure, panels[1], result)
    return figure


def _draw_run(figure: Figure, axes: Axes, result: "SimulationResult") -> None:
    style.prepare(axes, "Cumulative regret", f"{_LOST}, summed over rounds")
    uniform = result.uniform_regret_per_round * result.rounds
    axes.plot([0, result.rounds], [0, uniform], color=REFERENCE, linestyle=(0, (4, 2.5)))
    axes.plot(*style.thinned(result.regret), color=COLOURS[0], linewidth=2.4)
    end, most = float(result.regret[-1]), max(float(result.regret.max()), uniform)
    _scale_regret(axes, result.rounds, 1.08 * most or 1.0)
    labels = [(end, "this run", COLOURS[0]), (uniform, "uniform", REFERENCE)]
    style.label_right(figure, axes, labels)


def _draw_epochs(figure: Figure, axes: Axes, result: "SimulationResult") -> None:
    style.prepare(axes, "What each epoch told", "values that the policy publishes; log axes")
    ends = list(accumulate(record.length for record in result.epochs))
    columns: dict[str, list[float | None]] = {
        "width": [record.width for record in result.epochs],
        "predicted error": [record.predicted_error for record in result.epochs],
        "noise": [record.noise_scale for record in result.epochs],
    }
    labels: list[tuple[float, str, str]] = []
    drawn: list[float] = []
    for (name, values), colour in zip(columns.items(), COLOURS, strict=False):
        points = [(x, y) for x, y in zip(ends, values, strict=True) if y is not None and y > 0]
        if points:  # no noise without privacy
            x, y = zip(*points, strict=True)
            style.draw_epochs(axes, x, y, colour)
            labels.append((y[-1], name, colour))
            drawn += y
    style.log_axes(axes)
    axes.set_xlabel("rounds played when the epoch closed")
    axes.set_xlim(ends[0] / 1.1, ends[-1] * 1.1)
    if drawn:
        axes.set_ylim(min(drawn) / 1.5, max(drawn) * 1.5)
        style.label_right(figure, axes, labels)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One run in a picture; ``errors`` holds the true error of each epoch's estimate.

    Where the policy predicts its error, the root mean square over the pairs it played, which is
    what it predicts; else the largest error over all pairs, which the paper's width bounds.
    """

    label: str
    result: "SimulationResult"
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
    figure = style.new_figure(13, 5.8, headline, footnote)
    figure.subplots_adjust(left=0.05, right=0.845, wspace=0.78)
    left, right = figure.subplots(1, 2, width_ratios=(0.9, 1.0))
    palette = iter(COLOURS)
    colours = {run.label: REFERENCE if run.reference else next(palette) for run in runs}
    _draw_regret(figure, left, runs, colours)
    learners = [run for run in runs if run.result.epochs]
    predict = learners and all(run.predicted for run in learners)
    gap = runs[0].result.uniform_regret_per_round
    panel = _error_panel(gap) if predict else _width_panel(reward_range)
    _draw_learning(figure, right, learners, colours, panel)
    return figure


def _draw_regret(
    figure: Figure, axes: Axes, runs: Sequence[Contest], colours: dict[str, str]
) -> None:
    style.prepare(
        axes,
        "Cumulative regret",
        f"{_LOST}, summed\nperfect play would stay at 0",
    )
    ends = [float(run.result.regret[-1]) for run in runs]
    solid = [end for run, end in zip(runs, ends, strict=True) if not run.reference]
    labels = []
    for run, end in zip(runs, ends, strict=True):
        colour = colours[run.label]
        (line,) = axes.plot(*style.thinned(run.result.regret), color=colour, solid_capstyle="butt")
        if run.reference:
            line.set(linewidth=1.6, linestyle=(0, (3, 4)), zorder=4)
        else:
            solid.remove(end)
            # Curves may lie on top of each other: the broader ones below stay visible.
            above = sum(abs(other - end) < 0.03 * max(ends) for other in solid)
            line.set(linewidth=2.4 + 3.0 * above, zorder=3)
        labels.append((end, f"{run.label}  {end:,.0f}", colour))
    _scale_regret(axes, max(run.result.rounds for run in runs), 1.2 * max(ends))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    style.label_right(figure, axes, labels)


def _scale_regret(axes: Axes, rounds: int, top: float) -> None:
    axes.set_xlabel("rounds played")
    axes.set_xlim(0, rounds)
    axes.set_ylim(0, top)
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """What a panel of epochs shows; differences smaller than ``level`` are what matters."""

    title: str
    subtitle: str
    line: Callable[[Contest], Sequence[float]]
    level: float
    name: str
    below: str


def _error_panel(gap: float) -> _Panel:
    return _Panel(
        title="Error of the estimate",
        subtitle="root mean square over the pairs an epoch plays: others each time\n"
        "line: predicted, a dot alone where the horizon cut it short; circles: true",
        line=lambda run: run.predicted,
        level=gap,
        name=f"mean gap: {gap:.2g}",
        below="good and bad actions can be told apart in here",
    )


def _width_panel(reward_range: float) -> _Panel:
    return _Panel(
        title="Gap at which an action is dropped",
        subtitle="line: 4 x width, the gap that is asked for, a dot alone where the horizon\n"
        "cut an epoch short; circles: largest true error of the estimate",
        line=lambda run: [4 * record.width for record in run.result.epochs],
        level=reward_range,
        name=f"reward range: {reward_range:g}",
        below="true gaps between actions lie in here",
    )


def _draw_learning(
    figure: Figure, axes: Axes, runs: Sequence[Contest], colours: dict[str, str], panel: _Panel
) -> None:
    style.prepare(axes, panel.title, panel.subtitle)
    axes.set_yscale("log")
    axes.set_xscale("log")
    labels, values = [(panel.level, panel.name, REFERENCE)], [panel.level]
    for run in runs:
        colour, line = colours[run.label], panel.line(run)
        ends = list(accumulate(record.length for record in run.result.epochs))
        style.draw_epochs(axes, ends, line, colour)
        axes.plot(
            ends[: len(run.errors)], run.errors, color=colour, linestyle="", marker="o",
            markersize=7, markerfacecolor="none", markeredgewidth=1.6,
        )  # fmt: skip
        labels.append((line[-1], run.label, colour))
        values += [*line, *run.errors]
    axes.axhline(panel.level, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    low, high = min(values) / 2, max(values) * 2
    axes.set_ylim(low, high)
    axes.axhspan(low, panel.level, color=_REACHABLE, linewidth=0, zorder=0)
    axes.annotate(
        panel.below, (0, 0), xytext=(6, 6),
        xycoords="axes fraction", textcoords="offset points", size=9.5, color=style.QUIET,
    )  # fmt: skip
    axes.set_xlabel("rounds played when the epoch closed")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    style.label_right(figure, axes, labels)
