"""The private rival: LinUCB of Shariff and Sheffet (2018, arXiv 1810.00068) on kernel features.

Rounds are cut into blocks; after each, noisy sums of the joint statistics ``(x x^T, y x)`` are
released and actions maximise ``theta^T x + bonus |x|_{M^-1}`` with ``M`` the noisy sum of ``x x^T``
plus ``shift I``. Two ways to release the sums, both (epsilon, delta) jointly private with the exact
calibration that CAPRI uses:

- tree: a binary tree over equal blocks, as published. A user is in one node per level, so the
  vector of all nodes has sensitivity ``sqrt(levels)`` times that of one node; a prefix is the sum
  of at most ``levels`` nodes.
- batches: blocks of growing length, each released once with the full budget (parallel composition,
  as CAPRI does). Not in the paper; it has less noise at late rounds and adapts less often.

The theory's bonus is hopeless in practice: several bonuses and shifts are played at once, as a
batch, so that the best can be picked afterwards on the very functions it is compared on, which
favours the rival.
"""

from typing import Any

import numpy as np
from common import DELTA

import capri
from capri.features import spectral_basis
from capri.kernels import Kernel
from capri.privacy.calibration import analytic_multiplier

BONUSES = (0.003, 0.01, 0.03, 0.1)
SHIFTS = (0.5, 1.0, 2.0, 4.0)
SETTINGS = tuple((bonus, shift) for bonus in BONUSES for shift in SHIFTS)
FEATURES = (10, 20)

# Largest |(x x^T, y x) - (x' x'^T, y' x')| for |x|, |x'|, |y|, |y'| <= 1, x x^T in the Frobenius
# norm: squared it is 4 - 2 c^2 + 2 c for unit vectors at cosine c and opposite rewards, 4.5 at 1/2.
SENSITIVITY = np.sqrt(4.5)


def schedules(rounds: int) -> list[tuple[str, float]]:
    """Ways to cut the rounds into blocks: more blocks pay at longer horizons."""
    equal = (64, 256) if rounds < 1_000_000 else (256, 1024)
    growing = (1.2, 1.5, 2.0)
    return [
        *(("tree", float(size)) for size in equal),
        *(("batches", growth) for growth in growing),
    ]


