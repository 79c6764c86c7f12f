"""Prove privacy loss from attacks in two neighbouring worlds: what every audit shares.

An attack gives one statistic per run, in units of the noise, with its threshold at 0: below it the
attacker guesses the low world, above it the high one. From how often it errs follows a lower bound
on the privacy loss that holds with the stated confidence. A second proof knows nothing of plans:
half of the runs teach a witness how the worlds differ, the other half are judged by it. It finds
leaks that nobody thought of, and pays with half of the runs.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import exp, log
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from capri.arrays import FloatArray, IntArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier, delivered_epsilon, gaussian_delta

# How far beyond its bound the attacker's value lies: clipping must take care of it.
EXCESS = 1e6
# Attacks that a working pipeline defeats outright need few trials: a repeated noise vector leaves
# no doubt in any of them. Forks are slow, so they are capped as well.
_FEWEST, _FORKS = 100, 250
# Where a witness looks, and the largest mu that it proves.
_EPSILONS = (0.0, 0.5, 1.0, 2.0)
_THRESHOLDS = 64
_LARGEST_MU = 50.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sighting:
    """What an attacker sees in one run: a statistic with its threshold at 0, and the row it is made
    from, for those who know no threshold. ``group``: see :class:`Sightings`. ``pure``: the noise is
    Laplace, and the statistic a share of its epsilon."""

    statistic: float
    row: FloatArray
    group: int = 0
    pure: bool = False


Attack = Callable[[float], Sighting]


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """What was seen in many runs of one world: rows in units of the noise, each of a group.

    Groups are what the attacker knows beside the row, such as the action drawn: directions and
    midpoints are learnt for each of them.
    """

    rows: FloatArray
    group: IntArray

    @classmethod
    def of(cls, world: Sequence[Sighting]) -> "Sightings":
        """All runs of a world."""
        rows = np.array([seen.row for seen in world])
        return cls(rows=rows, group=np.array([seen.group for seen in world]))

    def half(self, odd: int) -> "Sightings":
        """Every second run."""
        return Sightings(rows=self.rows[odd::2], group=self.group[odd::2])


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """One attack: what it proves, by a threshold fixed in advance and by a learnt witness.

    The unit is that of the claim: ``mu`` of Gaussian noise, epsilon where delta is 0. ``low`` and
    ``high`` are the statistics in the two worlds, in units of the noise, where there are any.
    """

    name: str
    trials: int
    proven: float
    learnt: float = 0.0
    low: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)
    high: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def largest(self) -> float:
        """What the better of the two estimators proves; at least 0."""
        return max(self.proven, self.learnt, 0.0)

    @property
    def errors(self) -> tuple[float, float]:
        """How often the threshold took the low world for the high one, and the reverse."""
        return float((self.low > 0).mean()), float((self.high <= 0).mean())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        told = {"name": self.name, "trials": self.trials, "proven": self.proven}
        if not len(self.low):
            return told
        return (
            told
            | {"learnt": self.learnt}
            | dict(zip(("false_alarms", "misses"), self.errors, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """Claimed against proven privacy loss, by attacks on a policy, a device or a fit.

    ``checks`` are what a proof assumes beside, such as the law of a report: what was measured, and
    whether that may be chance.
    """

    model: str
    epsilon: float
    delta: float
    confidence: float
    attacks: tuple[AttackResult, ...]
    checks: Mapping[str, tuple[float, bool]] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What losses are measured in: "mu" of Gaussian noise, "epsilon" where delta is 0."""
        return "mu" if self.delta else "epsilon"

    @property
    def claimed(self) -> float:
        """The largest loss that the claim allows, in its unit."""
        if not self.delta:
            return self.epsilon
        return 1 / analytic_multiplier(Budget(self.epsilon, self.delta))

    @property
    def proven(self) -> float:
        """The largest loss that some attack proves, in the unit of the claim."""
        return max(attack.largest for attack in self.attacks)

    @property
    def proven_epsilon(self) -> float:
        """The proven loss as an epsilon at the claimed delta."""
        return delivered_epsilon(self.proven, self.delta) if self.delta else self.proven

    @property
    def lawful(self) -> bool:
        """Whether what the proof assumes holds, as far as chance lets one see."""
        return all(holds for _, holds in self.checks.values())

    @property
    def passed(self) -> bool:
        """No attack proves more loss than was claimed, and what the proof assumes holds."""
        return self.proven <= self.claimed and self.lawful

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``capri audit --json`` writes them and a certificate reads them."""
        claimed, proven = {"epsilon": self.epsilon}, {"epsilon": self.proven_epsilon}
        return {
            "model": self.model,
            "delta": self.delta,
            "confidence": self.confidence,
            "trials": max(attack.trials for attack in self.attacks),
            "claimed": claimed | {self.unit: self.claimed},
            "proven": proven | {self.unit: self.proven},
            "passed": self.passed,
            "attacks": [attack.to_dict() for attack in self.attacks],
            "checks": {name: value for name, (value, _) in self.checks.items()},
        }


def check_trials(trials: int, confidence: float) -> None:
    """Refuse audits that could prove nothing."""
    if whole("trials", trials) < _FEWEST:
        raise ConfigurationError(f"an audit needs at least {_FEWEST} trials, got {trials}")
    between("confidence", confidence, 0.0, 1.0, open_ends=True)


def chosen_attacks(
    attacks: Sequence[str] | None, known: Mapping[str, int], trials: int
) -> dict[str, int]:
    """How often to run each attack: once for every ``known`` runs of the main one.

    All attacks where none are named; none that forks where the system has no forks.
    """
    names = tuple(known) if attacks is None else attacks
    if not names or not set(names) <= set(known):
        raise ConfigurationError(f"attacks must be some of {', '.join(known)}, got {attacks!r}")
    runs = {name: share_of(trials, known[name]) for name in names}
    if "fork" in runs:
        runs["fork"] = min(runs["fork"], _FORKS)
    return {name: each for name, each in runs.items() if name != "fork" or hasattr(os, "fork")}


def share_of(trials: int, share: int) -> int:
    """One run for every ``share`` of the main attack, and enough to prove anything."""
    return max(_FEWEST, trials // share)


def prove(
    attacks: Mapping[str, Attack],
    runs: Mapping[str, int],
    *,
    model: str,
    budget: Budget,
    confidence: float,
    progress: Progress | None = None,
) -> AuditResult:
    """Run every attack so often in both worlds, and prove what its runs allow by both estimators.

    The confidence holds for all attacks and both estimators together. ``progress`` is told how
    many runs are done, and how many there are.
    """
    errors = _errors({name: runs[name] for name in attacks}, 1 - confidence)
    ticks, total = count(1), 2 * sum(runs[name] for name in attacks)

    def played(name: str, sign: float) -> list[Sighting]:
        found = []
        for _ in range(runs[name]):
            found.append(attacks[name](sign))
            if progress is not None:
                progress(next(ticks), total)
        return found

    results = []
    for name in attacks:
        worlds = played(name, -1.0), played(name, 1.0)
        low, high = (np.array([seen.statistic for seen in world]) for world in worlds)
        below, above = (Sightings.of(world) for world in worlds)
        error = errors[name]
        pure = {seen.pure for world in worlds for seen in world}
        if len(pure) > 1:  # some runs have one noise, some the other: only the claim holds for both
            told = (
                epsilon_at(low, high, error, budget.delta),
                _witnessed(below, above, error, budget),
            )
            proven, witnessed = (_in_unit(budget, epsilon) for epsilon in told)
        elif True in pure:
            told = proven_epsilon(low, high, error), learnt(below, above, error, loss=_epsilon_of)
            proven, witnessed = (_in_unit(budget, epsilon) for epsilon in told)
        else:
            proven, witnessed = proven_mu(low, high, error), learnt(below, above, error)
        results.append(
            AttackResult(
                name=name,
                trials=runs[name],
                low=low,
                high=high,
                proven=proven,
                learnt=witnessed,
            )
        )
    return AuditResult(
        model=model,
        epsilon=budget.epsilon,
        delta=budget.delta,
        confidence=confidence,
        attacks=tuple(results),
    )


def _errors(runs: Mapping[str, int], error: float) -> dict[str, float]:
    """What each of the two estimators of an attack may err by: its share of all runs."""
    total = 2 * sum(runs.values())
    return {name: error * each / total for name, each in runs.items()}


# -- a threshold fixed in advance -----------------------------------------------------------------


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


# Shares of the largest statistic from which an attacker guesses, in Laplace noise. From 0.9 on
# guesses tell nearly all of epsilon, and coordinates that hardly differ do not silence any.
_GUESSED = (0.0, 0.5, 0.9)


def proven_epsilon(low: FloatArray, high: FloatArray, error: float) -> float:
    """Lower bound on a pure epsilon from guesses that are made where the statistic is telling.

    Laplace noise tells all that it ever does outside of the two worlds' values, where statistics
    are -1 and 1. Whatever the rule by which an attacker keeps silent, of the guesses that are made
    a share of at most ``e^epsilon / (1 + e^epsilon)`` is right: ``P(S | high) <= e^epsilon
    P(S | low)`` for the set that is guessed high, and likewise for the other. As many runs in
    either world scatter less than worlds drawn by a coin. The best of a few rules that are fixed in
    advance shares the error.
    """
    best = 0.0
    for least in _GUESSED:
        wrong = int((low > least).sum() + (high < -least).sum())
        right = int((high > least).sum() + (low < -least).sum())
        if right + wrong:
            rate = float(clopper_pearson_upper(wrong, right + wrong, error / len(_GUESSED)))
            best = max(best, log((1 - rate) / rate) if rate < 1 else 0.0)
    return best


def epsilon_at(low: FloatArray, high: FloatArray, error: float, delta: float) -> float:
    """Lower bound on epsilon at ``delta`` from one threshold at 0, whatever the noise.

    ``P_high(S) <= e^epsilon P_low(S) + delta`` and the same of the other side: with a mean rate of
    errors ``r``, ``1 - r <= e^epsilon r + delta``. The rate is bounded as for :func:`proven_mu`.
    """
    errors = int((low > 0).sum() + (high <= 0).sum())
    rate = float(clopper_pearson_upper(errors, 2 * len(low), error))
    return max(0.0, log((1 - rate - delta) / rate)) if rate < 1 - delta else 0.0


def _witnessed(low: "Sightings", high: "Sightings", error: float, budget: Budget) -> float:
    """The largest epsilon at the claim's delta that a learnt witness contradicts."""
    return learnt(low, high, error, loss=lambda epsilon, left: epsilon * (left > budget.delta))


