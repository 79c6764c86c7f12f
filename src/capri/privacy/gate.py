"""The gate: the single place where a secret turns public.

Joint model: noise is added once, to the sum of a closed epoch. Local model: noise is added to
every report before anybody sums it. The integers and the noise are the same, the place differs.
"""

import numpy as np

from capri.arrays import IntArray
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import PrivacyModel
from capri.errors import BudgetError
from capri.privacy.calibration import RESOLUTION
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.noise import NoiseSource


class Gate:
    """Noises and publishes; ``ledger=None`` runs without privacy."""

    def __init__(self, model: PrivacyModel, noise: NoiseSource, ledger: Ledger | None) -> None:
        self._model = model
        self._noise = noise
        self._ledger = ledger

    @property
    def private(self) -> bool:
        """Whether what passes here is protected: a budget, and noise that nobody can reproduce."""
        return self._ledger is not None and self._noise.private

    @property
    def _reports_are_noised(self) -> bool:
        """Private local runs. A simulation draws the sum of all reports' noise at the close."""
        return self.private and self._model is PrivacyModel.LOCAL

    def report(self, plan: EpochPlan, contributions: IntArray, reports: int) -> IntArray:
        """What may be summed: in the local model each report with noise (Alg. 1, line 14)."""
        if not self._reports_are_noised:
            return contributions
        return self._noise.add(contributions, plan.grid.noise_scale, reports=reports)

    def check(self, plan: EpochPlan) -> None:
        """Refuse a plan whose release the budget would not cover, before any data are in."""
        if self._ledger is not None:
            self._ledger.check(self._event(plan))
            if plan.grid.noise_scale < RESOLUTION * (1 - 1e-9):
                raise BudgetError(
                    f"the noise must be at least {RESOLUTION} grid units wide for its account to "
                    f"hold, got {plan.grid.noise_scale:g}"
                )

    def _event(self, plan: EpochPlan) -> ReleaseEvent:
        return ReleaseEvent(
            epoch=plan.epoch,
            model=str(self._model),
            calibration=plan.calibration,
            participants=plan.length,
            rank=plan.dimension,
            sensitivity=plan.grid.sensitivity * plan.grid.step,
            noise_scale=plan.noise_scale,
        )

    def release(self, plan: EpochPlan, total: IntArray, missing: int) -> Release:
        """Publish the sum of an epoch in which ``missing`` decisions got no reward.

        The ledger is asked first, and refuses rather than overspend.
        """
        if self._ledger is None:
            return Release(plan=plan, vector=np.asarray(total * plan.grid.step), event=None)
        self.check(plan)
        event = self._event(plan)
        if self._model is PrivacyModel.JOINT:
            reports = 1  # Alg. 1, line 17
        else:
            # A missing reward counts as 0, and its report carries noise like any other.
            reports = missing if self._reports_are_noised else plan.length
        noisy = self._noise.add(total, plan.grid.noise_scale, reports=reports)
        # Recorded as late as possible: an interrupt while noise is drawn has published nothing.
        self._ledger.record(event)
        return Release(plan=plan, vector=np.asarray(noisy * plan.grid.step), event=event)
