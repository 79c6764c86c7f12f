"""The binary-tree mechanism: exact without noise, noise as predicted, small memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from capri import ConfigurationError
from capri_lab.rivals.linear.tree import TreeSums, tree_levels


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_prefixes_are_prefix_sums_without_noise(steps: int, seed: int) -> None:
    """Integers: sums in any order are exact."""
    values = np.random.default_rng(seed).integers(-9, 10, size=(steps, 2, 2)).astype(float)
    tree = TreeSums(steps, shape=(2, 2), noise=None)
    got = np.array([tree.add(value) for value in values])
    np.testing.assert_array_equal(got, np.cumsum(values, axis=0))


def test_noise_of_a_prefix_is_that_of_the_nodes_in_it() -> None:
    """20,000 independent streams as coordinates of one vector. The sum of squares over the
    predicted variance ``nodes_in_prefix`` is chi-squared; two-sided at 1e-7, 21 prefixes."""
    streams, steps = 20_000, 21
    rng = np.random.default_rng(3)
    tree = TreeSums(steps, shape=(streams,), noise=lambda: rng.standard_normal(streams))
    law = chi2(streams)
    for step in range(1, steps + 1):
        prefix = tree.add(np.zeros(streams))
        assert tree.nodes_in_prefix == bin(step).count("1") <= tree_levels(steps)
        square = float(prefix @ prefix) / tree.nodes_in_prefix
        assert law.ppf(1e-7) < square < law.isf(1e-7), step


def test_nodes_are_drawn_once_and_shared_between_prefixes() -> None:
    """One draw per node: unit draws number the nodes, and a prefix is the sum of its own."""
    drawn = iter(2.0 ** np.arange(40))
    tree = TreeSums(15, shape=(), noise=lambda: np.array(next(drawn)))
    seen = {step: float(tree.add(np.array(0.0))) for step in range(1, 16)}
    # Step t draws 2^(t-1); prefix t is the sum over the nodes that close at its binary ends.
    for step, value in seen.items():
        ends, rest = [], step
        while rest:
            ends.append(rest)
            rest &= rest - 1
        assert value == sum(2.0 ** (end - 1) for end in ends)
    assert float(tree.prefix()) == seen[15], "asking again draws nothing"


def test_each_value_is_in_at_most_one_node_per_level() -> None:
    """The sensitivity claim: mark one value and count the closed nodes that hold it."""
    for steps in (1, 7, 8, 64, 100):
        for marked in range(1, steps + 1):
            held = 0
            for step in range(marked, steps + 1):
                length = step & -step  # the node closed at this step
                held += step - length < marked <= step
            assert 1 <= held <= tree_levels(steps)


def test_memory_is_logarithmic() -> None:
    tree = TreeSums(1000, shape=(3,), noise=lambda: np.ones(3))
    for _ in range(1000):
        tree.add(np.ones(3))
        arrays = [each for each in tree._sums + tree._drawn if each is not None]
        assert len(arrays) <= 2 * tree_levels(1000)


def test_bad_use_is_refused() -> None:
    tree = TreeSums(1, shape=(2,), noise=None)
    with pytest.raises(ConfigurationError, match=r"shape \(2,\) is needed, got \(3,\)"):
        tree.add(np.zeros(3))
    tree.add(np.zeros(2))
    with pytest.raises(ConfigurationError, match="built for 1 steps"):
        tree.add(np.zeros(2))
    with pytest.raises(ConfigurationError, match="at least 1 step"):
        TreeSums(0, shape=(), noise=None)