def _in_unit(budget: Budget, epsilon: float) -> float:
    """A proven epsilon in the unit of a claim: the ``mu`` that delivers it at the claim's delta."""
    if not budget.delta or epsilon <= 0:
        return epsilon
    return 1 / analytic_multiplier(Budget(epsilon, budget.delta))


def clopper_pearson_upper(hits: int | IntArray, trials: int, error: float) -> FloatArray:
    """Upper end of the exact binomial confidence interval, of each number of hits."""
    inner = np.minimum(hits, trials - 1)
    return np.where(hits == trials, 1.0, betaincinv(inner + 1, trials - inner, 1 - error))


# -- a learnt witness -----------------------------------------------------------------------------


def learnt(
    low: Sightings,
    high: Sightings,
    error: float,
    *,
    loss: Callable[[float, float], float] | None = None,
) -> float:
    """Lower bound on ``mu`` that holds but for probability ``error``; 0 where nothing is proved.

    For every set ``S`` and every ``e >= 0``, a mu-GDP mechanism has

        P_high(S) - e^e P_low(S) <= delta_mu(e)

    (Balle & Wang's curve). ``loss``: from ``e`` and the left side to the least loss that allows it,
    the ``mu`` of that curve where none is given. ``S`` is where the learnt score exceeds a learnt
    threshold; the left side is bounded from below by two Clopper-Pearson intervals on runs that
    taught nothing.
    """
    loss = loss or _mu_of
    score = _Witness(low.half(0), high.half(0))
    low_scores, high_scores = np.sort(score(low.half(0))), np.sort(score(high.half(0)))
    both = np.concatenate([low_scores, high_scores])
    thresholds = np.quantile(both, np.linspace(0, 1, _THRESHOLDS), method="nearest")
    best, place = 0.0, (0.0, 0.0)
    for epsilon in _EPSILONS:
        bounds = _hockey_stick(low_scores, high_scores, thresholds, epsilon, error)
        mu = loss(epsilon, float(bounds.max()))
        if mu > best:
            best, place = mu, (epsilon, float(thresholds[int(bounds.argmax())]))
    epsilon, threshold = place
    judged = np.sort(score(low.half(1))), np.sort(score(high.half(1)))
    bound = _hockey_stick(*judged, np.array([threshold]), epsilon, error)
    return loss(epsilon, float(bound[0]))


