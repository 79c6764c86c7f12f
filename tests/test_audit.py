"""The audit: honest code passes with little room to spare, and every known bug is caught.

Numbers of trials. With true separation ``mu`` a threshold test errs with ``p = Phi(-mu/2)`` on each
side, and ``n`` trials prove ``mu - 2 z sqrt(p (1 - p) / n) / phi(mu/2)`` on average, ``z = 3.6`` at
99.9 % for three attacks (3.3 for one), with a standard deviation of ``1 / (sqrt(2) z)`` of that
margin. The claim at (4, 1e-5) is ``mu = 0.925``. Hence an honest pipeline fails the audit with
probability 1e-6, whatever ``n``: both sides would have to err, by 5 standard deviations together.
The numbers below come from two million simulated audits each:

| true mu               | trials | proven on average | misses the mark with probability |
| --------------------- | ------ | ----------------- | -------------------------------- |
| claim (mark: 60 %)    | 2,000  | 77 % of the claim | 3e-5                             |
| claim (mark: 85 %)    | 20,000 | 93 % of the claim | below 1e-6                       |
| sqrt(2) times claim   | 2,000  | 1.11 = 120 %      | 2e-6 (mark: the claim)           |
| twice the claim       | 500    | 1.42 = 153 %      | below 1e-6                       |
| 2.8 and more          | 200    | 1.95 and more     | below 1e-6                       |
"""

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm

import capri
from builders import small_policy
from capri.epoch import accumulate
from capri.epoch import encode as encoder
from capri.epoch.decide import RewardStatus
from capri.errors import BudgetError, ConfigurationError
from capri.joint.audit import AuditResult, clopper_pearson_upper, proven_mu
from capri.joint.audit import audit_policy as audit
from capri.learners import paper
from capri.privacy import grid as grids
from capri.privacy.gate import Gate
from capri.privacy.grid import Grid
from capri.privacy.ledger import Ledger
from capri.privacy.noise import NoiseSource, SecureNoise

CLAIM = 0.92493
MANY, SOME, FEW = 2_000, 500, 200
Patch = pytest.MonkeyPatch


def target(**changes: Any) -> capri.Capri:
    """Eight contexts, eight actions; a first epoch of four decisions keeps trials cheap."""
    settings: dict[str, Any] = {
        "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        "actions": np.linspace(0, 1, 8)[:, None],
        "contexts": capri.ContextPool(np.linspace(0, 1, 8)[:, None]),
        "budget": capri.Budget(epsilon=4.0, delta=1e-5),
        "horizon": 16,
        "preset": "paper",
        "calibration": "analytic",
    }
    return capri.Capri(**(settings | changes))


def learnt(epochs: int = 1, **changes: Any) -> capri.Capri:
    """The practical preset after some epochs: a baseline, and residuals with a bound below B."""
    settings: dict[str, Any] = {
        "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        "actions": np.linspace(0, 1, 8)[:, None],
        "contexts": capri.ContextPool(np.linspace(0, 1, 8)[:, None]),
        "budget": capri.Budget(epsilon=4.0, delta=1e-5),
        "preset": "practical",
        "first_epoch": 400,
        "clip_scale": 0.5,
        "max_rank": 4,
    }
    policy = capri.Capri(**(settings | changes))
    for _ in range(epochs):
        count = policy.remaining
        decisions = policy.act_many(np.resize(np.linspace(0, 1, 8), count)[:, None])
        policy.update_many(decisions, np.sin(3 * decisions.action[:, 0]) / 4)
    return policy


