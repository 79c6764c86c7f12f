"""Thompson draws of what an epoch can resolve, for one block of coefficients."""

import numpy as np
import pytest

from capri.learners.active import Rehearsal
from capri.learners.draws import Outlook, resolvable


def outlook(length: float) -> Outlook:
    return Outlook(length=length, noise=2.8, variance=0.1)


def resolved_part(length: float) -> tuple[np.ndarray, np.ndarray]:
    """What an epoch of this length resolves of a belief, in all its directions, and the belief."""
    generator = np.random.default_rng(0)
    factor = generator.standard_normal((6, 6)) * 0.1 * 0.5 ** np.arange(6)
    rows = generator.standard_normal((200, 6))
    root = resolvable(factor, rows @ factor, np.full(200, 1 / 200), outlook(length))
    return root @ root.T, factor @ factor.T


@pytest.mark.parametrize("length", [10.0, 300.0, 1e4])
def test_no_direction_is_drawn_wider_than_it_is_unknown(length: float) -> None:
    part, whole = resolved_part(length)
    assert np.linalg.eigvalsh(whole - part).min() > -1e-12 * np.trace(whole)


def test_long_epochs_resolve_all_and_short_ones_nothing() -> None:
    shares = []
    for length in (1.0, 30.0, 300.0, 3e3, 1e7):
        part, whole = resolved_part(length)
        shares.append(float(np.trace(part) / np.trace(whole)))
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert shares[-1] > 0.999


def test_what_all_actions_have_in_common_is_not_tried() -> None:
    # Two contexts and two actions: the first coefficient is the context's, the second the action's.
    features = np.array([[[1.0, 1.0], [1.0, -1.0]], [[-1.0, 1.0], [-1.0, -1.0]]])
    rehearsal = Rehearsal(features, np.zeros((2, 2, 1)), np.zeros((2, 1)))
    apart, weights = rehearsal.apart(np.array([[3.0, 3.0], [1.0, -1.0]]))
    assert np.allclose(weights, 0.25)
    assert np.allclose(apart, [[0, 1], [0, -1], [0, 1], [0, -1]])
    root = resolvable(np.eye(2), apart, weights, outlook(1e6))
    assert np.allclose(root @ root.T, np.diag([0.0, 1.0]), atol=1e-3)
    alone, _ = rehearsal.apart(np.array([[3.0], [1.0]]))
    assert np.allclose(alone, 0.0)  # one action a context: nothing to tell apart
