"""From the records of single cells to what a page shows: one series per policy, budget and problem.

A *player* is a policy together with its promise: the same policy run without a budget promises
nothing and is another player. Only players of one promise are compared without a word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from math import inf, sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray

Record = Mapping[str, Any]

_NEEDED = (
    "environment", "rounds", "policy", "player", "promise", "epsilon", "delta", "seed", "note",
    "regret_per_round", "ratio", "simple_regret", "epochs", "measured",
)  # fmt: skip

# What cells that differ by their seed alone have in common, beside the player.
_PROBLEM = ("environment", "rounds", "epsilon", "delta")
# Who is trusted: from a curator to nobody, then what promises nothing, then what uses no data.
_MODELS = ("joint", "local", "shuffle", "central", "none", "perfect")
# All sign flips are tried up to this many seeds; beyond it, as many random ones.
_EXACT = 14
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Mean difference over common seeds, its 95 % interval and the p-value of a sign-flip test.

    Interval and p-value are None where one seed is all there is.
    """

    seeds: int
    difference: float
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Player:
    """A policy under one promise. ``promise`` holds model, kind, protects, unit and label."""

    policy: str
    label: str
    promise: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds; the standard error is None for a single seed."""

    mean: float
    standard_error: float | None
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """What one player reached on one problem with one epsilon, over its seeds."""

    environment: str
    rounds: int
    epsilon: float | None
    delta: float | None
    player: int
    note: str
    finals: Mapping[int, float]  # cumulative regret after the last round, by seed
    regret: Mean
    ratio: Mean | None
    simple_regret: Mean | None
    seconds: Mean | None
    peak_memory_bytes: int | None
    curve: tuple[FloatArray, FloatArray, FloatArray | None]  # rounds, mean, standard error
    epochs: tuple[Mapping[str, float | None], ...]
    notices: tuple[Mapping[str, Any], ...]  # kind, in how many seeds, and the text of the first
    active: Mapping[str, Any] | None
    certificate: Mapping[str, Any] | None

    @property
    def budget(self) -> tuple[float, float]:
        """To sort by: no budget comes last."""
        return inf if self.epsilon is None else self.epsilon, self.delta or 0.0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A paired comparison of two series, by their places in the summary."""

    first: int
    second: int
    comparison: Comparison


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """A study in numbers."""

    players: tuple[Player, ...]
    series: tuple[Series, ...]
    pairs: tuple[Pair, ...]
    failures: tuple[Mapping[str, Any], ...]
    cells: int
    seconds: float
    versions: tuple[str, ...]


def summarise(records: Iterable[Record]) -> Summary:
    """Gather cells that differ by their seed alone; failed ones are kept with their error."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    failures: list[Mapping[str, Any]] = []
    count, seconds, versions = 0, 0.0, set()
    for record in records:
        count += 1
        seconds += (record.get("measured") or {}).get("seconds") or 0.0
        versions.add(str(record.get("version") or "unknown"))
        if record["status"] != "done":
            names = ("environment", "policy", "epsilon", "rounds", "seed", "error")
            failures.append({name: record.get(name) for name in names})
            continue
        player = record["policy"], record["promise"]["label"]
        key = (player, *(record[name] for name in _PROBLEM))
        same = cells.setdefault(key, [])
        same.append(_slim(record, first=not same))
    players = _players([same[0] for same in cells.values()])
    places = {(player.policy, player.promise["label"]): i for i, player in enumerate(players)}
    series = [_series(same, places[player]) for (player, *_), same in cells.items()]
    environments = list(dict.fromkeys(each.environment for each in series))
    series.sort(
        key=lambda one: (environments.index(one.environment), one.rounds, one.player, one.budget)
    )
    return Summary(
        players=tuple(players),
        series=tuple(series),
        pairs=tuple(_pairs(series, players)),
        failures=tuple(failures),
        cells=count,
        seconds=seconds,
        versions=tuple(sorted(versions)),
    )


def _slim(record: Record, *, first: bool) -> Record:
    """What is needed of a record: those of a large study would not fit in memory as they are."""
    curve = {name: np.array(each, dtype=np.float64) for name, each in record["curve"].items()}
    return {name: record.get(name) for name in _NEEDED} | {
        "curve": curve,
        # One of each is shown, that of the first seed.
        "active": record.get("active") if first else None,
        "certificate": record.get("certificate") if first else None,
    }


def _players(records: Sequence[Record]) -> list[Player]:
    """In groups of one promise, CAPRI first; else in the order of the study."""
    private = {each["policy"] for each in records if each["promise"]["model"] != "none"}
    found: dict[tuple[str, str], Player] = {}
    ours = {each["policy"] for each in records if each["player"]["name"] == "capri"}
    for record in records:
        policy, promise = record["policy"], record["promise"]
        bare = promise["model"] == "none" and policy in private
        label = f"{policy}, no privacy" if bare else policy
        player = Player(policy=policy, label=label, promise=promise)
        found.setdefault((policy, promise["label"]), player)
    first_seen = list(dict.fromkeys(player.promise["label"] for player in found.values()))
    return sorted(
        found.values(),
        key=lambda player: (
            _MODELS.index(player.promise["model"]),
            first_seen.index(player.promise["label"]),
            player.policy not in ours,
        ),
    )


def _series(records: Sequence[Record], player: int) -> Series:
    records = sorted(records, key=lambda record: int(record["seed"]))
    first = records[0]
    finals = {
        record["seed"]: float(record["regret_per_round"]) * record["rounds"] for record in records
    }
    measured = [record.get("measured") or {} for record in records]
    peaks = [each["peak_memory_bytes"] for each in measured if each.get("peak_memory_bytes")]
    regret = _mean(finals.values())
    assert regret is not None
    return Series(
        **{name: first[name] for name in _PROBLEM},
        player=player,
        note=first.get("note") or "",
        finals=finals,
        regret=regret,
        ratio=_mean(record.get("ratio") for record in records),
        simple_regret=_mean(record.get("simple_regret") for record in records),
        seconds=_mean(each.get("seconds") for each in measured),
        peak_memory_bytes=max(peaks, default=None),
        curve=_curve(records),
        epochs=_epochs(records),
        notices=_notices(records),
        active=_first(records, "active"),
        certificate=_first(records, "certificate"),
    )


def _first(records: Sequence[Record], name: str) -> Any:
    return next((record[name] for record in records if record.get(name)), None)


def _mean(values: Iterable[float | None]) -> Mean | None:
    """None unless every seed has a value: a mean over some seeds would compare unlike things."""
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    array = np.array(known, dtype=np.float64)
    return Mean(
        mean=float(array.mean()),
        standard_error=float(array.std(ddof=1)) / sqrt(len(array)) if len(array) > 1 else None,
        low=float(array.min()),
        high=float(array.max()),
    )


def _curve(records: Sequence[Record]) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Mean and standard error at the rounds of the first seed, from round 0."""
    rounds = np.array([0, *records[0]["curve"]["round"]], dtype=np.float64)
    regret = np.array(
        [
            np.interp(rounds, [0, *record["curve"]["round"]], [0.0, *record["curve"]["regret"]])
            for record in records
        ]
    )
    error = regret.std(axis=0, ddof=1) / sqrt(len(records)) if len(records) > 1 else None
    return rounds, regret.mean(axis=0), error


