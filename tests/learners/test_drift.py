"""A function that changes: what is kept, what is dropped, and how long epochs are."""

from dataclasses import replace
from math import exp, inf
from pathlib import Path

import numpy as np
import pytest

import capri
from capri.arrays import FloatArray
from capri.epoch.plan import EpochRecord
from capri.epoch.play import BehaviourPolicy, UniformLaw
from capri.kernels import Matern
from capri.learners.belief import Belief, Observation, Posterior, Squares
from capri.learners.drift import (
    ALARM,
    Drift,
    Kind,
    Nothing,
    Outcome,
    enough,
    faded,
    noise_kept,
    renewed,
)
from capri.learners.segments import PlannedSegment, Stage
from capri.spaces import FixedActions
from capri_lab.environments import DriftingEnvironment, drifting

KERNEL = Matern(nu=2.5, lengthscale=0.3)
RANK = 6


def belief_of(theta: FloatArray, releases: int, rng: np.random.Generator) -> Belief:
    """After so many releases about one function."""
    belief = Belief.empty(RANK)
    for _ in range(releases):
        seen, released = release_of(theta, rng)
        belief = belief.observe([(..., seen, released)])
    return belief


def release_of(
    theta: FloatArray, rng: np.random.Generator, noise: float = 3.0
) -> tuple[Observation, FloatArray]:
    design = 50 * rng.standard_normal((4, RANK)) / np.sqrt(RANK)
    covariance = noise**2 * np.eye(4)
    observation = Observation(design=design, covariance=covariance, baseline=np.zeros(RANK))
    return observation, design @ theta + noise * rng.standard_normal(4)


def posterior_of(belief: Belief) -> Posterior:
    covariance = np.linalg.inv(np.eye(RANK) + belief.information)
    return Posterior(
        mean=covariance @ belief.vector, factor=np.linalg.cholesky(covariance), scale=1.0
    )


def judged(
    drift: Drift, belief: Belief, seen: Observation, released: FloatArray, *, heavy: bool = False
) -> Kind:
    return drift.news(
        [(..., seen, released)],
        expected=posterior_of(belief),
        fade=lambda keep: posterior_of(faded(belief, keep)),
        empty=Nothing(np.zeros(RANK), np.eye(RANK)),
        heavy=heavy,
    ).kind


OLD = Drift(releases=20, rested=20, degrees=80, chi_square=80.0, begun=50_000)


def test_a_release_of_another_function_is_a_change_and_one_of_the_same_is_not() -> None:
    """At a release as far off as a prior draw; among 300 of the same function none is."""
    rng = np.random.default_rng(3101)
    theta = rng.standard_normal(RANK)
    belief = belief_of(theta, 20, rng)
    for _ in range(300):
        assert judged(OLD, belief, *release_of(theta, rng)) is Kind.LEARNT
    assert judged(OLD, belief, *release_of(-theta, rng)) is Kind.CHANGE


def test_a_kernel_that_never_fitted_does_not_look_like_a_change() -> None:
    rng = np.random.default_rng(3102)
    theta = rng.standard_normal(RANK)
    belief = belief_of(theta, 20, rng)
    seen, released = release_of(theta + 0.9 * rng.standard_normal(RANK), rng)
    misfit = replace(OLD, chi_square=300.0 * OLD.degrees)
    assert judged(OLD, belief, seen, released) is Kind.CHANGE
    assert judged(misfit, belief, seen, released) is Kind.LEARNT


def test_a_function_that_wandered_keeps_a_part_of_what_was_learnt() -> None:
    rng = np.random.default_rng(3103)
    theta = rng.standard_normal(RANK)
    belief = belief_of(theta, 20, rng)
    seen, released = release_of(theta + 0.35 * np.resize([1.0, -1.0], RANK), rng)
    news = OLD.news(
        [(..., seen, released)],
        expected=posterior_of(belief),
        fade=lambda keep: posterior_of(faded(belief, keep)),
        empty=Nothing(np.zeros(RANK), np.eye(RANK)),
        heavy=False,
    )
    assert news.kind is Kind.LEARNT
    assert news.keep < 1
    after = OLD.after(news, 21)
    assert (after.forgot, after.rested) == (1, 0)
    assert after.begun == news.keep * OLD.begun
    assert after.doubt == OLD.doubt - 1


def test_heavy_tails_are_told_from_a_change() -> None:
    """Early, or with an innovation as it should be: tails. Late and odd: the function changed."""
    rng = np.random.default_rng(3104)
    theta = rng.standard_normal(RANK)
    belief = belief_of(theta, 20, rng)
    same, other = release_of(theta, rng), release_of(-theta, rng)
    assert judged(OLD, belief, *same, heavy=True) is Kind.HEAVY
    assert judged(OLD, belief, *other, heavy=True) is Kind.CHANGE
    assert judged(replace(OLD, releases=3), belief, *other, heavy=True) is Kind.HEAVY


def test_what_is_left_after_a_change() -> None:
    belief = replace(
        belief_of(np.ones(RANK), 3, np.random.default_rng(0)),
        moment=0.02 * 1e6, moment_precision=1e6, heavy_tails=True,
    )  # fmt: skip
    fresh = renewed(belief)
    assert not fresh.information.any()
    assert not fresh.vector.any()
    assert (fresh.epochs, fresh.heavy_tails) == (4, False)
    squares = noise_kept(Squares.empty(RANK), belief, 1.0)
    value, precision = squares.noise(posterior_of(fresh)) or (0.0, 0.0)
    assert value == pytest.approx(0.02)
    assert precision == pytest.approx(100.0)
    assert noise_kept(Squares.empty(RANK), Belief.empty(RANK), 1.0).weight == 0


