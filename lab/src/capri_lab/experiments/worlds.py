"""Environments of a study: what they are called, what they take, how they are built and seen.

A player may see less of a world than there is where users come with raw columns. CAPRI with an
unknown kernel takes columns as they are. Everybody else gets the same users with contexts in the
unit ball and the kernel that public rows suggest; rivals, which play on a finite list of contexts,
get them rounded to the nearest of public prototypes. Rewards, users and their order are the same
for all, so regrets can be compared.
"""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from capri.environments import Environment, random_rkhs
from capri.errors import ConfigurationError
from capri.files import Given
from capri.kernels import (
    KERNEL_NAMES,
    RBF,
    Constant,
    ContextAction,
    Kernel,
    Linear,
    Matern,
    kernel_by_name,
)
from capri.kernels import from_dict as kernel_from_dict
from capri.spaces import Actions, VaryingActions
from capri_lab.datasets import (
    DATASET_NAMES,
    DataBandit,
    comes_raw,
    suggested_kernel,
    table_environment,
)
from capri_lab.datasets import environment_by_name as dataset_by_name
from capri_lab.environments import (
    DUBEY_LENGTHSCALE,
    drifting,
    dubey_world,
    kernel_of_dimension,
    many_dimensions,
    rare_clicks,
    unrelated_arms,
    usca_world,
)
from capri_lab.own import digest, in_line, is_own, load, place_of
from capri_lab.rivals import kind_of
from capri_lab.surfaces import ENVIRONMENT_NAMES, environment_by_name, hartmann4


@dataclass(frozen=True, kw_only=True)
class Told:
    """What all players are told of a world.

    ``actions`` replaces the world's where contexts bring their own; ``noise`` is the standard
    deviation of the rewards, in units of their bound, for the rivals that take one; ``features``
    how many a linear rival gets at least; ``options`` are those of single players, by name.

    ``kernel`` is None where none is told. ``encoded`` builds the same world with contexts in the
    unit ball, for players that cannot take columns as they are; it takes ``prototypes``.
    ``reward_range``: of rewards that are known to lie in it, for CAPRI.
    """

    kernel: Kernel | None
    noise: float | None = None
    actions: Actions | None = None
    features: int = 1
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    encoded: Callable[..., DataBandit] | None = None
    reward_range: tuple[float, float] | None = None


_RBF = RBF(lengthscale=0.3)
_MATERN = Matern(nu=2.5, lengthscale=0.3)

# Published set-ups, and the problems of the arena: 50 contexts times 50 actions each, rewards f
# plus uniform noise of a tenth of the bound. A world for every seed, and what players are told.
SETUPS: dict[str, tuple[Callable[..., Environment], Told]] = {
    "dubey-2021": (
        dubey_world,
        Told(
            kernel=RBF(lengthscale=DUBEY_LENGTHSCALE),
            noise=0.5,
            actions=VaryingActions(count=25, dimension=2),
        ),
    ),
    "usca-2025": (
        usca_world,
        Told(
            kernel=Matern(nu=2.5, lengthscale=0.5),
            noise=0.1,
            options={
                "usca": {"explore": 50},  # one pick after all rounds
                "capri-joint": {"norm_bound": 2.0},  # picked on these draws
            },
        ),
    ),
    **{
        f"clicks-{percent}": (
            partial(rare_clicks, percent / 100),
            Told(kernel=_MATERN, reward_range=(0.0, 1.0)),
        )
        for percent in (2, 10)
    },
    "arena-rbf": (partial(random_rkhs, _RBF), Told(kernel=_RBF)),
    "arena-matern52": (partial(random_rkhs, _MATERN), Told(kernel=_MATERN)),
    "arena-hartmann4": (
        hartmann4,
        Told(
            kernel=Matern(nu=2.5, lengthscale=0.8),
            features=20,  # four dimensions: 10 are too few for every linear rival
            options={"dubey-joint": {"principal": 20}},
        ),
    ),
    **{
        f"dimensions-{count}": (
            partial(many_dimensions, count),
            Told(kernel=kernel_of_dimension(count)),
        )
        for count in (10, 20, 50)
    },
    **{
        # Equality of arms times a smooth kernel of contexts: as they are drawn.
        f"arms-{count}": (
            partial(unrelated_arms, count),
            Told(
                kernel=ContextAction(
                    context=Constant(variance=0.75)
                    + Matern(nu=2.5, lengthscale=0.3, variance=0.25),
                    action=Linear(),
                    context_dimension=1,
                )
            ),
        )
        for count in (100, 300)
    },
}
# A CSV or Parquet file of one's own.
TABLE = "table"
# A function of a kernel that changes while it is played.
DRIFTING = "drifting"
_OF_KERNELS = (*ENVIRONMENT_NAMES, DRIFTING)
WORLD_NAMES = (*_OF_KERNELS, *SETUPS, *DATASET_NAMES, TABLE)

