"""Worlds for policies that are told nothing: arms without anything in common, many dimensions."""

import numpy as np
import pytest

from capri.errors import ConfigurationError
from capri_lab.environments import kernel_of_dimension, many_dimensions, unrelated_arms


def test_arms_are_drawn_by_the_seed_and_fit_the_bound() -> None:
    one, again, other = (unrelated_arms(40, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.means, again.means)
    assert (one.means != other.means).all()
    np.testing.assert_array_equal(one.actions, np.eye(40))
    assert np.abs(one.means).max() == pytest.approx(0.9)


def test_variance_is_shared_between_arm_and_context() -> None:
    """Averages over 4,000 arms: shares are known to 0.02 or so, correlations to 0.016."""
    none, half, whole = (
        unrelated_arms(4000, contexts=12, context_dimension=3, interaction=share, seed=3).means
        for share in (0.0, 0.5, 1.0)
    )
    assert np.ptp(none, axis=0).max() < 1e-12

    def similarity(means: np.ndarray) -> float:
        """Of what an arm earns in two contexts, the mean over pairs of contexts."""
        table = np.corrcoef(means)
        return float(table[np.triu_indices(12, 1)].mean())

    # E[f(c) f(c')] = (1 - s) + s k(c, c'): the mean of the kernel is what s = 1 shows.
    assert similarity(half) == pytest.approx(0.5 + 0.5 * similarity(whole), abs=0.05)


def test_arms_have_nothing_in_common() -> None:
    """Neighbouring arms over 2,000 pairs: five standard errors of a correlation of 0."""
    means = unrelated_arms(2001, contexts=1, seed=4).means[0]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 5 / np.sqrt(2000)


def test_a_lengthscale_grows_with_the_dimension() -> None:
    world = many_dimensions(21, seed=5)
    assert (world.contexts.shape, world.actions.shape) == ((50, 10), (50, 11))
    assert kernel_of_dimension(2).lengthscale == pytest.approx(0.3)
    assert world.origin["kernel"] == kernel_of_dimension(21).to_dict()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="noise must be less than reward_bound"):
        unrelated_arms(5, noise=1.0)
    with pytest.raises(ConfigurationError, match="interaction"):
        unrelated_arms(5, interaction=1.5)
    with pytest.raises(ConfigurationError, match="arms must be a whole number"):
        unrelated_arms(1)
