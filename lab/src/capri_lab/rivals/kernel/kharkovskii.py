"""Outsourced optimisation of randomly projected inputs: Kharkovskii et al. (2020)."""

from math import log, sqrt
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import whole
from capri.errors import ConfigurationError
from capri.kernels import RBF, Kernel, Matern
from capri.privacy.budget import Budget, Promise
from capri_lab.rivals.base import Positive
from capri_lab.rivals.kernel.optimism import KernelRival, PosteriorPlay
from capri_lab.rivals.kernel.posterior import Posterior, kernel_posterior


def singular_floor(budget: Budget, columns: int) -> float:
    """``omega = 16 sqrt(r ln(2/delta)) ln(16 r/delta) / eps`` for ``r`` projected columns.

    The smallest singular value that the published transform asks for (after Blocki et al. 2012).
    """
    spread = sqrt(columns * log(2 / budget.delta))
    return 16 * spread * log(16 * columns / budget.delta) / budget.epsilon


def transformed(
    inputs: FloatArray, columns: int, floor: float, generator: np.random.Generator
) -> FloatArray:
    """``X M / sqrt(r)`` with Gaussian ``M``.

    Singular values are first raised to ``sqrt(s^2 + omega^2)`` if the smallest is below ``omega``.
    """
    left, values, right = np.linalg.svd(inputs, full_matrices=False)
    if values.min() < floor:
        values = np.sqrt(values**2 + floor**2)
    projection = generator.standard_normal((inputs.shape[1], columns))
    return np.asarray((left * values) @ right @ projection / sqrt(columns))


@final
class Kharkovskii(KernelRival, PosteriorPlay):
    """GP-UCB of a modeler who sees randomly projected inputs only.

    Reference: D. Kharkovskii, Z. Dai, B. K. H. Low, "Private Outsourced Bayesian Optimization",
    ICML 2020, arXiv 2010.12799, PO-GP-UCB: the curator's transform (raise singular values, project,
    scale) and the modeler's GP-UCB on what it gives.

    The promise is unlike the others': protected is one *input row* (here: a pair, centred, scaled
    to norm at most 1/2), rewards are seen by the modeler in the clear. **It does not hold for more
    rows than columns**, as far as we know the algorithm: multiplying from the right keeps every
    linear relation between rows, so with ``n > d`` the release gives away, exactly, how any row is
    combined from ``d`` others; whoever knows these rows knows the last one. The proof of Blocki et
    al. projects the other side. The test suite carries the attack out; no noise repairs it, so no
    calibration is recomputed and this rival's privacy must not be relied on.

    The lengthscale is multiplied by ``sqrt(1 + 12 omega^2 / n)``, the growth of distances for rows
    uniform in the unit cube, a public guess of what the raised singular values do to them.

    Limits: the above; isotropic RBF and Matern kernels only; all inputs must be known in advance.
    ``budget=None`` is GP-UCB on a random projection that raises nothing; with ``columns=None`` as
    well it is GP-UCB.
    """

    name = "kharkovskii"
    promise = Promise(
        model="central",
        kind="approximate",
        protects="inputs, not rewards (the claim fails for more rows than columns)",
        unit="one input row",
    )
    reference = "Kharkovskii et al. 2020"

    columns: int | None = 20  # of the projection; None, without a budget only, projects nothing
    beta: Positive = 1.0
    noise: Positive = 0.06

    def _prior(self) -> Posterior:
        kernel = self.kernel
        if not isinstance(kernel, RBF | Matern) or isinstance(kernel.lengthscale, tuple):
            raise ConfigurationError(
                "projected inputs need an RBF or Matern kernel with one lengthscale, "
                f"got {kernel!r}"
            )
        self._multiple = self.beta
        inputs: FloatArray
        told: Kernel
        if self.columns is None:
            if self.budget is not None:
                raise ConfigurationError("a budget needs a projection: give columns, got None")
            inputs, told = self._pairs, kernel
        else:
            inputs, told = self._outsourced(kernel, whole("columns", self.columns))
        return kernel_posterior(told, inputs, self._actions.count, self.noise**2)

    def _outsourced(self, kernel: RBF | Matern, columns: int) -> tuple[FloatArray, Kernel]:
        """What the curator hands over, and the kernel the modeler uses for it."""
        pairs = self._pairs
        low, high = pairs.min(axis=0), pairs.max(axis=0)
        # Centred, and one public scale so that every row has norm at most 1/2.
        scale = 1 / float(np.linalg.norm(np.maximum(high - low, 1e-300)))
        inputs = scale * (pairs - (low + high) / 2)
        floor = 0.0 if self.budget is None else singular_floor(self.budget, columns)
        projected = transformed(inputs, columns, floor, self._noise)
        side = scale * float(np.mean(high - low))
        typical = sqrt(len(pairs) / 12) * side
        grown = sqrt(1 + (floor / typical) ** 2) if floor > 0 else 1.0
        longer = float(np.asarray(kernel.lengthscale)) * scale * grown
        if isinstance(kernel, RBF):
            return projected, RBF(lengthscale=longer, variance=kernel.variance)
        return projected, Matern(nu=kernel.nu, lengthscale=longer, variance=kernel.variance)
