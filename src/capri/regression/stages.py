"""The stages of a fit as a table, in a terminal and in a notebook."""

from math import sqrt

from capri.notebook import Row, html_table, text_table
from capri.regression.engine import Engine
from capri.regression.stage import StagePlan


class Stages(tuple[Row, ...]):
    """One row per release: how many rows it took, and how much noise its vector got."""

    def __repr__(self) -> str:
        return text_table(self) if self else "Stages()"

    def _repr_html_(self) -> str:
        return html_table(self) if self else "<p>no stages</p>"


def stages_of(engine: Engine) -> Stages:
    """All releases of an engine."""
    return Stages(_row(reading.result.plan) for reading in engine.readings)


def _row(plan: StagePlan) -> Row:
    scale = plan.grid.noise_units / float(plan.grid.level) ** 2 / sqrt(2)
    return {
        "stage": plan.number,
        "rows": plan.rows,
        "coordinates": plan.grid.features,
        "largest residual told alone": float((plan.reach * plan.targets.half).max()),
        "tails": "told" if plan.grid.tails else "none",
        "noise on the vector": scale
        * plan.clip_norm
        * float((plan.unit * plan.targets.half).max()),
    }
