"""What one user gets does not depend on who shares the batch, to the last bit."""

import numpy as np
import pytest

import capri

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.3)
POOL = np.linspace(0, 1, 6)[:, None]
# Every action twice: equal values are ties, which a rounding error in the last bit would break.
ACTIONS = np.repeat([[0.1], [0.5], [0.9]], 2, axis=0)


def aged(**options: object) -> capri.Capri:
    """A simulation after two epochs, with the law under test."""
    policy = capri.Capri(
        kernel=KERNEL,
        actions=ACTIONS,
        contexts=capri.ContextPool(POOL),
        budget=capri.Budget(epsilon=4.0, delta=1e-5),
        first_epoch=60,
        simulation_seed=5,
        **options,
    )
    draws = np.random.default_rng(1)
    while len(policy.epochs) < 2:
        contexts = draws.random((policy.remaining, 1))
        decisions = policy.act_many(contexts)
        policy.update_many(decisions, np.sin(3 * contexts[:, 0]) * decisions.action[:, 0])
    return policy


@pytest.mark.parametrize(
    "options",
    [{"draws": 1}, {"draws": 33}, {"draws": 64}, {"limits": capri.Limits(floor={0: 0.1, 3: 0.2})}],
    ids=["1 draw", "33 draws", "64 draws", "floors"],
)
def test_law_of_a_context_is_the_same_in_any_batch(options: dict[str, object]) -> None:
    """Contexts in and out of the pool, alone, in pairs, and all together."""
    policy = aged(**options)
    contexts = np.concatenate([POOL, np.random.default_rng(2).random((50, 1))])
    together = policy.probabilities(contexts)
    active = policy.active(contexts)
    for size in (1, 2, 7):
        for start in range(0, len(contexts) - size, size):
            part = slice(start, start + size)
            assert policy.probabilities(contexts[part]).tobytes() == together[part].tobytes()
            assert policy.active(contexts[part]).tobytes() == active[part].tobytes()


@pytest.mark.parametrize("other", [0.4, 0.123456789, 0.77], ids=["in pool", "outside", "other"])
def test_swapping_one_user_leaves_all_other_actions_alone(other: float) -> None:
    """One batch, one context changed, the same action randomness."""
    contexts = np.random.default_rng(3).random((40, 1))
    changed = contexts.copy()
    changed[0] = other
    first = aged().act_many(contexts)
    second = aged().act_many(changed)
    assert first.action_index[1:].tolist() == second.action_index[1:].tolist()
    assert first.propensity[1:].tobytes() == second.propensity[1:].tobytes()
