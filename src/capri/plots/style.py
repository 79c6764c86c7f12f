"""What all pictures share: colours, titles, labels beside the lines they name."""

from collections.abc import Sequence
from io import BytesIO
from textwrap import fill
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from capri.arrays import FloatArray

# Okabe and Ito: distinguishable with any colour vision, and in print by their lightness.
# The last six, for the rare picture of more lines, are as unlike these as there is room for.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#8C564B", "#117733", "#E7298A",
)  # fmt: skip
REFERENCE = "#444444"
QUIET = "#666666"

# Points drawn per curve: more than the picture has columns only makes the file larger.
_POINTS = 600


@final
class Picture(Figure):
    """A figure that shows itself in a notebook, without a global state of plots."""

    def _repr_png_(self) -> bytes:
        return to_bytes(self, "png")


def new_figure(width: float, height: float, headline: str, footnote: str) -> Figure:
    """An empty figure with what it shows above and how it was made below.

    Made taller for a headline of more than two lines, or a footnote of more than one, which is
    wrapped to the width: some 13 letters fit into an inch.
    """
    letters = int(13 * (width - 0.5))
    footnote = "\n".join(fill(line, letters) for line in footnote.split("\n"))
    more, below = 0.25 * max(0, headline.count("\n") - 1), 0.17 * footnote.count("\n")
    height += more + below
    figure = Picture(figsize=(width, height), dpi=150, facecolor="white")
    figure.subplots_adjust(top=1 - (1.5 + more) / height, bottom=(0.93 + below) / height)
    figure.text(0.25 / width, 1 - 0.2 / height, headline, size=13, weight="bold", va="top")
    figure.text(0.25 / width, 0.12 / height, footnote, size=9.5, color=QUIET, va="bottom")
    return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file: "png", "svg" or "pdf"."""
    buffer = BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def prepare(axes: Axes, title: str, subtitle: str) -> None:
    """Quiet axes under a title that says what is shown and how to read it."""
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
        textcoords="offset points", size=10, color=QUIET, linespacing=1.3,
    )  # fmt: skip


def log_axes(axes: Axes) -> None:
    """Log scales with ticks at 1, 2 and 5, written as plain numbers."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=10))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())


def thinned(regret: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rounds and regret at evenly spaced rounds, from round 0 to the last."""
    rounds = np.unique(np.linspace(0, len(regret), min(_POINTS, len(regret) + 1)).astype(np.int64))
    return rounds.astype(np.float64), np.concatenate([[0.0], regret])[rounds]


def draw_epochs(axes: Axes, ends: Sequence[float], values: Sequence[float], colour: str) -> None:
    """One dot an epoch, at the rounds played when it closed, joined by a line.

    A last epoch that the horizon cut short stands alone: it learns from fewer rounds than those
    before it, and closes so soon after them that a line to it would hook up or down, which looks
    like a trend and is none.
    """
    x, y = np.asarray(ends, dtype=np.float64), np.asarray(values, dtype=np.float64)
    lengths = np.diff(x, prepend=0.0)
    if len(x) > 1 and lengths[-1] < lengths[-2]:
        x, y = np.insert(x, -1, np.nan), np.insert(y, -1, np.nan)
    axes.plot(x, y, color=colour, linewidth=2, marker="o", markersize=4)


def label_right(figure: Figure, axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Write each label beside the end of its line, moved apart where lines end together."""
    labels = sorted(labels)
    height = axes.get_window_extent().height / figure.dpi * 72  # in points
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [to_axes.transform((1.0, value))[1] * height for value, _, _ in labels]
    placed = spread(np.array(wanted), gap=15.0)
    # Many labels at the foot of a panel pile upwards.
    placed = np.maximum(placed, 15.0 * np.arange(len(placed)))
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
