"""What a law is worth beside others: against sums over pairs, coefficient by coefficient."""

import numpy as np
import pytest

import capri
from capri.arrays import FloatArray
from capri.learners.arm_prior import ArmPosterior
from capri.learners.learner import PracticalLearner
from capri.learners.segments import predicted

ROWS = np.random.default_rng(3).random((30, 2))


def played(actions: object, reward_range: tuple[float, float] = (-1.0, 1.0)) -> capri.Capri:
    """After a few epochs in which the first action is the better one for a half of the contexts."""
    policy = capri.Capri(
        actions=actions,
        contexts=capri.ContextPool(ROWS),
        budget=capri.Budget(epsilon=2.0),
        reward_range=reward_range,
        limits=capri.Limits(floor={"b": 0.05}) if isinstance(actions, list) else None,
        simulation_seed=4,
    )
    low, high = reward_range
    generator = np.random.default_rng(5)
    for _ in range(3):
        which = generator.integers(len(ROWS), size=policy.remaining)
        made = policy.act_many(ROWS[which])
        good = (made.action_index == 0) == (ROWS[which, 0] > 0.5)
        policy.update_many(made, low + (high - low) * (0.3 + 0.4 * good))
        policy.close_epoch()
    return policy


def by_coefficient(policy: capri.Capri, weights: FloatArray) -> float:
    """Deviation of the sum, from the sum of every coefficient alone."""
    learner = policy._engine.learning.learner
    assert isinstance(learner, PracticalLearner)
    known = learner.known
    sums = np.array(
        [
            (weights * predicted(known.basis.function(unit), policy.actions, ROWS)).sum()
            for unit in np.eye(known.basis.rank)
        ]
    )
    state = known.posterior
    if isinstance(state, ArmPosterior):
        width = state.mean.shape[1]
        carried = state.carried.reshape(sums.size, -1)
        covariance = carried @ carried.T
        for arm, own in enumerate(state.own):
            here = slice(arm * width, (arm + 1) * width)
            covariance[here, here] += own
    else:
        covariance = state.factor @ state.factor.T
    return float(np.sqrt(sums @ covariance @ sums))


@pytest.mark.parametrize(
    ("actions", "ends"),
    [(["a", "b", "c"], (-1.0, 1.0)), (["a", "b", "c"], (0.0, 10.0)), (ROWS[:4, :1], (-1.0, 1.0))],
)
def test_lifts_are_sums_over_pairs(actions: object, ends: tuple[float, float]) -> None:
    policy = played(actions, ends)
    control = "b" if isinstance(actions, list) else None
    law, estimate = policy.probabilities(ROWS), policy.estimate(ROWS)
    names = list(policy.actions.names or map(str, range(policy.actions.count)))
    now = float((law * estimate).sum() / len(ROWS))
    found = policy.lifts(control)
    best = f"always {names[int(estimate.mean(axis=0).argmax())]}"
    assert [each.against for each in found[:2]] == ["uniform play", best]
    for each in found:
        other = np.full(law.shape, 1 / law.shape[1])
        if each.against != "uniform play":
            other = np.eye(law.shape[1])[names.index(each.against.removeprefix("always "))]
            other = np.tile(other, (len(ROWS), 1))
        assert each.worth == pytest.approx(float((other * estimate).sum() / len(ROWS)), abs=1e-9)
        assert each.lift == pytest.approx(now - each.worth, abs=1e-9)
        error = by_coefficient(policy, (law - other) / len(ROWS))
        assert each.standard_error == pytest.approx(error, rel=1e-6, abs=1e-12)
        assert each.low <= each.lift <= each.high
    if control is not None:
        assert f"always {control}" in [each.against for each in found]


def test_what_has_no_belief_or_no_such_action_is_refused() -> None:
    policy = played(["a", "b", "c"])
    with pytest.raises(capri.ConfigurationError, match="name of an action, got 'd'"):
        policy.lifts("d")
    paper = capri.Capri(
        actions=ROWS[:4, :1],
        contexts=capri.ContextPool(ROWS),
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        kernel=capri.kernels.RBF(0.3),
        horizon=1000,
        preset="paper",
        simulation_seed=1,
    )
    with pytest.raises(capri.ConfigurationError, match="keeps no belief"):
        paper.lifts()
