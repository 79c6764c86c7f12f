"""What other randomizers of reports would carry, by formula: two decisions of docs/design.md.

    python benchmarks/randomizers.py shuffled|sparse

``shuffled``: spheres of the same central epsilon by other numbers of directions, and the variance
of a coordinate. What is optimal for one report alone need not be so for a mixed batch (arXiv
2604.28032).

``sparse``: a report that tells of one cell of a partition, and a sign. Its seed hashes cells to
``M/2`` pairs of numbers, one for either sign; the number that is meant is told with probability
``p``. That is the law of a sphere with ``k = 1``, so its cost and its blanket are the sphere's; a
cell's sum has variance ``(2/M) / (p - (1 - p)/(M - 1))^2`` a report. Beside it what reports on the
sphere tell, of the best rank: expected squared error of what tells actions apart, uniform play,
the prior known, second moments of .15 of what the bound allows.
"""

import argparse
from math import exp, inf

import common  # noqa: F401  (one BLAS thread)
import numpy as np

from capri.arrays import FloatArray
from capri.kernels import RBF, Matern
from capri.partition import beginnings, centres_of, nearest
from capri.privacy import sphere as spheres
from capri.privacy.budget import Budget
from capri.privacy.shuffle import Shuffle, blanket_delta

DELTA, MOST, DIMENSION, SIDE = 1e-6, 8.0, 50, 30


def shuffled() -> None:
    print("| epsilon | reports | now: M, k, local epsilon, variance | best: the same | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for central in (0.2, 1.0):
        for reports in (300, 1000, 10_000, 100_000):
            budget = Budget(central, DELTA)
            now = Shuffle(most=MOST).randomizer(budget, reports, DIMENSION)
            options = [
                _loudest(budget, reports, size, near)
                for size in (16, 32, 64, 128, 256)
                for near in sorted({max(1, round(size * q)) for q in np.geomspace(0.004, 0.45, 14)})
            ]
            best = min(options, key=lambda each: each.deviation)
            told = [
                f"{each.candidates}, {each.near}, {each.epsilon:.2f}, {each.deviation**2:.3f}"
                for each in (now, best)
            ]
            ratio = (now.deviation / best.deviation) ** 2
            print(f"| {central} | {reports:,} | {told[0]} | {told[1]} | {ratio:.3f} |", flush=True)


def _loudest(budget: Budget, reports: int, size: int, near: int) -> spheres.Sphere:
    """That of so many directions with the largest local epsilon whose batch keeps the budget."""

    def of(spent: float) -> spheres.Sphere:
        limit = spheres._exponential_from_below(spent)
        return spheres._with_coin(limit, DIMENSION, size, near)

    low, high = budget.epsilon, MOST
    if blanket_delta(of(high), reports, budget.epsilon) <= DELTA:
        return of(high)
    for _ in range(9):
        middle = (low + high) / 2
        if blanket_delta(of(middle), reports, budget.epsilon) <= DELTA:
            low = middle
        else:
            high = middle
    return of(low)


def sparse() -> None:
    line = np.linspace(0, 1, SIDE)
    pairs = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    print("| kernel | epsilon | reports | sphere | cells | sphere / cells |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, kernel in (
        ("Matern, .3", Matern(nu=2.5, lengthscale=0.3)),
        ("RBF, .6", RBF(lengthscale=0.6)),
    ):
        values, vectors = np.linalg.eigh(np.asarray(kernel(pairs, pairs)))
        kept = values > 1e-4 * values[-1]
        v = (vectors[:, kept] * np.sqrt(values[kept]))[:, ::-1]
        tells = v.reshape(SIDE, SIDE, -1)
        apart = (tells - tells.mean(axis=1, keepdims=True)).reshape(v.shape)
        for epsilon in (1.0, 2.0, 4.0, 8.0):
            for reports in (1000, 10_000, 100_000):
                one, two = dense(v, apart, epsilon, reports), cells(v, apart, epsilon, reports)
                row = f"| {name} | {epsilon:g} | {reports:,} | {one:.4f} | {two:.4f} "
                print(f"{row}| {one / two:.2f} |", flush=True)


def left(v: FloatArray, apart: FloatArray, design: FloatArray, noise: FloatArray) -> float:
    """Share of the variance of what tells actions apart that is left."""
    told = np.eye(v.shape[1]) + design.T @ np.linalg.solve(noise, design)
    variance = np.einsum("ij,jk,ik->i", apart, np.linalg.inv(told), apart)
    return float(variance.mean() / (apart**2).sum(axis=1).mean())


def dense(v: FloatArray, apart: FloatArray, epsilon: float, reports: int) -> float:
    least = inf
    for rank in {min(each, v.shape[1]) for each in (3, 6, 12, 20, 40, 80)}:
        for ridge in (0.01, 0.1, 1.0):
            gram = v[:, :rank].T @ v[:, :rank] / len(v)
            gram += ridge * np.trace(gram) / rank * np.eye(rank)
            psi = v[:, :rank] @ np.linalg.inv(np.linalg.cholesky(gram)).T
            psi /= np.linalg.norm(psi, axis=1).max()
            noise = spheres.sphere(epsilon, rank).deviation ** 2 * np.eye(rank)
            noise += 0.15 * psi.T @ psi / len(v)
            found = left(v, apart, reports * psi.T @ v / len(v), reports * noise)
            least = min(least, found)
    return least


def cells(v: FloatArray, apart: FloatArray, epsilon: float, reports: int) -> float:
    least, even = inf, np.ones(len(v))
    for count in (8, 16, 32, 64, 128):
        points, weights, first = beginnings(v, even, count, np.random.default_rng(1))
        own = np.eye(count)[nearest(v, centres_of(points, weights, points[first]))]
        variance = min(signed(epsilon, 2**power) for power in range(1, 13))
        noise = variance * np.eye(count) + np.diag(0.15 * own.mean(axis=0))
        least = min(least, left(v, apart, reports * own.T @ v / len(v), reports * noise))
    return least


def signed(epsilon: float, size: int) -> float:
    told = exp(epsilon) / (exp(epsilon) + size - 1)
    return (2 / size) / (told - (1 - told) / (size - 1)) ** 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("shuffled", "sparse"))
    {"shuffled": shuffled, "sparse": sparse}[parser.parse_args().what]()
