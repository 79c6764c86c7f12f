"""The public result of a fit: a function and its error, on any rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray
from capri.features import Basis
from capri.regression.decode import Estimate
from capri.regression.stage import Targets
from capri.regression.width import ErrorWidth

_ROWS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """``f(x) = middle + half * v(x)^T theta``, one estimate per output."""

    basis: Basis
    box: tuple[FloatArray, FloatArray]
    targets: Targets
    estimates: tuple[Estimate, ...]

    def _inside(self, X: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        for start in range(0, len(X), _ROWS):
            part = slice(start, start + _ROWS)
            yield part, np.clip(X[part], *self.box)

    def predict(self, X: FloatArray) -> FloatArray:
        """One column per output."""
        theta = np.stack([estimate.mean for estimate in self.estimates], axis=1)
        weights = self.basis.transform @ theta
        values = np.empty((len(X), len(self.estimates)))
        for part, rows in self._inside(X):
            # One small product per row: a prediction must not depend on the rows beside it.
            values[part] = np.matmul(self.basis.kernel_rows(rows)[:, None, :], weights)[:, 0, :]
        return np.asarray(values * self.targets.half + self.targets.middle)

    def width(self, X: FloatArray) -> ErrorWidth:
        """Root of ``v^T cov v`` for each part; what lies outside the basis counts as bias."""
        shape = (len(X), len(self.estimates))
        parts = {name: np.empty(shape) for name in ("bias", "sampling", "privacy")}
        for part, rows in self._inside(X):
            v = self.basis.coordinates(rows)
            outside = self.basis.residual(rows, v)
            for output, estimate in enumerate(self.estimates):
                for name, values in parts.items():
                    form = np.einsum("ij,ij->i", v @ getattr(estimate, name), v)
                    extra = estimate.prior * outside if name == "bias" else 0.0
                    values[part, output] = np.sqrt(np.maximum(form, 0.0) + extra)
        return ErrorWidth.of(**{name: part * self.targets.half for name, part in parts.items()})
