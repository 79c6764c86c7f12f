"""The stages of a fit as a table, in a terminal and in a notebook."""

from html import escape
from math import sqrt
from typing import Any

from sklearn.utils.validation import check_is_fitted

from capri.notebook import Row, html_table, text_table
from capri.regression.engine import Engine
from capri.regression.stage import StagePlan


class Stages(tuple[Row, ...]):
    """One row per release: how many rows it took, and how much noise its vector got."""

    def __repr__(self) -> str:
        return text_table(self) if self else "Stages()"

    def _repr_html_(self) -> str:
        return html_table(self) if self else "<p>no stages</p>"


class ShownWithStages:
    """An estimator that shows its stages beside scikit-learn's diagram; open rows stay open."""

    _engine: Engine

    @property
    def stages_(self) -> Stages:
        """Every stage that was released, as a table."""
        check_is_fitted(self, "model_")
        return stages_of(self._engine)

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


def stages_of(engine: Engine) -> Stages:
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
