"""Private quantiles against a Gaussian around a private mean, where truth is known.

    python benchmarks/ridge_quantiles.py 2000 20000     # minutes; results/ridge_quantiles.json

Rows fill a square, their targets are a random smooth function of them and noise of four kinds, or
have two modes. Quantiles 0.1, 0.5 and 0.9 at epsilon 1, bounds of y given; both promise the same to
the same rows. The rival needs no release of its own either: the mean of ``PrivateKernelRidge`` and
the quantiles of a Gaussian with the variance of residuals that it released. The figure is the
pinball loss on further rows over that of the true quantiles, less 1: 0 is perfect.
"""

import common  # isort: skip - sets one BLAS thread
import json
import sys
import warnings

import numpy as np
from scipy.special import ndtr, ndtri

from capri import PrivacyLeakWarning, PrivateKernelQuantiles, PrivateKernelRidge

QUANTILES = np.array([0.1, 0.5, 0.9])
EPSILON, BOUNDS, SEEDS, TEST = 1.0, (-2.0, 2.0), 3, 20_000
FILE = common.RESULTS / "ridge_quantiles.json"


def gaussian(X: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return 0.2 * ndtri(shares)


def growing(X: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return (0.03 + 0.4 * X[:, :1]) * ndtri(shares)


def skewed(X: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return 0.25 * (np.exp(0.8 * ndtri(shares)) - 1)


def skewed_and_growing(X: np.ndarray, shares: np.ndarray) -> np.ndarray:
    return (0.05 + 0.4 * X[:, :1]) * (-np.log(1 - shares) - 0.7)


def two_modes(X: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Far apart, the upper one more probable to the right: quantiles by inverting ``F``."""
    grid, upper = np.linspace(-1.1, 1.1, 1001), 0.2 + 0.6 * X[:, :1]
    below = (1 - upper) * ndtr((grid + 0.6) / 0.1) + upper * ndtr((grid - 0.6) / 0.1)
    shares = np.broadcast_to(shares, (len(X), shares.shape[1]))
    return np.stack([np.interp(share, row, grid) for share, row in zip(shares, below, strict=True)])


KINDS = {each.__name__: each for each in (gaussian, growing, skewed, skewed_and_growing, two_modes)}


def rows(kind: str, count: int, seed: int, draw: int) -> tuple[np.ndarray, ...]:
    """Rows, targets in their bounds, and true quantiles, of the function of this seed."""
    waves = np.random.default_rng([seed, 0])
    directions, phases = waves.normal(0, 3, (2, 6)), waves.uniform(0, 6.3, 6)
    generator = np.random.default_rng([seed, draw])
    X = generator.random((count, 2))
    middle = np.cos(X @ directions + phases).mean(axis=1, keepdims=True)
    y = middle + KINDS[kind](X, generator.random((count, 1)))
    truth = middle + KINDS[kind](X, QUANTILES[None])
    return X, np.clip(y[:, 0], *BOUNDS), np.clip(truth, *BOUNDS)


def around_the_mean(X: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    ridge = PrivateKernelRidge(
        epsilon=EPSILON, X_bounds=(0, 1), y_bounds=BOUNDS, random_state=seed
    ).fit(X, y)
    (estimate,) = ridge.model_.estimates
    size = float(ridge.model_.targets.half[0]) * np.sqrt(estimate.noise_variance)
    return np.clip(ridge.predict(test)[:, None] + size * ndtri(QUANTILES), *BOUNDS)


def by_classes(X: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    return (
        PrivateKernelQuantiles(
            tuple(QUANTILES), epsilon=EPSILON, X_bounds=(0, 1), y_bounds=BOUNDS, random_state=seed
        )
        .fit(X, y)
        .predict(test)
    )


def excess(kind: str, count: int, seed: int) -> dict[str, list[float]]:
    """Of both, for each quantile; and how often the 80 % interval held."""
    X, y, _ = rows(kind, count, seed, 1)
    test, later, truth = rows(kind, TEST, seed, 2)

    def loss(found: np.ndarray) -> np.ndarray:
        beyond = later[:, None] - found
        return np.maximum(QUANTILES * beyond, (QUANTILES - 1) * beyond).mean(axis=0)

    answers = {"mean and Gaussian": around_the_mean, "quantiles": by_classes}
    result = {}
    for name, answer in answers.items():
        found = answer(X, y, test, seed)
        held = np.mean((found[:, 0] <= later) & (later <= found[:, 2]))
        result[name] = [*(loss(found) / loss(truth) - 1).tolist(), float(held)]
    return result


def main(counts: list[int], first: int = 0) -> None:
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    for count in counts:
        for kind in KINDS:
            runs = [excess(kind, count, seed) for seed in range(first, first + SEEDS)]
            for name in runs[0]:
                values = np.array([run[name] for run in runs])
                results[f"{kind}, {count} rows, {name}"] = values.tolist()
                each = " ".join(f"{value:.3f}" for value in values.mean(axis=0))
                spread = values[:, :3].mean(axis=1).std(ddof=1) / np.sqrt(SEEDS)
                total = values[:, :3].mean()
                print(
                    f"{kind:20} {count:7} {name:18} {total:.3f} ± {spread:.3f}   {each}", flush=True
                )
            FILE.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [2_000, 20_000])
