"""Problems whose rewards a table tells as it is, by the package that ships the table."""

from functools import partial
from typing import Any
from zipfile import ZipFile

import numpy as np

from capri.errors import ConfigurationError
from capri_lab.datasets.real.problem import Problem, Rows, package_file, package_table
from capri_lab.datasets.rewards import Closeness, Match, Sale

# -- scikit-learn: digits, wines, tumours, diabetes, iris ------------------------------------------

_SKLEARN = "scikit-learn"
_UCI_BY_SKLEARN = (
    "UCI Machine Learning Repository, CC BY 4.0; the copy in scikit-learn is BSD-3-Clause"
)
_RIGHT_CLASS = "1 for the right class, -1 for any other"
_TARGET = "target"


def _by_sklearn(loader: str) -> Rows:
    try:
        from sklearn import datasets
    except ImportError:
        raise ConfigurationError(
            "these data sets come with scikit-learn: pip install 'capri-lab[data]'"
        ) from None
    frame = getattr(datasets, loader)(as_frame=True).frame
    context = tuple(column for column in frame.columns if column != _TARGET)
    return Rows(frame=frame, context=context, label=_TARGET)


DIGITS = Problem(
    name="digits",
    title="1,797 images of 64 pixels; which of ten digits is it?",
    package=_SKLEARN,
    licence=_UCI_BY_SKLEARN,
    pays=_RIGHT_CLASS,
    read=partial(_by_sklearn, "load_digits"),
    reward=Match(),
    dimensions=8,
)
WINE = Problem(
    name="wine",
    title="178 wines, 13 measurements; which of three cultivars is it?",
    package=_SKLEARN,
    licence=_UCI_BY_SKLEARN,
    pays=_RIGHT_CLASS,
    read=partial(_by_sklearn, "load_wine"),
    reward=Match(),
)
BREAST_CANCER = Problem(
    name="breast-cancer",
    title="569 tumours, 30 measurements; malignant or benign?",
    package=_SKLEARN,
    licence=_UCI_BY_SKLEARN,
    pays=_RIGHT_CLASS,
    read=partial(_by_sklearn, "load_breast_cancer"),
    reward=Match(),
)
DIABETES = Problem(
    name="diabetes",
    title="442 patients, 10 measurements; eleven doses, the right one being the progression of "
    "the disease after a year",
    package=_SKLEARN,
    licence="B. Efron et al., Least Angle Regression, 2004; the copy in scikit-learn is "
    "BSD-3-Clause, no other licence is stated",
    pays="1 - 2 abs(dose - progression), both on [0, 1], no less than -1",
    read=partial(_by_sklearn, "load_diabetes"),
    reward=Closeness(),
)
IRIS = Problem(
    name="iris",
    title="150 flowers, 4 measurements; which of three species is it?",
    package=_SKLEARN,
    licence=_UCI_BY_SKLEARN,
    pays=_RIGHT_CLASS,
    read=partial(_by_sklearn, "load_iris"),
    reward=Match(),
)


# -- river: web pages, image segments, a shuttle's sensors, two bananas ----------------------------

_RIVER = "river"
_IN_RIVER = "river/datasets/"
_UCI_BY_RIVER = "UCI Machine Learning Repository, CC BY 4.0; the copy in river is BSD-3-Clause"
_RIGHT_OF_TWO = "1 for the right class, -1 for the other"


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
    frame = package_table(_RIVER, f"{_IN_RIVER}phishing.csv.gz")
    return _labelled(frame, "is_phishing", {0: "let pass", 1: "warn"})


def _segment() -> Rows:
    return _labelled(package_table(_RIVER, f"{_IN_RIVER}segment.csv.zip"), "category")


def _shuttle() -> Rows:
    frame = package_table(_RIVER, f"{_IN_RIVER}shuttle.csv.gz")
    return _labelled(frame, "anomaly", {0: "go on", 1: "look"})


def _bananas() -> Rows:
    """Lines such as ``-1 1:1.617466 2:-0.919233``: the class, then numbered columns."""
    import pandas

    with ZipFile(package_file(_RIVER, f"{_IN_RIVER}banana.zip")) as archive:
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
    package=_RIVER,
    licence=_UCI_BY_RIVER,
    pays=_RIGHT_OF_TWO,
    read=_phishing,
    reward=Match(),
)
SEGMENT = Problem(
    name="segment",
    title="2,310 patches of outdoor images, 18 measurements; which of seven things is it?",
    package=_RIVER,
    licence=_UCI_BY_RIVER,
    pays=_RIGHT_CLASS,
    read=_segment,
    reward=Match(),
    dimensions=8,
)
SHUTTLE = Problem(
    name="shuttle",
    title="49,097 sensor readings of a space shuttle, 9 columns with far outliers; look into it "
    "(7 % are anomalies) or go on?",
    package=_RIVER,
    licence=_UCI_BY_RIVER,
    pays=_RIGHT_OF_TWO,
    read=_shuttle,
    reward=Match(),
)
BANANAS = Problem(
    name="bananas",
    title="5,300 points of two banana-shaped clusters, 2 columns; which one is it?",
    package=_RIVER,
    licence="OpenML data set 1460, public; the copy in river is BSD-3-Clause",
    pays=_RIGHT_OF_TWO,
    read=_bananas,
    reward=Match(),
    invented="the points themselves: a published test set, not people",
    dimensions=2,
)


