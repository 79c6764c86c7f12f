"""GP-UCB on quadrature features with private moments: Dubey (2021), joint and local."""

from abc import ABC
from math import log
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import whole
from capri.errors import ConfigurationError
from capri.kernels import RBF, Kernel
from capri.privacy.budget import Promise
from capri_lab.rivals.base import Whole, Width
from capri_lab.rivals.features import bounded
from capri_lab.rivals.linear.moments import NoisyMoments, SummedMoments, TreeMoments, block_lengths
from capri_lab.rivals.linear.quadrature import QuadratureFeatures

# The published number of nodes grows as log T; more features than this drown in noise.
_MOST_FEATURES = 400


def quadrature_table(
    kernel: Kernel, pairs: FloatArray, horizon: int, nodes: int | None
) -> FloatArray:
    """Quadrature features of all pairs, in the coordinates that matter.

    ``nodes=None`` takes ``ceil(ln(T) / ln ln(T))`` or as many as the shortest lengthscale needs
    (more than ``(range / l)^2``, where the published rate sets in), cut so that there are at most
    400 features.
    """
    if not isinstance(kernel, RBF):
        raise ConfigurationError(
            f"Dubey's algorithm needs the RBF kernel, got {type(kernel).__name__}"
        )
    dimension = pairs.shape[1]
    if nodes is None:
        longest = max(2, int(_MOST_FEATURES ** (1 / dimension)))
        reach = np.ptp(pairs, axis=0) / np.asarray(kernel.lengthscale)
        wanted = max(log(horizon) / log(max(log(horizon), 2.0)), float((reach**2).max()) + 1)
        nodes = min(longest, int(np.ceil(wanted)))
    centred = pairs - (pairs.min(axis=0) + pairs.max(axis=0)) / 2
    features = QuadratureFeatures(kernel=kernel, dimension=dimension, nodes=whole("nodes", nodes))
    return bounded(features(centred))


def leading(rows: FloatArray, count: int | None) -> FloatArray:
    """The first principal coordinates of the rows over all pairs (public); all of them for None."""
    if count is None:
        return rows
    _, vectors = np.linalg.eigh(rows.T @ rows)
    return bounded(rows @ vectors[:, ::-1][:, : whole("principal", count)])


class QuadratureUCB(NoisyMoments, ABC):
    """GP-UCB on quadrature Fourier features, all of them or the leading ones."""

    needs = "kernel"

    kernel: Kernel
    nodes: int | None = None
    principal: int | None = None
    blocks: Whole = 64
    bonus: Width = "practical"

    @final
    def _rows(self) -> object:
        rows = quadrature_table(self.kernel, self._pairs, self.horizon, self.nodes)
        return leading(rows, self.principal)

    @final
    def _lengths(self) -> IntArray:
        return block_lengths(self.horizon, self.blocks)


@final
class DubeyJoint(QuadratureUCB, TreeMoments):
    """GP-UCB on quadrature Fourier features; moments released by a tree.

    Reference: A. Dubey, "No-Regret Algorithms for Private Gaussian Process Bandit Optimization",
    AISTATS 2021, arXiv 2102.12467: the joint ("central") algorithm: features of Mutny & Krause,
    noisy ``sum phi phi^T`` and ``sum phi y`` by the tree mechanism, UCB on the result.

    What differs. Blocks, exact replace-one calibration (``sqrt(4.5)`` for both sums at once) and
    bonus as in :class:`~capri_lab.rivals.linear.moments.ShariffSheffet`, which this is on other
    features; ``blocks=horizon`` is the published tree. Opposite frequencies share their features,
    half the published number.

    Limits: RBF only; ``nodes^d`` features, each of which carries noise, so four or more dimensions
    are out of reach at any useful accuracy. By default the ten ``principal`` ones over all pairs
    are used, a public rotation and truncation that is not in the paper. On random functions it has
    less regret at epsilon 1; in the published set-up the two cannot be told apart. None keeps all.
    """

    name = "dubey-joint"
    promise = Promise(model="joint", kind="approximate")
    reference = "Dubey 2021"
    reach = 100_000

    principal: int | None = 10


@final
class DubeyLocal(QuadratureUCB, SummedMoments):
    """GP-UCB on quadrature Fourier features; every user sends noisy moments.

    Reference: as :class:`DubeyJoint`, the local algorithm: a user sends ``phi phi^T`` and
    ``phi y``, each with Gaussian noise; the server sums.

    What differs. The published noise on the covariance assumes sensitivity 1; replacing a user
    moves ``phi phi^T`` by up to ``sqrt(2)``, so the published noise is too small by that factor.
    Here both are released as one Gaussian vector of sensitivity ``sqrt(4.5)``, calibrated
    exactly. A block of ``n`` reports is simulated by one draw of the summed noise, the same law.

    Limits: noise grows as ``sqrt(T)`` on ``d^2 / 2`` numbers. Reports are one per round.
    """

    name = "dubey-local"
    promise = Promise(model="local", kind="approximate")
    reference = "Dubey 2021"
    reach = 1_000_000
