"""Rewards that are known exactly: published test functions, random functions of a kernel, by name.

Test functions of global optimisation are split into context and action dimensions. Rows in the
unit cube are mapped to the usual domain of the function. The functions are published for
minimisation, so the reward turns them over, and one affine map, from the range of the function over
its whole domain, brings the means into ``[-(reward_bound - noise), reward_bound - noise]``: rewards
are never clipped. Formulas: S. Surjanovic and D. Bingham, Virtual Library of Simulation
Experiments (sfu.ca/~ssurjano), and V. Picheny et al., Structural and Multidisciplinary
Optimization 48 (2013), for the rescaled Hartmann-4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import not_negative, positive, whole
from capri.environments.base import TabularEnvironment, tabulate
from capri.errors import ConfigurationError
from capri.kernels import Kernel, random_coefficients


@final
@dataclass(frozen=True, kw_only=True)
class Surface:
    """A published function, its usual domain (one interval per dimension) and its range on it."""

    name: str
    formula: Callable[[FloatArray], FloatArray]
    domain: tuple[tuple[float, float], ...]
    smallest: float
    largest: float

    def value(self, unit: FloatArray) -> FloatArray:
        """The published value at rows of the unit cube: ``formula(lower + unit (upper - lower))``.

        >>> float(BRANIN.value(np.array([[0.0, 0.0]]))[0]) == BRANIN.largest
        True
        """
        lower, upper = np.transpose(self.domain)
        return self.formula(lower + unit * (upper - lower))

    def reward(self, unit: FloatArray, limit: float) -> FloatArray:
        """``limit (1 - 2 (value - smallest) / (largest - smallest))``: the minimum is ``limit``."""
        share = (self.value(unit) - self.smallest) / (self.largest - self.smallest)
        return limit * (1.0 - 2.0 * share)

    def environment(
        self,
        contexts: int = 50,
        actions: int = 50,
        context_dimension: int | None = None,
        noise: float = 0.1,
        reward_bound: float = 1.0,
        seed: int = 0,
    ) -> TabularEnvironment:
        """The first coordinates, by default half of them, are the context, the others the action.

        >>> branin(contexts=3, actions=2, seed=1).means.shape
        (3, 2)
        """
        dimension = len(self.domain)
        own = whole(
            "context_dimension", dimension // 2 if context_dimension is None else context_dimension
        )
        if own >= dimension:
            raise ConfigurationError(
                f"{self.name} has {dimension} dimensions: context_dimension must be at most "
                f"{dimension - 1}, got {own}"
            )
        bound, noise = positive("reward_bound", reward_bound), not_negative("noise", noise)
        if noise >= bound:
            raise ConfigurationError(
                f"noise must be less than reward_bound {bound}, to leave room for the function, "
                f"got {noise}"
            )
        rng = np.random.default_rng(seed)
        context_rows = rng.random((whole("contexts", contexts), own))
        action_rows = rng.random((whole("actions", actions), dimension - own))
        return TabularEnvironment(
            name=self.name,
            contexts=context_rows,
            weights=np.full(contexts, 1.0 / contexts),
            actions=action_rows,
            means=tabulate(
                lambda rows: self.reward(rows, bound - noise), context_rows, action_rows
            ),
            reward_bound=bound,
            noise=noise,
            origin={"seed": seed},
        )


@final
@dataclass(frozen=True, kw_only=True)
class Separable:
    """A sum over any number of coordinates: the best action is the same in every context.

    All coordinates share the ``interval``, and each term lies in ``[smallest, largest]``.
    """

    name: str
    formula: Callable[[FloatArray], FloatArray]
    interval: tuple[float, float]
    smallest: float
    largest: float

    def surface(self, dimension: int) -> Surface:
        """The function of so many coordinates."""
        return Surface(
            name=self.name,
            formula=self.formula,
            domain=(self.interval,) * dimension,
            smallest=self.smallest * dimension,
            largest=self.largest * dimension,
        )

    def environment(
        self,
        contexts: int = 50,
        actions: int = 50,
        context_dimension: int = 1,
        action_dimension: int = 1,
        noise: float = 0.1,
        reward_bound: float = 1.0,
        seed: int = 0,
    ) -> TabularEnvironment:
        """The first coordinates are the context, the others the action."""
        surface = self.surface(_dimension(context_dimension, action_dimension))
        return surface.environment(contexts, actions, context_dimension, noise, reward_bound, seed)


def _branin(rows: FloatArray) -> FloatArray:
    """``(y - 5.1 x^2 / (4 pi^2) + 5 x / pi - 6)^2 + 10 (1 - 1 / (8 pi)) cos x + 10``."""
    x, y = rows.T
    curve = y - 5.1 / (4.0 * math.pi**2) * x**2 + 5.0 / math.pi * x - 6.0
    return np.asarray(curve**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * np.cos(x) + 10.0)


def _six_hump_camel(rows: FloatArray) -> FloatArray:
    """``(4 - 2.1 x^2 + x^4 / 3) x^2 + x y + (4 y^2 - 4) y^2``."""
    x, y = rows.T
    return np.asarray((4.0 - 2.1 * x**2 + x**4 / 3.0) * x**2 + x * y + (4.0 * y**2 - 4.0) * y**2)


_HARTMANN_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_SHAPES = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
_HARTMANN_CENTRES = np.array(
    [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
)


def _hartmann_bumps(rows: FloatArray) -> FloatArray:
    """``sum_i weight_i exp(-sum_j shape_ij (x_j - centre_ij)^2)``, with the first d columns."""
    dimension = rows.shape[1]
    offsets = rows[:, None, :] - _HARTMANN_CENTRES[:, :dimension]
    exponents = np.sum(_HARTMANN_SHAPES[:, :dimension] * offsets**2, axis=2)
    return np.asarray(np.exp(-exponents) @ _HARTMANN_WEIGHTS)


def _hartmann6(rows: FloatArray) -> FloatArray:
    """``-bumps(x)``."""
    return -_hartmann_bumps(rows)


def _hartmann4(rows: FloatArray) -> FloatArray:
    """``(1.1 - bumps(x)) / 0.839``, rescaled by Picheny et al. to mean 0 and variance 1."""
    return (1.1 - _hartmann_bumps(rows)) / 0.839


def _styblinski_tang(rows: FloatArray) -> FloatArray:
    """``sum_i (x_i^4 - 16 x_i^2 + 5 x_i) / 2``."""
    return np.asarray(np.sum(rows**4 - 16.0 * rows**2 + 5.0 * rows, axis=1) / 2.0)


def _michalewicz(rows: FloatArray) -> FloatArray:
    """``-sum_i sin(x_i) sin(i x_i^2 / pi)^20``."""
    order = np.arange(1, rows.shape[1] + 1)
    return np.asarray(-np.sum(np.sin(rows) * np.sin(order * rows**2 / math.pi) ** 20, axis=1))


BRANIN = Surface(
    name="branin",
    formula=_branin,
    domain=((-5.0, 10.0), (0.0, 15.0)),
    smallest=10.0 / (8.0 * math.pi),  # at (pi, 2.275) and two more
    largest=float(_branin(np.array([[-5.0, 0.0]]))[0]),
)
CAMEL = Surface(
    name="camel",
    formula=_six_hump_camel,
    domain=((-3.0, 3.0), (-2.0, 2.0)),
    smallest=-1.0316284534898776,  # at (0.0898, -0.7126) and its mirror image
    largest=162.9,  # at the corners (3, 2) and (-3, -2)
)
# The bumps are positive and vanish far away: 0 bumps bounds both Hartmann functions from above.
HARTMANN4 = Surface(
    name="hartmann4",
    formula=_hartmann4,
    domain=((0.0, 1.0),) * 4,
    smallest=-3.1344941412224,
    largest=1.1 / 0.839,
)
HARTMANN6 = Surface(
    name="hartmann6",
    formula=_hartmann6,
    domain=((0.0, 1.0),) * 6,
    smallest=-3.3223680114155156,
    largest=0.0,
)


# Each coordinate lies between -39.16617 (at -2.903534) and 125 (at 5).
STYBLINSKI_TANG = Separable(
    name="styblinski-tang",
    formula=_styblinski_tang,
    interval=(-5.0, 5.0),
    smallest=-39.166165703771426,
    largest=125.0,
)
# With m = 10. Each term lies between -1 and 0, and comes close to both.
MICHALEWICZ = Separable(
    name="michalewicz", formula=_michalewicz, interval=(0.0, math.pi), smallest=-1.0, largest=0.0
)

branin = BRANIN.environment
six_hump_camel = CAMEL.environment
hartmann4 = HARTMANN4.environment
hartmann6 = HARTMANN6.environment
styblinski_tang = STYBLINSKI_TANG.environment
michalewicz = MICHALEWICZ.environment


def _dimension(context: int, action: int) -> int:
    return whole("context_dimension", context) + whole("action_dimension", action)


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
    dimension = _dimension(context_dimension, action_dimension)
    positive("norm", norm)
    rng = np.random.default_rng(seed)
    context_rows = rng.random((whole("contexts", contexts), context_dimension))
    action_rows = rng.random((whole("actions", actions), action_dimension))
    centre_rows = rng.random((whole("centres", centres), dimension))
    coefficients = random_coefficients(kernel, centre_rows, norm, rng)
    return TabularEnvironment(
        name="rkhs",
        contexts=context_rows,
        weights=np.full(contexts, 1.0 / contexts),
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


_FIXED = {surface.name: surface for surface in (BRANIN, HARTMANN4, HARTMANN6, CAMEL)}
_ANY = {function.name: function for function in (STYBLINSKI_TANG, MICHALEWICZ)}

ENVIRONMENT_NAMES = ("rkhs", *_FIXED, *_ANY)


def environment_by_name(
    name: str,
    *,
    kernel: Kernel | None = None,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int | None = None,
    action_dimension: int | None = None,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """The environment behind a short name.

    ``kernel`` shapes "rkhs" only. A dimension that is None is chosen: the other half of a function
    with a fixed number of dimensions, 1 elsewhere.

    >>> environment_by_name("hartmann6", contexts=5, actions=4).contexts.shape
    (5, 3)
    """
    common: dict[str, Any] = {
        "contexts": contexts,
        "actions": actions,
        "noise": noise,
        "reward_bound": reward_bound,
        "seed": seed,
    }
    if name in _FIXED:
        surface = _FIXED[name]
        share = _context_share(surface, context_dimension, action_dimension)
        return surface.environment(context_dimension=share, **common)
    split: dict[str, Any] = {
        "context_dimension": 1 if context_dimension is None else context_dimension,
        "action_dimension": 1 if action_dimension is None else action_dimension,
    }
    if name in _ANY:
        return _ANY[name].environment(**split, **common)
    if name != "rkhs":
        raise ConfigurationError(
            f"environment must be one of {', '.join(ENVIRONMENT_NAMES)}, got {name!r}"
        )
    if kernel is None:
        raise ConfigurationError("the environment rkhs needs a kernel, got none")
    return random_rkhs(kernel, **split, **common)


def _context_share(surface: Surface, context: int | None, action: int | None) -> int | None:
    """Context dimensions, from what was asked for; None leaves the choice to the surface."""
    dimension = len(surface.domain)
    if action is None:
        return context
    if context is not None and context + action != dimension:
        raise ConfigurationError(
            f"{surface.name} has {dimension} dimensions: context_dimension + action_dimension must "
            f"be {dimension}, got {context} + {action}"
        )
    return dimension - action
