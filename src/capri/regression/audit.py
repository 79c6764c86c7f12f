"""Attack a fit as :mod:`capri.joint.audit` attacks a policy, and see how much loss can be proved.

The worst neighbouring pair is one row at the leverage cap with a target far above its bound in one
world and far below it in the other. It passes through the plan, the integers and the release that
serve a real fit.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.attack import (
    EXCESS,
    AuditResult,
    check_trials,
    chosen_attacks,
    in_child,
    prove,
)
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.randomness import Streams
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.options import Options, checked
from capri.regression.sources import one_block
from capri.regression.stage import EVERYONE, StagePlan

_ATTACKS = ("release", "leverage", "difference", "fork")
_PROBES = 4096


def audit_fit(
    estimator: PrivateKernelRidge,
    *,
    columns: int,
    trials: int = 20_000,
    confidence: float = 0.999,
    attacks: Sequence[str] = _ATTACKS,
) -> AuditResult:
    """Attack the configuration of an estimator for rows of ``columns`` features and one target.

    Four attacks with their threshold at the midpoint: *release* reads what a stage gives away,
    asking twice; *leverage* does the same with the row of largest norm, in case rows are not
    capped; *difference* subtracts a second stage, in case noise is reused; *fork* subtracts the
    release of a sibling process. The confidence holds for all of them together.
    """
    check_trials(trials, confidence)
    chosen = chosen_attacks(attacks, _ATTACKS)
    options = checked(estimator)
    if options.from_data:
        raise ConfigurationError(
            "an audit needs y_bounds, and X_bounds or public_X: bounds from the data are not "
            "private and would be the first thing to attack"
        )
    if options.random_state is not None:
        raise ConfigurationError("only a private fit can be audited: leave random_state at None")
    if options.budget is None:
        raise ConfigurationError("epsilon is infinite: there is no privacy to audit")
    target = _Target(options, columns)
    return prove(
        {name: getattr(target, name) for name in chosen},
        model="joint",
        budget=options.budget,
        trials=trials,
        confidence=confidence,
    )


class _Target:
    """One plan, two bad rows and a bystander; a stage that serves nobody."""

    def __init__(self, options: Options, columns: int) -> None:
        self._options, self._streams = options, Streams(None)
        nobody = one_block(np.zeros((1, columns)), np.zeros((1, 1)))
        self._engine = options.engine(self._streams, nobody, options.stream_rows)
        self._plan = self._engine.plan(EVERYONE, options.stream_rows)
        self._harmful, self._far = (_World(self._plan, row) for row in self._rows())

    def _rows(self) -> tuple[FloatArray, FloatArray]:
        """The row nearest the cap, where features and target count in full, and the farthest."""
        generator = np.random.default_rng(0)
        pivots = self._engine.setting.basis.pivots
        boxes = ((pivots.min(axis=0), pivots.max(axis=0)), self._plan.box)
        probes = np.concatenate(
            [low + (high - low) * generator.random((_PROBES, len(low))) for low, high in boxes]
        )
        norms = np.linalg.norm(self._plan.features.whitened_block(probes), axis=1)
        ratio = np.maximum(norms, 1e-300) / self._plan.clip_norm
        return probes[int(np.minimum(ratio, 1 / ratio).argmax())], probes[int(ratio.argmax())]

    def _play(
        self, world: "_World", ledger: Ledger | None, stage: int, sign: float | None
    ) -> FloatArray:
        """Everything that a stage gives away, averaged: a second release must be refused."""
        plan, total = replace(self._plan, number=stage, rows=2), world.total(sign)
        gate, seen = Gate(noise_source(None), ledger), []
        with suppress(BudgetError):
            for _ in range(2):
                seen.append(self._engine.release(plan, total, gate))
        return np.asarray(np.mean(seen, axis=0))

    def release(self, sign: float) -> float:
        """What the release of the attacked stage tells."""
        return self._harmful.statistic(self._play(self._harmful, self._options.ledger(), 1, sign))

    def leverage(self, sign: float) -> float:
        """The same of a row far out."""
        return self._far.statistic(self._play(self._far, self._options.ledger(), 1, sign))

    def difference(self, sign: float) -> float:
        """What two consecutive releases tell."""
        ledger, world = self._options.ledger(), self._harmful
        first, second = (self._play(world, ledger, n, s) for n, s in ((1, sign), (2, None)))
        return world.apart(first, second)

    def fork(self, sign: float) -> float:
        """What two sibling processes tell."""
        size, world = self._plan.layout.size, self._harmful
        first, second = (
            in_child(partial(self._play, world, self._options.ledger(), 1, s)).reshape(size, size)
            for s in (sign, None)
        )
        return world.apart(first, second)


class _World:
    """An attacked row with its targets, and the statistic that tells the two worlds apart."""

    def __init__(self, plan: StagePlan, row: FloatArray) -> None:
        self._plan, self._row = plan, row
        low, high, none = (
            plan.layout.matrix(plan.layout.numbers(self.total(sign))) for sign in (-1.0, 1.0, None)
        )
        length = max(float(np.linalg.norm(high - low)), 1e-300)
        self._direction = (high - low) / length
        self._midpoint = float(np.sum((high + low) / 2 * self._direction))
        self._quiet = float(np.sum(none * self._direction))

    def total(self, sign: float | None) -> IntArray:
        """The secret sum of the attacked row and a bystander without a target of note."""
        middle = self._plan.targets.middle
        attacked = middle + (sign or 0.0) * EXCESS * self._plan.targets.half
        return self._plan.total(np.stack([self._row] * 2), np.stack([attacked, middle]), 0)

    def statistic(self, moments: FloatArray) -> float:
        """In units of the noise; 0 lies midway between the worlds."""
        return self._scaled(moments, self._midpoint)

    def apart(self, first: FloatArray, second: FloatArray) -> float:
        """The same of a difference of two releases, the second without the attacker's target."""
        return self._scaled(first - second, self._midpoint - self._quiet) / sqrt(2)

    def _scaled(self, moments: FloatArray, midpoint: float) -> float:
        scale = self._plan.layout.noise_units / float(self._plan.layout.level) ** 2
        return (float(np.sum(moments * self._direction)) - midpoint) / scale
