"""Tables that river ships: web pages, image segments, a shuttle's sensors, two bananas."""

from typing import Any
from zipfile import ZipFile

from capri_lab.datasets.real.packages import package_file, package_table
from capri_lab.datasets.real.problem import Problem, Rows
from capri_lab.datasets.rewards import Match

_PACKAGE = "river"
_FOLDER = "river/datasets/"
_UCI = "UCI Machine Learning Repository, CC BY 4.0; the copy in river is BSD-3-Clause"
_RIGHT = "1 for the right class, -1 for the other"


def _labelled(frame: Any, label: str, words: dict[int, str] | None = None) -> Rows:
    """All columns but the label are the context; ``words`` are what its numbers mean."""
    if words is not None:
        frame = frame.assign(**{label: frame[label].map(words)})
    return Rows(
        frame=frame,
        context=tuple(column for column in frame.columns if column != label),
        label=label,
    )


def _phishing() -> Rows:
    frame = package_table(_PACKAGE, f"{_FOLDER}phishing.csv.gz")
    return _labelled(frame, "is_phishing", {0: "let pass", 1: "warn"})


def _segment() -> Rows:
    return _labelled(package_table(_PACKAGE, f"{_FOLDER}segment.csv.zip"), "category")


def _shuttle() -> Rows:
    frame = package_table(_PACKAGE, f"{_FOLDER}shuttle.csv.gz")
    return _labelled(frame, "anomaly", {0: "go on", 1: "look"})


def _bananas() -> Rows:
    """Lines such as ``-1 1:1.617466 2:-0.919233``: the class, then numbered columns."""
    import pandas

    with ZipFile(package_file(_PACKAGE, f"{_FOLDER}banana.zip")) as archive:
        lines = archive.read("banana.all.txt").decode("ascii").splitlines()
    cells = [line.split() for line in lines if line.strip()]
    rows = [
        {"class": int(label)} | {f"x{column.partition(':')[0]}": float(column.partition(":")[2])
                                 for column in columns}
        for label, *columns in cells
    ]  # fmt: skip
    return _labelled(pandas.DataFrame(rows), "class", {-1: "one", 1: "other"})


PHISHING = Problem(
    name="phishing",
    title="1,250 web pages, 9 signs of each; warn of it or let it pass?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=_phishing,
    reward=Match(),
)
SEGMENT = Problem(
    name="segment",
    title="2,310 patches of outdoor images, 18 measurements; which of seven things is it?",
    package=_PACKAGE,
    licence=_UCI,
    pays="1 for the right class, -1 for any other",
    read=_segment,
    reward=Match(),
    dimensions=8,
)
SHUTTLE = Problem(
    name="shuttle",
    title="49,097 sensor readings of a space shuttle, 9 columns with far outliers; look into it "
    "(7 % are anomalies) or go on?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=_shuttle,
    reward=Match(),
)
BANANAS = Problem(
    name="bananas",
    title="5,300 points of two banana-shaped clusters, 2 columns; which one is it?",
    package=_PACKAGE,
    licence="OpenML data set 1460, public; the copy in river is BSD-3-Clause",
    pays=_RIGHT,
    read=_bananas,
    reward=Match(),
    invented="the points themselves: a published test set, not people",
    dimensions=2,
)