class Noise:
    """Noise of the sums over a prefix of blocks; nodes no longer needed are forgotten."""

    def __init__(
        self, settings: int, rank: int, scale: float, tree: bool, generator: np.random.Generator
    ) -> None:
        self._shape = (settings, rank, rank)
        self._scale = scale
        self._tree = tree
        self._generator = generator
        self._nodes: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._sum = np.zeros(self._shape), np.zeros((settings, rank))

    def prefix(self, blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise on matrix and vector after this many blocks; to be asked for in order."""
        if not self._tree:
            if blocks:
                matrix, vector = self._draw()
                self._sum = self._sum[0] + matrix, self._sum[1] + vector
            return self._sum
        used = {}
        for level in range(blocks.bit_length()):
            if blocks >> level & 1:
                node = (level, blocks >> level)
                used[node] = self._nodes.get(node) or self._draw()
        self._nodes = used
        matrices = (matrix for matrix, _ in used.values())
        vectors = (vector for _, vector in used.values())
        return sum(matrices, np.zeros(self._shape)), sum(vectors, np.zeros(self._shape[:2]))

    def _draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Symmetric: diagonal entries of the full scale, the others of ``scale / sqrt(2)``.

        The coordinates of ``x x^T`` in the Frobenius norm are its diagonal and ``sqrt(2)`` times
        its upper triangle, each with noise of the full scale.
        """
        square = self._scale / np.sqrt(2) * self._generator.standard_normal(self._shape)
        upper = np.triu(square, 1)
        diagonal = np.sqrt(2) * square * np.eye(self._shape[1])
        vector = self._scale * self._generator.standard_normal(self._shape[:2])
        return upper + upper.transpose(0, 2, 1) + diagonal, vector


def kernel_features(kernel: Kernel, environment: Any, count: int, seed: int) -> np.ndarray:
    """The first principal kernel features of all pairs, scaled to norm at most 1."""
    contexts, actions = environment.contexts, environment.actions
    pairs = np.concatenate(
        [np.repeat(contexts, len(actions), axis=0), np.tile(actions, (len(contexts), 1))], axis=1
    )
    sample = pairs
    if len(pairs) > 3000:
        sample = np.random.default_rng(seed).choice(pairs, 3000, replace=False)
    basis, _ = spectral_basis(kernel, sample, tolerance=1e-3, max_rank=150)
    features = basis.coordinates(pairs)[:, :count]
    return np.asarray(features / np.linalg.norm(features, axis=1).max())


def block_edges(rounds: int, kind: str, size: float) -> np.ndarray:
    """Boundaries of the blocks: ``size`` equal ones, or lengths that grow by ``size``."""
    if kind == "tree":
        return np.linspace(0, rounds, int(size) + 1).astype(int)
    edges, length = [0], 100.0
    while edges[-1] + length < rounds:
        edges.append(int(edges[-1] + length))
        length *= size
    return np.array([*edges[:-1], rounds]) if len(edges) > 1 else np.array([0, rounds])


def rival_ratios(
    kernel: Kernel,
    environment: Any,
    rounds: int,
    *,
    epsilon: float,
    features: int,
    schedule: tuple[str, float],
    seed: int,
) -> np.ndarray:
    """Regret divided by that of uniform play, one number per entry of ``SETTINGS``."""
    contexts, actions = len(environment.contexts), len(environment.actions)
    x = kernel_features(kernel, environment, features, seed)
    rank, count = x.shape[1], len(SETTINGS)
    edges = block_edges(rounds, *schedule)
    blocks = len(edges) - 1
    tree = schedule[0] == "tree"
    levels = (blocks - 1).bit_length() if tree else 1  # nodes that hold one user
    summed = levels if tree else blocks - 1  # nodes in a prefix, at most
    multiplier = analytic_multiplier(capri.Budget(epsilon=epsilon, delta=DELTA))
    scale = multiplier * SENSITIVITY * np.sqrt(levels)
    bonus, shift = np.array(SETTINGS).T
    # sqrt(2 rank) is the size of a symmetric Gaussian matrix.
    ridge = shift * scale * np.sqrt(summed) * np.sqrt(2 * rank)
    width = bonus * (3 * np.sqrt(ridge) + 0.1 * np.sqrt(rank * np.log(rounds)))
    generator = np.random.default_rng([seed, features, int(tree), int(10 * schedule[1])])
    noise = Noise(count, rank, scale, tree, generator)
    everyone = np.arange(contexts)
    upper = np.triu_indices(rank)
    products = x[:, upper[0]] * x[:, upper[1]] * np.where(upper[0] == upper[1], 1.0, 2.0)
    gram, target = np.zeros((count, rank, rank)), np.zeros((count, rank))
    regret = np.zeros(count)
    for block in range(blocks):
        noise_gram, noise_target = noise.prefix(block)
        matrix = gram + noise_gram + ridge[:, None, None] * np.eye(rank)
        values, vectors = np.linalg.eigh(matrix)
        values = np.maximum(values, 0.1 * ridge[:, None])
        root = vectors / np.sqrt(values)[:, None, :]
        inverse = np.matmul(root, root.transpose(0, 2, 1))
        theta = np.matmul(inverse, (target + noise_target)[:, :, None])[:, :, 0]
        # x^T M^-1 x, linear in the entries of M^-1: one product for all settings.
        squared = inverse[:, upper[0], upper[1]] @ products.T
        index = theta @ x.T + width[:, None] * np.sqrt(np.maximum(squared, 0.0))
        best = index.reshape(count, contexts, actions).argmax(axis=2)
        context = environment.draw_contexts(generator, int(edges[block + 1] - edges[block]))
        often = np.bincount(context, minlength=contexts)
        for setting in range(count):
            reward = environment.rewards(generator, context, best[setting, context])
            total = np.bincount(context, weights=reward, minlength=contexts)
            # One action per context and block: sums over contexts are sums over rounds.
            lost = environment.best(everyone) - environment.mean(everyone, best[setting])
            regret[setting] += often @ lost
            rows = x[everyone * actions + best[setting]]
            gram[setting] += (rows * often[:, None]).T @ rows
            target[setting] += rows.T @ total
    return np.asarray(regret / rounds / environment.uniform_regret())
