"""How near a private fit can come to the same fit without privacy: an oracle that pays the noise.

    python benchmarks/ridge_bound.py     # a minute; results/ridge_bound.json

The smooth functions of three variables of ``ridge.py --fresh``, 100,000 rows, epsilon 1. Functions
are drawn from a prior that the oracle knows: a Gaussian process with their own kernel, in the
orthonormal coordinates of the law of the rows. It also knows the law, the noise in y, and, in
place of earlier stages, the function up to what it has to learn: every residual is noise in y
alone, nobody is spent on finding it, and the moments of the rows are exact. What it cannot have is
a message ``sum psi t`` with less than the Gaussian noise that (epsilon, delta) asks for at its
sensitivity ``2 C R``, ``|psi| <= C`` and ``|t| <= R``.

Of all whitenings ``psi = A^T v`` and caps on the residual, with ``z`` deviations of the noise in y
in full and the rest cut (``R = z s``; cutting loses the share ``1 - efficiency`` of information),
the smallest Bayes risk is found. A coordinate with prior variance ``p`` under ``n`` rows has

    information = n^2 a^2 / (n s^2 a^2 / efficiency + (2 C R / mu)^2),   C^2 = sum_j a_j^2,

in orthonormal coordinates (``E v v^T = I``, ``|psi|^2 = sum a_j^2 v_j^2``, of mean ``sum a_j^2``: a
cap below the largest leverage is granted at no cost). The scale of ``a`` does not matter; its shape
is found by descent. Without privacy the information is ``n / s^2``. The ratio of both risks is what
no whitening, cap, schedule of stages or decoding of this message can beat on the average function.
"""

import common  # isort: skip - sets one BLAS thread
import json
import sys
from math import sqrt

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from capri.kernels import RBF
from capri.privacy.budget import Budget
from capri.privacy.calibration import analytic_multiplier

ROWS, EPSILON, DELTA = 100_000, 1.0, 1e-5
HALF = 2.0  # half of the range of y
SPREAD = 0.35 / HALF  # deviation of a function, in half ranges
LENGTHSCALE = 0.8
REACHES = (1.0, 1.5, 2.0, 2.5, 3.0)
FILE = common.RESULTS / "ridge_bound.json"


def spectrum() -> np.ndarray:
    """Variances of the coefficients of a function in orthonormal coordinates of the law."""
    points = np.random.default_rng(0).random((3000, 3))
    gram = RBF(lengthscale=LENGTHSCALE)(points, points) / len(points)
    values = np.maximum(np.linalg.eigvalsh(gram)[::-1][:400], 0.0)
    return values * SPREAD**2 / values[1:].sum()  # the mean is not part of the spread


def efficiency(z: float) -> float:
    """Information on a mean that residuals cut at ``z`` deviations keep (the score of Huber's)."""
    kept = 2 * norm.cdf(z) - 1
    square = kept - 2 * z * norm.pdf(z) + 2 * z**2 * norm.sf(z)
    return float(kept**2 / square)


def private_risk(prior: np.ndarray, noise: float) -> float:
    """The smallest over whitenings and reaches."""
    mu = 1 / analytic_multiplier(Budget(epsilon=EPSILON, delta=DELTA))
    best = np.inf
    for z in REACHES:
        reach = min(z * noise, 1.0)

        def risk(log_a: np.ndarray, z: float = z, reach: float = reach) -> float:
            a = np.exp(log_a - log_a.max())
            gate = (2 * reach / mu) ** 2 * float((a**2).sum())
            information = ROWS**2 * a**2 / (ROWS * noise**2 * a**2 / efficiency(z) + gate)
            return float((prior / (1 + prior * information)).sum())

        # One number for the shape: whitenings of the paper's kind, then freely from the best.
        ridges = [np.log(prior / (prior + r)) / 2 for r in 10.0 ** np.arange(-12, 0)]
        start = min(ridges, key=risk)
        best = min(best, risk(start), minimize(risk, start[:60], method="L-BFGS-B").fun
                   if len(prior) <= 60 else np.inf)  # fmt: skip
    return best


def main() -> None:
    prior = spectrum()
    prior = np.maximum(prior[prior > 1e-14], 1e-300)
    found = []
    for noise in (0.1, 0.3):
        scaled = noise / HALF
        free = float((prior / (1 + prior * ROWS / scaled**2)).sum())
        private = private_risk(prior, scaled)
        short = prior[:60]  # coordinates beyond are lost to both
        rest = float(prior[60:].sum())
        free_short = float((short / (1 + short * ROWS / scaled**2)).sum())
        best = min(private, private_risk(short, scaled) + rest)
        found.append(
            {
                "noise": noise,
                "without": HALF * sqrt(free),
                "without_60": HALF * sqrt(free_short + rest),
                "private": HALF * sqrt(best),
                "ratio": sqrt(best / free),
            }
        )
        print(found[-1], flush=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
