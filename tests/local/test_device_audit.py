"""The audit of a device's bytes: passes what is right, catches what is wrong.

Trials are real devices with real randomness, so these tests could fail by chance. A device that is
right fails an audit with probability 1e-6 at most (confidence 1 - 1e-6 for the attacks and five
standard errors for the bias, 6e-7 each way). Each mutant exceeds what is needed by many standard
errors; the sizes say how many.
"""

import hashlib
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from devices import CONTEXTS, small_aggregator

import capri
from capri.audit.device import audit_device
from capri.audit.proof import AuditResult
from capri.errors import BudgetError, ConfigurationError
from capri.local.device import Device, SystemRandomness
from capri.privacy.gate import Gate
from capri.privacy.sphere import COIN, Sphere, sphere

SURE = 1 - 1e-6
BUDGET = capri.Budget(epsilon=1.0)
BUNDLE = small_aggregator(budget=BUDGET).bundle()


def audited(**changes: Any) -> AuditResult:
    settings: dict[str, Any] = {"trials": 800, "confidence": SURE}
    return audit_device(BUNDLE, BUDGET, CONTEXTS, **(settings | changes))


def proven(result: AuditResult, name: str) -> float:
    """What one attack proves, as an epsilon."""
    return {attack.name: attack.proven for attack in result.attacks}[name]


def with_randomness(source: type[SystemRandomness]) -> type[capri.LocalClient]:
    """A client that draws its numbers elsewhere."""

    class Mutant(capri.LocalClient):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._randomness = source()

    return Mutant


def with_device(kind: type[Device]) -> type[capri.LocalClient]:
    """A client whose device does something else with the datum."""

    class Mutant(capri.LocalClient):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._device = kind(self._bundle)

    return Mutant


# -- what is right passes -------------------------------------------------------------------------


def test_honest_devices_pass() -> None:
    result = audited()
    assert result.passed
    assert (result.model, result.unit) == ("device", "epsilon")
    assert (result.claimed, result.delta) == (BUDGET.epsilon, 0.0)
    assert [attack.name for attack in result.attacks] == ["report", "bits", "tokens"]
    assert 0 < result.proven_epsilon <= result.epsilon  # it proves something: it has teeth


