"""Attack a fit as its readers could, and see how much loss can be proved.

The worst neighbouring pair is one row at the leverage cap with a target far above its bound in one
world and far below it in the other. It passes through the plan, the integers and the release that
serve a real fit.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.audit.attacker import Piece, Play
from capri.audit.plays import in_child
from capri.audit.proof import (
    EXCESS,
    AuditResult,
    Sighting,
    check_trials,
    chosen_attacks,
    prove,
)
from capri.errors import BudgetError, ConfigurationError
from capri.privacy.gate import Gate, noise_source
from capri.privacy.layout import Layout
from capri.privacy.ledger import Ledger
from capri.privacy.pairs import CountLayout
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.family import TableBasis
from capri.regression.options import LEAST_COUNTS, Options, checked, count
from capri.regression.sources import Job, one_block
from capri.streams import Streams

# For how many runs of the first attack each is run once.
_ATTACKS = {"release": 1, "stages": 1, "leverage": 20, "difference": 20, "fork": 20}
_PROBES, _PAIRS = 4096, 64


def audit_fit(
    estimator: PrivateKernelRidge,
    *,
    columns: int,
    trials: int = 20_000,
    confidence: float = 0.999,
    attacks: Sequence[str] | None = None,
) -> AuditResult:
    """Attack the configuration of an estimator for rows of ``columns`` features and one target.

    Five attacks with their threshold at the midpoint: *release* reads what a stage gives away,
    asking twice; *stages* reads counts of columns and two stages over the same rows together;
    *leverage* looks for the row of largest norm, in case rows are not capped; *difference*
    subtracts a release of others, in case noise is reused; *fork* subtracts the release of a
    sibling process. The confidence holds for all of them together.
    """
    check_trials(trials, confidence)
    runs = chosen_attacks(attacks, _ATTACKS, trials)
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
    target = _FitTarget(options, columns)
    return prove(
        {name: getattr(target, name) for name in runs},
        runs,
        model="joint",
        budget=options.budget,
        confidence=confidence,
    )


class _FitTarget:
    """One plan, two bad rows and a bystander; a stage that serves nobody."""

    def __init__(self, options: Options, columns: int) -> None:
        self._options = options
        nobody = one_block(np.zeros((1, columns)), np.zeros((1, 1)))
        self._engine = options.engine(Streams(None), nobody, options.stream_rows)
        self._plan = self._engine.plan(options.stream_rows)
        self._harmful, self._far = self._rows()

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
        self._probes = probes[np.argsort(-np.minimum(ratio, 1 / ratio))[:_PAIRS]]
        return probes[int(np.minimum(ratio, 1 / ratio).argmax())], probes[int(ratio.argmax())]

    def release(self, sign: float) -> Sighting:
        """What the release of the attacked stage tells."""
        return self._seen(self._harmful, self._play(self._harmful, sign))

    def leverage(self, sign: float) -> Sighting:
        """The same of a row far out."""
        return self._seen(self._far, self._play(self._far, sign))

    def stages(self, sign: float) -> Sighting:
        """What all releases of the same rows tell, each with its share of the budget."""
        gate, pieces = Gate(noise_source(None), self._options.ledger()), []
        for stage, (layout, low, high) in enumerate(self._composed):
            seen, _ = gate.release(
                low if sign < 0 else high, layout, epoch=1, participants=2, stage=stage
            )
            scale = layout.deviations
            worlds = layout.numbers(low) / scale, layout.numbers(high) / scale
            pieces.append(Piece(seen / scale, *worlds))
        return Play(pieces).sighting()

    @cached_property
    def _composed(self) -> list[tuple[Layout, IntArray, IntArray]]:
        """Layouts of counts and of two stages, and the sums of two worlds in each.

        In one world the attacked row is the usual one, in the other the one that is told farthest
        from it, with the opposite target.
        """
        setting, options = self._engine.setting, self._options
        assert setting.budget is not None
        basis = setting.basis
        table = basis.table if isinstance(basis, TableBasis) else None
        every = options.coordinates(table, options.stream_rows, 1)
        told: list[tuple[Layout, Job]] = []
        if table is not None:
            cells = CountLayout(cells=table.sizes)
            cells = cells.told_in_stages(setting.budget, LEAST_COUNTS, every)
            told.append((cells, partial(count, table, cells)))
        share = (1 - LEAST_COUNTS * len(told)) / 2
        stage = replace(setting, coordinates=every).layout(options.stream_rows, share=share)
        told += [(stage, replace(self._plan, layout=stage).total)] * 2
        low = [job(*self._two(self._harmful, -1.0)) for _, job in told]
        others = [[job(*self._two(row, 1.0)) for _, job in told] for row in self._probes]

        def apart(sums: list[IntArray]) -> float:
            """The squared distance of two worlds, in deviations of the noise."""
            return sum(
                float(np.sum((layout.numbers(one - other) / layout.deviations) ** 2))
                for (layout, _), one, other in zip(told, sums, low, strict=True)
            )

        high = max(others, key=apart)
        layouts = [layout for layout, _ in told]
        return list(zip(layouts, low, high, strict=True))

    def difference(self, sign: float) -> Sighting:
        """What two releases tell, of these rows and of others."""
        ledger, row = self._options.ledger(), self._harmful
        first, second = (self._play(row, s, ledger, n) for s, n in ((sign, 1), (None, 2)))
        return self._seen(row, first, second)

    def fork(self, sign: float) -> Sighting:
        """What two sibling processes tell."""
        row = self._harmful
        first, second = (in_child(partial(self._play, row, world)) for world in (sign, None))
        return self._seen(row, first, second)

    def _play(
        self, row: FloatArray, sign: float | None, ledger: Ledger | None = None, stage: int = 1
    ) -> FloatArray:
        """Everything that a stage gives away, averaged: a second release must be refused."""
        plan, total = replace(self._plan, table=stage, rows=2), self._total(row, sign)
        gate, seen = Gate(noise_source(None), ledger or self._options.ledger()), []
        with suppress(BudgetError):
            for _ in range(2):
                seen.append(self._engine.release(plan, total, gate))
        return np.asarray(np.mean(seen, axis=0)).ravel()

    def _total(self, row: FloatArray, sign: float | None) -> IntArray:
        """The secret sum of the attacked row and a bystander without a target of note."""
        return self._plan.total(*self._two(row, sign))

    def _two(self, row: FloatArray, sign: float | None) -> tuple[FloatArray, FloatArray]:
        """Both rows; the bystander is always the same."""
        middle = self._plan.targets.middle
        attacked = middle + (sign or 0.0) * EXCESS * self._plan.targets.half
        return np.stack([row, self._harmful]), np.stack([attacked, middle])

    def _seen(
        self, row: FloatArray, first: FloatArray, second: FloatArray | None = None
    ) -> Sighting:
        """The worlds looked for in a release, or in what is left of it without another one."""
        layout = self._plan.layout
        noise = layout.deviation("diagonal")
        low, high, none = (
            layout.matrix(layout.numbers(self._total(row, sign))).ravel() / noise
            for sign in (-1.0, 1.0, None)
        )
        piece = Piece(first / noise, low, high)
        if second is not None:  # noise alone, once its known rows are subtracted
            piece = piece.less(second / noise - none)
        return Play([piece]).sighting()