# -- honest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "attacks"),
    [("joint", ("release", "difference", "fork")), ("local", ("release", "difference"))],
)
def test_honest_pipeline_passes_and_wastes_little(model: str, attacks: tuple[str, ...]) -> None:
    result = audit(target(model=model), trials=MANY, attacks=attacks)
    assert result.passed
    assert result.claimed_mu == pytest.approx(CLAIM, abs=1e-5)
    assert 0.6 * result.claimed_mu <= result.proven_mu <= result.claimed_mu
    assert 0 < result.proven_epsilon < result.epsilon == 4.0
    assert result.model == model
    assert [attack.name for attack in result.attacks] == list(attacks)
    assert max(result.attacks, key=lambda attack: attack.proven_mu).name == "release"
    # The statistics are in units of the noise: each world a unit normal, the worlds mu apart.
    release = result.attacks[0]
    assert len(release.low) == len(release.high) == release.trials == MANY
    assert abs(release.low.std() - 1) < 5 / sqrt(2 * MANY)
    assert abs(release.high.std() - 1) < 5 / sqrt(2 * MANY)
    assert abs(release.high.mean() - release.low.mean() - CLAIM) < 5 * sqrt(2 / MANY)
    assert abs(release.high.mean() + release.low.mean()) < 5 * sqrt(2 / MANY)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["joint", "local"])
def test_honest_pipeline_in_full(model: str) -> None:
    """As the issue asks: 20,000 trials prove at least 85 % of the claimed mu."""
    result = audit(target(model=model, horizon=400), trials=20_000)
    assert result.passed
    assert result.proven_mu >= 0.85 * result.claimed_mu


