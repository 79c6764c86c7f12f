"""Environments of a study: what they are called, what they take, and how they are built."""

import inspect
from dataclasses import dataclass
from typing import Any

from capri.arena.experiments import DUBEY, USCA
from capri.arena.problems import ArenaProblem
from capri.environments import ENVIRONMENT_NAMES, Environment, environment_by_name
from capri.errors import CapriError
from capri.experiments.given import Given
from capri.kernels import KERNEL_NAMES, Kernel, kernel_by_name
from capri.kernels import from_dict as kernel_from_dict

PUBLISHED = {problem.name: problem for problem in (DUBEY, USCA)}
WORLD_NAMES = (*ENVIRONMENT_NAMES, *PUBLISHED)

# Set by the study itself, not by the options of an environment.
_NOT_OPTIONS = ("name", "kernel", "seed")


@dataclass(frozen=True, kw_only=True)
class World:
    """An environment for every seed, by name, and the kernel that goes with it.

    The kernel shapes "rkhs"; elsewhere it is what policies assume unless they are told otherwise.
    """

    label: str
    name: str
    kernel: Any
    lengthscale: Any
    options: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """All that determines the environment of a seed; the label does not."""
        if self.name in PUBLISHED:
            return {"name": self.name}
        return {
            "name": self.name,
            "kernel": self.kernel,
            "lengthscale": self.lengthscale,
            **self.options,
        }


def read_world(given: Given) -> World:
    """An ``[[environments]]`` table."""
    name = given.word("name", WORLD_NAMES)
    label = given.text("label", name)
    kernel, lengthscale = "matern52", 0.3
    defaults: dict[str, Any] = {}
    if name not in PUBLISHED:
        kernel, lengthscale = read_kernel(given, kernel, lengthscale)
        parameters = inspect.signature(environment_by_name).parameters.values()
        defaults = {
            each.name: each.default
            for each in parameters
            if each.kind is each.KEYWORD_ONLY and each.name not in _NOT_OPTIONS
        }
    options = given.rest(tuple(defaults))
    world = World(
        label=label,
        name=name,
        kernel=kernel,
        lengthscale=lengthscale,
        options={key: value for key, value in defaults.items() if value is not inspect._empty}
        | options,
    )
    try:
        build_world(world.to_dict(), 0)
    except (CapriError, TypeError) as problem:
        blamed = next((key for key in options if key in str(problem)), "name")
        raise given.error(blamed, str(problem)) from None
    return world


def read_kernel(given: Given, kernel: Any, lengthscale: Any) -> tuple[Any, Any]:
    """The kernel of a table: a short name and a lengthscale, or a whole description."""
    if isinstance(given.take("kernel", kernel), dict):
        description = given.take("kernel")
        with given.at("kernel"):
            kernel_from_dict(description)
        return description, None
    name = given.word("kernel", KERNEL_NAMES, kernel)
    lengthscale = given.take("lengthscale", lengthscale)
    try:
        kernel_by_name(name, lengthscale)
    except (CapriError, TypeError, ValueError) as problem:
        raise given.error("lengthscale", str(problem)) from None
    return name, lengthscale


def build_kernel(kernel: Any, lengthscale: Any) -> Kernel:
    """The kernel that :func:`read_kernel` read."""
    if isinstance(kernel, dict):
        return kernel_from_dict(kernel)
    return kernel_by_name(kernel, lengthscale)


def build_world(world: dict[str, Any], seed: int) -> tuple[Environment, ArenaProblem]:
    """The environment of a seed, and what players know of it."""
    name = world["name"]
    if name in PUBLISHED:
        problem = PUBLISHED[name]
        return problem.world(seed), problem
    options = {key: value for key, value in world.items() if key not in ("name", "lengthscale")}
    kernel = build_kernel(options.pop("kernel"), world["lengthscale"])
    environment = environment_by_name(name, kernel=kernel, seed=seed, **options)
    return environment, ArenaProblem(name=name, world=lambda _: environment, kernel=kernel)