def test_progress_and_bad_settings() -> None:
    seen: list[tuple[int, int]] = []
    audited(trials=100, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (200, 200)
    assert len(seen) == 200
    for change in ({"trials": 99}, {"confidence": 0.0}, {"confidence": 1.0}):
        with pytest.raises(ConfigurationError):
            audited(**change)

    class Simulated(capri.LocalClient):
        def __init__(self, bundle: bytes, budget: capri.Budget) -> None:
            super().__init__(bundle, budget, simulation=(1, 1))

    with pytest.raises(ConfigurationError, match="real device"):
        audited(client=Simulated)


# -- sphere: what is wrong is caught --------------------------------------------------------------


class HeavyCoin(SystemRandomness):
    """Falls on the near side half as often again of what is missing to always."""

    def coin(self, count: int, chance: int) -> Any:
        return super().coin(count, chance + (COIN - chance) * 3 // 4)


class ShyCoin(SystemRandomness):
    """Private, but the aggregator divides by the wrong shrinkage."""

    def coin(self, count: int, chance: int) -> Any:
        return super().coin(count, chance // 2)


class OneSeed(SystemRandomness):
    """Every report from the same seed."""

    def seeds(self, count: int) -> Any:
        return np.full((count, 2), 12345, dtype=np.uint64)


class FewSeeds(SystemRandomness):
    """A seed of 8 bits: repeats after a few reports."""

    def seeds(self, count: int) -> Any:
        return super().seeds(count) & np.uint64(0xF)


def test_biased_coin() -> None:
    result = audited(confidence=0.99, client=with_randomness(HeavyCoin))
    assert not result.passed
    assert proven(result, "report") > 1.0
    result = audited(client=with_randomness(ShyCoin))
    assert not result.passed
    assert result.checks["bias"][0] > 5


def test_coin_that_is_left_out() -> None:
    class Always(SystemRandomness):
        def coin(self, count: int, chance: int) -> Any:
            return np.ones(count, dtype=np.bool_)

    result = audited(client=with_randomness(Always))
    assert proven(result, "report") > 2.0


def test_wrong_scale_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinkage off by 40 %: nothing private leaks, but every estimate would be off."""
    real = Sphere.shrinkage.fget  # type: ignore[attr-defined]
    budget = capri.Budget(epsilon=4.0)
    bundle = small_aggregator(budget=budget).bundle()
    for factor in (0.6, 1.4):
        monkeypatch.setattr(Sphere, "shrinkage", property(lambda self, f=factor: f * real(self)))
        result = audit_device(bundle, budget, CONTEXTS, trials=800, confidence=SURE)
        assert result.checks["bias"][0] > 5
        assert not result.passed


def test_seed_that_does_not_come_from_the_system() -> None:
    for source in (OneSeed, FewSeeds):
        result = audited(trials=200, client=with_randomness(source))
        assert proven(result, "tokens") == inf
        assert not result.passed


def at_the(gate: Gate, source: SystemRandomness) -> Gate:
    """The same gate with another source of randomness."""
    gate._source = source
    return gate


class SeedFromData(Device):
    """The token is a hash of the datum: whoever guesses the datum can check the guess."""

    def report(self, contexts: Any, actions: Any, rewards: Any, gate: Any) -> Any:
        digest = hashlib.sha256(contexts.tobytes() + rewards.tobytes()).digest()[:16]

        class Source(SystemRandomness):
            def seeds(self, count: int) -> Any:
                return np.frombuffer(digest, dtype="<u8").reshape(1, 2)

        return super().report(contexts, actions, rewards, at_the(gate, Source()))


def test_seed_derived_from_data() -> None:
    result = audited(trials=200, client=with_device(SeedFromData))
    assert proven(result, "tokens") == inf
    assert not result.passed


def leaking(byte: int, bit: int) -> type[Device]:
    """A device that hides the sign of the reward in one bit of its report, checksum right."""

    class Leak(Device):
        def report(self, contexts: Any, actions: Any, rewards: Any, gate: Any) -> Any:
            from zlib import crc32

            rows = super().report(contexts, actions, rewards, gate).copy()
            keep = 0xFF ^ (1 << bit)
            rows[:, byte] = (rows[:, byte] & keep) | ((rewards > 0).astype(np.uint8) << bit)
            for row in rows:
                row[-4:] = np.frombuffer(crc32(row[:-4]).to_bytes(4, "little"), np.uint8)
            return rows

    return Leak


@pytest.mark.parametrize(("byte", "bit"), [(10, 0), (17, 7), (25, 3), (26, 0)])
def test_sign_leaks_through_one_bit(byte: int, bit: int) -> None:
    """In the token (bytes 10 to 25) or in the payload."""
    result = audited(trials=250, client=with_device(leaking(byte, bit)))
    assert proven(result, "bits") > 1.5
    assert not result.passed


def test_mechanism_at_twice_the_budget() -> None:
    """The promise is checked for one epsilon, the report made for two: the gate refuses."""

    class Mutant(capri.LocalClient):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            plan = self._bundle.plan
            twice = sphere(2 * self._budget.epsilon, plan.dimension)
            self._bundle = replace(
                self._bundle, plan=replace(plan, layout=replace(plan.layout, sphere=twice))
            )
            self._device = Device(self._bundle)

    with pytest.raises(BudgetError, match="costs epsilon"):
        audited(trials=1000, confidence=0.99, client=Mutant)


class LazyPick(SystemRandomness):
    """Always the first: seeds are fresh and the coin is fair, yet the number is a function of u."""

    def below(self, limits: Any) -> Any:
        return np.zeros(len(limits), dtype=np.int64)


def test_sphere_with_a_pick_that_is_not_uniform() -> None:
    result = audited(client=with_randomness(LazyPick))
    assert result.checks["law"][0] < 1e-6
    assert not result.passed


# -- at full size ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_most_of_the_claim_is_proven(epsilon: float) -> None:
    """A right device fails with probability 1e-5."""
    budget = capri.Budget(epsilon=epsilon)
    bundle = small_aggregator(budget=budget).bundle()
    result = audit_device(bundle, budget, CONTEXTS, trials=20_000, confidence=1 - 1e-5)
    assert result.passed
    assert result.proven_epsilon >= 0.85 * epsilon