def test_residuals_pass_and_waste_little() -> None:
    """A baseline is subtracted and the bound is a seventh of B: threshold and direction follow.

    The coordinate that measures residuals takes 2 % of the separation, so 75 % are proved on
    average, with a standard deviation of 4.4 %: below 55 % with probability 3e-6.
    """
    policy = learnt()
    result = audit(policy, trials=MANY, attacks=("release",))
    plan = policy._epoch_with_room().plan
    assert plan.baseline is not None
    assert plan.value_bound < 0.5
    assert plan.moment_share > 0
    assert result.passed
    assert result.proven_mu >= 0.55 * result.claimed_mu
    release = result.attacks[0]
    assert abs(release.high.mean() + release.low.mean()) < 5 * sqrt(2 / MANY)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["joint", "local"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_practical_preset_in_full(model: str, epochs: int) -> None:
    """Before any and after two releases: 91 % on average, below 85 % with probability 2e-5."""
    result = audit(learnt(epochs, model=model), trials=20_000)
    assert result.passed
    assert result.proven_mu >= 0.85 * result.claimed_mu


def test_paper_calibration_proves_next_to_nothing() -> None:
    """Its noise is many times too large: 200 trials, and the bound is at most 0 on average.

    True mu 0.13; five standard errors of the difference of two means: 0.5.
    """
    result = audit(target(calibration="paper"), trials=FEW, attacks=("release",))
    assert result.passed
    gap = result.attacks[0].high.mean() - result.attacks[0].low.mean()
    assert abs(gap) < 0.15 + 5 * sqrt(2 / FEW)


# -- mutants --------------------------------------------------------------------------------------

MUTANTS: dict[str, tuple[Callable[[Patch], dict[str, Any] | None], str, int]] = {}


def mutant(attack: str, trials: int) -> Callable[[Any], Any]:
    """Register a bug with the attack that must catch it and the trials that suffice."""

    def register(function: Callable[[Patch], dict[str, Any] | None]) -> Any:
        MUTANTS[function.__name__] = (function, attack, trials)
        return function

    return register


def scaled(factor: float) -> Callable[..., Any]:
    honest = SecureNoise.add

    def add(self: SecureNoise, values: Any, scale: float, reports: int = 1) -> Any:
        return honest(self, values, scale * factor, reports)

    return add


@mutant("release", SOME)
def noise_halved(patch: Patch) -> None:
    """The noise source draws half of what it is asked for."""
    patch.setattr(SecureNoise, "add", scaled(1 / 2))


@mutant("release", MANY)
def noise_over_root_two(patch: Patch) -> None:
    """Variance mistaken: ``exp(-k^2 / s^2)`` instead of ``exp(-k^2 / 2 s^2)``."""
    patch.setattr(SecureNoise, "add", scaled(1 / sqrt(2)))


@mutant("release", SOME)
def factor_two_lost(patch: Patch) -> None:
    """Sensitivity B C: add-or-remove-one where one datum is replaced. The ledger believes it."""
    honest = grids.make_grid

    def make_grid(**settings: Any) -> Grid:
        grid = honest(**settings)
        return Grid(grid.step / 2, 2 * grid.norm_limit, grid.noise_units)

    patch.setattr(paper, "make_grid", make_grid)
    patch.setattr(Grid, "sensitivity", property(lambda grid: grid.norm_limit))


def unclipped(reward_bound: float, *, norms: bool) -> Callable[..., Any]:
    """``Encoder.total`` without the integer check and without one or both of the clippings."""

    def total(self: Any, contexts: Any, pool_index: Any, action_index: Any, rewards: Any) -> Any:
        whitened, baseline = self._features(contexts, pool_index, action_index)
        length = np.linalg.norm(whitened, axis=1, keepdims=True)
        if norms:
            whitened = whitened * np.minimum(1, self._plan.clip_norm / length)
        values = np.clip(rewards, -reward_bound, reward_bound) - baseline
        units = np.rint(whitened * values[:, None] / self._plan.grid.step)
        return units.astype(np.int64).sum(axis=0)

    return total


@mutant("release", FEW)
def reward_clipping_off(patch: Patch) -> None:
    """Rewards enter as they come."""
    patch.setattr(encoder.Encoder, "total", unclipped(np.inf, norms=True))


@mutant("release", SOME)
def norm_clipping_off(patch: Patch) -> dict[str, Any]:
    """A context outside the pool enters with the norm it has.

    A smooth kernel and a small ridge: just outside the pool the whitened norm is 3.3 to 4.2 times
    the largest inside (five plans; the public copies are drawn afresh each time).
    """
    patch.setattr(encoder.Encoder, "total", unclipped(1.0, norms=False))
    return {
        "kernel": capri.kernels.RBF(lengthscale=1.0),
        "contexts": capri.ContextPool(np.linspace(0, 1, 5)[:, None]),
        "actions": [[0.0], [1.0]],
        "tau": 1e-4,
        "horizon": 2000,
    }


@mutant("release", SOME)
def reward_counted_again(patch: Patch) -> None:
    """A reward sent again is added again: mu doubles. Of 500 trials 1.6 times the claim is proved,
    with a deviation of 0.1; of 200 only 1.3, with 0.2, which missed it now and then."""

    def statuses(ids: Any, *_: Any) -> Any:
        return np.full(len(ids), RewardStatus.ACCEPTED)

    patch.setattr(accumulate, "reward_statuses", statuses)


@mutant("release", SOME)
def reward_counted_again_within_a_batch(patch: Patch) -> None:
    """Only duplicates of earlier calls are noticed, not those within one call."""
    honest = accumulate.reward_statuses

    def statuses(ids: Any, *rest: Any) -> Any:
        return np.concatenate([honest(ids[i : i + 1], *rest) for i in range(len(ids))])

    patch.setattr(accumulate, "reward_statuses", statuses)


@mutant("release", MANY)
def sum_released_twice(patch: Patch) -> None:
    """The ledger takes a second release of an epoch: two noisy versions of one sum."""

    patch.setattr(Ledger, "check", lambda self, event: None)


@mutant("release", FEW)
def no_noise(patch: Patch) -> None:
    """The sum leaves as it is."""
    patch.setattr(SecureNoise, "add", lambda self, values, scale, reports=1: values)


@mutant("release", FEW)
def root_of_sigma_lost(patch: Patch) -> dict[str, Any]:
    """The slip of Appendix A: noise for sigma~^2, contributions of norm sigma~.

    The integer check would cut them to sigma~^2 (see below), so it is lost as well, with clipping
    to the old norm in its place. At tau = 16 sigma~ is below 1/4: four times too little noise.
    """
    honest = grids.make_grid

    def make_grid(*, bound: float, **settings: Any) -> Grid:
        return honest(bound=bound**2, **settings)

    patch.setattr(paper, "make_grid", make_grid)
    patch.setattr(encoder.Encoder, "total", unclipped(1.0, norms=True))
    return {"tau": 16.0}


class ReusedNoise(NoiseSource):
    """Draws once and adds the same numbers ever after."""

    private = True

    def __init__(self, source: NoiseSource) -> None:
        self._source = source
        self._noise: Any = None

    def add(self, values: Any, scale: float, reports: int = 1) -> Any:
        if reports == 0:
            return values
        if self._noise is None:
            self._noise = self._source.add(np.zeros_like(values), scale, reports)
        return values + self._noise


@mutant("difference", FEW)
def noise_reused_between_epochs(patch: Patch) -> None:
    """One gate, one noise vector: each release alone is perfect."""
    honest = Gate.__init__

    def create(self: Gate, noise: NoiseSource, ledger: Any) -> None:
        honest(self, ReusedNoise(noise), ledger)

    patch.setattr(Gate, "__init__", create)


@mutant("fork", FEW)
def numpy_generator_after_fork(patch: Patch) -> None:
    """A generator seeded from the operating system, before the fork: children repeat each other."""
    generator = np.random.default_rng()

    def add(self: SecureNoise, values: Any, scale: float, reports: int = 1) -> Any:
        noise = generator.normal(0, scale * sqrt(reports), len(values))
        return values + np.rint(noise).astype(np.int64)

    patch.setattr(SecureNoise, "add", add)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(monkeypatch: Patch, name: str) -> None:
    """By the attack that is made for it, with the trials of the table above."""
    function, attack, trials = MUTANTS[name]
    changes = function(monkeypatch) or {}
    result = audit(target(**changes), trials=trials, attacks=(attack,))
    assert not result.passed
    assert result.proven_mu > result.claimed_mu
    assert result.proven_epsilon > result.epsilon


def test_residual_clipping_off_is_caught(monkeypatch: Patch) -> None:
    """Noise for residuals below B_r, residuals as they come: B / B_r times too little.

    B_r is about a seventh of B here, so the separation is many times the claim.
    """
    without = unclipped(1.0, norms=True)

    def total(self: Any, *arguments: Any) -> Any:
        units = without(self, *arguments)
        return np.pad(units, (0, self._plan.dimension - len(units)))

    policy = learnt()
    assert policy._epoch_with_room().plan.value_bound < 0.5
    monkeypatch.setattr(encoder.Encoder, "total", total)
    assert not audit(policy, trials=SOME, attacks=("release",)).passed


# In the local model a report is noised when it is made, and summed after: a second release of the
# sum repeats its noise.
JOINT_ONLY = {"sum_released_twice"}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["joint", "local"])
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_by_the_whole_audit(monkeypatch: Patch, name: str, model: str) -> None:
    """All attacks together, in both models, 3,000 trials: misses with probability below 1e-6."""
    if model == "local" and name in JOINT_ONLY:
        pytest.skip("no such bug in the local model")
    changes = MUTANTS[name][0](monkeypatch) or {}
    assert not audit(target(model=model, **changes), trials=3_000).passed


