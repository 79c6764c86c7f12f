"""The independent account: asked when a certificate is made, and able to stop it."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from builders import small_policy
from capri.errors import BudgetError
from capri.privacy.budget import Budget, PrivacyModel, UserLimit
from capri.privacy.calibration import analytic_multiplier
from capri.privacy.certificate import Certificate, certify_policy
from capri.privacy.certificate.certify import independent_account
from capri.privacy.certificate.verify import verified
from capri.privacy.gate import Gate
from capri.privacy.histogram import histogram_layout
from capri.privacy.layout import Norm
from capri.privacy.ledger import Ledger, ReleaseEvent
from capri.privacy.noise import SecureNoise
from capri.privacy.vector import vector_layout


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


# -- Laplace noise --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_laplace_noise_passes_at_any_delta_and_a_little_less_does_not(
    epsilon: float, delta: float
) -> None:
    budget = Budget(epsilon, delta)
    found = independent_account(epsilon, budget, Norm.L1)
    assert found["epsilon"] == pytest.approx(epsilon, abs=found["tolerance"] / 10)
    assert found["delta"] == 1e-15
    with pytest.raises(BudgetError, match="no certificate: dp-accounting finds epsilon"):
        independent_account(epsilon * 1.005, budget, Norm.L1)


def released(
    budget: Budget, norms: Sequence[Norm], limit: UserLimit | None = None, louder: float = 1.0
) -> Certificate:
    """The certificate of a policy that made a release of each kind."""
    composition = 1.0 if limit is None else limit.composition()
    contributions = 1 if limit is None else limit.total
    ledger = Credulous(budget, composition=composition, contributions=contributions)
    for number, norm in enumerate(norms, start=1):
        layout = {
            Norm.L1: lambda: histogram_layout(
                cells=4, length=50, budget=budget, contributions=contributions
            ),
            Norm.L2: lambda: vector_layout(
                rank=4, length=50, budget=budget, value_bound=1.0, composition=composition
            ),
        }[norm]()
        if norm is Norm.L1:
            layout = replace(layout, noise_units=layout.noise_units / louder)
        Gate(SecureNoise(), ledger).release(
            np.zeros(layout.coordinates, dtype=np.int64), layout, epoch=number, participants=9
        )
    return certify_policy(
        model=PrivacyModel.JOINT, limit=limit, composition=composition, ledger=ledger, private=True
    )


def test_pure_certificate_speaks_of_no_delta() -> None:
    for told in (released(Budget(1.0), []), released(Budget(1.0), [Norm.L1, Norm.L1])):
        text = told.to_text()
        assert "pure 1-differential privacy in the joint model" in text
        assert "has a budget of their own: epsilon 1 and no delta" in text
        assert "without exception: the promise is pure" in text
        assert "| 50 % | 73.2 % |" in text
        assert "Laplace" in told.mechanism
        assert "aussian" not in text
        assert told.noise_multiplier == pytest.approx(sqrt(2))
        assert told.independent_account is not None
        assert told.independent_account["epsilon"] == pytest.approx(1.0, abs=1e-4)
        assert (told.spent["delta"], told.delta) == (0.0, 0.0)
        assert verified(told.to_json().encode()) == told
        assert verified(told.to_html().encode()) == told


def test_releases_of_both_kinds_are_accounted_each_by_its_own_noise() -> None:
    told = released(Budget(1.0, 1e-5), [Norm.L2, Norm.L1])
    assert told.independent_account is not None
    assert told.independent_account["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert told.noise_multiplier == pytest.approx(sqrt(2)), "the narrower one"
    assert "Gaussian" in told.mechanism
    assert "Laplace" in told.mechanism
    assert "(1, 1e-05)-differential privacy" in told.to_text()


@pytest.mark.parametrize("norms", [[Norm.L1], [Norm.L2, Norm.L1]])
def test_laplace_noise_below_the_claim_is_refused(norms: list[Norm]) -> None:
    budget = Budget(1.0, 1e-5 if Norm.L2 in norms else 0.0)
    with pytest.raises(BudgetError, match="no certificate: dp-accounting finds epsilon"):
        released(budget, norms, louder=1.005)


def test_epsilons_of_contributions_add_up() -> None:
    told = released(Budget(1.0), [Norm.L1], UserLimit(total=3))
    assert told.noise_multiplier == pytest.approx(3 * sqrt(2))
    assert told.independent_account is not None
    assert told.independent_account["epsilon"] == pytest.approx(1.0, abs=1e-4)
    assert "add up, within an epoch and across epochs, a factor of 3" in told.composition


def test_before_the_first_release_only_noise_that_may_come_is_named() -> None:
    paper = small_policy(simulation_seed=None)
    assert "Laplace" not in paper.certificate().mechanism
    often = small_policy(preset="practical", simulation_seed=None, contributions_per_user=10)
    assert "Laplace" not in often.certificate().mechanism
    once = small_policy(preset="practical", simulation_seed=None)
    assert {"Laplace", "Gaussian"} <= set(once.certificate().mechanism.split())
