"""The kernel that nobody has to know."""

from dataclasses import dataclass
from typing import NoReturn, final

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.kernels.algebra import Kernel

_NO_VALUES = (
    "kernel='auto' is built by a policy from its public contexts: it has no values of its own. "
    "Where values are needed, give a kernel such as capri.kernels.Matern"
)


@final
@dataclass(frozen=True)
class Auto(Kernel):
    """A whole family of kernels, weighed by the evidence of the releases.

    A policy builds the family from its public contexts and actions, and what it believes is told by
    ``policy.explain()``. There is nothing to evaluate before that.
    """

    @property
    def constant_diagonal(self) -> float | None:
        """1: features are bounded whatever they are."""
        return 1.0

    def _cross(self, left: FloatArray, right: FloatArray) -> NoReturn:
        raise ConfigurationError(_NO_VALUES)

    def _diagonal(self, points: FloatArray) -> NoReturn:
        raise ConfigurationError(_NO_VALUES)
