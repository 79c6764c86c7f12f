"""Where noise comes from.

A private run adds discrete Gaussian noise from OpenDP, exact to the last bit and drawn from a
cryptographic generator that the operating system seeds: no seed of ours, no NumPy generator, no
floating point. A simulation has a source of its own, seeded and fast, that says of itself that it
protects nobody.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from capri.arrays import IntArray


class NoiseSource(ABC):
    """Adds integer Gaussian noise to an integer vector."""

    private: bool

    @abstractmethod
    def add(self, values: IntArray, scale: float, reports: int = 1) -> IntArray:
        """``values`` plus ``reports`` independent noise vectors of standard deviation ``scale``."""


class SecureNoise(NoiseSource):
    """Exact discrete Gaussian noise (Canonne, Kamath & Steinke 2020) by OpenDP."""

    private = True

    def add(self, values: IntArray, scale: float, reports: int = 1) -> IntArray:
        """Draw every report's noise by itself: a sum of discrete Gaussians is not one."""
        measurement = _discrete_gaussian(float(scale))
        noisy = np.array(values, dtype=np.int64)
        for _ in range(reports):  # arrays go to OpenDP as they are, lists number by number
            noisy = np.array(measurement(noisy), dtype=np.int64)
        return noisy


@lru_cache(maxsize=16)
def _discrete_gaussian(scale: float) -> Any:
    """OpenDP's measurement of this scale. It holds no state: every call draws anew."""
    # Imported here: OpenDP takes over a second to load and only a release needs it.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=scale)


class SimulatedNoise(NoiseSource):
    """Seeded, rounded Gaussian noise for simulations. It protects nobody."""

    private = False

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def add(self, values: IntArray, scale: float, reports: int = 1) -> IntArray:
        """One draw with the variance of all reports: the same law, a thousand times faster."""
        noise = self.generator.normal(scale=scale * np.sqrt(reports), size=values.shape)
        return np.asarray(values + np.rint(noise).astype(np.int64))
