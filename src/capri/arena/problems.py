"""The problems everybody plays: an environment for every seed, and the kernel that is assumed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capri.environments import Environment, hartmann4, random_rkhs
from capri.errors import ConfigurationError
from capri.kernels import RBF, Kernel, Matern
from capri.spaces import Actions


@dataclass(frozen=True, kw_only=True)
class ArenaProblem:
    """A name, a world for every seed, and what all players know of it.

    ``actions`` replaces the world's where contexts bring their own; ``noise`` is the standard
    deviation of the rewards, in units of their bound, for the rivals that take one; ``features``
    how many a linear rival gets at least; ``options`` are those of single players, by name.
    """

    name: str
    world: Callable[[int], Environment]
    kernel: Kernel
    noise: float | None = None
    actions: Actions | None = None
    features: int = 1
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


_RBF = RBF(lengthscale=0.3)
_MATERN = Matern(nu=2.5, lengthscale=0.3)

# 50 contexts times 50 actions each; rewards f plus uniform noise of a tenth of the bound.
_PROBLEMS = {
    "rbf": ArenaProblem(name="rbf", world=lambda seed: random_rkhs(_RBF, seed=seed), kernel=_RBF),
    "matern52": ArenaProblem(
        name="matern52", world=lambda seed: random_rkhs(_MATERN, seed=seed), kernel=_MATERN
    ),
    "hartmann4": ArenaProblem(
        name="hartmann4",
        world=lambda seed: hartmann4(seed=seed),
        kernel=Matern(nu=2.5, lengthscale=0.8),
        features=20,  # four dimensions: 10 are too few for every linear rival
        options={"dubey-joint": {"principal": 20}},
    ),
}

PROBLEM_NAMES = tuple(_PROBLEMS)


def problem_by_name(name: str) -> ArenaProblem:
    """The problem behind a short name."""
    if name not in _PROBLEMS:
        raise ConfigurationError(f"problems must be among {', '.join(PROBLEM_NAMES)}, got {name!r}")
    return _PROBLEMS[name]
