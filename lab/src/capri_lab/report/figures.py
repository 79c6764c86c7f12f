"""The charts of the page as pictures for a paper: one panel per trust model, on the same axes."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capri.arrays import FloatArray
from capri.plots import style
from capri.plots.style import COLOURS, REFERENCE
from capri_lab.report.marks import DASHES, Mark, marks
from capri_lab.report.summary import Mean, Player, Series, Summary

_TITLES = {
    "joint": "Joint privacy",
    "local": "Local privacy",
    "shuffle": "Shuffle privacy",
    "central": "Central privacy",
    "none": "No privacy",
    "perfect": "No data used",
}
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Line:
    """One line of a panel; ``reach`` is the half-width of its band."""

    player: int
    x: FloatArray
    y: FloatArray
    reach: FloatArray | None = None
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class _Axes:
    x: str
    y: str
    log: bool
    note: str
    measured: bool = False  # at the few values of x that were asked for: each has a tick


_CURVES = _Axes(
    x="rounds played", y="cumulative regret", log=False, note="mean and two standard errors"
)
_EPSILON = _Axes(
    x="epsilon", y="regret / uniform play", log=True, note="mean and two standard errors",
    measured=True,
)  # fmt: skip
_HORIZON = replace(_EPSILON, x="rounds T")
_NOISE = _Axes(
    x="rounds played when the epoch closed", y="noise", log=True,
    note="standard deviation of the noise on a release,\nor on each local report",
)  # fmt: skip
_WIDTH = _Axes(
    x="rounds played when the epoch closed", y="width", log=True,
    note="of the interval that decides which actions stay",
)  # fmt: skip


def figures(summary: Summary, *, title: str) -> Iterator[tuple[str, Figure]]:
    """Named pictures: regret by round, by epsilon and by horizon, noise and width by epoch."""
    taken: set[str] = set()

    def named(*parts: str) -> str:
        """A name that any file system takes, and no other picture has."""
        name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
        number = 2
        while name in taken:
            name, number = f"{name}-{number}", number + 1
        taken.add(name)
        return name

    for environment in dict.fromkeys(one.environment for one in summary.series):
        here = [one for one in summary.series if one.environment == environment]
        horizons = sorted({one.rounds for one in here})
        for rounds in horizons:
            there = [one for one in here if one.rounds == rounds]
            place = f"{title}: {environment}, T = {rounds:,}"
            problem = environment, f"T{rounds}"
            for words, name, same in _by_budget(there):
                for kind, axes, lines in (
                    ("regret", _CURVES, [_curve(one) for one in same]),
                    ("noise", _NOISE, _epochs(same, "noise_scale")),
                    ("width", _WIDTH, _epochs(same, "width")),
                ):
                    if lines:
                        picture = _picture(summary, lines, axes, place + words)
                        yield named(kind, *problem, *name), picture
            epsilons = sorted({one.epsilon for one in there if one.epsilon is not None})
            if len(epsilons) > 1:
                # What promises nothing has no epsilon; uniform play is the level to beat.
                private = [
                    one for one in there if summary.players[one.player].promise["model"] != "none"
                ]
                lines = _sweep(private, lambda one: one.epsilon, (epsilons[0], epsilons[-1]))
                yield named("epsilon", *problem), _picture(summary, lines, _EPSILON, place)
        if len(horizons) > 1:
            for words, name, same in _by_budget(here):
                lines = _sweep(same, lambda one: float(one.rounds), ())
                picture = _picture(summary, lines, _HORIZON, f"{title}: {environment}{words}")
                yield named("horizon", environment, *name), picture


def _by_budget(series: Sequence[Series]) -> Iterator[tuple[str, tuple[str, ...], list[Series]]]:
    """Series of each epsilon, in words and as a name, with those that spend no budget."""
    epsilons = sorted({one.epsilon for one in series if one.epsilon is not None})
    if not epsilons:
        yield "", (), [*series]
    for epsilon in epsilons:
        same = [one for one in series if one.epsilon in (None, epsilon)]
        words = f", epsilon = {epsilon:g} where there is a budget"
        yield words, (f"epsilon{epsilon:g}",), same


def _curve(one: Series) -> _Line:
    rounds, mean, error = one.curve
    return _Line(player=one.player, x=rounds, y=mean, reach=None if error is None else 2 * error)


def _epochs(series: Sequence[Series], name: str) -> list[_Line]:
    lines = []
    for one in series:
        points = [(epoch["rounds"], epoch[name]) for epoch in one.epochs if epoch[name]]
        if points:
            x, y = np.array(points, dtype=np.float64).T
            lines.append(_Line(player=one.player, x=x, y=y, dots=True))
    return lines


def _sweep(
    series: Sequence[Series],
    where: Callable[[Series], float | None],
    everywhere: tuple[float, ...],
) -> list[_Line]:
    """Final regret over that of uniform play; without a budget it is the same ``everywhere``."""
    lines = []
    for player in dict.fromkeys(one.player for one in series):
        points: list[tuple[float, Mean]] = []
        for one in series:
            if one.player == player and one.ratio is not None:
                at = where(one)
                points += [(each, one.ratio) for each in (everywhere if at is None else (at,))]
        if points:
            points.sort(key=lambda point: point[0])
            x, y = np.array([(at, ratio.mean) for at, ratio in points]).T
            errors = [ratio.standard_error for _, ratio in points]
            reach = None if None in errors else 2 * np.array(errors, dtype=np.float64)
            lines.append(_Line(player=player, x=x, y=y, reach=reach, dots=True))
    return lines


def _picture(summary: Summary, lines: Sequence[_Line], axes: _Axes, headline: str) -> Figure:
    """One panel for each trust model that is there, uniform play in all of them."""
    players, drawn = summary.players, marks(summary.players)
    model = {line.player: players[line.player].promise["model"] for line in lines}
    models = [each for each in _TITLES if each in model.values() and each != "perfect"]
    models = models or ["perfect"]
    # Beside a panel, for its labels: at 10 points, a letter is 0.085 inches wide.
    margin = max(1.9, 0.4 + 0.085 * max(len(players[line.player].policy) for line in lines))
    width = (3.7 + margin) * len(models) + 0.6
    footnote = (
        "Seeded simulations. Dashes tell unlike promises apart; only lines of one kind promise "
        "the same."
    )
    figure = style.new_figure(width, 5.8, headline, footnote)
    figure.subplots_adjust(left=0.95 / width, right=1 - margin / width, wspace=(margin + 0.7) / 3.7)
    panels = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
    shown = [[line for line in lines if model[line.player] in (each, "perfect")] for each in models]
    for panel, each, mine in zip(panels, models, shown, strict=True):
        promises = dict.fromkeys(
            players[line.player].promise["label"] for line in mine if model[line.player] == each
        )
        style.prepare(panel, _TITLES[each], _subtitle(axes.note, list(promises)))
        panel.set_xlabel(axes.x)
        for line in mine:
            _draw(panel, line, players[line.player], drawn[line.player])
    panels[0].set_ylabel(axes.y, size=11)
    _set_scales(panels, lines, axes)
    for panel, mine in zip(panels, shown, strict=True):
        named = [(line.y[-1], players[line.player], drawn[line.player]) for line in mine]
        labels = [(float(end), each.policy, _colour(each, mark)) for end, each, mark in named]
        style.label_right(figure, panel, labels)
    return figure


def _set_scales(panels: Sequence[Axes], lines: Sequence[_Line], axes: _Axes) -> None:
    """The same for all panels, fixed here: labels are placed by them."""
    x, y = (np.concatenate([getattr(line, name) for line in lines]) for name in "xy")
    tops = [line.y + (0.0 if line.reach is None else line.reach) for line in lines]
    for panel in panels:
        panel.tick_params(labelleft=True)
        if axes.log:
            style.log_axes(panel)
            if axes.measured:
                panel.set_xticks(np.unique(x))
            panel.set_xlim(x.min() / 1.05, x.max() * 1.05)
            panel.set_ylim(y[y > 0].min() / 1.2, y.max() * 1.2)
        else:
            panel.set_xlim(0, x.max())
            panel.set_ylim(0, 1.05 * float(np.concatenate(tops).max()) or 1.0)
            panel.locator_params(nbins=5)
            panel.xaxis.set_major_formatter("{x:,.0f}")
            panel.yaxis.set_major_formatter("{x:,.0f}")


def _subtitle(note: str, promises: Sequence[str]) -> str:
    named = f"{len(promises)} unlike promises, by dashes" if len(promises) > 1 else promises[0]
    named = {"none": "nothing is promised"}.get(named, named)
    return f"{named}\n{note}"


def _colour(player: Player, mark: Mark) -> str:
    return REFERENCE if player.promise["model"] == "perfect" else COLOURS[mark.colour]


def _draw(panel: Axes, line: _Line, player: Player, mark: Mark) -> None:
    colour = _colour(player, mark)
    pattern = tuple(float(part) / 2 for part in DASHES[mark.dash].split())
    panel.plot(
        line.x, line.y, color=colour, linewidth=2, linestyle=(0, pattern) if pattern else "-",
        marker=_MARKERS[mark.shape] if line.dots else "", markersize=5,
    )  # fmt: skip
    if line.reach is not None and player.promise["model"] != "perfect":
        panel.fill_between(
            line.x, line.y - line.reach, line.y + line.reach, color=colour, alpha=0.15, linewidth=0
        )
