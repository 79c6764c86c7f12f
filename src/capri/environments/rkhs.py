"""Random functions with a known norm in the space of a kernel: the setting of the theory."""

import numpy as np

from capri.checks import not_negative, positive, whole
from capri.environments.base import TabularEnvironment, tabulate, uniform_law, unit_cube
from capri.kernels import Kernel, random_coefficients


def random_rkhs(
    kernel: Kernel,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int = 1,
    action_dimension: int = 1,
    norm: float = 1.0,
    centres: int = 30,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """``f = sum_j a_j k(., z_j)`` with ``a^T K a = norm^2``, everything uniform in the unit cube.

    With ``k(w, w) <= 1`` the means stay within ``norm``. Rewards are clipped at the bound, so where
    ``|f| + noise`` exceeds it their expectation is a little less extreme than ``f``.

    >>> from capri.kernels import Matern
    >>> random_rkhs(Matern(nu=2.5, lengthscale=0.3), contexts=4, actions=3).means.shape
    (4, 3)
    """
    positive("reward_bound", reward_bound)
    not_negative("noise", noise)
    whole("context_dimension", context_dimension)
    whole("action_dimension", action_dimension)
    positive("norm", norm)
    rng = np.random.default_rng(seed)
    context_rows = unit_cube(rng, "contexts", contexts, context_dimension)
    action_rows = unit_cube(rng, "actions", actions, action_dimension)
    centre_rows = unit_cube(rng, "centres", centres, context_dimension + action_dimension)
    coefficients = random_coefficients(kernel, centre_rows, norm, rng)
    return TabularEnvironment(
        name="rkhs",
        contexts=context_rows,
        weights=uniform_law(contexts),
        actions=action_rows,
        means=tabulate(
            lambda rows: kernel(rows, centre_rows) @ coefficients, context_rows, action_rows
        ),
        reward_bound=reward_bound,
        noise=noise,
        origin={
            "kernel": kernel.to_dict(),
            "norm": float(norm),
            "centres": int(centres),
            "seed": seed,
        },
    )
