"""What is said of a fit once its releases are out: stages, doubts, digests, account, prior.

Nobody may look at a row to see that classes match no label or that bounds are in another unit. The
moments that left the gate tell of it, and reading them is post-processing. With ``b`` the
coefficients of 1 in the features of a stage,

    b^T (sum w^2 psi psi^T) b ~ sum w^2     rows that count,
    sum w^2 t^2                             their targets: t^2 = 1 at either end of ``y_bounds``,

each with Gaussian noise of known width. Rows are held against as many rows of the public law. All
that is said by one fit together is said wrongly with a probability below 1e-4: of rows that count
at least half as much as those of the law, or of targets whose mean square is at most 0.8 at the
weights of the law.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from capri.arrays import FloatArray
from capri.errors import ConfigurationError, KernelWarning, steps_to_caller, warn_of_leak
from capri.files import Row, digest_of, html_table, text_table
from capri.learners.prior import Observed, Prior, observed
from capri.privacy.calibration import delivered_epsilon
from capri.privacy.ledger import Ledger, PriorEvent, ReleaseEvent
from capri.regression.card import card_of
from capri.regression.decode import Model
from capri.regression.engine import FitEngine, OpenRows, Setting
from capri.regression.explain import FitExplanation, explained
from capri.regression.family import cells_of
from capri.regression.stage import StagePlan, StageResult
from capri.schema import Numeric, Schema

# Chance that anything is said of a fit that it is not true of.
_FALSE_ALARM = 5e-5
# Rows count for little below this share of what rows of the public law count, and targets are at
# the ends above this mean square.
_LITTLE, _AT_ENDS = 0.5, 0.8
# Targets that vary by less than this share of their range have bounds that are too wide.
_NARROW = 0.01


class Stages(tuple[Row, ...]):
    """One row per release: how many rows it took, and how much noise its vector got."""

    def __repr__(self) -> str:
        return text_table(self) if self else "Stages()"

    def _repr_html_(self) -> str:
        return html_table(self) if self else "<p>no stages</p>"


class ShownWithStages:
    """An estimator that shows its stages beside scikit-learn's diagram; open rows stay open.

    What a fit leaves on it beside public attributes is declared here: fields of the estimator are
    its parameters.
    """

    model_: Model
    _open: OpenRows | None = None
    # Targets are codes that another estimator made: all of them at an end of their range.
    _codes: bool = False
    _engine: FitEngine
    _awaited: tuple[FitEngine, bytes, int] | None = None
    _private: bool
    _one_dimensional: bool

    @property
    def stages_(self) -> Stages:
        """Every stage that was released, as a table."""
        check_is_fitted(self, "model_")
        return stages_of(self._engine)

    def explain(self, *, output: int = 0, pairs: int = 4, level: float = 0.9) -> FitExplanation:
        """What was learnt of each column and of the strongest pairs, with bands; it shows itself.

        Post-processing: it asks for no rows and costs no budget.

        >>> import numpy as np
        >>> from capri import PrivateKernelRidge
        >>> X = np.random.default_rng(0).random((2_000, 2))
        >>> ridge = PrivateKernelRidge(epsilon=4.0, X_bounds=(0, 1), y_bounds=(0, 1))
        >>> ridge.fit(X, X[:, 0]).explain().columns[0].name
        'column 0'
        """
        check_is_fitted(self, "model_")
        rows, schema = self._engine.law.rows, getattr(self, "schema_", None)
        return explained(
            self.model_,
            self.model_.basis.pivots if rows is None else rows,
            schema,
            getattr(self, "feature_names_in_", None),
            output=output,
            pairs=pairs,
            level=level,
        )

    def model_card(self) -> str:
        """What a reader must know of the fit, in Markdown: post-processing, and no secrets."""
        check_is_fitted(self, "model_")
        return card_of(self, self._engine, stages_of(self._engine))

    def _repr_html_inner(self) -> str:
        diagram = str(super()._repr_html_inner())  # type: ignore[misc]
        if not hasattr(self, "model_"):
            return diagram
        ledger, rows, rank = (getattr(self, name) for name in ("ledger_", "n_rows_", "rank_"))
        spent = "no budget" if ledger is None else str(ledger.budget)
        about = f"<p>{rows:,} rows under {escape(spent)}, rank {rank}</p>"
        return diagram + about + stages_of(self._engine)._repr_html_()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_inner()}


def labels_of(schema: Schema | None, names: Sequence[str] | None) -> Sequence[str] | None:
    """What each number of a row is called; indicators of a category have its name."""
    if schema is None:
        return names
    return [
        name if isinstance(column, Numeric) else column.name
        for column in schema.columns
        for name in column.features
    ]


def named_parts(shares: Mapping[str, float], labels: Sequence[str] | None) -> dict[str, float]:
    """Shares of the parts of a function, with the names of columns that have any."""

    def named(part: str) -> str:
        kind, _, place = part.rpartition(" ")
        return part if labels is None or not place.isdigit() else f"{kind} {labels[int(place)]}"

    return {named(part): share for part, share in shares.items()}


def stages_of(engine: FitEngine) -> Stages:
    """All releases of an engine."""
    return Stages(_row(reading.result.plan) for reading in engine.readings)


def _row(plan: StagePlan) -> Row:
    scale = plan.layout.noise_units / float(plan.layout.level) ** 2 / sqrt(2)
    return {
        "stage": plan.number,
        "rows": plan.rows,
        "coordinates": plan.layout.features,
        "largest residual told alone": float((plan.reach * plan.targets.half).max()),
        "tails": "told" if plan.layout.tails else "none",
        "noise on the vector": scale
        * plan.clip_norm
        * float((plan.unit * plan.targets.half).max()),
    }


def warn_of_doubts(engine: FitEngine, *, codes: bool) -> None:
    """Say what does not fit the releases; ``codes``: targets that are all at ends, as they must."""
    for doubt in _doubts(engine, codes=codes):
        warnings.warn(doubt, KernelWarning, stacklevel=steps_to_caller())


def _doubts(engine: FitEngine, *, codes: bool) -> Iterator[str]:
    results = [each.result for each in engine.readings if each.result.measured]
    sample, targets = engine.setting.law.sample, engine.setting.targets
    rows = sum(result.plan.rows for result in results)
    if not rows:
        return
    deviations = NormalDist().inv_cdf(1 - _FALSE_ALARM / (1 + engine.setting.outputs))
    ones = np.asarray(np.linalg.lstsq(sample, np.ones(len(sample)), rcond=None)[0], np.float64)
    found, variance, expected = np.sum([_counted(each, sample, ones) for each in results], axis=0)
    missing = found + deviations * sqrt(variance) < _LITTLE * expected
    if missing:
        yield (
            f"what was released of {rows} rows says that they count for less than half of what "
            "rows like the public ones would: their labels are none of the classes, or their "
            "values are missing or of another type"
        )
    for output in range(0 if codes else engine.setting.outputs):
        found, variance, expected = np.sum(
            [_squares(each, sample, output) for each in results], axis=0
        )
        if expected and found - deviations * sqrt(variance) > _AT_ENDS * expected:
            bounds = f"({targets.low[output]:g}, {targets.high[output]:g})"
            place = f" of output {output}" if engine.setting.outputs > 1 else ""
            yield (
                f"what was released says that nearly all targets{place} lie at an end of y_bounds "
                f"= {bounds}, or beyond. That is right for targets that are yes or no; else "
                "y_bounds are in another unit than y, or far too wide"
            )
        elif not missing and (used := _used(engine, output, deviations)) < _NARROW:
            yield (
                f"what was released says that targets of output {output} vary by less than "
                f"{used:.1g} of the range of y_bounds: narrower bounds, if they are known without "
                "the data, would bring as much less noise"
            )


def _used(engine: FitEngine, output: int, deviations: float) -> float:
    """At most this share of their range do targets vary by: a deviation, over the whole range.

    Residuals of the last stage, with their noise on the safe side, and what they are residuals of.
    """
    reading = engine.readings[-1]
    result = reading.result
    told = [(result.squares, result.noise[2])]
    if result.tail_squares is not None:
        told.append((result.tail_squares, result.tail_noise[2]))
    # (T + U)^2 <= 2 (T^2 + U^2)
    residual = 2 * sum(max(float(s[output] + deviations * n[output]), 0.0) for s, n in told)
    known = reading.baseline[:, output]
    function = known @ engine.law.centred @ known
    return sqrt(residual / reading.rows + float(function)) / 2


def _weights(result: StageResult, sample: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Features of the public rows in a stage, and the square of the weight that each has there."""
    psi = sample @ result.plan.features.whitening
    norms = np.maximum(np.square(psi).sum(axis=1), result.plan.clip_norm**2)
    return psi, result.plan.clip_norm**2 / norms


