"""The curator's surface: decisions, rewards, epochs, the gate, and everything it refuses."""

import contextlib
import dataclasses
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import capri
import paper_formulas
from builders import (
    ACTIONS,
    BUDGET,
    CONTEXTS,
    draw_contexts,
    play_epoch,
    records,
    small_policy,
    snapshot,
)
from capri import (
    ConfigurationError,
    DataError,
    Decision,
    HorizonError,
    RewardIgnoredWarning,
    RewardStatus,
    ShapeError,
    VisitStatus,
)
from capri.epoch.plan import Release
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardScale
from capri.epoch.storage import plan_state, read_policy_file, write_policy_file
from capri.learners.paper import PaperLearner, PaperOptions
from capri.privacy.budget import PrivacyModel
from capri.spaces import FixedActions
from epochs_inside import open_epoch

# A statistical test below fails by chance with this probability; its seeds are fixed besides.
FALSE_ALARM = 1e-5

every_model = pytest.mark.parametrize("model", ["joint", "local"])


def variance_interval(count: int) -> tuple[float, float]:
    """Where the mean square of ``count`` standard normals lies but for ``FALSE_ALARM``."""
    law = stats.chi2(count)
    return law.ppf(FALSE_ALARM / 2) / count, law.ppf(1 - FALSE_ALARM / 2) / count


# -- deciding -------------------------------------------------------------------------------------


def test_decision_carries_what_the_issue_promises() -> None:
    decision = small_policy().act([0.3])
    assert (decision.number, decision.epoch) == (0, 1)
    assert 0 <= decision.action_index < 3
    np.testing.assert_array_equal(decision.action, ACTIONS[decision.action_index])
    assert decision.propensity == 1 / 3


def test_decisions_are_arrays_of_single_decisions() -> None:
    decisions = small_policy().act_many(draw_contexts(0, 5))
    assert len(decisions) == 5
    assert decisions.number.tolist() == [0, 1, 2, 3, 4]
    assert decisions.epoch == 1
    np.testing.assert_array_equal(decisions.action, ACTIONS[decisions.action_index])
    assert decisions.propensity.tolist() == [1 / 3] * 5
    assert [decision.id for decision in decisions] == decisions.id.tolist()
    assert len(set(decisions.id.tolist())) == 5
    assert decisions[2].action_index == decisions.action_index[2]


def test_printing_a_decision_shows_no_action_or_propensity() -> None:
    """A decision may end in a log: the action tells of the context."""
    policy = small_policy()
    decision = policy.act([0.3])
    assert repr(decision) == f"Decision(id={decision.id!r}, epoch=1)"
    shown = repr(policy.act_many(draw_contexts(0, 2)))
    assert "action" not in shown
    assert "propensity" not in shown


def test_ids_never_repeat_over_epochs() -> None:
    policy, ids, numbers = small_policy(), [], []
    while policy.remaining:
        decisions = play_epoch(policy)
        ids += decisions.id.tolist()
        numbers += decisions.number.tolist()
    assert numbers == list(range(60))
    assert len(set(ids)) == 60


def test_actions_are_uniform_while_nothing_is_eliminated() -> None:
    """Chi-square over 3 actions, 30,000 draws: a tilt of 0.02 is seen with probability > 0.99."""
    policy = small_policy(horizon=30_000**2, budget=None)
    actions = policy.act_many(draw_contexts(0, 30_000)).action_index
    assert stats.chisquare(np.bincount(actions, minlength=3)).pvalue > FALSE_ALARM


def test_remaining_counts_down_and_follows_the_schedule() -> None:
    policy = small_policy()
    assert policy.remaining == 8
    policy.act([0.3])
    assert policy.remaining == 7
    decisions = policy.act_many(draw_contexts(0, 7))
    assert policy.remaining == 16  # the next call opens the second epoch
    assert len(policy.epochs) == 0  # which has not happened yet
    assert len(decisions) == 7


def test_lengths_of_the_epochs_are_the_papers() -> None:
    policy = small_policy()
    while policy.remaining:
        play_epoch(policy)
    assert [record.length for record in policy.epochs] == [8, 16, 32, 4]
    assert [record.epoch for record in policy.epochs] == [1, 2, 3, 4]


def test_asking_for_more_than_the_epoch_holds_is_refused(tmp_path: Path) -> None:
    policy = small_policy()
    policy.act([0.3])
    before = snapshot(policy, tmp_path)
    with pytest.raises(HorizonError, match=r"8 decisions were asked for, 7 are left"):
        policy.act_many(draw_contexts(0, 8))
    assert snapshot(policy, tmp_path) == before


def test_asking_beyond_the_horizon_is_refused(tmp_path: Path) -> None:
    policy = small_policy(horizon=4)
    while policy.remaining:
        play_epoch(policy)
    before = snapshot(policy, tmp_path)
    for ask in (lambda: policy.act([0.3]), lambda: policy.act_many([[0.3], [0.6]])):
        with pytest.raises(HorizonError, match="all 4 decisions of the horizon are taken"):
            ask()
    assert snapshot(policy, tmp_path) == before


def test_asking_for_nothing_at_the_horizon_gives_nothing() -> None:
    policy = small_policy(horizon=4)
    while policy.remaining:
        play_epoch(policy)
    assert len(policy.act_many(np.empty((0, 1)))) == 0


def test_contexts_outside_the_pool_are_played_and_learnt_from() -> None:
    """The estimate after an epoch of such contexts is the paper's, with contributions clipped."""
    policy = small_policy(budget=None, features="dense", kernel=capri.kernels.Matern(nu=0.5))
    rng = np.random.default_rng(3)
    contexts, rewards = rng.uniform(-0.5, 2.0, (8, 1)), rng.uniform(-1, 1, 8)
    decisions = policy.act_many(contexts)
    assert decisions.propensity.tolist() == [1 / 3] * 8
    _assert_epoch_is_algorithm_1(policy, contexts, decisions, rewards)


