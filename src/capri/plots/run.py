"""The picture of one run: what it lost, and what each epoch came to know."""

from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.plots.results import Run
from capri.plots.style import (
    COLOURS,
    REFERENCE,
    draw_epochs,
    label_right,
    log_axes,
    new_figure,
    prepare,
    thinned,
)


def run_figure(result: Run) -> Figure:
    """Left: cumulative regret beside that of uniform play. Right: the epochs, where there are."""
    share = "" if np.isnan(result.ratio) else f", {result.ratio:.3g} of that of uniform play"
    figure = new_figure(
        13 if result.epochs else 7.5,
        5.8,
        f"Regret {result.regret[-1]:,.3g} after {result.rounds:,} rounds{share}",
        f"One simulation, {result.seconds:.2g} s, peak memory "
        f"{result.peak_memory_bytes / 1e6:,.0f} MB",
    )
    figure.subplots_adjust(left=0.06 if result.epochs else 0.11, right=0.85, wspace=0.5)
    panels = figure.subplots(1, 2 if result.epochs else 1, squeeze=False)[0]
    _draw_regret(figure, panels[0], result)
    if result.epochs:
        _draw_epochs(figure, panels[1], result)
    return figure


def _draw_regret(figure: Figure, axes: Axes, result: Run) -> None:
    prepare(axes, "Cumulative regret", "mean reward lost to the best action, summed over rounds")
    rounds, regret = thinned(result.regret)
    uniform = result.uniform_regret_per_round * result.rounds
    axes.plot([0, result.rounds], [0, uniform], color=REFERENCE, linestyle=(0, (4, 2.5)))
    axes.plot(rounds, regret, color=COLOURS[0], linewidth=2.4)
    axes.set_xlim(0, result.rounds)
    axes.set_ylim(0, 1.08 * max(float(regret.max()), uniform) or 1.0)
    axes.set_xlabel("rounds played")
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    end = float(regret[-1])
    label_right(figure, axes, [(end, "this run", COLOURS[0]), (uniform, "uniform", REFERENCE)])


def _draw_epochs(figure: Figure, axes: Axes, result: Run) -> None:
    prepare(axes, "What each epoch told", "values that the policy publishes; log axes")
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
        if not points:  # no noise without privacy
            continue
        draw_epochs(axes, [x for x, _ in points], [y for _, y in points], colour)
        labels.append((points[-1][1], name, colour))
        drawn += [y for _, y in points]
    log_axes(axes)
    axes.set_xlabel("rounds played when the epoch closed")
    axes.set_xlim(ends[0] / 1.1, ends[-1] * 1.1)
    if drawn:
        axes.set_ylim(min(drawn) / 1.5, max(drawn) * 1.5)
        label_right(figure, axes, labels)
