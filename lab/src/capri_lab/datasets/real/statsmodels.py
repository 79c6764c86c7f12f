"""Tables that statsmodels ships: health insurance, marriages, voters, travellers, households."""

import numpy as np

from capri_lab.datasets.real.packages import package_table
from capri_lab.datasets.real.problem import Problem, Rows
from capri_lab.datasets.rewards import Closeness, Match, Sale

_PACKAGE = "statsmodels"
_FOLDER = "statsmodels/datasets/"


def _rand() -> Rows:
    """Visits are counts with a long tail, so doses are spread over their logarithm."""
    frame = package_table(_PACKAGE, f"{_FOLDER}randhie/randhie.csv")
    context = tuple(column for column in frame.columns if column != "mdvis")
    return Rows(
        frame=frame.assign(visits=np.log1p(frame["mdvis"])), context=context, label="visits"
    )


def _fair() -> Rows:
    frame = package_table(_PACKAGE, f"{_FOLDER}fair/fair.csv")
    context = tuple(column for column in frame.columns if column != "affairs")
    offered = np.where(frame["affairs"] > 0.0, "offer", "leave alone")
    return Rows(frame=frame.assign(offered=offered), context=context, label="offered")


def _party() -> Rows:
    frame = package_table(_PACKAGE, f"{_FOLDER}anes96/anes96.csv", separator="\t")
    frame = frame.rename(columns=lambda name: name.strip("'"))
    # Neither the vote nor what was thought of both candidates: they all but tell the party.
    context = ("popul", "TVnews", "selfLR", "age", "educ", "income")
    return Rows(frame=frame, context=context, label="PID")


_MODES = {1: "air", 2: "train", 3: "bus", 4: "car"}


def _travel() -> Rows:
    """One row a traveller: what each mode would have cost, and the mode that was taken."""
    trips = package_table(_PACKAGE, f"{_FOLDER}modechoice/modechoice.csv", separator=";")
    trips = trips.assign(mode=trips["mode"].map(_MODES))
    wide = trips.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt"])
    wide.columns = [f"{what} {mode}" for what, mode in wide.columns]
    wide = wide.drop(columns="ttme car").astype(float)  # nobody waits for a car: always 0
    taken = trips[trips["choice"] == 1].set_index("individual")
    frame = wide.join(taken[["hinc", "mode"]])
    context = tuple(column for column in frame.columns if column != "mode")
    return Rows(frame=frame, context=context, label="mode")


def _engel() -> Rows:
    frame = package_table(_PACKAGE, f"{_FOLDER}engel/engel.csv")
    return Rows(frame=frame, context=("income",), label="foodexp")


RAND = Problem(
    name="rand",
    title="20,190 person-years of the RAND health insurance experiment, plan and health in 9 "
    "columns; eleven numbers of visits to a physician to set aside",
    package=_PACKAGE,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 - 2 abs(log(1 + set aside) - log(1 + visits)), both on [0, 1], no less than -1",
    read=_rand,
    reward=Closeness(),
)
FAIR = Problem(
    name="fair",
    title="6,366 wives asked by a magazine, 8 answers each; offer counselling to those who have "
    "an affair (one in three) or leave alone?",
    package=_PACKAGE,
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
    package=_PACKAGE,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 - 2 abs(answer - truth), both on [0, 1], no less than -1",
    read=_party,
    reward=Closeness(doses=7, low=0.0, high=6.0),
)
TRAVEL = Problem(
    name="travel",
    title="210 travellers between Australian cities, cost and time of four modes in 12 columns; "
    "which mode to suggest?",
    package=_PACKAGE,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="1 for the mode that was taken, -1 for any other",
    read=_travel,
    reward=Match(),
)
ENGEL = Problem(
    name="engel",
    title="235 households, one column, their income; eleven prices of a food plan, bought by "
    "those who spend as much on food",
    package=_PACKAGE,
    licence="public domain, as statsmodels states; the copy is BSD-3-Clause",
    pays="the price, on [0, 1], where it is no more than what the household spends; else 0",
    read=_engel,
    reward=Sale(),
    invented="that a household buys whenever the price is no more than what it spends on food",
    dimensions=1,
)
