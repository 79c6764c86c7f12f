"""The private rival: LinUCB of Shariff and Sheffet (2018, arXiv 1810.00068) on kernel features.

The same algorithm as ``ShariffSheffet`` (tree) and ``BatchedLinear`` (batches) of
:mod:`capri_lab.rivals`, made of the same parts: rounds are cut into blocks; after each, noisy sums
of ``(x x^T, y x)`` are released and actions maximise ``theta^T x + bonus |x|_{M^-1}``.

- tree: a binary tree over equal blocks, as published.
- batches: blocks of growing length, each released once with the full budget (parallel composition,
  as CAPRI does). Not in the paper; it has less noise at late rounds and adapts less often.

The theory's bonus is hopeless in practice: several bonuses and shifts are played at once, as a
batch, so that the best can be picked afterwards on the very functions it is compared on, which
favours the rival. Playing them at once is all that this file adds to the package.
"""

from typing import Any

import numpy as np
from common import DELTA

import capri
from capri.kernels import Kernel
from capri_lab.rivals.features import feature_rows
from capri_lab.rivals.linear.least_squares import GaussianMoments, pack, packed_size, unpack
from capri_lab.rivals.linear.moments import block_lengths, growing_lengths
from capri_lab.rivals.linear.tree import TreeSums, tree_levels

BONUSES = (0.003, 0.01, 0.03, 0.1)
SHIFTS = (0.5, 1.0, 2.0, 4.0)
SETTINGS = tuple((bonus, shift) for bonus in BONUSES for shift in SHIFTS)
FEATURES = (10, 20)


def schedules(rounds: int) -> list[tuple[str, float]]:
    """Ways to cut the rounds into blocks: more blocks pay at longer horizons."""
    equal = (64, 256) if rounds < 1_000_000 else (256, 1024)
    growing = (1.2, 1.5, 2.0)
    return [
        *(("tree", float(size)) for size in equal),
        *(("batches", growth) for growth in growing),
    ]


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
    pairs = np.concatenate(
        [
            np.repeat(environment.contexts, actions, axis=0),
            np.tile(environment.actions, (contexts, 1)),
        ],
        axis=1,
    )
    x = feature_rows(
        "kernel", pairs, kernel=kernel, count=features, generator=np.random.default_rng(seed)
    )
    rank, count = x.shape[1], len(SETTINGS)
    tree = schedule[0] == "tree"
    size = schedule[1]
    lengths = block_lengths(rounds, int(size)) if tree else growing_lengths(rounds, 100, size)
    steps = max(1, len(lengths) - 1)
    levels = tree_levels(steps) if tree else 1  # nodes that hold one user
    budget = capri.Budget(epsilon=epsilon, delta=DELTA)
    noise = GaussianMoments.calibrated(rank, budget, levels)
    generator = np.random.default_rng([seed, features, int(tree), int(10 * size)])
    shape = (count, packed_size(rank))

    def draw() -> np.ndarray:
        return generator.normal(scale=noise.scale, size=shape)

    sums = TreeSums(steps, shape=shape, noise=draw if tree else None)
    batch_noise = np.zeros(shape)
    bonus, shift = np.array(SETTINGS).T
    ridge = shift * noise.matrix_size(levels if tree else steps)
    width = bonus * (3 * np.sqrt(ridge) + 0.1 * np.sqrt(rank * np.log(rounds)))
    everyone = np.arange(contexts)
    upper = np.triu_indices(rank)
    products = x[:, upper[0]] * x[:, upper[1]] * np.where(upper[0] == upper[1], 1.0, 2.0)
    released = np.zeros(shape)
    regret = np.zeros(count)
    for length in lengths:
        gram, target = unpack(released, rank)
        values, vectors = np.linalg.eigh(gram + ridge[:, None, None] * np.eye(rank))
        values = np.maximum(values, 0.1 * ridge[:, None])
        root = vectors / np.sqrt(values)[:, None, :]
        inverse = np.matmul(root, root.transpose(0, 2, 1))
        theta = np.matmul(inverse, target[:, :, None])[:, :, 0]
        # x^T M^-1 x, linear in the entries of M^-1: one product for all settings.
        squared = inverse[:, upper[0], upper[1]] @ products.T
        index = theta @ x.T + width[:, None] * np.sqrt(np.maximum(squared, 0.0))
        best = index.reshape(count, contexts, actions).argmax(axis=2)
        context = environment.draw_contexts(generator, int(length))
        often = np.bincount(context, minlength=contexts)
        block = np.empty(shape)
        for setting in range(count):
            reward = environment.rewards(generator, context, best[setting, context])
            total = np.bincount(context, weights=reward, minlength=contexts)
            # One action per context and block: sums over contexts are sums over rounds.
            lost = environment.best(everyone) - environment.mean(everyone, best[setting])
            regret[setting] += often @ lost
            rows = x[everyone * actions + best[setting]]
            block[setting] = pack((rows * often[:, None]).T @ rows, total @ rows)
        if sums.taken < steps:
            released = sums.add(block)
            if not tree:
                batch_noise += draw()
                released = released + batch_noise
    return np.asarray(regret / rounds / environment.uniform_regret())
