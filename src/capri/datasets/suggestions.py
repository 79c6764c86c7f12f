"""A kernel to start with, from what is public."""

import numpy as np

from capri.arrays import FloatArray
from capri.datasets.bandit import DataBandit
from capri.kernels import RBF, ContextAction, Kernel, Linear, Matern

# Rows that the median distance is taken over: enough for a length scale.
_SAMPLE = 500


def suggested_kernel(bandit: DataBandit) -> Kernel:
    """A context kernel times an action kernel; looks at the public pool and the actions only.

    ``k((c, x), (c', x')) = k_C(c, c') k_X(x, x')`` with ``k_C = a RBF + b <c, c'> + const`` on the
    unit ball, the length scale being the median distance of public contexts, and ``k_X`` by kind of
    action: equality for one-hot classes, Matern 5/2 for doses, RBF at the median distance for
    embedded classes. ``k(w, w) <= 1`` for every user because contexts stay in the unit ball.
    """
    return ContextAction(
        context=_context_kernel(bandit),
        action=_action_kernel(bandit),
        context_dimension=bandit.pool.dimension,
    )


def _context_kernel(bandit: DataBandit) -> Kernel:
    scale = median_distance(bandit.pool.rows)
    return RBF(lengthscale=scale, variance=0.4) + Linear(variance=0.5, bias=0.1)


def _action_kernel(bandit: DataBandit) -> Kernel:
    if bandit.features == "dose":
        return Matern(nu=2.5, lengthscale=0.5)
    if bandit.features == "embedding":
        return RBF(lengthscale=median_distance(bandit.actions))
    return Linear()  # on one-hot rows: 1 for the same action, 0 for another


def median_distance(rows: FloatArray) -> float:
    """Median Euclidean distance of different rows; 1 where there are none.

    >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
    2.0
    """
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    squares = ((sample[:, None, :] - sample[None, :, :]) ** 2).sum(axis=2)
    distances = np.sqrt(squares[np.triu_indices(len(sample), 1)])
    distances = distances[distances > 0]
    return float(np.median(distances)) if len(distances) else 1.0
