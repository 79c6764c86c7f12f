"""Rows that came by ``partial_fit`` and were not released yet: the one secret that is held."""

import os
from dataclasses import dataclass, field

from capri.arrays import IntArray
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.ledger import Ledger
from capri.privacy.randomness import Streams
from capri.regression.engine import Engine
from capri.regression.stage import StagePlan


@dataclass(kw_only=True, eq=False)
class OpenRows:
    """Their sum so far, and what their one release will need."""

    engine: Engine
    plan: StagePlan
    total: IntArray
    streams: Streams
    ledger: Ledger | None
    rows: int = 0
    process: int = field(default_factory=os.getpid)

    def check(self, budget: Budget | None) -> None:
        """They belong to one process and one budget."""
        if self.process != os.getpid():
            raise BudgetError(
                "open rows of another process: releasing them here too would spend their budget "
                "twice. Release before forking"
            )
        if budget != self.engine.setting.budget:
            raise BudgetError(
                f"the open rows were taken under {self.engine.setting.budget}: set epsilon and "
                "delta back to release them, or call fit to begin anew under another budget"
            )
