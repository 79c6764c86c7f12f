"""The picture of an explanation: shares of the effects and of the shapes, columns that matter."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.plots.style import COLOURS, QUIET, REFERENCE, new_figure, prepare

if TYPE_CHECKING:
    from capri.learners.explanation import ColumnEffect, Explanation

_COLUMNS = 12
_QUIET_BAR = "#C9CED6"


def explanation_figure(explanation: "Explanation") -> Figure:
    """Left: shares of the effects. Middle: of the shapes. Right: how much each column matters."""
    footnote = f"{' '.join(explanation.facts)} From public things alone."
    figure = new_figure(16, 6.2, explanation.headline, fill(footnote, 220))
    figure.subplots_adjust(left=0.085, right=0.98, wspace=0.62)
    left, middle, right = figure.subplots(1, 3)
    known = explanation.releases > 0
    weighed = known and len(explanation.smoothness) > 0
    effects = explanation.effects
    bars = {"expected": ([each.expected for each in effects], _QUIET_BAR)}
    if weighed:
        bars["by evidence"] = ([each.share for each in effects], COLOURS[0])
    estimates = [each.estimate for each in effects if each.estimate is not None]
    if estimates:
        bars["in the estimate"] = (estimates, COLOURS[1])
    _draw_shares(left, [each.name for each in effects], bars)
    prepare(left, "What f is made of", "share of its mean square\nby kind of effect")
    shapes = explanation.smoothness
    if shapes:
        names = [f"{each.side}: {each.name}" for each in shapes]
        bars = {"expected": ([each.expected for each in shapes], _QUIET_BAR)}
        if weighed:
            bars["by evidence"] = ([each.share for each in shapes], COLOURS[0])
        _draw_shares(middle, [fill(name, 24) for name in names], bars)
        prepare(middle, "How smooth it is", "share of all effects of contexts\nand of actions")
    else:
        middle.set_axis_off()
        middle.annotate(
            "The kernel is known:\nits smoothness is not weighed.", (0.5, 0.5), ha="center",
            xycoords="axes fraction", size=11, color=QUIET,
        )  # fmt: skip
    _draw_columns(right, explanation.largest_columns[:_COLUMNS], known=known)
    more = len(explanation.columns) - _COLUMNS
    prepare(
        right,
        "Which columns matter",
        ("change of f when a column alone is exchanged" if known else "change that is expected")
        + (f", the first {_COLUMNS} of {len(explanation.columns)}" if more > 0 else "")
        + ("\nlines: one standard error" if known else "\n"),
    )
    return figure


def _draw_shares(
    axes: Axes, names: Sequence[str], bars: Mapping[str, tuple[Sequence[float], str]]
) -> None:
    height, places = 0.8 / len(bars), np.arange(len(names), dtype=np.float64)
    for number, (label, (values, colour)) in enumerate(bars.items()):
        axes.barh(places + number * height - 0.4, values, height, align="edge", color=colour,
                  label=label)  # fmt: skip
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    longest = max(max(values) for values, _ in bars.values())
    axes.set_xlim(0, min(1.0, 1.1 * longest))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(loc="best", fontsize=9, framealpha=0.9, edgecolor="#CCCCCC")


def _draw_columns(axes: Axes, columns: "Sequence[ColumnEffect]", *, known: bool) -> None:
    places = np.arange(len(columns))
    errors = [each.standard_error for each in columns]
    if known:
        colours = [COLOURS[0] if each.clear else _QUIET_BAR for each in columns]
        effects = [each.effect for each in columns]
        axes.barh(places, effects, 0.7, color=colours)
        axes.errorbar(
            effects, places, xerr=errors, linestyle="", color=REFERENCE, capsize=3, linewidth=1.2
        )
    else:
        axes.barh(places, errors, 0.7, color=_QUIET_BAR)
    names = [
        each.name if each.lengthscale is None else f"{each.name}\nscale {each.lengthscale:.3g}"
        for each in columns
    ]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("in units of the reward")
