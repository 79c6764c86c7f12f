"""Attack a fit as :mod:`capri.audit` attacks a policy, and see how much loss can be proved.

The worst neighbouring pair is one row at the leverage cap with a target far above its bound in one
world and far below it in the other. It passes through the plan, the integers and the release that
serve a real fit.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import sqrt

import numpy as np

from capri.audit import AuditResult, _in_child, _run
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.calibration import analytic_multiplier
from capri.privacy.ledger import Ledger
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.moments import release
from capri.typing import FloatArray, IntArray

_EXCESS = 1e6
_ATTACKS = ("release", "difference", "fork")
_FEWEST, _SHARE, _FORKS = 100, 20, 250


def audit_fit(
    estimator: PrivateKernelRidge,
    *,
    columns: int,
    trials: int = 20_000,
    confidence: float = 0.999,
    attacks: Sequence[str] = _ATTACKS,
) -> AuditResult:
    """Attack the configuration of an estimator for rows of ``columns`` features and one target.

    Three attacks with their threshold at the midpoint: *release* reads what a stage gives away,
    asking twice; *difference* subtracts a second stage, in case noise is reused; *fork* subtracts
    the release of a sibling process. The confidence holds for all of them together.
    """
    if trials < _FEWEST:
        raise ConfigurationError(f"an audit needs at least {_FEWEST} trials, got {trials}")
    if not attacks or not set(attacks) <= set(_ATTACKS):
        raise ConfigurationError(f"attacks must be some of {', '.join(_ATTACKS)}, got {attacks!r}")
    if (estimator.X_bounds is None and estimator.public_X is None) or estimator.y_bounds is None:
        raise ConfigurationError(
            "an audit needs y_bounds, and X_bounds or public_X: bounds from the data are not "
            "private and would be the first thing to attack"
        )
    if estimator.random_state is not None:
        raise ConfigurationError("only a private fit can be audited: leave random_state at None")
    target = _Target(estimator, columns)
    few = max(_FEWEST, trials // _SHARE)
    counts = {"release": trials, "difference": few, "fork": min(few, _FORKS)}
    budget = target.ledger().budget
    error = (1 - confidence) / len(attacks)
    return AuditResult(
        model="joint",
        epsilon=budget.epsilon,
        delta=budget.delta,
        confidence=confidence,
        claimed_mu=1 / analytic_multiplier(budget),
        attacks=tuple(_run(name, counts[name], getattr(target, name), error) for name in attacks),
    )


class _Target:
    """One plan, the worst row and a bystander."""

    def __init__(self, estimator: PrivateKernelRidge, columns: int) -> None:
        self._open = estimator._audited(columns)
        self._plan = self._open.plan
        if self._open.ledger is None:
            raise ConfigurationError("epsilon is infinite: there is no privacy to audit")
        self._row = self._worst_row()
        middle = self._plan.targets.middle
        self._span = _EXCESS * self._plan.targets.half
        self._bystander = np.zeros_like(middle) + middle
        low, high = (self._moments(sign) for sign in (-1.0, 1.0))
        self._direction = (high - low) / np.linalg.norm(high - low)
        self._midpoint = float(np.sum((high + low) / 2 * self._direction))
        self._quiet = float(np.sum(self._moments(None) * self._direction))

    def ledger(self) -> Ledger:
        """An account of its own for every run."""
        assert self._open.ledger is not None
        return Ledger(self._open.ledger.budget, composition=1.0, participation=None)

    def _worst_row(self) -> FloatArray:
        """The row nearest the cap: there both features and target count in full."""
        setting = self._open.engine.setting
        generator = np.random.default_rng(0)
        low, high = setting.basis.pivots.min(axis=0), setting.basis.pivots.max(axis=0)
        rows = low + (high - low) * generator.random((4096, len(low)))
        norms = np.linalg.norm(self._plan.features.whitened_block(rows), axis=1)
        ratio = np.maximum(norms, 1e-300) / self._plan.clip_norm
        return np.asarray(rows[int(np.minimum(ratio, 1 / ratio).argmax())])

    def _total(self, sign: float | None) -> IntArray:
        """The secret sum of the attacked row and a bystander."""
        y = np.stack([self._bystander + (sign or 0.0) * self._span, self._bystander])
        return self._plan.total(np.stack([self._row, self._row]), y, 0)

    def _moments(self, sign: float | None) -> FloatArray:
        grid = self._plan.grid
        return np.asarray(self._total(sign) / float(grid.level) ** 2)

    def _play(self, ledger: Ledger, stage: int, sign: float | None) -> FloatArray:
        """Everything that a stage gives away, averaged: a second release must be refused."""
        total = self._total(sign)
        seen = []
        with suppress(BudgetError):
            for _ in range(2):
                seen.append(
                    release(
                        self._plan.grid,
                        total,
                        stage=stage,
                        rows=2,
                        calibration="analytic",
                        noise=self._open.streams.noise,
                        ledger=ledger,
                    )
                )
        return np.asarray(np.mean(seen, axis=0))

    def _statistic(self, moments: FloatArray, midpoint: float) -> float:
        scale = self._plan.grid.noise_scale / float(self._plan.grid.level) ** 2
        return (float(np.sum(moments * self._direction)) - midpoint) / scale

    def release(self, sign: float) -> float:
        """What the release of the attacked stage tells."""
        return self._statistic(self._play(self.ledger(), 1, sign), self._midpoint)

    def difference(self, sign: float) -> float:
        """What two consecutive releases tell."""
        ledger = self.ledger()
        return self._apart(self._play(ledger, 1, sign), self._play(ledger, 2, None))

    def fork(self, sign: float) -> float:
        """What two sibling processes tell."""
        size = self._plan.grid.size
        first, second = (
            _in_child(partial(self._play, self.ledger(), 1, world)).reshape(size, size)
            for world in (sign, None)
        )
        return self._apart(first, second)

    def _apart(self, first: FloatArray, second: FloatArray) -> float:
        return self._statistic(first - second, self._midpoint - self._quiet) / sqrt(2)
