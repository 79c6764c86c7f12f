"""Where noise comes from.

A private run adds discrete Gaussian or Laplace noise from OpenDP, exact to the last bit and drawn
from a cryptographic generator that the operating system seeds: no seed of ours, no NumPy generator,
no floating point. A simulation has a source of its own, seeded and fast, that says of itself that
it protects nobody.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from capri.arrays import IntArray
from capri.privacy.layout import Norm


class NoiseSource(ABC):
    """Adds integer noise to an integer vector: Gaussian for the norm L2, Laplace for L1."""

    private: bool

    @abstractmethod
    def add(
        self, values: IntArray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> IntArray:
        """``values`` plus ``reports`` independent noise vectors of this ``scale``."""


class SecureNoise(NoiseSource):
    """Exact discrete Gaussian and Laplace noise (Canonne, Kamath & Steinke 2020) by OpenDP."""

    private = True

    def add(
        self, values: IntArray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> IntArray:
        """Draw every report's noise by itself: a sum of discrete Gaussians is not one."""
        measurement = _measurement(norm, float(scale))
        noisy = np.array(values, dtype=np.int64)
        for _ in range(reports):  # arrays go to OpenDP as they are, lists number by number
            noisy = np.array(measurement(noisy), dtype=np.int64)
        return noisy


@lru_cache(maxsize=16)
def _measurement(norm: Norm, scale: float) -> Any:
    """OpenDP's measurement of this scale. It holds no state: every call draws anew."""
    # Imported here: OpenDP takes over a second to load and only a release needs it.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    integers = vector_domain(atom_domain(T="i64"))
    if norm is Norm.L1:
        return make_laplace(integers, l1_distance(T="i64"), scale=scale)
    return make_gaussian(integers, l2_distance(T="f64"), scale=scale)


class SimulatedNoise(NoiseSource):
    """Seeded noise for simulations, the Gaussian rounded. It protects nobody."""

    private = False

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def add(
        self, values: IntArray, scale: float, reports: int = 1, norm: Norm = Norm.L2
    ) -> IntArray:
        """One draw with the variance of all reports: the same law, a thousand times faster.

        Discrete Laplace noise is the difference of two geometric numbers, and the sum of several
        that of two negative binomial ones.
        """
        if norm is Norm.L1 and reports:
            chance = -np.expm1(-1 / scale)
            up, down = self.generator.negative_binomial(reports, chance, size=(2, *values.shape))
            return np.asarray(values + (up - down))
        noise = self.generator.normal(scale=scale * np.sqrt(reports), size=values.shape)
        return np.asarray(values + np.rint(noise).astype(np.int64))
