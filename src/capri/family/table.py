"""Candidates for a function of the columns of a table, all on one basis.

    f = constant + linear + main effects of each column + smooth functions of all columns

Each candidate is a kernel, scaled to mean 1 on the diagonal under the public law: its weight is a
share of ``E f^2``. The basis is that of one kernel that is rough enough for all of them, turned so
that it is orthonormal under the law, and ordered by the variance that is expected of each
coordinate. In it, candidate ``k`` is the prior covariance ``S_k = E[u(x) k(x, x') u(x')^T]``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf, sqrt
from operator import add, mul

import numpy as np

from capri.arrays import FloatArray
from capri.features import Basis, spectral_basis
from capri.kernels import Categories, Columns, Constant, Kernel, Linear, Matern

# Expected shares of E f^2.
_CONSTANT, _LINEAR, _MAIN, _CATEGORIES = 2.0, 0.2, 0.3, 0.2
# Smooth functions of all columns: nu, lengthscale in halves of sqrt(columns) widths, share.
_JOINT = ((inf, 1.0, 0.2), (2.5, 0.5, 0.15), (1.5, 0.25, 0.1))
# A main effect bends over half the width of its column.
_MAIN_SCALE = 0.5
# More columns than this share one candidate for all main effects.
_MOST_COLUMNS = 12
# Levels of a category share this much of what is learnt in the basis.
_SIMILARITY = 0.5
# Public rows that candidates are compared on: so many for each coordinate, within limits.
_ROWS_EACH, _FEWEST, _MOST = 6, 300, 1000
# The basis is spanned by more rows than it has coordinates, up to this many: what is linear must be
# so at all rows. The constant has this variance beside the rough kernel.
_PIVOTS, _PIVOTS_EACH, _LEVEL = 160, 4, 4.0
# Coordinates below this share of the expected variance are left out.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFamily:
    """A basis, and the prior covariance of its coefficients under each candidate.

    Candidates see rows as scores, ``(x - middle) / width``; ``scales`` is what each is multiplied
    with, to have mean 1 on the diagonal. ``lacking`` is what the basis leaves out of each under the
    law, over what values at the pivots leave out (``unexplained``).
    """

    basis: Basis
    middle: FloatArray
    width: FloatArray
    names: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    shares: FloatArray
    scales: FloatArray
    covariances: FloatArray
    lacking: FloatArray
    unexplained: FloatArray

    @cached_property
    def _pivots(self) -> FloatArray:
        return np.asarray((self.basis.pivots - self.middle) / self.width)

    @cached_property
    def _roots(self) -> tuple[FloatArray, ...]:
        """Inverse Cholesky factors of the candidates on the pivots."""
        found = []
        for kernel in self.kernels:
            gram = kernel(self._pivots, self._pivots)
            gram[np.diag_indices_from(gram)] += 1e-9 * float(np.diag(gram).mean()) + 1e-300
            found.append(np.linalg.inv(np.linalg.cholesky(gram)))
        return tuple(found)

    def cut(self, rank: int) -> "TableFamily":
        """The first coordinates only."""
        transform = np.ascontiguousarray(self.basis.transform[:, :rank])
        basis = Basis(self.basis.kernel, self.basis.pivots, transform)
        cut = replace(self, basis=basis, covariances=self.covariances[:, :rank, :rank])
        lost = np.trace(self.covariances, axis1=1, axis2=2)
        lost = lost - np.trace(cut.covariances, axis1=1, axis2=2)
        return replace(cut, lacking=np.minimum(self.lacking + lost / self.unexplained, 1.0))

    def left_out(self, rows: FloatArray, weights: FloatArray) -> FloatArray:
        """Variance at each row that its values at the pivots do not tell, for these weights.

        ``sum_k t_k c_k (k(x, x) - k(x, P) k(P, P)^-1 k(P, x))``: what has no place in the basis,
        with ``c_k`` such that the mean over the public law is what has none.
        """
        scores = (rows - self.middle) / self.width
        found = np.zeros(len(rows))
        for place, weight in enumerate(weights * self.lacking):
            if weight > 0:
                found += weight * self._untold(scores, place)
        return found

    def _untold(self, scores: FloatArray, place: int) -> FloatArray:
        kernel = self.kernels[place]
        inside = kernel(scores, self._pivots) @ self._roots[place].T
        rest = kernel.diagonal(scores) - np.einsum("ij,ij->i", inside, inside)
        return np.asarray(self.scales[place] * np.maximum(rest, 1e-12))

    def measured(self, scores: FloatArray) -> "TableFamily":
        """With what the basis leaves out under the law of these scores."""
        untold = np.array([self._untold(scores, k).mean() for k in range(len(self.kernels))])
        rest = 1 - np.trace(self.covariances, axis1=1, axis2=2)
        return replace(self, unexplained=untold, lacking=np.clip(rest / untold, 0.0, 1.0))


def table_family(
    low: FloatArray,
    high: FloatArray,
    sample: FloatArray,
    *,
    max_rank: int,
    tolerance: float,
    categories: Sequence[tuple[int, ...]] = (),
) -> TableFamily:
    """Candidates for rows between ``low`` and ``high`` with the law of a public sample.

    ``categories`` are the places of indicators that belong together.
    """
    numbers = tuple(sorted(set(range(len(low))) - {place for each in categories for place in each}))
    width = np.where(high > low, high - low, 1.0)
    middle = low / 2 + high / 2
    named = [*_candidates(numbers, [*categories])]
    reach = tuple((width[list(numbers)] * (sqrt(len(numbers)) / 2)).tolist())
    rough = _on(numbers, Matern(nu=2.5, lengthscale=reach), categories)
    rough = Constant(_LEVEL) + rough
    pivots = max(max_rank, min(_PIVOTS_EACH * max_rank, _PIVOTS))
    basis, _ = spectral_basis(rough, sample, tolerance=tolerance, max_rank=pivots)
    few = sample[: min(_MOST, max(_FEWEST, _ROWS_EACH * pivots))]
    v = basis.coordinates(few)
    few = (few - middle) / width
    spectrum, vectors = np.linalg.eigh(v.T @ v / len(few))
    kept = spectrum > 1e-10 * spectrum[-1]
    turn = vectors[:, kept] / np.sqrt(spectrum[kept])
    u = v @ turn
    scales = np.array([1 / max(float(k.diagonal(few).mean()), 1e-300) for _, k, _ in named])
    shares = np.array([share for _, _, share in named])
    grams = [
        scale * (u.T @ kernel(few, few) @ u) / len(few) ** 2
        for scale, (_, kernel, _) in zip(scales, named, strict=True)
    ]
    covariances = np.array([(each + each.T) / 2 for each in grams])
    values, axes = np.linalg.eigh(np.einsum("k,kij->ij", shares, covariances))
    axes = axes[:, values > _NEGLIGIBLE * values[-1]][:, ::-1][:, :max_rank]
    family = TableFamily(
        basis=Basis(
            basis.kernel, basis.pivots, np.ascontiguousarray(basis.transform @ turn @ axes)
        ),
        middle=middle,
        width=width,
        names=tuple(name for name, _, _ in named),
        kernels=tuple(kernel for _, kernel, _ in named),
        shares=shares,
        scales=scales,
        covariances=np.array([axes.T @ each @ axes for each in covariances]),
        lacking=np.ones(len(named)),
        unexplained=np.ones(len(named)),
    )
    return family.measured(few)


def _candidates(
    numbers: tuple[int, ...], categories: list[tuple[int, ...]]
) -> Iterator[tuple[str, Kernel, float]]:
    """Name, kernel of scores and expected share of each."""
    yield "constant", Constant(), _CONSTANT
    if numbers:
        yield "linear", Columns(Linear(), numbers), _LINEAR
    if numbers and len(numbers) + len(categories) > 1:
        main = Matern(nu=2.5, lengthscale=_MAIN_SCALE)
        effects: list[Kernel] = [Columns(main, (i,)) for i in numbers]
        if len(numbers) > _MOST_COLUMNS:
            yield "each column by itself", reduce(add, effects), _MAIN
        else:
            for i, effect in zip(numbers, effects, strict=True):
                yield f"column {i}", effect, _MAIN / len(numbers)
    for each in categories:
        yield f"category {each[0]}", Columns(Categories(), each), _CATEGORIES / len(categories)
    for kind, scale, share in _JOINT if numbers else ():
        lengthscale = scale * sqrt(len(numbers)) / 2
        kernel = Matern(kind, lengthscale)
        name = f"all columns, {'endlessly' if kind == inf else f'{kind - 0.5:g} times'} smooth"
        part = share / (1 + bool(categories))
        yield name, Columns(kernel, numbers), part
        if categories:
            own = _on(numbers, kernel, categories, similarity=0.0)
            yield f"{name}, each level its own", own, part


def _on(
    numbers: tuple[int, ...],
    kernel: Kernel,
    categories: Sequence[tuple[int, ...]],
    similarity: float = _SIMILARITY,
) -> Kernel:
    """The kernel of the numbers, times one of equality for every category."""
    parts: list[Kernel] = [Columns(kernel, numbers)] if numbers else []
    parts += [Columns(Categories(similarity), each) for each in categories]
    return reduce(mul, parts)