def _counted(result: StageResult, sample: FloatArray, ones: FloatArray) -> FloatArray:
    """``b^T M b`` as released, the variance of its noise, and its mean under the public law.

    ``noise[0]`` is the standard deviation ``s`` of an entry beside the diagonal; on the diagonal
    the variance is ``2 s^2``. So that of ``b^T N b`` is ``2 s^2 sum b_i^4 + 4 s^2 sum_{i<j} b_i^2
    b_j^2 = 2 s^2 |b|^4``.
    """
    b = np.linalg.solve(result.plan.features.whitening, ones)
    psi, weights = _weights(result, sample)
    expected = result.plan.rows * float(np.mean(weights * np.square(psi @ b)))
    found = float(b @ result.covariance @ b)
    return np.array([found, 2 * (result.noise[0] * float(b @ b)) ** 2, expected])


def _squares(result: StageResult, sample: FloatArray, output: int) -> FloatArray:
    """``sum w^2 t^2`` likewise, were every target at an end; zeros where residuals are told."""
    if result.plan.reach[output] < 1:
        return np.zeros(3)
    expected = result.plan.rows * float(_weights(result, sample)[1].mean())
    return np.array([result.squares[output], result.noise[2][output] ** 2, expected])


def fit_digests(engine: FitEngine) -> dict[str, Any]:
    """Of everything that was fixed before the first row, and before the rows of each stage."""
    return {
        "configuration": _setting_digest(engine.setting),
        "plans": [_plan_digest(reading.result.plan) for reading in engine.readings],
    }


