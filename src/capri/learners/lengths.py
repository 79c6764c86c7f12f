"""How long epochs must be: noise at the gate is one for all decisions of an epoch.

So many short epochs tell less than a long one, and show a change sooner. With ``h = H/n``, ``c``
the sampling covariance of one decision and ``sigma`` the noise of a release, epochs of length ``n``
give the information

    h^T (sigma^2/n I + c)^-1 h

a decision. After ``most`` decisions in epochs of ``n`` an error ``e(n)`` is left of the estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import Observation

# Short epochs may cost so much of what is at stake, the spread of f over actions.
_PREMIUM = 0.005


@dataclass(frozen=True, eq=False)
class Prospect:
    """What an epoch tells of a block: an observation, a root of what is unknown, ``E[v v^T]``."""

    observation: Observation
    factor: FloatArray
    spread: FloatArray


def enough(
    blocks: Sequence[Prospect], stakes: float, *, noise: float, least: float, most: float
) -> float:
    """The shortest length with ``e(n) - e(most) <= 0.005 stakes``, between ``least`` and ``most``.

    ``stakes``: the spread of the estimate over actions, which is what there is to lose.
    """
    if most <= least:
        return least
    prepared = [_prepared(block) for block in blocks]

    def error(length: float) -> float:
        total = 0.0
        for image, variances, inner in prepared:
            weights = most / (noise**2 / length + variances)
            known = (image * weights[:, None]).T @ image
            known[np.diag_indices_from(known)] += 1.0
            total += float(np.trace(np.linalg.solve(known, inner)))
        return sqrt(max(total, 0.0))

    length, limit = least, error(most) + _PREMIUM * stakes
    while length < most and error(length) > limit:
        length *= sqrt(2.0)
    return min(length, most)


def _prepared(block: Prospect) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``h`` in the eigenvectors of ``c``, their variances, and ``F^T S F``."""
    seen, factor = block.observation, block.factor
    sampling = np.zeros_like(seen.covariance) if seen.sampling is None else seen.sampling
    variances, vectors = np.linalg.eigh(sampling / seen.participants)
    image = vectors.T @ seen.design @ factor / seen.participants
    return image, np.maximum(variances, 0.0), factor.T @ block.spread @ factor
