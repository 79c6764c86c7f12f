"""Prove privacy loss from attacks in two neighbouring worlds: what every audit shares.

An attack gives one statistic per run, in units of the noise, with its threshold at 0: below it the
attacker guesses the low world, above it the high one. From how often it errs follows a lower bound
on the privacy loss that holds with the stated confidence.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

from capri.arrays import FloatArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier, delivered_epsilon
from capri.privacy.witness import Sightings, learnt_mu

# How far beyond its bound the attacker's value lies: clipping must take care of it.
EXCESS = 1e6
# Attacks that a working pipeline defeats outright need few trials: a repeated noise vector leaves
# no doubt in any of them. Forks are slow, so they are capped as well.
_SHARE, _FEWEST, FORKS = 20, 100, 250

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sighting:
    """What an attacker sees in one run: a statistic with its threshold at 0, and the row it is made
    from, for those who know no threshold. ``group``: see :class:`Sightings`."""

    statistic: float
    row: FloatArray
    group: int = 0

    @classmethod
    def of(cls, statistic: float) -> "Sighting":
        """Of a statistic alone."""
        return cls(statistic, np.array([statistic]))


Attack = Callable[[float], float | Sighting]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """One attack: statistics in the two worlds, in units of the noise, and what they prove.

    ``proven_mu``: by a threshold fixed in advance; ``learnt_mu``: by a learnt witness
    (:mod:`capri.privacy.witness`).
    """

    name: str
    trials: int
    low: FloatArray = field(repr=False)
    high: FloatArray = field(repr=False)
    proven_mu: float
    learnt_mu: float = 0.0

    @property
    def largest_mu(self) -> float:
        """What the better of the two estimators proves; at least 0."""
        return max(self.proven_mu, self.learnt_mu, 0.0)


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """Claimed against proven privacy loss."""

    model: str
    epsilon: float
    delta: float
    confidence: float
    claimed_mu: float
    attacks: tuple[AttackResult, ...]

    @property
    def proven_mu(self) -> float:
        """Largest Gaussian-DP parameter that some attack proves."""
        return max(attack.largest_mu for attack in self.attacks)

    @property
    def proven_epsilon(self) -> float:
        """The proven loss as an epsilon at the claimed delta."""
        return delivered_epsilon(self.proven_mu, self.delta)

    @property
    def passed(self) -> bool:
        """No attack proves more loss than was claimed."""
        return self.proven_mu <= self.claimed_mu

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``capri audit --json`` writes them."""
        return {
            "model": self.model,
            "delta": self.delta,
            "confidence": self.confidence,
            "claimed": {"epsilon": self.epsilon, "mu": self.claimed_mu},
            "proven": {"epsilon": self.proven_epsilon, "mu": self.proven_mu},
            "passed": self.passed,
        }


def check_trials(trials: int, confidence: float) -> None:
    """Refuse audits that could prove nothing."""
    if whole("trials", trials) < _FEWEST:
        raise ConfigurationError(f"an audit needs at least {_FEWEST} trials, got {trials}")
    between("confidence", confidence, 0.0, 1.0, open_ends=True)


def chosen_attacks(attacks: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names of attacks, each once; without forks where the system has none."""
    if not attacks or not set(attacks) <= set(known):
        raise ConfigurationError(f"attacks must be some of {', '.join(known)}, got {attacks!r}")
    return [name for name in dict.fromkeys(attacks) if name != "fork" or hasattr(os, "fork")]


def prove(
    attacks: Mapping[str, Attack],
    *,
    model: str,
    budget: Budget,
    trials: int,
    confidence: float,
    counts: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Run every attack in both worlds, and prove what its runs allow by both estimators.

    ``counts``: how often each is run in a world; else *release* ``trials`` times, the others less
    often. The confidence holds for all attacks and both estimators together. ``progress`` is told
    how many runs are done, and how many there are.
    """
    runs = _runs(attacks, trials) if counts is None else counts
    errors = _errors(list(attacks), 1 - confidence)
    ticks, total = count(1), 2 * sum(runs[name] for name in attacks)

    def played(name: str, sign: float) -> list[Sighting]:
        found = []
        for _ in range(runs[name]):
            seen = attacks[name](sign)
            found.append(seen if isinstance(seen, Sighting) else Sighting.of(seen))
            if progress is not None:
                progress(next(ticks), total)
        return found

    results = []
    for name in attacks:
        worlds = played(name, -1.0), played(name, 1.0)
        low, high = (np.array([seen.statistic for seen in world]) for world in worlds)
        results.append(
            AttackResult(
                name=name,
                trials=runs[name],
                low=low,
                high=high,
                proven_mu=proven_mu(low, high, errors[name]),
                learnt_mu=learnt_mu(_together(worlds[0]), _together(worlds[1]), errors[name]),
            )
        )
    return AuditResult(
        model=model,
        epsilon=budget.epsilon,
        delta=budget.delta,
        confidence=confidence,
        claimed_mu=1 / analytic_multiplier(budget),
        attacks=tuple(results),
    )


def _runs(attacks: Iterable[str], trials: int) -> dict[str, int]:
    few = share_of(trials, _SHARE)
    return dict.fromkeys(attacks, few) | {"release": trials, "fork": min(few, FORKS)}


def _errors(attacks: Sequence[str], error: float) -> dict[str, float]:
    """What each estimator may err by: half of all for the first attack, the rest for the others."""
    first, *others = attacks
    if not others:
        return {first: error / 2}
    return {first: error / 4} | dict.fromkeys(others, error / (4 * len(others)))


def share_of(trials: int, share: int) -> int:
    """One run for every ``share`` of the main attack, and enough to prove anything."""
    return max(_FEWEST, trials // share)


def _together(world: Sequence[Sighting]) -> Sightings:
    return Sightings(
        rows=np.array([seen.row for seen in world]),
        group=np.array([seen.group for seen in world]),
    )


def proven_mu(low: FloatArray, high: FloatArray, error: float) -> float:
    """Lower bound on ``mu`` from one threshold test at 0, with as many runs in either world.

    Gaussian DP allows no test with ``(fpr + fnr) / 2 < Phi(-mu / 2)`` (Dong, Roth & Su 2019). The
    mean of the two rates is replaced by the one-sided Clopper-Pearson upper bound on the errors of
    all runs together: errors that are more likely in one world than in the other scatter less than
    equally likely ones (Hoeffding 1956), so the bound holds for them as well.
    """
    if len(low) != len(high):
        raise ConfigurationError(f"both worlds need as many runs: got {len(low)} and {len(high)}")
    errors = int((low > 0).sum() + (high <= 0).sum())
    return float(-2 * ndtri(clopper_pearson_upper(errors, 2 * len(low), error)))


def clopper_pearson_upper(hits: int, trials: int, error: float) -> float:
    """Upper end of the exact binomial confidence interval."""
    return 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 1 - error))


def in_child(compute: Callable[[], FloatArray]) -> FloatArray:
    """Run in a forked child and bring the array back."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forking with threads; the child only computes and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(compute().tobytes())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError("the forked half of the audit failed")
    return np.frombuffer(data)
