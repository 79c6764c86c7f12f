"""The audit of a fit: honest code passes with little to spare, and broken code is caught.

Trials as in tests/test_audit.py, with one attack at 99.999 %: of the claim ``mu = 0.925`` of (4,
1e-5), 1,000 trials prove 72 % on average with a standard deviation of 6 %; below 45 % with
probability 6e-6, above the claim with 1e-5 at most (both by the binomial law of the errors).
Mutants lose a factor 2 and more: 500 trials prove 155 % of the claim, and miss it with 2e-10.
"""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from capri import PrivateKernelRidge
from capri.audit.fit import audit_fit
from capri.audit.proof import AuditResult
from capri.errors import ConfigurationError
from capri.kernels import Linear
from capri.privacy import gate, layout, moments
from capri.privacy.layout import Layout
from capri.privacy.ledger import Ledger
from capri.privacy.moments import MomentLayout
from capri.privacy.noise import SecureNoise, SimulatedNoise
from capri.regression.stage import StagePlan

SURE = 0.99999
Patch = pytest.MonkeyPatch


def audited(trials: int, *attacks: str, **changes: Any) -> AuditResult:
    settings = {"epsilon": 4.0, "X_bounds": (0, 1), "y_bounds": (-1, 1), "rank": 2}
    ridge = PrivateKernelRidge(**(settings | {"stream_rows": 1000} | changes))
    return audit_fit(
        ridge, columns=1, trials=trials, attacks=attacks or ("release",), confidence=SURE
    )


def test_honest_fit_passes_and_wastes_little() -> None:
    result = audited(1000)
    assert result.passed
    assert result.claimed == pytest.approx(0.92493, abs=1e-5)
    assert result.proven >= 0.45 * result.claimed
    (release,) = result.attacks
    assert abs(release.low.std() - 1) < 5 / sqrt(2000)
    assert abs(release.high.mean() - release.low.mean() - 0.925) < 5 * sqrt(2 / 1000)
    assert abs(release.high.mean() + release.low.mean()) < 5 * sqrt(2 / 1000)


@pytest.mark.slow
def test_honest_stages_pass_and_waste_little() -> None:
    """Counts and two stages of one table. Both worlds are 94 % of the claim apart at least."""
    result = audited(1000, "stages")
    assert result.passed
    assert result.proven >= 0.4 * result.claimed
    (stages,) = result.attacks
    assert abs(stages.low.std() - 1) < 5 / sqrt(2000)
    apart = stages.high.mean() - stages.low.mean()
    assert 0.9 * 0.925 - 5 * sqrt(2 / 1000) < apart < 0.925 + 5 * sqrt(2 / 1000)


@pytest.mark.slow
def test_honest_fit_in_full() -> None:
    """20,000 trials prove 93 % on average; below 85 % with probability 2e-9."""
    result = audited(20_000, "release", "stages", "leverage", "difference", "fork")
    assert result.passed
    assert result.proven >= 0.85 * result.claimed


@pytest.mark.slow
def test_stages_that_each_spend_the_budget_are_caught(patch: Patch) -> None:
    """Three releases of the same rows: most audits of 500 trials prove 130 % of the claim."""
    honest = Layout.told_in_stages
    patch.setattr(
        Layout, "told_in_stages", lambda self, b, share, *a, **k: honest(self, b, 1.0, *a, **k)
    )
    patch.setattr(Ledger, "check", lambda self, event: None)
    assert not all(audited(500, "stages").passed for _ in range(6))


def test_unclipped_targets_are_caught(patch: Patch) -> None:
    def rounded(self: MomentLayout, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.rint(np.concatenate([features, targets], axis=1) * self.level)

    def contributions(self: StagePlan, X: np.ndarray, y: np.ndarray) -> Any:
        psi = self.features.whitened_block(X) / self.clip_norm
        return psi, (y - self.targets.middle) / self.targets.half / 1e5

    patch.setattr(MomentLayout, "rounded", rounded)
    patch.setattr(StagePlan, "contributions", contributions)
    assert not audited(500).passed


def test_forgotten_factor_of_two_is_caught(patch: Patch) -> None:
    honest = layout.noise_multiplier
    patch.setattr(layout, "noise_multiplier", lambda *a, **k: honest(*a, **k) / 2)
    patch.setattr(Ledger, "check", lambda self, event: None)
    assert not audited(500).passed


@pytest.mark.slow
def test_noise_averaged_over_both_triangles_is_caught(patch: Patch) -> None:
    """Careless symmetrisation loses a factor sqrt(2): 2,000 trials prove 121 % of the claim,
    and miss it with probability 2e-6."""

    honest = gate.noised

    def averaged(total: np.ndarray, layout: MomentLayout, *given: Any) -> np.ndarray:
        """Twice noise of the same width, and the mean of both: above the diagonal alone."""
        twice = np.stack([honest(total, layout, *given) for _ in range(2)])
        found = twice[0].copy()
        above = layout.blocks["products"].part
        found[above] = np.rint(twice[:, above].mean(axis=0)).astype(np.int64)
        return found

    patch.setattr(gate, "noised", averaged)
    assert not audited(2000).passed


@pytest.mark.slow
def test_second_release_of_the_same_rows_is_caught(patch: Patch) -> None:
    """Averaging two releases gains a factor sqrt(2): 2,000 trials prove 121 % of the claim,
    and miss it with probability 2e-6."""
    patch.setattr(Ledger, "check", lambda self, event: None)
    assert not audited(2000).passed


@pytest.mark.parametrize("attack", ["difference", pytest.param("fork", marks=pytest.mark.slow)])
def test_repeated_noise_is_caught(patch: Patch, attack: str) -> None:
    def add(self: SecureNoise, values: np.ndarray, *law: Any) -> np.ndarray:
        return SimulatedNoise(np.random.default_rng(0)).add(values, *law)

    patch.setattr(SecureNoise, "add", add)
    assert not audited(100, attack).passed


def test_uncapped_leverage_is_caught(patch: Patch) -> None:
    """A linear kernel, and a row far outside the box: without cap and limit it counts for many."""

    def contributions(self: StagePlan, X: np.ndarray, y: np.ndarray) -> Any:
        psi = self.features.whitened_block(X) / self.clip_norm
        return psi, np.clip((y - self.targets.middle) / self.targets.half, -1.0, 1.0)

    honest = audited(200, "leverage", kernel=Linear(), rank=1)
    assert honest.passed
    patch.setattr(moments, "within_norm", lambda rounded, limit: rounded)
    patch.setattr(StagePlan, "contributions", contributions)
    assert not audited(200, "leverage", kernel=Linear(), rank=1).passed


def test_audit_refuses_what_it_cannot_attack() -> None:
    for changes, message in (
        ({"y_bounds": None}, "needs y_bounds"),
        ({"X_bounds": None}, "X_bounds or public_X"),
        ({"random_state": 0}, "only a private fit"),
        ({"epsilon": float("inf")}, "no privacy to audit"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            audited(100, **changes)
    with pytest.raises(ConfigurationError, match="at least 100 trials"):
        audited(10)
    with pytest.raises(ConfigurationError, match="attacks must be"):
        audited(100, "guess")


@pytest.fixture
def patch(monkeypatch: Patch) -> Patch:
    return monkeypatch