def _setting_digest(setting: Setting) -> str:
    values = {
        "kernel": setting.basis.kernel.to_dict(),
        "budget": None if setting.budget is None else asdict(setting.budget),
        "calibration": setting.calibration,
        "tau": setting.tau,
        "prior": setting.prior.expected.tolist(),
        "shares": setting.shares,
    }
    return digest_of(
        values,
        {
            "pivots": setting.basis.pivots,
            "cells": cells_of(setting.basis),
            "transform": setting.basis.transform,
            "box.low": setting.box[0],
            "box.high": setting.box[1],
            "targets.low": setting.targets.low,
            "targets.high": setting.targets.high,
        },
    )


def _plan_digest(plan: StagePlan) -> str:
    values = {
        "number": plan.number,
        "table": plan.table,
        "rows": plan.rows,
        "clip_norm": plan.clip_norm,
        "layout": asdict(plan.layout),
    }
    whitening = plan.features.whitening
    return digest_of(
        values, {"whitening": whitening, "baseline": plan.baseline, "reach": plan.reach}
    )


def earlier_events(before: Any, fresh: Any) -> tuple[ReleaseEvent, ...]:
    """Releases of the fits before the fresh one, and a word about what they add up to.

    Of each fit what it cost those whom it cost most, all stages over their rows together. Gaussian
    releases of the same people compose by ``mu^2 = sum mu_i^2``.
    """
    past: tuple[ReleaseEvent, ...] = tuple(getattr(before, "past_events_", ()))
    ledger = getattr(before, "ledger_", None)
    if ledger is not None and before._private:
        past = (*past, *_costliest(ledger))
    if fresh.ledger_ is not None and fresh._private and past:
        delta = fresh.ledger_.budget.delta
        events = (*past, *_costliest(fresh.ledger_))
        spent = delivered_epsilon(sqrt(sum(event.mu**2 for event in events)), delta)
        warn_of_leak(
            f"this is fit {len(events)} of one estimator: people who are in all of them have "
            f"spent epsilon {spent:.3g} together, at delta {delta:g}",
        )
    return past


def _costliest(ledger: Ledger) -> tuple[ReleaseEvent, ...]:
    """What a fit cost those whom it cost most."""
    return tuple(sorted(ledger.together, key=lambda event: -event.mu)[:1])


def one_account(parts: Sequence[Ledger | None]) -> Ledger | None:
    """The releases of fits on different rows under one budget, numbered through.

    Nobody is in two of them, so they are to each other what stages are. None where there is no
    budget.
    """
    whole: Ledger | None = None
    for part in parts:
        if part is None:
            return None
        whole = whole or Ledger(part.budget, reservation=part.reservation)
        before = max((event.epoch for event in whole.events), default=0)
        for event in part.events:
            whole.record(replace(event, epoch=before + event.epoch))
    return whole


def fit_prior(model: Model, ledger: Ledger | None, engine: FitEngine) -> Prior:
    """The estimate less its own prior ``S``: ``J = P^-1 - S^-1``, ``h = P^-1 m``.

    What an average over plausible priors adds to ``P`` may leave less than nothing in directions
    that nothing is known of: there ``J`` is 0.
    ``ledger``: None where nobody was promised anything.
    """
    if len(model.estimates) != 1:
        raise ConfigurationError(
            f"a policy learns one reward: this fit has {len(model.estimates)} outputs"
        )
    estimate, basis = model.estimates[0], model.basis
    inverse = np.linalg.inv(estimate.covariance)
    prior = estimate.prior * np.eye(basis.rank)
    if model.prior is not None and estimate.weights is not None:
        prior = model.prior.covariance(estimate.weights)
    values, vectors = np.linalg.eigh(inverse - np.linalg.inv(prior))
    generator = np.random.default_rng(0)  # public pairs, the same whenever they are asked for
    inside = generator.uniform(*model.box, size=(4 * basis.rank, len(model.box[0])))
    pairs = np.concatenate([np.clip(basis.pivots, *model.box), inside])
    matrix, targets = observed(
        basis,  # type: ignore[arg-type]  # of which coordinates are asked for, and nothing else
        pairs,
        (vectors * np.maximum(values, 0.0)) @ vectors.T,
        inverse @ estimate.mean,
        middle=float(model.targets.middle[0]),
        half=float(model.targets.half[0]),
    )
    event = PriorEvent(
        kind="fit",
        digest=digest_of(fit_digests(engine), {"targets": targets}),
        count=len(engine.readings),
        epsilon=None if ledger is None else ledger.budget.epsilon,
        delta=None if ledger is None else ledger.budget.delta,
    )
    return Prior.of_observed(Observed(pairs=pairs, targets=targets, matrix=matrix, event=event))
