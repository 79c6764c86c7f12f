"""Prove privacy loss from attacks in two neighbouring worlds: what every audit shares.

An attack gives one statistic per run, in units of the noise, with its threshold at 0: below it the
attacker guesses the low world, above it the high one. From how often it errs follows a lower bound
on the privacy loss that holds with the stated confidence.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from scipy.special import betaincinv, ndtri

from capri.arrays import FloatArray
from capri.checks import between, whole
from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier, delivered_epsilon

# How far beyond its bound the attacker's value lies: clipping must take care of it.
EXCESS = 1e6
# Attacks that a working pipeline defeats outright need few trials: a repeated noise vector leaves
# no doubt in any of them. Forks are slow, so they are capped as well.
_SHARE, _FEWEST, _FORKS = 20, 100, 250

Attack = Callable[[float], float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """One attack: statistics in the two worlds, in units of the noise, and what they prove."""

    name: str
    trials: int
    low: FloatArray = field(repr=False)
    high: FloatArray = field(repr=False)
    proven_mu: float


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
        return max(attack.proven_mu for attack in self.attacks)

    @property
    def proven_epsilon(self) -> float:
        """The proven loss as an epsilon at the claimed delta."""
        return delivered_epsilon(max(self.proven_mu, 0.0), self.delta)

    @property
    def passed(self) -> bool:
        """No attack proves more loss than was claimed."""
        return self.proven_mu <= self.claimed_mu


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
    progress: Progress | None = None,
) -> AuditResult:
    """Run every attack in both worlds: *release* ``trials`` times in each, the others less often.

    The confidence holds for all attacks together. ``progress`` is told how many runs are done, and
    how many there are.
    """
    few = max(_FEWEST, trials // _SHARE)
    counts = dict.fromkeys(attacks, few) | {"release": trials, "fork": min(few, _FORKS)}
    error = (1 - confidence) / len(attacks)
    ticks, total = count(1), 2 * sum(counts[name] for name in attacks)

    def statistics(name: str, sign: float) -> FloatArray:
        found = np.empty(counts[name])
        for place in range(len(found)):
            found[place] = attacks[name](sign)
            if progress is not None:
                progress(next(ticks), total)
        return found

    results = []
    for name in attacks:
        low, high = statistics(name, -1.0), statistics(name, 1.0)
        proven = proven_mu(low, high, error)
        results.append(
            AttackResult(name=name, trials=counts[name], low=low, high=high, proven_mu=proven)
        )
    return AuditResult(
        model=model,
        epsilon=budget.epsilon,
        delta=budget.delta,
        confidence=confidence,
        claimed_mu=1 / analytic_multiplier(budget),
        attacks=tuple(results),
    )


def proven_mu(low: FloatArray, high: FloatArray, error: float) -> float:
    """Lower bound on ``mu`` from one threshold test at 0.

    Gaussian DP allows no test with ``Phi^-1(1 - fpr) - Phi^-1(fnr) > mu`` (Dong, Roth & Su 2019);
    both rates are replaced by their one-sided Clopper-Pearson upper bounds, each at ``error / 2``.
    """
    false_positive = clopper_pearson_upper(int((low > 0).sum()), len(low), error / 2)
    false_negative = clopper_pearson_upper(int((high <= 0).sum()), len(high), error / 2)
    return float(ndtri(1 - false_positive) - ndtri(false_negative))


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