_EPOCH = ("noise_scale", "width", "predicted_error", "noise_share", "active_share")


def _epochs(records: Sequence[Record]) -> tuple[Mapping[str, float | None], ...]:
    """Means over the seeds that closed the epoch, and the rounds played by then."""
    count = max(len(record["epochs"]) for record in records)
    played = np.zeros(len(records))
    rows = []
    for place in range(count):
        there = [i for i, record in enumerate(records) if len(record["epochs"]) > place]
        epochs = [records[i]["epochs"][place] for i in there]
        played[there] += [epoch["length"] for epoch in epochs]
        means = {name: _mean(epoch.get(name) for epoch in epochs) for name in _EPOCH}
        rows.append(
            {"epoch": epochs[0]["epoch"], "rounds": float(np.mean(played[there]))}
            | {name: mean and mean.mean for name, mean in means.items()}
        )
    return tuple(rows)


def _notices(records: Sequence[Record]) -> tuple[Mapping[str, Any], ...]:
    """Each kind of notice once: a policy tells a kind once in a run."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        for epoch in record["epochs"]:
            for notice in epoch.get("notices") or ():
                kind = {"kind": notice["kind"], "seeds": 0, "text": notice["text"]}
                found.setdefault(notice["kind"], kind)["seeds"] += 1
    return tuple(found.values())


def _pairs(series: Sequence[Series], players: Sequence[Player]) -> Iterable[Pair]:
    """Every two players of one promise on one problem, with the same budget."""

    def task(place: int) -> tuple[Any, ...]:
        one = series[place]
        return one.environment, one.rounds, players[one.player].promise["label"], one.budget

    for _, same in groupby(sorted(range(len(series)), key=task), key=task):
        for first, second in combinations(same, 2):
            comparison = compare(series[first].finals, series[second].finals)
            if comparison is not None:
                yield Pair(first=first, second=second, comparison=comparison)


def compare(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison | None:
    """``first - second`` over the seeds both have; None where they share no seed.

    With differences ``d_1 .. d_n`` of mean ``m`` and standard deviation ``s``, the interval is
    Student's, ``m -+ t_{n-1, 0.975} s / sqrt(n)``, and the p-value is that of Fisher's sign-flip
    test: the share of signs ``e`` with ``|sum e_i d_i| >= |sum d_i|``. With ``n`` seeds no p-value
    is smaller than ``2 / 2^n``.

    >>> result = compare({0: 3.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0, 9: 7.0})
    >>> result.difference, result.seeds, result.p
    (2.0, 3, 0.25)
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    differences = np.array([first[seed] - second[seed] for seed in common])
    mean, count = float(differences.mean()), len(common)
    if count == 1:
        return Comparison(seeds=1, difference=mean, low=None, high=None, p=None)
    from scipy.stats import t

    reach = float(t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * float(differences.std(ddof=1))
    reach /= sqrt(count)
    low, high, p = mean - reach, mean + reach, _sign_flip_p(differences)
    return Comparison(seeds=count, difference=mean, low=low, high=high, p=p)


def _sign_flip_p(differences: FloatArray) -> float:
    count = len(differences)
    if count <= _EXACT:
        numbers = np.arange(1 << count)[:, None]
        signs = 1 - 2 * ((numbers >> np.arange(count)) & 1)
    else:
        # Signs depend on nothing but the number of seeds: the same report every time.
        signs = np.random.default_rng(0).choice((-1, 1), size=(1 << _EXACT, count))
        signs[0] = 1  # the observed signs belong to the null law; else p could be 0
    sums = np.abs(signs @ differences)
    # Equal sums may differ in their last bits.
    return float(np.mean(sums >= abs(differences.sum()) * (1 - 1e-9)))