def segment(learnt: int) -> PlannedSegment:
    actions = FixedActions(np.zeros((1, 1)))
    stage = Stage(np.zeros((1, 1)), np.ones(1), True)
    return PlannedSegment(BehaviourPolicy(actions, UniformLaw()), stage, np.zeros(1), 1.0, learnt)


def test_decisions_made_by_a_belief_given_up_since_are_stale() -> None:
    changed = Drift(born=7, changes=1)
    old, new = segment(6), segment(7)
    assert changed.stale((old, new), (3, 5))
    assert not changed.stale((old, new), (0, 5))
    assert changed.obsolete((old, new))
    assert not changed.obsolete((new,))


def test_epochs_start_short_again_after_a_change() -> None:
    assert Drift().longest(100, 1.5, None) == inf
    assert Drift(enough=3000.0).longest(100, 1.5, None) == 3000
    assert Drift(enough=900.0, begun=100_000).longest(100, 1.5, None) == 5000
    changed = Drift(born=9, changes=1)
    assert changed.longest(100, 1.5, None) == 100
    assert changed.planned(100).longest(100, 1.5, None) == 150
    assert Drift(enough=9000.0).longest(100, 1.5, 16_000.0) == 2000
    assert replace(changed, enough=500.0).longest(100, 1.5, inf) == inf
    assert Drift(releases=4).shortest(4000, 100) == 100
    assert Drift().shortest(4000, 100) == 800


def test_a_told_memory_fades_by_decisions() -> None:
    drift, keep = Drift(begun=1000.0).remembered(500, 2000.0)
    assert keep == pytest.approx(exp(-0.25))
    assert drift.begun == pytest.approx(1000 * keep)
    assert Drift().remembered(500, None)[1] == 1


def test_enough_is_where_sampling_noise_drowns_that_of_the_gate() -> None:
    """One coordinate by hand: ``e(n)^2 = 1 / (1 + most / (sigma^2/n + c))``."""
    most, noise = 20_000.0, 8.0

    def length(sampling: float, stakes: float) -> float:
        seen = Observation(
            design=np.array([[1000.0]]), covariance=np.eye(1), baseline=np.zeros(1),
            sampling=np.array([[1000 * sampling]]), participants=1000,
        )  # fmt: skip
        block = Outcome(seen, np.eye(1), np.eye(1))
        return enough([block], stakes, noise=noise, least=500.0, most=most)

    def error(n: float, sampling: float) -> float:
        return float((1 + most / (noise**2 / n + sampling)) ** -0.5)

    for sampling, stakes in ((0.01, 0.1), (0.01, 0.02), (0.3, 0.1)):
        found = length(sampling, stakes)
        assert error(found, sampling) - error(most, sampling) <= 0.005 * stakes or found == most
        shorter = found / 2**0.5
        if found > 500:
            assert error(shorter, sampling) - error(most, sampling) > 0.005 * stakes
    assert length(10.0, 1.0) == 500
    assert length(0.0, 1e-6) == most


# -- policies -------------------------------------------------------------------------------------


def play(
    world: DriftingEnvironment, rounds: int, **options: object
) -> tuple[capri.Capri, tuple[EpochRecord, ...], float]:
    policy = capri.Capri(
        kernel=KERNEL,
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=capri.Budget(epsilon=4.0, delta=1e-5),
        simulation_seed=1,
        **options,  # type: ignore[arg-type]
    )
    with pytest.warns(capri.KernelWarning):
        result = capri.simulate(policy, world, rounds, seed=1)
    return policy, result.epochs, result.halves[1]


@pytest.mark.parametrize("wait", [0, 300])
def test_a_sign_flip_is_named_and_learnt_anew(wait: int, tmp_path: Path) -> None:
    world = drifting(KERNEL, change="flip", rounds=16_000, contexts=12, actions=12, seed=3200)
    policy, epochs, second = play(world, 16_000, reward_wait=wait)
    (told,) = [record for record in epochs if "drift" in (record.kinds or "")]
    (notice,) = [each for each in policy.notices if each.kind == "drift"]
    assert notice.numbers["alarm"] == ALARM
    starts = np.cumsum([0, *(record.length for record in epochs)])
    assert 8000 < starts[told.epoch] < 11_000
    # The next one that is planned is as short as the first; with a wait one was under way.
    following = [record.length for record in epochs[told.epoch : told.epoch + 3]]
    assert epochs[0].length in following
    assert second < 0.35  # the old best action would be the worst: about 2
    policy.save(tmp_path / "policy.capri")
    loaded = capri.Capri.load(tmp_path / "policy.capri")
    assert loaded.remaining == policy.remaining
    assert loaded._learning.learner.known.drift == policy._learning.learner.known.drift  # type: ignore[attr-defined]


def test_memory_is_an_option_of_the_policy() -> None:
    for wrong in (0, -1.0, "long"):
        with pytest.raises(capri.ConfigurationError, match="memory"):
            capri.PracticalOptions(memory=wrong)  # type: ignore[arg-type]
    world = drifting(KERNEL, change="none", rounds=4000, contexts=8, actions=8, seed=3201)
    policy = capri.Capri(
        kernel=KERNEL,
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=None,
        simulation_seed=1,
        memory=2000.0,
    )
    result = capri.simulate(policy, world, 4000, seed=1)
    assert max(record.length for record in result.epochs) == 250