# -- statsmodels: health insurance, marriages, voters, travellers, households ----------------------

_STATSMODELS = "statsmodels"
_IN_STATSMODELS = "statsmodels/datasets/"


def _rand() -> Rows:
    """Visits are counts with a long tail, so doses are spread over their logarithm."""
    frame = package_table(_STATSMODELS, f"{_IN_STATSMODELS}randhie/randhie.csv")
    context = tuple(column for column in frame.columns if column != "mdvis")
    return Rows(
        frame=frame.assign(visits=np.log1p(frame["mdvis"])), context=context, label="visits"
    )


def _fair() -> Rows:
    frame = package_table(_STATSMODELS, f"{_IN_STATSMODELS}fair/fair.csv")
    context = tuple(column for column in frame.columns if column != "affairs")
    offered = np.where(frame["affairs"] > 0.0, "offer", "leave alone")
    return Rows(frame=frame.assign(offered=offered), context=context, label="offered")


def _party() -> Rows:
    frame = package_table(_STATSMODELS, f"{_IN_STATSMODELS}anes96/anes96.csv", separator="\t")
    frame = frame.rename(columns=lambda name: name.strip("'"))
    # Neither the vote nor what was thought of both candidates: they all but tell the party.
    context = ("popul", "TVnews", "selfLR", "age", "educ", "income")
    return Rows(frame=frame, context=context, label="PID")


_MODES = {1: "air", 2: "train", 3: "bus", 4: "car"}


def _travel() -> Rows:
    """One row a traveller: what each mode would have cost, and the mode that was taken."""
    trips = package_table(
        _STATSMODELS, f"{_IN_STATSMODELS}modechoice/modechoice.csv", separator=";"
    )
    trips = trips.assign(mode=trips["mode"].map(_MODES))
    wide = trips.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt"])
    wide.columns = [f"{what} {mode}" for what, mode in wide.columns]
    wide = wide.drop(columns="ttme car").astype(float)  # nobody waits for a car: always 0
    taken = trips[trips["choice"] == 1].set_index("individual")
    frame = wide.join(taken[["hinc", "mode"]])
    context = tuple(column for column in frame.columns if column != "mode")
    return Rows(frame=frame, context=context, label="mode")


def _engel() -> Rows:
    frame = package_table(_STATSMODELS, f"{_IN_STATSMODELS}engel/engel.csv")
    return Rows(frame=frame, context=("income",), label="foodexp")


RAND = Problem(
    name="rand",
    title="20,190 person-years of the RAND health insurance experiment, plan and health in 9 "
    "columns; eleven numbers of visits to a physician to set aside",
    package=_STATSMODELS,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 - 2 abs(log(1 + set aside) - log(1 + visits)), both on [0, 1], no less than -1",
    read=_rand,
    reward=Closeness(),
)
FAIR = Problem(
    name="fair",
    title="6,366 wives asked by a magazine, 8 answers each; offer counselling to those who have "
    "an affair (one in three) or leave alone?",
    package=_STATSMODELS,
    licence="included in statsmodels with permission of the author, R. Fair; the copy is "
    "BSD-3-Clause",
    pays="1 for the right choice, -1 for the other",
    read=_fair,
    reward=Match(),
)
PARTY = Problem(
    name="party",
    title="944 voters of the election study of 1996, 6 answers each; where on the scale of seven "
    "from strong Democrat to strong Republican?",
    package=_STATSMODELS,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 - 2 abs(answer - truth), both on [0, 1], no less than -1",
    read=_party,
    reward=Closeness(doses=7, low=0.0, high=6.0),
)
TRAVEL = Problem(
    name="travel",
    title="210 travellers between Australian cities, cost and time of four modes in 12 columns; "
    "which mode to suggest?",
    package=_STATSMODELS,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 for the mode that was taken, -1 for any other",
    read=_travel,
    reward=Match(),
)
ENGEL = Problem(
    name="engel",
    title="235 households, one column, their income; eleven prices of a food plan, bought by "
    "those who spend as much on food",
    package=_STATSMODELS,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="the price, on [0, 1], where it is no more than what the household spends; else 0",
    read=_engel,
    reward=Sale(),
    invented="that a household buys whenever the price is no more than what it spends on food",
    dimensions=1,
)