# Set by the study itself, not by the options of an environment.
_NOT_OPTIONS = ("name", "kernel", "seed")
_LATER = ("raw",)
# In a study, label is what an environment is called.
_RENAMED = {"label": "label_column"}


def holds_rows(name: str) -> bool:
    """Whether an environment is made of the rows of a table, which may be about people."""
    return name == TABLE or name in DATASET_NAMES


def is_raw(name: str, options: dict[str, Any]) -> bool:
    """Whether users of a world come with columns as they are: those of named sets may."""
    if name not in DATASET_NAMES:
        return False
    return comes_raw(name, **{key: options.get(key) for key in ("raw", "dimensions", "prototypes")})


@dataclass(frozen=True, kw_only=True)
class World:
    """An environment for every seed, by name, and the kernel that goes with it.

    The kernel shapes "rkhs"; elsewhere it is what policies assume unless they are told otherwise.
    None is the kernel that public rows of a data set suggest; with raw columns none is told.
    """

    label: str
    name: str
    kernel: Any = None
    lengthscale: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All that determines the environment of a seed; the label does not."""
        if self.name in SETUPS:
            return {"name": self.name}
        kernel = {"kernel": self.kernel, "lengthscale": self.lengthscale}
        return {"name": self.name} | kernel | self.options


def read_world(given: Given) -> World:
    """An ``[[environments]]`` table."""
    name = given.take("name")
    if not (isinstance(name, str) and is_own(name)):
        given.only(key for each in WORLD_NAMES for key in keys_of(each))
        name = given.word("name", WORLD_NAMES)
    with given.at("name"):
        allowed = _options(name)
    given.only(keys_of(name))
    label = given.text("label", name)
    kernel, lengthscale = None, None
    if name in _OF_KERNELS or is_own(name) or (name not in SETUPS and given.has("kernel")):
        kernel, lengthscale = read_kernel(given)
    options = _file_of(given) if name == TABLE else {}
    if is_own(name):
        options = {DIGEST: _same(given, digest(name), "module")}
    options |= given.rest(tuple(allowed))
    # An option that came later is no part of what a world is while it is left out, or every result
    # that somebody keeps would look new.
    defaults = {
        key: value
        for key, value in allowed.items()
        if value is not inspect._empty and key not in _LATER
    }
    world = World(
        label=label, name=name, kernel=kernel, lengthscale=lengthscale, options=defaults | options
    )
    if given.source.thorough:
        with given.at("name", *options):
            build_world(world.to_dict(), 0)
    return world


def _options(name: str) -> dict[str, Any]:
    """The arguments of an environment and their defaults; a set-up takes none."""
    if name in SETUPS:
        return {}
    make: Callable[..., Environment] = table_environment if name == TABLE else dataset_by_name
    if is_own(name):
        make = own_environment(name)
    elif name in ENVIRONMENT_NAMES:
        make = environment_by_name
    elif name == DRIFTING:
        make = drifting
    kinds: list[Any] = [inspect.Parameter.KEYWORD_ONLY]
    if is_own(name):
        kinds.append(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        _RENAMED.get(each.name, each.name): each.default
        for each in inspect.signature(make).parameters.values()
        if each.kind in kinds and each.name not in _NOT_OPTIONS
    }


def keys_of(name: str) -> tuple[str, ...]:
    """The keys that the table of an environment may have."""
    kernel = () if name in SETUPS else ("kernel", "lengthscale")
    source = (DIGEST,) if name == TABLE or is_own(name) else ()
    return ("name", "label", *kernel, *_options(name), *source)


# What stands for the content of a file, in a world and in the study kept beside its results.
DIGEST = "sha256"


def _file_of(given: Given) -> dict[str, str]:
    """Where a table lies, and the digest of what is in it, which is part of the identity.

    The study that is kept with the results says what was in it, so they can be read without it.
    """
    path, known = given.text("path"), given.take(DIGEST)
    if given.source.thorough or known is None:
        with given.at("path"):
            found = file_digest(path)
        known = _same(given, found, "file")
    return {"path": path, DIGEST: str(known)}


def _same(given: Given, found: str, what: str) -> str:
    """The digest of a source, which is the one that a kept study says, if there is one."""
    known = given.take(DIGEST)
    if known not in (None, found):
        raise given.error(f"the {what} has {DIGEST} {found}, not {known}: it has changed", DIGEST)
    return found


def file_digest(path: str) -> str:
    """SHA-256 of what is in a file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {path}: {problem.strerror}") from None


