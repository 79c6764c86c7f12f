"""The data behind the page: a summary as plain values, with as many digits as one can see."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from capri.report.marks import DASHES, SHAPES, marks
from capri.report.summary import Mean, Series, Summary

# More than a screen or a reader can tell apart.
_DIGITS = 5


def document(summary: Summary) -> dict[str, Any]:
    """A summary in values that JSON can hold. Rounds and certificates are stored once."""
    grids: list[list[float]] = []
    certificates: list[Any] = []
    return {
        "cells": summary.cells,
        "seconds": _short(summary.seconds),
        "versions": list(summary.versions),
        "dashes": DASHES,
        "players": [
            {
                "policy": player.policy,
                "label": player.label,
                "promise": dict(player.promise),
                "colour": mark.colour,
                "dash": mark.dash,
                "shape": SHAPES[mark.shape],
            }
            for player, mark in zip(summary.players, marks(summary.players), strict=True)
        ],
        "series": [_series(one, grids, certificates) for one in summary.series],
        "grids": grids,
        "certificates": certificates,
        "pairs": [
            [pair.first, pair.second, *_plain(list(asdict(pair.comparison).values()))]
            for pair in summary.pairs
        ],
        "failures": [_plain(dict(failure)) for failure in summary.failures],
    }


def _series(one: Series, grids: list[list[float]], certificates: list[Any]) -> dict[str, Any]:
    rounds, mean, error = one.curve
    return {
        "environment": one.environment,
        "rounds": one.rounds,
        "epsilon": one.epsilon,
        "delta": one.delta,
        "player": one.player,
        "note": one.note,
        "seeds": list(one.finals),
        "regret": _mean(one.regret),
        "ratio": _mean(one.ratio),
        "simple": _mean(one.simple_regret),
        "seconds": None if one.seconds is None else _short(one.seconds.mean),
        "memory": one.peak_memory_bytes,
        "grid": _place(grids, [int(each) for each in rounds]),
        "curve": _numbers(mean),
        "error": None if error is None else _numbers(error),
        "epochs": [_plain(dict(epoch)) for epoch in one.epochs],
        "active": _plain(one.active),
        "certificate": (
            None if one.certificate is None else _place(certificates, _plain(one.certificate))
        ),
    }


def _mean(mean: Mean | None) -> list[float | None] | None:
    """Mean, standard error, smallest and largest."""
    return None if mean is None else _numbers(asdict(mean).values())


def _place(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else _short(value) for value in values]


def _short(value: float) -> float | None:
    if not isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case str():
            return value
        case Sequence():
            return [_plain(item) for item in value]
        case float():
            return _short(value)
    return value
