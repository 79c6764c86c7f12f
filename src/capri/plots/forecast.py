"""The picture of a forecast: what will be lost, what can be told apart, what stands in the way."""

from collections.abc import Callable, Sequence
from itertools import cycle
from math import inf
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.plots.style import COLOURS, REFERENCE, draw_epochs, label_right, new_figure, prepare

if TYPE_CHECKING:
    from capri.forecast.result import ExpectedEpoch, Forecast

_BANDS = ("#D3EBDC", "#EAF5E4", "#FBF3DC", "#F8E1DB")


def forecast_figure(forecast: "Forecast", verdicts: Sequence[tuple[float, str]]) -> Figure:
    """Left: regret against rounds. Middle: the gap that can be told apart. Right: noise share.

    ``verdicts`` names what a ratio means, each up to its limit, from small to large.
    """
    figure = new_figure(16, 5.8, _headline(forecast), _footnote(forecast))
    figure.subplots_adjust(left=0.045, right=0.925, wspace=0.62)
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        axes.set_xscale("log")
        axes.set_xlim(_first_round(forecast), forecast.horizons[-1])
    colours = dict(zip(forecast.epsilons, cycle(COLOURS), strict=False))
    _draw_ratio(figure, left, forecast, colours, verdicts)
    _draw_gap(figure, middle, forecast, colours)
    _draw_shares(figure, right, forecast, colours)
    for axes in (left, middle, right):
        axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _first_round(forecast: "Forecast") -> int:
    """Where the curves start: at the first point, or at an epoch before it."""
    rounds = [forecast.curve_of(epsilon)[0].rounds for epsilon in forecast.epsilons]
    if forecast.preset == "paper":  # one point per horizon, and epochs long before the first
        rounds += [epoch.rounds for epoch in forecast.epochs]
    return min(rounds)


def name_of(epsilon: float) -> str:
    """How a line or a row of this epsilon is called."""
    return f"epsilon {epsilon:g}" if epsilon < inf else "no privacy"


def _headline(forecast: "Forecast") -> str:
    horizon = forecast.horizons[-1]
    shares = []
    for epsilon in forecast.epsilons:
        outlook = forecast.at(epsilon, horizon)
        where = f"at {name_of(epsilon)}" if epsilon < inf else "without privacy"
        error = f" ± {outlook.ratio_standard_error:.1g}"
        shares.append(f"{outlook.ratio:.2g}{error} {where} ({outlook.grade})")
    sentence = f"Expected regret after {horizon:,} rounds, as a share of uniform play: "
    return fill(sentence + ", ".join(shares) + ".", 130)


