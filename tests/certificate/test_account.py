"""The independent account: asked when a certificate is made, and able to stop it."""

import pytest

from builders import small_policy
from capri.errors import BudgetError
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier
from capri.privacy.certificate import certify_policy
from capri.privacy.certificate.evidence import independent_account
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.promise import PrivacyModel


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12, 1e-40])
def test_calibration_passes_within_a_tenth_of_the_tolerance(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon, delta)
    found = independent_account(1 / analytic_multiplier(budget), budget)
    assert found["tolerance"] == epsilon / 1000
    assert found["epsilon"] == pytest.approx(epsilon, abs=found["tolerance"] / 10)


def test_noise_a_little_too_small_is_refused() -> None:
    """Half a percent of missing noise is found; halved noise and a lost factor 2 all the more."""
    budget = Budget(1.0, 1e-5)
    for share in (0.995, 0.5):
        with pytest.raises(BudgetError, match="no certificate: dp-accounting finds epsilon"):
            independent_account(1 / (analytic_multiplier(budget) * share), budget)


class Credulous(Ledger):
    """A ledger that believes every event: a bug that the certificate must not repeat."""

    def check(self, event: ReleaseEvent) -> None:
        pass


def test_certificate_of_a_ledger_that_overspent_is_refused() -> None:
    ledger = Credulous(Budget(1.0, 1e-5))
    ledger.record(
        ReleaseEvent(
            epoch=1, model="joint", calibration="analytic", participants=8, rank=3,
            sensitivity=1.0, noise_scale=3.6,
        )
    )  # fmt: skip
    with pytest.raises(BudgetError, match="no certificate: dp-accounting finds"):
        certify_policy(
            model=PrivacyModel.JOINT, limit=None, composition=1.0, ledger=ledger, private=True
        )


def test_composition_is_accounted() -> None:
    """Users with four contributions: noise twice as large, the same epsilon for all of them."""
    once = small_policy(simulation_seed=None).certificate()
    often = small_policy(simulation_seed=None, contributions_per_user=4).certificate()
    assert once.independent_account is not None
    assert often.independent_account is not None
    assert often.noise_multiplier == pytest.approx(2 * once.noise_multiplier, rel=1e-9)
    assert often.independent_account["epsilon"] == pytest.approx(
        once.independent_account["epsilon"], rel=1e-6
    )
    assert "dp-accounting" in often.independent_account["by"]
