"""Pictures: of a run, a contest, what a policy has come to believe, an audit and a forecast.

Figures are built as objects: no global state, no screen needed. ``result.plot()`` imports pictures,
so pictures import the classes of results for their types alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import pi, sqrt
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.arrays import FloatArray
from capri.plots import style
from capri.plots.forecast import forecast_figure
from capri.plots.style import COLOURS, REFERENCE, spread, to_bytes

if TYPE_CHECKING:
    from capri.audit.proof import AuditResult
    from capri.learners.explanation import ColumnEffect, Explanation
    from capri.players import ContestRun
    from capri.simulation import SimulationResult

__all__ = [
    "audit_figure",
    "contest_figure",
    "explanation_figure",
    "forecast_figure",
    "run_figure",
    "spread",
    "to_bytes",
]

_REACHABLE = "#EAF3EA"
_COLUMNS = 12
_QUIET_BAR = "#C9CED6"
_FAR = 1e3
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


# -- a contest: who lost how much, and what each came to know -------------------------------------


def contest_figure(
    runs: "Sequence[ContestRun]", *, reward_range: float, headline: str, footnote: str
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
    figure: Figure, axes: Axes, runs: "Sequence[ContestRun]", colours: dict[str, str]
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
    line: Callable[["ContestRun"], Sequence[float]]
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
    figure: Figure, axes: Axes, runs: "Sequence[ContestRun]", colours: dict[str, str], panel: _Panel
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


# -- an explanation: shares of effects and shapes, columns that matter ----------------------------


def explanation_figure(explanation: "Explanation") -> Figure:
    """Left: shares of the effects. Middle: of the shapes. Right: how much each column matters."""
    footnote = f"{' '.join(explanation.facts)} From public things alone."
    figure = style.new_figure(16, 6.2, explanation.headline, footnote)
    figure.subplots_adjust(left=0.085, right=0.98, wspace=0.62)
    left, middle, right = figure.subplots(1, 3)
    known = explanation.informed
    weighed = known and len(explanation.smoothness) > 0
    effects = explanation.effects
    bars = {"expected": ([each.expected for each in effects], _QUIET_BAR)}
    if weighed:
        bars["by evidence"] = ([each.share for each in effects], COLOURS[0])
    estimates = [each.estimate for each in effects if each.estimate is not None]
    if estimates:
        bars["in the estimate"] = (estimates, COLOURS[1])
    _draw_shares(left, [each.name for each in effects], bars)
    style.prepare(left, "What f is made of", "share of its mean square\nby kind of effect")
    shapes = explanation.smoothness
    if shapes:
        names = [f"{each.side}: {each.name}" for each in shapes]
        bars = {"expected": ([each.expected for each in shapes], _QUIET_BAR)}
        if weighed:
            bars["by evidence"] = ([each.share for each in shapes], COLOURS[0])
        _draw_shares(middle, [fill(name, 24) for name in names], bars)
        style.prepare(
            middle, "How smooth it is", "share of all effects of contexts\nand of actions"
        )
    else:
        middle.set_axis_off()
        middle.annotate(
            "The kernel is known:\nits smoothness is not weighed.", (0.5, 0.5), ha="center",
            xycoords="axes fraction", size=11, color=style.QUIET,
        )  # fmt: skip
    _draw_columns(right, explanation.largest_columns[:_COLUMNS], known=known)
    more = len(explanation.columns) - _COLUMNS
    style.prepare(
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
    scales = ["" if (scale := each.lengthscale) is None
              else f"\nscale {float(f'{scale:.3g}'):,g}" for each in columns]  # fmt: skip
    axes.set_yticks(
        places, [each.name + scale for each, scale in zip(columns, scales, strict=True)]
    )
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("in units of the reward")


# -- an audit: what an attacker sees in two neighbouring worlds ------------------------------------


def audit_figure(result: "AuditResult", *, footnote: str) -> Figure:
    """Histograms of the attack on the release, with the curves that the claim predicts.

    A claim of ``mu`` says: two unit Gaussians whose means are ``mu`` apart. A claim of a pure
    epsilon says: Laplace noise of scale 1 at ``epsilon`` apart, of which a statistic tells a share
    between -1 and 1.
    """
    figure = style.new_figure(9.5, 5.8, _headline(result), footnote)
    figure.subplots_adjust(left=0.065, right=0.975)
    axes = figure.subplots()
    attack = result.attacks[0]
    style.prepare(
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
    tallest, told = 0.5, result.claimed / 2 if result.delta else 0.25
    for side, values, colour, label in (
        (-1, worlds[0], COLOURS[0], "reward as low\nas possible"),
        (1, worlds[1], COLOURS[1], "reward as high\nas possible"),
    ):
        centre = side * told
        heights, _, _ = axes.hist(
            values, bins.tolist(), density=True, color=colour, alpha=0.3, linewidth=0
        )
        tallest = max(tallest, 1.1 * float(np.max(heights)))
        if result.delta:
            axes.plot(points, _bell(points - centre), color=colour, linewidth=2.2)
        else:
            axes.stairs(_shares(side * bins, result.epsilon), bins, color=colour, linewidth=2.2)
        axes.annotate(
            label, (centre + 0.75 * side, _bell(np.array(0.75))), xytext=(26 * side, 14),
            textcoords="offset points", size=10.5, color=colour,
            ha="left" if side > 0 else "right", va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8},
        )  # fmt: skip
    axes.axvline(0, color=REFERENCE, linewidth=1.2, linestyle=(0, (4, 2.5)))
    axes.set_ylim(0, tallest)
    axes.annotate(
        "threshold,\nfixed in advance", (0, 0.985), xytext=(6, 0), va="top", size=9.5,
        color=style.QUIET, xycoords=axes.get_xaxis_transform(), textcoords="offset points",
    )  # fmt: skip
    axes.set_xlim(-frame, frame)
    axes.set_xlabel(
        "the attacker's statistic, in standard deviations of the noise"
        if result.delta
        else "the attacker's statistic, as a share of epsilon"
    )
    axes.set_ylabel("density", size=11)
    return figure


def _headline(result: "AuditResult") -> str:
    words = "Passed" if result.passed else "FAILED: an attack proves more loss than is claimed"
    claimed, proven = (
        (f", mu {result.claimed:.3f}", f", mu {result.proven:.3f}") if result.delta else ("", "")
    )
    return (
        f"{words}. {result.model.capitalize()} model, {100 * result.confidence:g} % confidence\n"
        f"claimed  epsilon {result.epsilon:.3g}{claimed}     "
        f"proven by attack  epsilon {result.proven_epsilon:.3g}{proven}"
    )


def _bell(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-(x**2) / 2) / sqrt(2 * pi))


def _shares(edges: FloatArray, epsilon: float) -> FloatArray:
    """Density in each bin of ``2 x / epsilon`` within [-1, 1], ``x`` Laplace around ``epsilon/2``.

    ``P(share <= s) = e^(-epsilon (1 - s) / 2) / 2`` from -1 to 1; the other half is 1 itself. Edges
    that fall are those of the mirrored world.
    """
    below = np.where(edges < 1, np.exp(-epsilon * (1 - np.minimum(edges, 1.0)) / 2) / 2, 1.0)
    return np.asarray(np.diff(np.where(edges < -1, 0.0, below)) / np.diff(edges))


def _bins(trials: int) -> int:
    """Narrow enough to show the shape, wide enough to be smooth."""
    # An even number: the threshold lies between two bins.
    return 2 * int(np.clip(trials ** (1 / 3), 10, 40))