def _footnote(forecast: "Forecast") -> str:
    made = (
        f"Forecast, no privacy claim: mean of {forecast.functions} random functions, "
        f"{forecast.contexts}, {forecast.model} model, preset {forecast.preset}."
    )
    horizon = forecast.horizons[-1]
    middle = forecast.epsilons[len(forecast.epsilons) // 2]
    kinds = [f"{each.kind} {each.figure}" for each in forecast.kinds_at(middle, horizon)]
    if kinds:
        made += f" By kind, at {name_of(middle)}: {', '.join(kinds)}."
    return f"{made} {forecast.advice}" if forecast.costs else made


def _draw_ratio(
    figure: Figure,
    axes: Axes,
    forecast: "Forecast",
    colours: dict[float, str],
    verdicts: Sequence[tuple[float, str]],
) -> None:
    prepare(
        axes,
        "Regret as a share of uniform play",
        "mean over functions, shaded: two standard errors\ndots: the horizons asked for",
    )
    axes.set_yscale("log")
    labels, values = [], [1.0]
    for epsilon, colour in colours.items():
        curve = forecast.curve_of(epsilon)
        rounds = [point.rounds for point in curve]
        ratio = np.array([point.ratio for point in curve])
        spread = 2 * np.nan_to_num([point.ratio_standard_error for point in curve])
        low = np.maximum(ratio - spread, ratio / 3)
        axes.fill_between(rounds, low, ratio + spread, color=colour, alpha=0.18, linewidth=0)
        axes.plot(rounds, ratio, color=colour, linewidth=2.2)
        asked = [forecast.at(epsilon, horizon) for horizon in forecast.horizons]
        axes.plot(
            [row.rounds for row in asked], [row.ratio for row in asked],
            color=colour, linestyle="", marker="o", markersize=6, clip_on=False,
        )  # fmt: skip
        labels.append((float(ratio[-1]), f"{name_of(epsilon)}: {ratio[-1]:.2g}", colour))
        values += ratio.tolist()
    low, high = min(0.09, min(values) / 1.6), max(values) * 1.25
    axes.set_ylim(low, high)
    below, bands = low, []
    for (limit, name), colour in zip(verdicts, _BANDS, strict=True):
        top = min(limit, high)
        bands.append(axes.axhspan(below, top, color=colour, linewidth=0, zorder=0, label=name))
        below = top
    # Curves start at the top and fall to the right: this corner is theirs last.
    axes.legend(
        handles=bands[::-1], loc="lower left", fontsize=9, framealpha=0.9, edgecolor="#CCCCCC"
    )
    _plain_ticks(axes)
    axes.set_xlabel("rounds played")
    label_right(figure, axes, labels)


def _plain_ticks(axes: Axes) -> None:
    """Decades as plain numbers, nothing between them."""
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("")


def _draw_gap(figure: Figure, axes: Axes, forecast: "Forecast", colours: dict[float, str]) -> None:
    predicted = all(epoch.predicted_error is not None for epoch in forecast.epochs)
    meaning = "two standard deviations" if predicted else "4 x width, as in the paper"
    prepare(
        axes,
        "Gap that can be told apart",
        f"between two actions: {meaning}\ndotted: width of the estimate",
    )
    axes.set_yscale("log")
    gap = forecast.uniform_regret_per_round
    values = [gap, *(value for epoch in forecast.epochs for value in (epoch.gap, epoch.width))]
    axes.set_ylim(min(values) / 1.6, max(values) * 1.6)
    labels = _draw_epochs(
        axes, forecast, colours, lambda epoch: epoch.gap, dotted=lambda epoch: epoch.width
    )
    axes.axhline(gap, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    _plain_ticks(axes)
    label_right(figure, axes, [(gap, f"mean gap: {gap:.2g}", REFERENCE), *labels])


def _draw_shares(
    figure: Figure, axes: Axes, forecast: "Forecast", colours: dict[float, str]
) -> None:
    prepare(
        axes,
        "What blurs a release",
        "below the line: privacy noise, as a share of the variance\n"
        "above it: sampling, the chance in users and rewards",
    )
    labels = _draw_epochs(axes, forecast, colours, lambda epoch: epoch.noise_share)
    axes.set_ylim(-0.03, 1.12)  # room for labels of lines that end at 100 %
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    label_right(figure, axes, labels)


def _draw_epochs(
    axes: Axes,
    forecast: "Forecast",
    colours: dict[float, str],
    value: "Callable[[ExpectedEpoch], float]",
    dotted: "Callable[[ExpectedEpoch], float] | None" = None,
) -> list[tuple[float, str, str]]:
    """A line for each epsilon that closes an epoch; the labels at their ends."""
    axes.set_xlabel("rounds played when the epoch closed")
    labels = []
    for epsilon, colour in colours.items():
        epochs = forecast.epochs_of(epsilon)
        if epochs:
            rounds, values = [epoch.rounds for epoch in epochs], [value(epoch) for epoch in epochs]
            if dotted is not None:
                axes.plot(rounds, [dotted(epoch) for epoch in epochs], color=colour, linestyle=":")
            draw_epochs(axes, rounds, values, colour)
            labels.append((values[-1], name_of(epsilon), colour))
    return labels
