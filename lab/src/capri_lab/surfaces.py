"""Published test functions of global optimisation, their domains and their ranges.

Rows in the unit cube are mapped to the usual domain of the function. The functions are published
for minimisation, so the reward turns them over, and one affine map, from the range of the function
over its whole domain, brings rewards into any limits. Formulas: S. Surjanovic and D. Bingham,
Virtual Library of Simulation Experiments (sfu.ca/~ssurjano), and V. Picheny et al., Structural and
Multidisciplinary Optimization 48 (2013), for the rescaled Hartmann-4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import not_negative, positive, whole
from capri.environments import TabularEnvironment, random_rkhs, tabulate
from capri.errors import ConfigurationError
from capri.kernels import Kernel


@final
@dataclass(frozen=True, kw_only=True)
class Surface:
    """A published function, its usual domain (one interval per dimension) and its range on it.

    One that is ``separable`` is a sum over any number of coordinates, all of the one interval, and
    each term lies in the range: the best action is the same in every context.
    """

    name: str
    formula: Callable[[FloatArray], FloatArray]
    domain: tuple[tuple[float, float], ...]
    smallest: float
    largest: float
    separable: bool = False

    def surface(self, dimension: int) -> "Surface":
        """The function of so many coordinates."""
        return replace(
            self,
            domain=self.domain * dimension,
            smallest=self.smallest * dimension,
            largest=self.largest * dimension,
        )

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

    def split(self, context: int | None, action: int | None) -> tuple[int, int]:
        """Dimensions of context and action, from what was asked for."""
        if self.separable:
            return (
                whole("context_dimension", 1 if context is None else context),
                whole("action_dimension", 1 if action is None else action),
            )
        dimension = len(self.domain)
        if context is None:
            context = dimension // 2 if action is None else dimension - action
        own = whole("context_dimension", context)
        if action is not None and own + action != dimension:
            raise ConfigurationError(
                f"{self.name} has {dimension} dimensions: context_dimension + action_dimension "
                f"must be {dimension}, got {own} + {action}"
            )
        if own >= dimension:
            raise ConfigurationError(
                f"{self.name} has {dimension} dimensions: context_dimension must be at most "
                f"{dimension - 1}, got {own}"
            )
        return own, dimension - own


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
STYBLINSKI_TANG = Surface(
    name="styblinski-tang",
    formula=_styblinski_tang,
    domain=((-5.0, 5.0),),
    smallest=-39.166165703771426,
    largest=125.0,
    separable=True,
)
# With m = 10. Each term lies between -1 and 0, and comes close to both.
MICHALEWICZ = Surface(
    name="michalewicz",
    formula=_michalewicz,
    domain=((0.0, math.pi),),
    smallest=-1.0,
    largest=0.0,
    separable=True,
)

SURFACES = {
    surface.name: surface
    for surface in (BRANIN, HARTMANN4, HARTMANN6, CAMEL, STYBLINSKI_TANG, MICHALEWICZ)
}


# -- as environments -------------------------------------------------------------------------------


def surface_environment(
    surface: Surface,
    contexts: int = 50,
    actions: int = 50,
    context_dimension: int | None = None,
    action_dimension: int | None = None,
    noise: float = 0.1,
    reward_bound: float = 1.0,
    seed: int = 0,
) -> TabularEnvironment:
    """The first coordinates are the context, the others the action.

    Means lie in ``[-(reward_bound - noise), reward_bound - noise]``: rewards are never clipped.

    A dimension that is None is chosen: what the other one leaves, half where neither is given;
    1 of a separable function.

    >>> branin(contexts=3, actions=2, seed=1).means.shape
    (3, 2)
    """
    split = surface.split(context_dimension, action_dimension)
    if surface.separable:
        surface = surface.surface(sum(split))
    bound, noise = positive("reward_bound", reward_bound), not_negative("noise", noise)
    if noise >= bound:
        raise ConfigurationError(
            f"noise must be less than reward_bound {bound}, to leave room for the function, "
            f"got {noise}"
        )
    generator = np.random.default_rng(seed)
    rows = (
        generator.random((whole("contexts", contexts), split[0])),
        generator.random((whole("actions", actions), split[1])),
    )
    return TabularEnvironment(
        name=surface.name,
        contexts=rows[0],
        weights=np.full(contexts, 1.0 / contexts),
        actions=rows[1],
        means=tabulate(lambda unit: surface.reward(unit, bound - noise), *rows),
        reward_bound=bound,
        noise=noise,
        origin={"seed": seed},
    )


branin = partial(surface_environment, BRANIN)
six_hump_camel = partial(surface_environment, CAMEL)
hartmann4 = partial(surface_environment, HARTMANN4)
hartmann6 = partial(surface_environment, HARTMANN6)
styblinski_tang = partial(surface_environment, STYBLINSKI_TANG)
michalewicz = partial(surface_environment, MICHALEWICZ)


ENVIRONMENT_NAMES = ("rkhs", *SURFACES)


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

    ``kernel`` shapes "rkhs" only, whose dimensions are 1 where they are None. Studies take their
    keys from this signature.

    >>> environment_by_name("hartmann6", contexts=5, actions=4).contexts.shape
    (5, 3)
    """
    sizes: dict[str, Any] = {
        "contexts": contexts,
        "actions": actions,
        "noise": noise,
        "reward_bound": reward_bound,
        "seed": seed,
    }
    split: dict[str, Any] = {
        "context_dimension": context_dimension,
        "action_dimension": action_dimension,
    }
    if name in SURFACES:
        return surface_environment(SURFACES[name], **split, **sizes)
    if name != "rkhs":
        raise ConfigurationError(
            f"environment must be one of {', '.join(ENVIRONMENT_NAMES)}, got {name!r}"
        )
    if kernel is None:
        raise ConfigurationError("the environment rkhs needs a kernel, got none")
    given = {key: 1 if value is None else value for key, value in split.items()}
    return random_rkhs(kernel, **given, **sizes)