def read_kernel(given: Given) -> tuple[Any, Any]:
    """The kernel of a table: a short name and a lengthscale, or a whole description."""
    description = given.take("kernel")
    if isinstance(description, dict):
        with given.at("kernel"):
            kernel_from_dict(description)
        return description, None
    name = given.word("kernel", KERNEL_NAMES, "matern52")
    lengthscale = given.take("lengthscale", 0.3)
    with given.at("lengthscale"):
        kernel_by_name(name, lengthscale)
    return name, lengthscale


def build_kernel(kernel: Any, lengthscale: Any) -> Kernel:
    """The kernel that :func:`read_kernel` read."""
    if isinstance(kernel, dict):
        return kernel_from_dict(kernel)
    return kernel_by_name(kernel, lengthscale)


def build_world(world: dict[str, Any], seed: int) -> tuple[Environment, Told]:
    """The environment of a seed, and what players are told of it."""
    name = world["name"]
    if name in SETUPS:
        make, told = SETUPS[name]
        return make(seed=seed), told
    named = ("name", "kernel", "lengthscale", DIGEST)
    options = {key: value for key, value in world.items() if key not in named}
    kernel = None
    if world["kernel"] is not None:
        kernel = build_kernel(world["kernel"], world["lengthscale"])
    if name in ENVIRONMENT_NAMES:
        assert kernel is not None
        return environment_by_name(name, kernel=kernel, seed=seed, **options), Told(kernel=kernel)
    if is_own(name):
        return own_world(name, seed, options), Told(kernel=kernel)
    if name == DRIFTING:
        assert kernel is not None
        return drifting(kernel, seed=seed, **options), Told(kernel=kernel)
    if name == TABLE:
        if file_digest(options["path"]) != world[DIGEST]:
            raise ConfigurationError(f"{options['path']} has changed since the study was read")
        options["label"] = options.pop(_RENAMED["label"])
        bandit = table_environment(seed=seed, **options)
    else:
        bandit = dataset_by_name(name, seed=seed, **options)
        if is_raw(name, options):
            return bandit, Told(
                kernel=kernel,
                encoded=partial(dataset_by_name, name, seed=seed, **(options | {"raw": False})),
            )
    return bandit, Told(kernel=suggested_kernel(bandit) if kernel is None else kernel)


def own_environment(name: str) -> Callable[..., Environment]:
    """A function of one's own that makes the environment of a seed."""
    make = load(name)
    if not callable(make) or "seed" not in inspect.signature(make).parameters:
        raise ConfigurationError(
            f"{name} must be a function of a keyword seed that returns an environment "
            f"({place_of(make)})"
        )
    return make  # type: ignore[no-any-return]


def own_world(name: str, seed: int, options: dict[str, Any]) -> Environment:
    """What such a function makes, or what it lacks to be an environment."""
    make = own_environment(name)
    try:
        made = make(seed=seed, **options)
    except Exception as problem:
        raise ConfigurationError(f"{name}: {in_line(problem, make)}") from None
    members = (each for each in vars(Environment) if not each.startswith("_"))
    lacks = [each for each in members if not hasattr(made, each)]
    if lacks:
        raise ConfigurationError(
            f"what {name} returns lacks {', '.join(lacks)} of capri.environments.Environment "
            f"({place_of(make)})"
        )
    return made


# "auto" tells no kernel; "suggested" is that of public rows.
UNTOLD, SUGGESTED = "auto", "suggested"

# Public prototypes that users are rounded to, where there are so many public contexts.
_PROTOTYPES = 200
# Features of linear rivals by number of actions: tried on two problems, the best of 10, 20 and 40
# was 40; beyond that noise costs more than features bring.
_FEATURES = (40, 4, 150)  # at least, for each action, at most


def view_of(world: Environment, told: Told, player: dict[str, Any]) -> tuple[Environment, Told]:
    """The world as a player sees it, and what the player is told."""
    rival, own = kind_of(player["name"]) is not None, player.get("kernel")
    untold = own == UNTOLD or (own is None and told.kernel is None)
    if told.encoded is None or (untold and not rival):
        return world, told
    seen = told.encoded()
    if rival:
        seen = told.encoded(prototypes=min(_PROTOTYPES, seen.pool.size))
    least, each, most = _FEATURES
    features = min(most, max(least, each * len(seen.actions)))
    kernel = suggested_kernel(seen) if told.kernel is None else told.kernel
    return seen, replace(told, kernel=kernel, features=features)