class _Witness:
    """Scores rows by the teaching half: ``(x - midpoint) . (mean_high - mean_low) / (1 + var)``.

    Noise has unit width, and for noise that is alike in all directions no score is better; what
    scatters more, such as a sum read in a basis that is not its own, counts the less. A group that
    one of the worlds does not have teaches nothing.
    """

    def __init__(self, low: Sightings, high: Sightings) -> None:
        self._known: dict[int, tuple[FloatArray, FloatArray]] = {}
        for group in np.intersect1d(low.group, high.group):
            worlds = low.rows[low.group == group], high.rows[high.group == group]
            below, above = (rows.mean(axis=0) for rows in worlds)
            scatter = 1 + np.mean([rows.var(axis=0) for rows in worlds], axis=0)
            self._known[int(group)] = ((above - below) / scatter, (above + below) / 2)

    def __call__(self, seen: Sightings) -> FloatArray:
        scores = np.zeros(len(seen.rows))
        for group, (direction, midpoint) in self._known.items():
            members = seen.group == group
            scores[members] = (seen.rows[members] - midpoint) @ direction
        return scores


def _hockey_stick(
    low: FloatArray, high: FloatArray, thresholds: FloatArray, epsilon: float, error: float
) -> FloatArray:
    """``P_high(score > t) - e^epsilon P_low(score > t)`` from below, each ``t`` by itself."""
    above_low = len(low) - np.searchsorted(low, thresholds, side="right")
    above_high = len(high) - np.searchsorted(high, thresholds, side="right")
    at_most = clopper_pearson_upper(above_low, len(low), error / 2)
    at_least = 1 - clopper_pearson_upper(len(high) - above_high, len(high), error / 2)
    return np.asarray(at_least - exp(epsilon) * at_most)


def _epsilon_of(epsilon: float, delta: float) -> float:
    """The smallest pure loss ``E`` that allows ``delta`` at ``epsilon``.

    Randomized response is the extreme: ``delta = (e^E - e^epsilon) / (e^E + 1)``.
    """
    if delta <= 0:
        return 0.0
    return log((exp(epsilon) + delta) / (1 - delta)) if delta < 1 else _LARGEST_MU


def _mu_of(epsilon: float, delta: float) -> float:
    """The smallest ``mu`` whose curve allows ``delta`` at ``epsilon``."""
    if delta <= 0:
        return 0.0
    if delta >= gaussian_delta(epsilon, _LARGEST_MU):
        return _LARGEST_MU
    return float(brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, 1e-9, _LARGEST_MU))
