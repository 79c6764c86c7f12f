"""What players share that look at nothing and learn nothing."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_number_rows
from capri.checks import whole
from capri.choices import as_actions
from capri.epoch.decide import Decisions
from capri.epoch.plan import EpochRecord
from capri.errors import HorizonError
from capri.privacy.promise import Promise
from capri.privacy.randomness import Streams
from capri.rivals.settings import Settings
from capri.spaces import as_contexts, as_wanted


class Blind(Settings, ABC):
    """Plays by a law that neither contexts nor rewards change."""

    promise: ClassVar[Promise]
    reference: ClassVar[str]
    guarantee: ClassVar[str]

    actions: object
    horizon: int
    simulation_seed: int | None = None

    def _begin(self) -> None:
        self.horizon = whole("horizon", self.horizon)
        given = self.actions
        self._actions = as_actions(given)
        self._decided = 0
        self._streams = Streams(self.simulation_seed)

    @property
    def remaining(self) -> int:
        """Decisions left."""
        return self.horizon - self._decided

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Nothing is planned and nothing released: there are no epochs."""
        return ()

    def act_many(self, contexts: object) -> Decisions:
        """Draw one action per context row."""
        rows = self._rows(contexts)
        return self._note(rows, self._draw(len(rows)))

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions: the others were never made."""
        rows = self._rows(contexts)
        wanted = as_wanted(action_index, len(rows), self._actions.count)
        chosen = self._draw(len(rows))
        kept = chosen == wanted
        return self._note(rows[kept], chosen[kept]), kept

    def update_many(self, decisions: Decisions, rewards: object) -> None:
        """Forget the rewards."""

    def _rows(self, contexts: object) -> FloatArray:
        rows = as_number_rows(contexts)
        # Any dimension will do: the context is not looked at.
        rows = as_contexts(rows, rows.shape[-1] if rows.ndim == 2 else 1)
        if len(rows) > self.remaining:
            raise HorizonError(
                f"{len(rows)} decisions were asked for, {self.remaining} of {self.horizon} "
                "are left: build the policy with a longer horizon"
            )
        return rows

    @abstractmethod
    def _draw(self, count: int) -> IntArray:
        """So many actions."""

    @abstractmethod
    def _chance(self) -> float:
        """With which probability an action that was drawn is drawn."""

    def _note(self, rows: FloatArray, chosen: IntArray) -> Decisions:
        ids = np.arange(self._decided, self._decided + len(rows))
        self._decided += len(rows)
        features = self._actions.features_of(rows, chosen)
        propensity = np.full(len(rows), self._chance())
        return Decisions.simulated(ids, 1, chosen, features, propensity, self._actions.names)