def test_context_outside_the_pool_plays_its_own_active_set(tmp_path: Path) -> None:
    """Not that of some pool context: after elimination the laws of contexts differ.

    A saved file is given one release by hand: ``mu = k(., p)`` with ``p`` at (0.8, action 1.0)
    and a width of 0.1, so that actions below ``best - 0.4`` go where the bump is, and nowhere else.
    """
    policy = small_policy(budget=None)
    play_epoch(policy)
    path = tmp_path / "policy.capri"
    policy.save(path)
    values, arrays = read_policy_file(path)
    del values["format"], values["version"]
    newest = values["repository"]["tables"]["laws"][-1]
    release = f"laws.{newest['generation']}.state/releases.0.predictor"
    (learnt,) = newest["state"]["learning"]["learner"]["releases"]
    learnt |= {"width": 0.1, "may_eliminate": True}
    arrays |= {f"{release}.points": np.array([[0.8, 1.0]]), f"{release}.weights": np.ones(1)}
    write_policy_file(path, values, arrays)
    loaded = capri.Capri.load(path)
    inside, outside = [[0.0], [0.3], [1.0]], [[0.8], [0.7], [5.0]]
    assert loaded.active(inside).tolist() == [[True] * 3, [True] * 3, [False, False, True]]
    assert loaded.active(outside).tolist() == [[False, False, True]] * 2 + [[True] * 3]
    decisions = loaded.act_many(inside + outside)
    assert decisions.propensity.tolist() == [1 / 3, 1 / 3, 1.0, 1.0, 1.0, 1 / 3]
    assert decisions.action_index[2:5].tolist() == [2, 2, 2]
    assert [loaded.act(row).action_index for row in ([0.8], [0.7], [1.0])] == [2, 2, 2]


def test_negative_zero_is_the_context_zero(tmp_path: Path) -> None:
    one, other = small_policy(), small_policy()
    for policy, zero in ((one, 0.0), (other, -0.0)):
        for _ in range(8):
            policy.update(policy.act([zero]), 0.5)
    assert snapshot(one, tmp_path) == snapshot(other, tmp_path)


# -- Algorithm 1, end to end ----------------------------------------------------------------------


