"""Rare clicks: rewards of 0 and 1 whose rate is a smooth function."""

import numpy as np

from capri.checks import between
from capri.environments.base import TabularEnvironment
from capri.environments.functions import random_rkhs
from capri.kernels import Matern


def rare_clicks(rate: float = 0.02, *, seed: int = 0) -> TabularEnvironment:
    """Clicks with chance ``rate (1 + f)``, ``f`` a random Matern-5/2 function in ``[-1, 1]``.

    50 contexts times 50 actions, lengthscale 0.3. Rewards lie in ``[0, 1]``, which policies may be
    told as ``reward_range=(0, 1)``.

    >>> round(float(rare_clicks(0.1).means.max()), 3) <= 0.2
    True
    """
    table = random_rkhs(Matern(nu=2.5, lengthscale=0.3), seed=seed)
    share = between("rate", rate, 0.0, 0.5)
    return TabularEnvironment(
        name="clicks",
        contexts=table.contexts,
        weights=table.weights,
        actions=table.actions,
        means=np.clip(share * (1 + table.means), 0.0, 1.0),
        reward_bound=1.0,
        noise=0.0,
        origin={"rate": share, "seed": seed},
        bernoulli=True,
    )