@pytest.mark.parametrize("name", ["noise_reused_between_epochs", "numpy_generator_after_fork"])
def test_mutant_needs_the_attack_that_is_made_for_it(monkeypatch: Patch, name: str) -> None:
    """Looked at one by one these releases are honest: the two extra attacks are not idle."""
    MUTANTS[name][0](monkeypatch)
    assert audit(target(), trials=FEW, attacks=("release",)).passed


# -- defence in depth -----------------------------------------------------------------------------


def test_ledger_stops_a_plan_with_too_little_noise(monkeypatch: Patch) -> None:
    """Half the noise in the plan never gets as far as a release."""
    honest = grids.make_grid

    def make_grid(**settings: Any) -> Grid:
        grid = honest(**settings)
        return Grid(grid.step, grid.norm_limit, grid.noise_units / 2)

    monkeypatch.setattr(paper, "make_grid", make_grid)
    with pytest.raises(BudgetError, match="nothing was released"):
        audit(target(), trials=FEW, attacks=("release",))


def test_integers_stop_a_lost_square_root(monkeypatch: Patch) -> None:
    """With the integer check in place contributions shrink to what the noise was made for."""
    honest = encoder.Encoder.total
    root_of_sigma_lost(monkeypatch)
    monkeypatch.setattr(encoder.Encoder, "total", honest)
    assert audit(target(tau=16.0), trials=SOME, attacks=("release",)).passed