def _plan_copies(policy: capri.Capri, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """S and R of the open epoch: a plan is public, a dense one is its copies."""
    _, arrays = plan_state(policy.plan())
    return arrays["features.basis_copy"], arrays["features.covariance_copy"]


def _assert_epoch_is_algorithm_1(
    policy: capri.Capri, contexts: np.ndarray, decisions: capri.Decisions, rewards: np.ndarray
) -> None:
    """Close the epoch and hold estimate, sigma~_max and width against the transcription."""
    import tempfile

    kernel, tau = capri.kernels.Matern(nu=0.5), 1.0
    with tempfile.TemporaryDirectory() as folder:
        S, R = _plan_copies(policy, Path(folder))
    assert len(S) == len(R) == len(rewards)
    S = np.unique(S, axis=0)  # the estimator depends on S through its span; inverses need this
    policy.update_many(decisions, rewards)
    policy.close_epoch()
    support = np.array([[*c, *x] for c in CONTEXTS for x in ACTIONS])
    sigma_max = sqrt(paper_formulas.projected_variance(kernel, S, R, tau, support).max())
    assert policy.epochs[-1].sigma_max == pytest.approx(sigma_max, rel=1e-9)
    pairs = np.hstack([contexts, decisions.action])
    norms = np.linalg.norm(paper_formulas.whitened(kernel, S, R, tau, pairs), axis=1)
    clipped = rewards * np.minimum(1.0, sigma_max / norms)
    expected = paper_formulas.projected_estimator(kernel, S, R, pairs, clipped, tau, support)
    # The grid without privacy resolves 2^-30 of the bound.
    np.testing.assert_allclose(
        policy.estimate(CONTEXTS).reshape(-1), expected, rtol=1e-7, atol=1e-7
    )
    width = paper_formulas.delta_r(
        sigma_max=sigma_max,
        B=1.0,
        T=policy.horizon,
        tau=tau,
        pairs=len(support),
        failure=0.05,
        epsilon=None,
        delta=None,
    )
    assert policy.epochs[-1].width == pytest.approx(width, rel=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_epochs_without_privacy_are_algorithm_1(seed: int) -> None:
    policy = small_policy(
        budget=None,
        features="dense",
        kernel=capri.kernels.Matern(nu=0.5),
        simulation_seed=seed,
    )
    for epoch in range(3):
        contexts = draw_contexts(10 * seed + epoch, policy.remaining)
        decisions = policy.act_many(contexts)
        rewards = np.random.default_rng(seed).uniform(-1, 1, len(contexts))
        _assert_epoch_is_algorithm_1(policy, contexts, decisions, rewards)


def test_dense_and_low_rank_policies_learn_the_same() -> None:
    """Same seed, same draws: the two forms differ by rounding and the rank tolerance alone."""
    policies = [
        small_policy(budget=None, features=form, rank_tolerance=0.0)
        for form in ("dense", "low-rank")
    ]
    for epoch in range(4):
        for policy in policies:
            play_epoch(policy, seed=epoch)
    dense, low_rank = policies
    np.testing.assert_allclose(
        low_rank.estimate(CONTEXTS), dense.estimate(CONTEXTS), rtol=1e-6, atol=1e-6
    )
    for one, other in zip(dense.epochs, low_rank.epochs, strict=True):
        assert one.sigma_max == pytest.approx(other.sigma_max, rel=1e-8)
        assert one.width == pytest.approx(other.width, rel=1e-8)


@every_model
def test_records_hold_the_papers_constants(model: str) -> None:
    """Noise scale and width recomputed from the record's own sigma~_max and length."""
    policy = small_policy(
        model=model, reward_bound=2.5, tau=0.5, failure_probability=0.2, budget=BUDGET
    )
    while policy.remaining:
        play_epoch(policy)
    assert len(policy.epochs) == 4
    for record in policy.epochs:
        assert record.tau == 0.5
        assert 1 <= record.rank <= min(record.length, 12)
        assert record.active_share == 1.0
        constants = {"B": 2.5, "T": 60, "epsilon": 1.0, "delta": 1e-5}
        sigma_0 = paper_formulas.sigma_0(sigma_max=record.sigma_max, **constants)
        assert record.noise_scale == pytest.approx(sigma_0, rel=1e-12)
        width = paper_formulas.delta_r(
            sigma_max=record.sigma_max,
            tau=0.5,
            pairs=12,
            failure=0.2,
            reports=record.length if model == "local" else 1,
            **constants,
        )
        assert record.width == pytest.approx(width, rel=1e-12)


def test_paper_noise_is_raised_where_the_classical_formula_under_delivers() -> None:
    """At large epsilon the printed noise is not enough for the promise; the record shows more."""
    budget = capri.Budget(epsilon=50.0, delta=0.5)
    with pytest.warns(capri.PrivacyLeakWarning, match="one person in 2"):
        policy = small_policy(budget=budget, horizon=4)
    play_epoch(policy)
    record = policy.epochs[0]
    printed = paper_formulas.sigma_0(
        sigma_max=record.sigma_max, B=1.0, T=4, epsilon=50.0, delta=0.5
    )
    from capri.privacy.calibration import analytic_multiplier

    needed = 2 * record.sigma_max * analytic_multiplier(budget)
    assert printed < needed
    assert record.noise_scale >= needed


# -- rewards and the close of an epoch ------------------------------------------------------------


@pytest.mark.parametrize("rewarded", [0, 7, 8])
def test_epoch_closes_with_a_decision_or_a_call_whatever_rewards_came(rewarded: int) -> None:
    """The last reward changes nothing that others see: neither records nor a repeated answer."""
    for close in (lambda policy: policy.close_epoch(), lambda policy: policy.act([0.3])):
        policy = small_policy()
        decisions = policy.act_many(draw_contexts(0, 8))
        codes = policy.update_many(decisions[:rewarded], np.full(rewarded, 0.5))
        assert codes.tolist() == [0] * rewarded
        if rewarded:
            with pytest.warns(RewardIgnoredWarning, match="duplicate"):
                assert policy.update(decisions[0], 0.5) is RewardStatus.DUPLICATE
        assert len(policy.epochs) == 0
        assert (policy.estimate(CONTEXTS) == 0).all()
        close(policy)
        assert len(policy.epochs) == 1
        assert np.abs(policy.estimate(CONTEXTS)).min() > 0
        with pytest.warns(RewardIgnoredWarning, match="late"):
            assert policy.update(decisions[7], 0.5) is RewardStatus.LATE


def test_epoch_stays_open_while_decisions_are_to_be_taken() -> None:
    """All rewards so far are in, but the epoch closes on its number of decisions."""
    policy = small_policy()
    decisions = policy.act_many(draw_contexts(0, 7))
    policy.update_many(decisions, np.full(7, 0.5))
    assert len(policy.epochs) == 0
    assert (policy.estimate(CONTEXTS) == 0).all()


def test_epoch_closes_when_the_next_decision_is_asked_for() -> None:
    policy = small_policy()
    decisions = policy.act_many(draw_contexts(0, 8))
    policy.update(decisions[3], 0.5)
    assert len(policy.epochs) == 0
    following = policy.act([0.3])
    assert len(policy.epochs) == 1
    assert following.epoch == 2
    assert following.number == 8


@every_model
def test_missing_reward_counts_as_zero(model: str, tmp_path: Path) -> None:
    """The release, bit for bit, is that of a reward of 0: silence tells nothing."""
    silent, zero = small_policy(model=model), small_policy(model=model)
    for policy in (silent, zero):
        decisions = policy.act_many(draw_contexts(0, 8))
        policy.update_many(list(decisions)[:5], np.linspace(-1, 1, 5))
        if policy is zero:
            policy.update_many(list(decisions)[5:], np.zeros(3))
        policy.act([0.3])
    assert snapshot(silent, tmp_path) == snapshot(zero, tmp_path)


@every_model
def test_epoch_without_any_reward_releases_noise_alone(model: str) -> None:
    policy, without = small_policy(model=model), small_policy(model=model, budget=None)
    for each in (policy, without):
        each.act_many(draw_contexts(0, 8))
        each.close_epoch()
    assert np.abs(policy.estimate(CONTEXTS)).min() > 0
    assert (without.estimate(CONTEXTS) == 0).all()


def test_close_epoch_waits_for_decisions_not_for_rewards() -> None:
    policy = small_policy()
    policy.close_epoch()  # nothing is open
    assert len(policy.epochs) == 0
    policy.act_many(draw_contexts(0, 7))
    with pytest.raises(HorizonError, match="1 decisions of this epoch are still to be taken"):
        policy.close_epoch()
    policy.act([0.3])
    policy.close_epoch()
    assert len(policy.epochs) == 1
    policy.close_epoch()
    assert len(policy.epochs) == 1


def _after_one_epoch() -> tuple[capri.Capri, capri.Decisions, capri.Decisions]:
    """A policy in its second epoch: decisions of the first, and of the second with one rewarded."""
    policy = small_policy()
    old = policy.act_many(draw_contexts(0, 8))
    new = policy.act_many(draw_contexts(1, 4))  # closes the first with all rewards missing
    policy.update(new[0], 0.25)
    return policy, old, new


@pytest.mark.parametrize(
    "status", [RewardStatus.LATE, RewardStatus.DUPLICATE, RewardStatus.UNKNOWN]
)
def test_ignored_reward_changes_nothing_and_says_so(status: RewardStatus, tmp_path: Path) -> None:
    policy, old, new = _after_one_epoch()
    decision = {
        RewardStatus.LATE: old[3],
        RewardStatus.DUPLICATE: new[0],
        RewardStatus.UNKNOWN: "AAAAAAAAAAAAAAAAAAAA",
    }[status]
    before = snapshot(policy, tmp_path)
    with pytest.warns(RewardIgnoredWarning, match=f"ignored {status} rewards") as caught:
        assert policy.update(decision, 0.7331) is status
    assert "7331" not in str(caught[0].message)
    assert len(caught) == 1
    assert snapshot(policy, tmp_path) == before


def test_warning_of_a_batch_points_at_the_caller() -> None:
    policy, old, _ = _after_one_epoch()
    with pytest.warns(RewardIgnoredWarning) as caught:
        policy.update_many([old[0]], [0.5])
    assert caught[0].filename == __file__


def test_warning_of_a_single_reward_points_at_the_caller() -> None:
    policy, old, _ = _after_one_epoch()
    with pytest.warns(RewardIgnoredWarning) as caught:
        policy.update(old[0], 0.5)
    assert caught[0].filename == __file__


def test_ids_not_yet_issued_or_negative_are_unknown() -> None:
    policy, _, new = _after_one_epoch()
    forged = [dataclasses.replace(new[0], number=number) for number in (12, 20, -1, 10**12)]
    with pytest.warns(RewardIgnoredWarning, match="unknown"):
        statuses = policy.update_many(forged, np.zeros(4))
    assert statuses.tolist() == [RewardStatus.UNKNOWN] * 4


def test_batch_accepts_the_good_and_names_the_ignored(tmp_path: Path) -> None:
    """Of a repeated decision the first reward counts, as if the rest had never come."""
    policy, old, new = _after_one_epoch()
    clean, _, clean_new = _after_one_epoch()
    batch = [new[1], old[0], new[1], new[0], "not an id", new[2]]
    with pytest.warns(RewardIgnoredWarning, match="duplicate and late and unknown"):
        statuses = policy.update_many(batch, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert statuses.tolist() == [0, 1, 2, 2, 3, 0]
    clean.update_many([clean_new[1], clean_new[2]], [0.1, 0.6])
    assert snapshot(policy, tmp_path) == snapshot(clean, tmp_path)


def test_rewards_between_epochs_are_late_or_unknown() -> None:
    """No epoch is open right after a close: nothing can be accepted."""
    policy = small_policy()
    decisions = play_epoch(policy)
    with pytest.warns(RewardIgnoredWarning, match="late and unknown"):
        statuses = policy.update_many([decisions[0], "AAAAAAAAAAAAAAAAAAAA"], [0.1, 0.2])
    assert statuses.tolist() == [RewardStatus.LATE, RewardStatus.UNKNOWN]


@every_model
@pytest.mark.parametrize("features", ["low-rank", "dense"])
def test_one_by_one_equals_many_at_once(model: str, features: str, tmp_path: Path) -> None:
    """Bit for bit under one seed, whatever the batches and the order of the rewards."""
    single, batched, shuffled = (
        small_policy(model=model, features=features, horizon=300) for _ in range(3)
    )
    rng = np.random.default_rng(5)
    while single.remaining:
        count = single.remaining
        contexts, rewards = draw_contexts(count, count), rng.uniform(-1, 1, count)
        for context, reward in zip(contexts, rewards, strict=True):
            single.update(single.act(context), reward)
        batched.update_many(batched.act_many(contexts), rewards)
        parts = np.split(np.arange(count), [count // 3, count // 2])
        decisions = [d for part in parts for d in shuffled.act_many(contexts[part])]
        for place in rng.permutation(count):
            shuffled.update(decisions[place], rewards[place])
        for other in (batched, shuffled):
            np.testing.assert_array_equal(single.estimate(CONTEXTS), other.estimate(CONTEXTS))
            assert records(single) == records(other)
    assert snapshot(single, tmp_path) == snapshot(batched, tmp_path) == snapshot(shuffled, tmp_path)


def test_one_by_one_equals_many_outside_the_pool(tmp_path: Path) -> None:
    single, batched = (small_policy(horizon=9000) for _ in range(2))
    rng = np.random.default_rng(5)
    contexts, rewards = rng.random((95, 1)), rng.uniform(-1, 1, 95)
    for context, reward in zip(contexts, rewards, strict=True):
        single.update(single.act(context), reward)
    batched.update_many(batched.act_many(contexts), rewards)
    for policy in (single, batched):
        policy.close_epoch()
    assert len(single.epochs) == 1
    assert snapshot(single, tmp_path) == snapshot(batched, tmp_path)


@every_model
def test_reward_beyond_the_bound_is_clipped_to_it(model: str, tmp_path: Path) -> None:
    """And nothing in the state tells that it happened."""
    far, at = (small_policy(model=model, reward_bound=0.5) for _ in range(2))
    for policy, top in ((far, 1e308), (at, 0.5)):
        decisions = policy.act_many(draw_contexts(0, 8))
        policy.update_many(decisions, [top, -top, top, top, 0.1, -top, 0.5, -0.5])
    assert snapshot(far, tmp_path) == snapshot(at, tmp_path)
    assert "clip" not in repr(far).lower()


def test_reward_within_the_bound_is_not_clipped() -> None:
    one, other = small_policy(budget=None), small_policy(budget=None)
    for policy, reward in ((one, 1.0), (other, 0.999)):
        policy.update_many(policy.act_many(draw_contexts(0, 8)), np.full(8, reward))
    np.testing.assert_allclose(
        other.estimate(CONTEXTS), 0.999 * one.estimate(CONTEXTS), rtol=1e-6, atol=1e-8
    )


# -- the noise at the gate ------------------------------------------------------------------------


def _unit_noise(policy: capri.Capri, folder: Path) -> np.ndarray:
    """Noise of one epoch without rewards, in units of the paper's sigma_0.

    With no rewards the released vector is the noise; it is read back through the public weights.
    """
    policy.act_many(draw_contexts(0, policy.remaining))
    _, plan = plan_state(policy.plan())
    policy.close_epoch()
    weights = policy._learning.learner.state()[1]["releases.0.predictor.weights"]
    shape = plan["features.basis.transform"] @ plan["features.whitening"]
    released = np.linalg.solve(shape, weights)
    record = policy.epochs[0]
    assert len(released) == record.rank
    return released / paper_formulas.sigma_0(
        sigma_max=record.sigma_max, B=1.0, T=policy.horizon, epsilon=1.0, delta=1e-5
    )


@pytest.mark.parametrize(("model", "factor"), [("joint", 1), ("local", 8)])
def test_simulated_noise_has_the_papers_variance(model: str, factor: int, tmp_path: Path) -> None:
    """Variance sigma_0^2 (joint) or T_r sigma_0^2 (local) in every coordinate, and Gaussian.

    About 700 numbers: an error of 30 % in the variance is seen with probability > 0.9, the
    factor T_r = 8 or a lost factor 2 always.
    """
    noise = np.concatenate(
        [
            _unit_noise(
                small_policy(model=model, simulation_seed=seed, rank_tolerance=1.0), tmp_path
            )
            for seed in range(140)
        ]
    ) / sqrt(factor)
    low, high = variance_interval(len(noise))
    assert low < np.mean(noise**2) < high
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize(("model", "factor"), [("joint", 1), ("local", 8)])
def test_private_noise_has_the_papers_variance(model: str, factor: int, tmp_path: Path) -> None:
    """The same of OpenDP's noise, which no seed fixes: false alarm 2e-5 for each model.

    The local model draws each report's noise by itself, also that of missing rewards. About 350
    numbers: an error of 40 % in the variance is seen with probability > 0.9.
    """
    noise = np.concatenate(
        [
            _unit_noise(
                small_policy(model=model, simulation_seed=None, rank_tolerance=1.0), tmp_path
            )
            for _ in range(70)
        ]
    ) / sqrt(factor)
    low, high = variance_interval(len(noise))
    assert low < np.mean(noise**2) < high
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM


def test_private_local_reports_and_missing_ones_add_up_to_the_same_noise(tmp_path: Path) -> None:
    """Half of the rewards (all 0) arrive, in batches: still T_r sigma_0^2, not more, not less.

    100 runs of about 5 numbers: noise counted only once for a batch (variance 4/8 or 5/8 of the
    right one) is seen with probability > 0.9. False alarm 1e-5.
    """
    noise = []
    for _ in range(100):
        policy = small_policy(model="local", simulation_seed=None, rank_tolerance=1.0)
        decisions = policy.act_many(draw_contexts(0, 7))
        policy.update_many(list(decisions)[:3], np.zeros(3))
        policy.update(decisions[5], 0.0)
        noise.append(_unit_noise_of_open(policy, tmp_path))
    values = np.concatenate(noise) / sqrt(8)
    low, high = variance_interval(len(values))
    assert low < np.mean(values**2) < high


def _unit_noise_of_open(policy: capri.Capri, folder: Path) -> np.ndarray:
    """As :func:`_unit_noise` for an epoch with one decision left and rewards of 0."""
    assert policy.remaining == 1
    return _unit_noise(policy, folder)


def test_private_runs_do_not_repeat() -> None:
    """Two private policies with the same data: other draws, other noise."""
    estimates = []
    for _ in range(2):
        policy = small_policy(simulation_seed=None)
        policy.act_many(draw_contexts(0, 8))
        policy.close_epoch()
        estimates.append(policy.estimate(CONTEXTS))
    assert (estimates[0] != estimates[1]).all()


def test_simulations_repeat_under_their_seed_only(tmp_path: Path) -> None:
    first, again, other = (small_policy(simulation_seed=seed) for seed in (3, 3, 4))
    for policy in (first, again, other):
        play_epoch(policy)
    assert snapshot(first, tmp_path) == snapshot(again, tmp_path)
    assert (first.estimate(CONTEXTS) != other.estimate(CONTEXTS)).all()


def test_noise_does_not_depend_on_the_data() -> None:
    """Same seed, other rewards: releases differ by exactly the difference of the sums."""
    budget_runs, plain_runs = [], []
    for budget, runs in ((BUDGET, budget_runs), (None, plain_runs)):
        for level in (0.0, 0.75):
            policy = small_policy(budget=budget)
            policy.update_many(policy.act_many(draw_contexts(0, 8)), np.full(8, level))
            runs.append(policy.estimate(CONTEXTS))
    scale = np.abs(budget_runs[0]).max()
    np.testing.assert_allclose(
        budget_runs[1] - budget_runs[0], plain_runs[1] - plain_runs[0], atol=1e-6 * scale
    )


def test_policy_says_what_it_promises() -> None:
    assert small_policy(simulation_seed=None).guarantee == "(1, 1e-05)-joint privacy"
    assert small_policy(simulation_seed=None, model="local").guarantee == (
        "(1, 1e-05)-local privacy of reports"
    )
    assert "no privacy claim" in small_policy().guarantee
    for seed in (None, 3):
        assert "no privacy" in small_policy(budget=None, simulation_seed=seed).guarantee
    for policy in (small_policy(), small_policy(budget=None), small_policy(simulation_seed=None)):
        assert policy.guarantee in repr(policy)


def test_record_is_the_same_whether_rewards_arrived_or_not() -> None:
    """How many rewards came is secret: a public record holds no time that it took to fill in."""
    for rewards_arrive in (True, False):
        policy = small_policy(model="local", simulation_seed=None)
        decisions = policy.act_many(draw_contexts(0, 8))
        if rewards_arrive:
            policy.update_many(decisions, np.zeros(8))
        policy.close_epoch()
        assert policy.epochs[0].seconds is None


# -- elimination ----------------------------------------------------------------------------------


def _learner(contexts: np.ndarray, actions: np.ndarray, **options: Any) -> PaperLearner:
    problem = Problem(
        kernel=capri.kernels.Matern(nu=1.5, lengthscale=0.3),
        actions=FixedActions(actions),
        contexts=capri.ContextPool(contexts),
        scale=RewardScale.within(1.0),
        budget=BUDGET,
        model=PrivacyModel.JOINT,
    )
    return PaperLearner(problem, 1000, PaperOptions(**options))


def _with_releases(
    contexts: np.ndarray, actions: np.ndarray, widths: list[float], seed: int, **options: Any
) -> tuple[PaperLearner, list[np.ndarray]]:
    """A learner with hand-made releases, and the estimate of each on all pairs."""
    rng = np.random.default_rng(seed)
    learner = _learner(contexts, actions, **options)
    pairs = FixedActions(actions).pairs(contexts)
    arrays, estimates = {}, []
    for number in range(len(widths)):
        points = rng.random((6, pairs.shape[-1]))
        weights = rng.normal(size=6)
        arrays[f"releases.{number}.predictor.points"] = points
        arrays[f"releases.{number}.predictor.weights"] = weights
        kernel = capri.kernels.Matern(nu=1.5, lengthscale=0.3)
        flat = kernel(pairs.reshape(-1, pairs.shape[-1]), points) @ weights
        estimates.append(flat.reshape(pairs.shape[:2]))
    predictor = {"class": "Predictor", "points": {"class": "array"}, "weights": {"class": "array"}}
    release = {"class": "_Release", "predictor": predictor, "may_eliminate": True}
    releases = [release | {"width": width} for width in widths]
    values = {"releases": releases, "planned": [], "playing": len(releases)}
    learner.restore((values, arrays))
    return learner, estimates


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_active_sets_are_eqn_prunning_sets_release_after_release(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    contexts, actions = rng.random((12, 1)), rng.random((7, 1))
    widths = [0.3, 0.2, 0.1, 0.05]
    learner, estimates = _with_releases(contexts, actions, widths, seed)
    expected = paper_formulas.active_sets(estimates, widths)
    active = learner.active(contexts)
    assert [set(np.flatnonzero(row)) for row in active] == expected
    np.testing.assert_array_equal(
        learner.probabilities(contexts), active / active.sum(axis=1, keepdims=True)
    )
    np.testing.assert_allclose(learner.estimate(contexts), estimates[-1], rtol=1e-12)


def test_premise_releases_eliminate_and_their_order_matters() -> None:
    """In problems like those above something is eliminated; and as each maximum is over the
    actions that are left, cutting every release over all actions, then intersecting, gives other
    sets in some of these cases."""
    widths, differ = [0.3, 0.2, 0.1, 0.05], 0
    for seed in range(10):
        rng = np.random.default_rng(100 + seed)
        contexts, actions = rng.random((12, 1)), rng.random((7, 1))
        _, estimates = _with_releases(contexts, actions, widths, seed)
        alone = [
            paper_formulas.active_sets([estimate], [width])
            for estimate, width in zip(estimates, widths, strict=True)
        ]
        at_once = [set.intersection(*sets) for sets in zip(*alone, strict=True)]
        in_turn = paper_formulas.active_sets(estimates, widths)
        assert sum(map(len, in_turn)) < 0.8 * 12 * 7
        differ += at_once != in_turn
    assert differ > 0


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-3, 1e-2])
def test_learning_prunes_exactly_as_the_equation_says(scale: float) -> None:
    """Through ``learn`` itself, with plans whose sigma~_max is made small: the short cut for
    releases that cannot eliminate never changes an active set."""
    rng = np.random.default_rng(7)
    contexts, actions = rng.random((12, 1)), rng.random((7, 1))
    learner = _learner(contexts, actions)
    generator = np.random.default_rng(1)
    estimates, widths = [], []
    for epoch in range(1, 5):
        plan = dataclasses.replace(learner.plan(epoch, 20, generator), sigma_max=scale)
        released = rng.normal(size=plan.features.rank)
        lesson = learner.learn(Release.as_planned(plan, released), generator)
        expected_width = paper_formulas.delta_r(
            sigma_max=scale, B=1.0, T=1000, tau=1.0, pairs=84, failure=0.05, epsilon=1.0, delta=1e-5
        )
        assert lesson.width == pytest.approx(expected_width, rel=1e-12)
        estimates.append(learner.estimate(contexts))
        widths.append(lesson.width)
        expected = paper_formulas.active_sets(estimates, widths)
        given = learner.active(contexts)
        assert [set(np.flatnonzero(row)) for row in given] == expected
        assert lesson.active_share == given.mean()
    if scale <= 1e-4:
        assert lesson.active_share < 0.9


def test_copies_follow_the_law_of_the_epoch() -> None:
    """S and R: contexts by weight, actions uniform on the active set, independent of each other.

    Chi-square over some 30 cells with 12,000 draws each; a cell's probability off by a quarter
    is seen with probability > 0.99.
    """
    rng = np.random.default_rng(102)
    contexts, actions = rng.random((6, 1)), rng.random((7, 1))
    weights = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.25])
    learner, _ = _with_releases(contexts, actions, [0.3, 0.1], 4, features="dense")
    learner._problem = dataclasses.replace(
        learner._problem, contexts=capri.ContextPool(contexts, weights=weights)
    )
    active = learner.active(contexts)
    assert 7 < active.sum() < 42
    expected = (weights[:, None] * active / active.sum(axis=1, keepdims=True)).reshape(-1)
    pairs = [tuple(row) for row in FixedActions(actions).pairs(contexts).reshape(-1, 2)]
    cell = {pair: number for number, pair in enumerate(pairs)}
    generator = np.random.default_rng(0)
    drawn: dict[str, list[int]] = {"S": [], "R": []}
    for epoch in range(300):
        features = learner.plan(epoch, 40, generator).features
        drawn["S"] += [cell[tuple(row)] for row in features.basis_copy]  # type: ignore[attr-defined]
        drawn["R"] += [cell[tuple(row)] for row in features.covariance_copy]  # type: ignore[attr-defined]
    for cells in drawn.values():
        counts = np.bincount(cells, minlength=42)
        assert (counts[expected == 0] == 0).all()
        support = expected > 0
        p = stats.chisquare(counts[support], 12_000 * expected[support]).pvalue
        assert p > FALSE_ALARM
    # Independence of the contexts of the i-th draw of S and the i-th of R.
    table = np.zeros((6, 6))
    np.add.at(table, (np.array(drawn["S"]) // 7, np.array(drawn["R"]) // 7), 1)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_papers_constants_do_eliminate_when_the_horizon_is_long_enough() -> None:
    """One context, two actions, one kernel feature, four million rounds: ``4 Delta_r`` falls below
    the gap, the worse action goes, and the last epoch plays the better one only."""
    bound = 100.0
    policy = capri.Capri(
        kernel=capri.kernels.Linear(),
        actions=[[-1.0], [1.0]],
        contexts=capri.ContextPool([[0.0]]),
        budget=BUDGET,
        horizon=4_300_000,
        preset="paper",
        reward_bound=bound,
        simulation_seed=3,
        tau=1000.0,
        failure_probability=0.99,
    )
    while policy.remaining:
        decisions = policy.act_many(np.zeros((min(policy.remaining, 1 << 18), 1)))
        policy.update_many(decisions, bound * decisions.action[:, 0])
    policy.close_epoch()
    assert [record.active_share for record in policy.epochs] == [1.0] * 10 + [0.5, 0.5]
    assert [4 * record.width < 2 * bound for record in policy.epochs] == [False] * 10 + [
        True,
        False,
    ]
    assert (decisions.action_index == 1).all()
    assert (decisions.propensity == 1.0).all()
    assert policy.active([[0.0]]).tolist() == [[False, True]]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"actions": []}, ShapeError, "actions must be a matrix with at least one row"),
        ({"actions": np.zeros((0, 2))}, ShapeError, "at least one row"),
        ({"actions": np.zeros((2, 2, 2))}, ShapeError, r"got shape \(2, 2, 2\)"),
        ({"actions": [[np.nan]]}, ConfigurationError, "actions must be finite"),
        ({"actions": [[np.inf]]}, ConfigurationError, "actions must be finite"),
        ({"actions": [["red"]]}, ShapeError, "matrix of numbers"),
        ({"contexts": CONTEXTS}, ConfigurationError, r"wrap rows as capri.ContextPool\(rows\)"),
        ({"contexts": None}, ConfigurationError, "ContextPool or a ContextSampler, got NoneType"),
        ({"kernel": "rbf"}, ConfigurationError, "or a capri kernel, got str"),
        (
            {"kernel": capri.kernels.RBF(variance=1.5)},
            ConfigurationError,
            r"k\(w, w\) must be at most 1, got 1\.5",
        ),
        (
            {"kernel": capri.kernels.Linear()},
            ConfigurationError,
            r"k\(w, w\) must be at most 1, got 2\.0",
        ),
        ({"horizon": 1}, ConfigurationError, "horizon must be a whole number of 2 or more, got 1"),
        ({"horizon": 0}, ConfigurationError, "horizon must be a whole number of 2 or more, got 0"),
        (
            {"horizon": -3},
            ConfigurationError,
            "horizon must be a whole number of 2 or more, got -3",
        ),
        ({"horizon": 10.0}, ConfigurationError, r"whole number of 2 or more, got 10\.0"),
        ({"horizon": "10"}, ConfigurationError, "whole number of 2 or more, got '10'"),
        ({"horizon": True}, ConfigurationError, "whole number of 2 or more, got True"),
        ({"reward_bound": 0.0}, ConfigurationError, r"positive and finite, got 0\.0"),
        ({"reward_bound": -1.0}, ConfigurationError, r"positive and finite, got -1\.0"),
        ({"reward_bound": np.inf}, ConfigurationError, "positive and finite, got inf"),
        ({"reward_bound": np.nan}, ConfigurationError, "positive and finite, got nan"),
        ({"reward_bound": "1"}, ConfigurationError, "positive and finite"),
        ({"reward_bound": [1.0]}, ConfigurationError, "positive and finite"),
        ({"budget": 1.0}, ConfigurationError, "capri.Budget, or None for no privacy, got float"),
        ({"model": "central"}, ConfigurationError, "one of 'joint', 'local', got 'central'"),
        (
            {"model": "local", "preset": "practical"},
            ConfigurationError,
            r"needs preset='paper'.*build a capri\.LocalCapri",
        ),
        ({"preset": "best"}, ConfigurationError, "preset must be .*'paper', got 'best'"),
        ({"simulation_seed": -1}, ConfigurationError, "whole number of 0 or more, got -1"),
        ({"simulation_seed": 1.5}, ConfigurationError, r"whole number of 0 or more, got 1\.5"),
        ({"simulation_seed": True}, ConfigurationError, "whole number of 0 or more, got True"),
        ({"colour": 3}, ConfigurationError, "unknown option colour; preset 'paper' takes tau"),
        ({"tau": 0.0}, ConfigurationError, r"tau must be positive and finite, got 0\.0"),
        ({"tau": np.nan}, ConfigurationError, "tau must be positive and finite, got nan"),
        ({"failure_probability": 1.0}, ConfigurationError, r"between 0 and 1, got 1\.0"),
        ({"features": "sparse"}, ConfigurationError, "one of 'low-rank', 'dense', got 'sparse'"),
        ({"rank_tolerance": -1.0}, ConfigurationError, r"positive and finite, got -1\.0"),
        ({"max_rank": 0}, ConfigurationError, "whole number of 1 or more, got 0"),
    ],
)
def test_bad_configuration_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        small_policy(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"tau": "1"}, {"max_rank": 2.5}, {"failure_probability": "a"}, {"rank_tolerance": None}],
)
def test_options_of_the_wrong_type_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        small_policy(**changes)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0.0, 1e-5, r"epsilon must be positive and finite, got 0\.0"),
        (-1.0, 1e-5, r"epsilon must be positive and finite, got -1\.0"),
        (np.inf, 1e-5, "epsilon must be positive and finite, got inf"),
        (np.nan, 1e-5, "epsilon must be positive and finite, got nan"),
        ("1", 1e-5, "epsilon must be positive and finite, got '1'"),
        (True, 1e-5, "epsilon must be positive and finite, got True"),
        (1.0, 1.0, r"delta must be 0 or more and below 1, got 1\.0"),
        (1.0, -0.1, r"0 or more and below 1, got -0\.1"),
        (1.0, np.nan, "0 or more and below 1, got nan"),
        (1.0, None, "delta must be 0 or more and below 1, got None"),
    ],
)
def test_bad_budget_is_refused(epsilon: Any, delta: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        capri.Budget(epsilon=epsilon, delta=delta)


def test_budget_is_written_as_in_the_literature() -> None:
    assert capri.Budget(1.0, 1e-5) == capri.Budget(epsilon=1.0, delta=1e-5)
    assert capri.Budget(4) == capri.Budget(epsilon=4.0, delta=0.0)


@pytest.mark.parametrize(
    ("model", "preset"), [("joint", "paper"), ("local", "paper"), ("local", "practical")]
)
def test_gaussian_noise_cannot_keep_a_pure_budget(model: str, preset: str) -> None:
    """Refused before any data, with the delta to give."""
    with pytest.raises(ConfigurationError, match=r"needs delta above 0.*delta=1e-5"):
        small_policy(budget=capri.Budget(epsilon=1.0), model=model, preset=preset)


def test_kernel_above_one_is_refused_with_a_sampler_too() -> None:
    sampler = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
    with pytest.raises(ConfigurationError, match=r"k\(w, w\) must be at most 1, got 4\.0"):
        small_policy(kernel=capri.kernels.RBF(variance=4.0), contexts=sampler)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": capri.Budget(epsilon=1e-14, delta=1e-5)},
        {"budget": capri.Budget(epsilon=1.0, delta=0.9), "horizon": 2},
    ],
)
@pytest.mark.filterwarnings("ignore:delta = 0.9")
def test_budget_that_cannot_be_kept_is_refused_at_construction(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        small_policy(**changes)


def _in_second_epoch(dimension: int = 1) -> capri.Capri:
    contexts = np.random.default_rng(0).random((4, dimension))
    policy = small_policy(contexts=capri.ContextPool(contexts))
    policy.update_many(policy.act_many(contexts[[0, 1, 2, 3] * 2]), np.linspace(-1, 1, 8))
    policy.act(contexts[0])
    return policy


# Of another shape, which is public, and of other types, which are not.
BAD_SHAPES: list[Any] = [[0.7331771], [0.7331771, 0.1, 0.2], []]
BAD_CELLS: list[Any] = [
    "0.7331771",
    ["0.7331771", "0.1"],
    [0.7331771, 1j],
    None,
    {"a": 0.7331771},
]


@pytest.mark.parametrize("context", BAD_SHAPES + BAD_CELLS, ids=repr)
def test_bad_context_is_refused_unseen_and_changes_nothing(context: Any, tmp_path: Path) -> None:
    """By a call in which nothing else is: a question, or contexts of a wrong shape alone."""
    policy = _in_second_epoch(dimension=2)
    before = snapshot(policy, tmp_path)
    calls = [lambda: policy.estimate([context]), lambda: policy.active([context])]
    if context in BAD_SHAPES:
        calls += [lambda: policy.act(context), lambda: policy.act_many([context, context])]
    for call in calls:
        with pytest.raises(DataError) as caught:
            call()
        assert "7331771" not in "".join(map(str, _chain(caught.value)))
    assert snapshot(policy, tmp_path) == before


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error with everything a traceback would print above it."""
    shown = []
    while error is not None:
        shown.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown


@pytest.mark.parametrize("context", BAD_SHAPES + BAD_CELLS, ids=repr)
def test_bad_context_among_others_is_served_and_counts_for_nothing(context: Any) -> None:
    policy = _in_second_epoch(dimension=2)
    decisions = policy.act_many([context, [0.1, 0.2]])
    assert decisions.status.tolist() == [VisitStatus.INVALID, VisitStatus.SERVED]
    if context not in BAD_SHAPES:
        assert policy.act(context).status is VisitStatus.INVALID


@pytest.mark.parametrize(
    "reward", ["0.7331771", 0.7331771 + 1j, [0.7331771], {"a": 0.7331771}], ids=repr
)
def test_bad_reward_is_missing_unseen_and_changes_nothing(reward: Any, tmp_path: Path) -> None:
    policy = _in_second_epoch()
    first, second = policy.act_many([[0.1], [0.2]])
    before = snapshot(policy, tmp_path)
    with pytest.warns(RewardIgnoredWarning, match="invalid") as caught:
        assert policy.update(first, reward) is RewardStatus.INVALID
    assert not any("7331771" in str(each.message) for each in caught)
    assert snapshot(policy, tmp_path) == before
    with pytest.warns(RewardIgnoredWarning, match="invalid"):
        statuses = policy.update_many([first, second], [0.25, reward])
    assert statuses.tolist() == [RewardStatus.ACCEPTED, RewardStatus.INVALID]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rewards_must_match_decisions(count: int, tmp_path: Path) -> None:
    policy = _in_second_epoch()
    decisions = policy.act_many([[0.1], [0.2]])
    before = snapshot(policy, tmp_path)
    with pytest.raises(
        ShapeError, match=rf"one reward per decision is needed: 2, got \({count},\)"
    ):
        policy.update_many(decisions, np.zeros(count))
    assert snapshot(policy, tmp_path) == before


@pytest.mark.parametrize("decision", [1.5, None, b"a", 8, 2**70])
def test_something_that_is_no_decision_is_refused(decision: Any) -> None:
    policy = _in_second_epoch()
    with pytest.raises((capri.CapriError, TypeError)):
        policy.update(decision, 0.5)


@pytest.mark.parametrize("text", ["", "8", "A" * 20, "=" * 20, "\u00e9" * 20, "A" * 10**5])
def test_text_that_is_no_id_is_unknown(text: str, tmp_path: Path) -> None:
    policy = _in_second_epoch()
    before = snapshot(policy, tmp_path)
    with pytest.warns(RewardIgnoredWarning, match="unknown"):
        assert policy.update(text, 0.5) is RewardStatus.UNKNOWN
    assert snapshot(policy, tmp_path) == before


def test_reward_may_come_with_the_id_alone() -> None:
    policy = small_policy()
    first, second = policy.act_many([[0.1], [0.2]])
    assert policy.update(first.id, 0.5) is RewardStatus.ACCEPTED
    assert policy.update_many([second.id], [0.5]).tolist() == [RewardStatus.ACCEPTED]


@pytest.mark.parametrize("context", [7.331771, 1e99, 1e200, np.nan])
def test_context_where_the_kernel_exceeds_one_is_served(context: float) -> None:
    """``k(w, w)`` there is private: it moves nobody, and the contribution stays bounded."""
    policy = small_policy(kernel=capri.kernels.Linear(variance=0.5))
    left = policy.remaining
    decision = policy.act([context])
    assert policy.remaining == left - 1
    counts = abs(context) <= 1e100
    assert (decision.status is capri.VisitStatus.SERVED) == counts
    with contextlib.nullcontext() if counts else pytest.warns(RewardIgnoredWarning):
        policy.update(decision, 1.0)
    squared = sum(int(unit) ** 2 for unit in open_epoch(policy).total)
    assert squared <= policy.plan().layout.norm_limit ** 2


def test_huge_context_does_not_stop_the_policy_or_cost_others_their_rewards() -> None:
    policy = small_policy(budget=None)
    decisions = policy.act_many(np.vstack([draw_contexts(0, 7), [[1e308]]]))
    with pytest.warns(RewardIgnoredWarning, match="uncounted"):
        codes = policy.update_many(decisions, np.ones(8))
    assert codes.tolist() == [RewardStatus.ACCEPTED] * 7 + [RewardStatus.UNCOUNTED]
    assert policy.act([0.3]).epoch == 2
    assert np.abs(policy.estimate(CONTEXTS)).max() > 0


def test_estimate_is_zero_before_the_first_release_and_has_a_column_per_action() -> None:
    policy = small_policy()
    assert policy.estimate(CONTEXTS[:2]).tolist() == [[0.0] * 3] * 2
    assert policy.active(CONTEXTS[:2]).tolist() == [[True] * 3] * 2
    play_epoch(policy)
    assert policy.estimate(CONTEXTS).shape == (4, 3)


def test_estimate_changes_nothing(tmp_path: Path) -> None:
    policy = _in_second_epoch()
    before = snapshot(policy, tmp_path)
    policy.estimate([[0.1], [5.0]])
    policy.active([[0.1]])
    repr(policy), policy.epochs, policy.remaining
    assert snapshot(policy, tmp_path) == before


def test_sampler_policy_plays_and_learns() -> None:
    """Contexts that cannot be counted: the union bound is over the pairs of T rounds."""
    sampler = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
    policy = small_policy(contexts=sampler, budget=None, horizon=3000)
    rng = np.random.default_rng(0)
    for _ in range(5):
        contexts = rng.random((policy.remaining, 1))
        decisions = policy.act_many(contexts)
        policy.update_many(decisions, decisions.action[:, 0])
    # f(c, x) = x: the estimate must rank the actions in every context.
    assert (np.diff(policy.estimate([[0.2], [0.5], [0.8]]), axis=1) > 0).all()
    record = policy.epochs[-1]
    width = paper_formulas.delta_r(
        sigma_max=record.sigma_max,
        B=1.0,
        T=3000,
        tau=1.0,
        pairs=3000 * 3,
        failure=0.05,
        epsilon=None,
        delta=None,
    )
    assert record.width == pytest.approx(width, rel=1e-12)


def test_decision_of_the_public_type_is_what_act_gives() -> None:
    assert type(small_policy().act([0.3])) is Decision
    assert type(small_policy().act_many([[0.3]])) is capri.Decisions
