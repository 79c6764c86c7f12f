"""What is believed of the function before a release: candidates whose weights the evidence finds.

``theta ~ N(0, sum_k t_k S_k)``. A kernel that was told is a single candidate, the identity in the
orthonormal coordinates of its own space; ``kernel="auto"`` has those of a
:class:`~capri.regression.family.TableFamily`. Both choose ``log t`` by the same evidence.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray
from capri.family.evidence import Cap, best_weights, doubt_of, plausible_weights
from capri.features import Basis
from capri.regression.family import RowBasis, TableFamily

# Directions of which a release tells less than this share of what is expected do not vote.
_NEGLIGIBLE = 1e-3
# Deviation of a log weight from its expectation, by itself and with all others but the constant,
# and by itself for rough functions of all columns: many rows must be able to rule them out.
_SPREAD, _COMMON, _ROUGH = 2.0, 2.0, 6.0
# How much more a prior may vary than a function of it.
_PRIOR_TO_FUNCTION = 2.0
# How many times larger or smaller functions may be over the realised law than over the public one.
_MOST_UNLIKE = 64.0
# Mean squares that are expected of the constant and of the rest of a function, in half ranges of y.
_CONSTANT, _REST = 0.3, 0.06
# Draws of plausible weights: many coordinates take long, and have many rows behind them.
_DRAWS, _FEWER_DRAWS, _MANY = 32, 16, 100


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionPrior:
    """Candidates for one function, and their expected weights.

    Without a family the one candidate is the identity. ``sizes`` are the mean squares, over rows of
    the realised law, of functions that have 1 over those of the public one.
    """

    rank: int
    expected: FloatArray  # log weights
    family: TableFamily | None = None
    sizes: FloatArray | None = None

    @cached_property
    def covariances(self) -> FloatArray:
        """``S_k``, ``(candidates, rank, rank)``."""
        return np.eye(self.rank)[None] if self.family is None else self.family.covariances

    def covariance(self, weights: FloatArray) -> FloatArray:
        """``sum_k t_k S_k``, and a little more so that it has a root."""
        total = np.einsum("k,kij->ij", np.exp(weights), self.covariances)
        total[np.diag_indices(self.rank)] += 1e-9 * np.trace(total) / self.rank
        return np.asarray(total)

    def _cap(self, variance: float | None) -> Cap | None:
        """A function varies no more than its targets do.

        Its prior may, as it is spread over many directions of which a function needs few.
        """
        if self.family is None or variance is None:
            return None
        return Cap(sizes=self._counted, most=_PRIOR_TO_FUNCTION * variance)

    @cached_property
    def _counted(self) -> FloatArray:
        """Sizes of the candidates, but for the constant."""
        sizes = np.ones(len(self.expected)) if self.sizes is None else self.sizes.copy()
        if self.family is not None:
            sizes[self.family.names.index("constant")] = 0.0
        return sizes

    def under(self, public: FloatArray, realised: FloatArray) -> "FunctionPrior":
        """The same expectations of a function over rows that are not spread like public ones.

        Of both laws the covariance of coordinates without their means. Rows that fill a small part
        of the box show little of what a function does in it: to vary by as much as expected where
        rows are, it must be larger over the box.
        """
        if self.family is None:
            return self
        over = [np.einsum("kij,ij->k", self.covariances, each) for each in (realised, public)]
        sizes = np.clip(over[0] / np.maximum(over[1], 1e-300), 1 / _MOST_UNLIKE, _MOST_UNLIKE)
        sizes[self.family.names.index("constant")] = 1.0
        return replace(self, expected=self.expected - np.log(sizes), sizes=sizes)

    def preferred(
        self, information: FloatArray, vector: FloatArray, variance: float | None = None
    ) -> FloatArray:
        """Log weights of largest evidence; ``variance`` is the most that targets may vary."""
        e, b = self._voices(information, vector)
        if not len(b):
            return self.expected
        grams = np.array([e.T @ each @ e for each in self.covariances])
        cap = self._cap(variance)
        return best_weights(b, grams, self.expected, self.expected, self.doubt, cap)[0]

    @cached_property
    def doubt(self) -> FloatArray:
        """Covariance of log weights before a release."""
        found = doubt_of(len(self.expected), _SPREAD, _COMMON)
        if self.family is not None:  # a large mean says nothing of the rest
            constant = self.family.names.index("constant")
            found[constant] = found[:, constant] = 0.0
            found[constant, constant] = _SPREAD**2 + _COMMON**2
            for place, name in enumerate(self.family.names):
                if "times" in name:
                    found[place, place] = _ROUGH**2 + _COMMON**2
        return found

    def plausible(
        self,
        information: FloatArray,
        vector: FloatArray,
        best: FloatArray,
        variance: float | None = None,
    ) -> list[tuple[FloatArray, float]]:
        """Log weights of the posterior around the best ones, with their chances.

        Few rows do not tell how large a function is, and neither estimates nor widths may believe
        the best guess of it.
        """
        e, b = self._voices(information, vector)
        if not len(b):
            return [(self.expected, 1.0)]
        grams = np.array([e.T @ each @ e for each in self.covariances])
        count = _DRAWS if self.rank <= _MANY else _FEWER_DRAWS
        found = plausible_weights(
            b, grams, best, self.expected, self.doubt, count, self._cap(variance)
        )
        return [(each, 1 / count) for each in found]

    def not_smaller(self, weights: FloatArray) -> FloatArray:
        """The same shares of a function not smaller than expected over the box, but the constant.

        Rows that tell nothing do not tell that there is nothing: widths are for such functions.
        """
        rest = self._counted > 0
        public = self.expected if self.sizes is None else self.expected + np.log(self.sizes)
        total, expected = (np.logaddexp.reduce(each[rest]) for each in (weights, public))
        return np.where(rest, weights + max(0.0, float(expected - total)), weights)

    def _voices(self, information: FloatArray, vector: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``E`` and ``b`` with information ``E E^T`` and vector ``E b``, up to the negligible.

        ``J = L^-T V D V^T L^-1`` with ``L L^T`` the expected prior, so ``E = L^-T V D^1/2``.
        """
        lower = np.linalg.cholesky(self.covariance(self.expected))
        values, vectors = np.linalg.eigh(lower.T @ information @ lower)
        kept = values > _NEGLIGIBLE
        root, axes = np.sqrt(values[kept]), vectors[:, kept]
        return np.linalg.solve(lower.T, axes * root), axes.T @ (lower.T @ vector) / root

    def left_out(
        self, basis: RowBasis, rows: FloatArray, v: FloatArray, weights: FloatArray
    ) -> FloatArray:
        """Variance at each row of what the basis cannot express."""
        if isinstance(basis, Basis):
            return np.asarray(np.exp(weights[0]) * basis.residual(rows, v))
        assert self.family is not None
        return np.full(len(rows), self.family.left_out(np.exp(weights)))

    def shares(self, weights: FloatArray) -> dict[str, float]:
        """The share of ``E f^2`` of each candidate, by name."""
        names = ("kernel",) if self.family is None else self.family.names
        total = np.exp(weights)
        return dict(zip(names, (total / total.sum()).tolist(), strict=True))

    def cut(self, rank: int) -> "FunctionPrior":
        """For the first coordinates only."""
        family = None if self.family is None else self.family.cut(rank)
        return replace(self, rank=rank, family=family)


def known_prior(rank: int, scale: float) -> FunctionPrior:
    """Of a known kernel, with the expected variance of a coefficient."""
    return FunctionPrior(rank=rank, expected=np.log(np.array([scale])))


def family_prior(family: TableFamily) -> FunctionPrior:
    """Of a family: a mean anywhere between the bounds of y, and little beside.

    Few rows must not be read as a function: rows that tell of one tell how large it is, too.
    """
    constant = np.array(family.names) == "constant"
    rest = float(family.shares[~constant].sum())
    expected = np.where(constant, _CONSTANT, _REST * family.shares / rest)
    return FunctionPrior(rank=family.basis.rank, expected=np.log(expected), family=family)