# -- the statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize("hits", [0, 1, 17, 99, 100])
def test_clopper_pearson_is_the_textbook_one(hits: int) -> None:
    for error in (1e-3, 1e-6):
        interval = binomtest(hits, 100).proportion_ci(1 - 2 * error, method="exact")
        assert clopper_pearson_upper(hits, 100, error) == pytest.approx(interval.high, rel=1e-9)


def test_bound_holds_with_the_stated_confidence() -> None:
    """20,000 audits of a perfect Gaussian at 90 %: at most 10 % may claim too much.

    Fewer than 10.8 % (four standard errors above): false alarm 3e-5; in truth about 1 %.
    """
    rng = np.random.default_rng(8)
    count, mu, size = 20_000, 1.0, 200
    too_much = 0
    for _ in range(count):
        low, high = rng.normal(-mu / 2, 1, size), rng.normal(mu / 2, 1, size)
        too_much += proven_mu(low, high, 0.1) > mu
    assert too_much < 0.108 * count


def test_bound_by_hand() -> None:
    """1000 trials, 159 errors each way: CP upper at 0.0005 and its normal quantile."""
    low = np.r_[np.ones(159), -np.ones(841)]
    upper = binomtest(159, 1000).proportion_ci(1 - 0.001, method="exact").high
    assert proven_mu(low, -low, 0.001) == pytest.approx(2 * norm.isf(upper), rel=1e-9)
    assert proven_mu(low, -low, 0.001) < 2 * norm.isf(0.159)


def test_useless_statistic_proves_nothing() -> None:
    zeros = np.zeros(500)
    assert proven_mu(zeros, zeros, 1e-3) < 0
    assert proven_mu(-np.ones(500), -np.ones(500), 1e-3) < 0


def test_result_without_proof_has_epsilon_zero() -> None:
    result = audit(target(calibration="paper"), trials=100, attacks=("release",))
    assert isinstance(result, AuditResult)
    if result.proven_mu <= 0:
        assert result.proven_epsilon == 0.0
    assert result.proven_epsilon < 4.0


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 99}, "at least 100 trials"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"attacks": ()}, "attacks"),
        ({"attacks": ("release", "guess")}, "attacks"),
    ],
)
def test_audit_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        audit(target(), **settings)


@pytest.mark.parametrize("changes", [{"simulation_seed": 1}, {"budget": None}])
def test_only_private_runs_are_audited(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="only a private run"):
        audit(small_policy(**({"simulation_seed": None} | changes)))


@pytest.fixture(autouse=True)
def _no_patch_is_left() -> Iterator[None]:
    """Mutants must not survive their test."""
    before = SecureNoise.add, Gate.__init__, Ledger.record, paper.make_grid, encoder.Encoder.total
    yield
    after = SecureNoise.add, Gate.__init__, Ledger.record, paper.make_grid, encoder.Encoder.total
    assert before == after
