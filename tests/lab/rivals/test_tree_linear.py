"""Linear rivals with a tree or local reports: without noise they are LinUCB, to the action."""

import numpy as np
import pytest

from capri import ConfigurationError
from capri.kernels import Matern
from capri_lab.rivals.base import Rival
from capri_lab.rivals.linear.dubey import DubeyJoint, DubeyLocal, quadrature_table
from capri_lab.rivals.linear.moments import ShariffSheffet, block_lengths, bonus_width
from private_rivals import FEATURES, HORIZON, KERNEL, PAIRS, build, history, linucb, played, replay


@pytest.mark.parametrize("kind", [ShariffSheffet, DubeyJoint, DubeyLocal])
@pytest.mark.parametrize("bonus", ["practical", "theory", 0.2])
def test_without_noise_it_is_linucb(kind: type[Rival], bonus: str | float) -> None:
    features = FEATURES
    changes = {"bonus": bonus, "blocks": 60, "ridge": 0.3}
    if kind is not ShariffSheffet:
        changes["nodes"] = 3
        features = quadrature_table(KERNEL, PAIRS, HORIZON, 3)
    width = bonus_width(
        bonus, ridge=0.3, dimension=features.shape[1], horizon=HORIZON, vector_size=0.0
    )
    run = history(build(kind, **changes))
    replay(block_lengths(HORIZON, 60), *run, linucb(features, 0.3, width))
    assert len(np.unique(run[1])) > 2, "premise: it explores"


@pytest.mark.parametrize("kind", [ShariffSheffet, DubeyJoint, DubeyLocal])
def test_tiny_noise_changes_nothing_and_large_noise_does(kind: type[Rival]) -> None:
    """Epsilon to infinity: the actions of epsilon = 1e9 are those of no budget."""
    options = {"nodes": 3} if kind is not ShariffSheffet else {}
    plain = played(build(kind, **options))
    np.testing.assert_array_equal(played(build(kind, 1e9, **options)), plain)
    assert (played(build(kind, 1.0, **options)) != plain).any()


def test_wishart_noise_plays_too() -> None:
    plain = played(build(ShariffSheffet))
    noisy = played(build(ShariffSheffet, 1.0, mechanism="wishart"))
    assert (noisy != plain).any()
    np.testing.assert_array_equal(
        noisy, played(build(ShariffSheffet, 1.0, mechanism="wishart")), "the seed fixes the run"
    )


def test_published_width() -> None:
    """``sqrt(2 ln(2/a) + d ln(3 + T/(d rho))) + sqrt(3 rho) + gamma``, ``rho = ridge / 2``."""
    width = bonus_width("theory", ridge=8.0, dimension=5, horizon=1000, vector_size=6.0)
    inner = 2 * np.log(40) + 5 * np.log(3 + 1000 / 20)
    assert width == pytest.approx(np.sqrt(inner) + np.sqrt(12) + 6 / 2)


def test_every_round_may_have_a_leaf() -> None:
    policy = build(ShariffSheffet, 1.0, blocks=HORIZON)
    assert policy.remaining == 1
    assert len(played(policy)) == HORIZON


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="norm at most 1, got 2"):
        build(ShariffSheffet, features=2 * FEATURES / np.linalg.norm(FEATURES, axis=1).max())
    with pytest.raises(ConfigurationError, match="one row per pair"):
        build(ShariffSheffet, features=FEATURES[:5])
    with pytest.raises(ConfigurationError, match="'practical', 'theory' or a number"):
        build(ShariffSheffet, bonus="large")
    with pytest.raises(ConfigurationError, match="needs the RBF kernel, got Matern"):
        build(DubeyJoint, kernel=Matern(nu=1.5))
