"""Players: CAPRI in any form, every rival, uniform play. Declared in studies, built here alone."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capri.environments import Environment, TabularEnvironment, public_pool, random_rkhs
from capri.epoch.rewards import checked_scale
from capri.errors import ConfigurationError
from capri.files import Given
from capri.joint.policy import Capri
from capri.kernels import RBF, Matern
from capri.learners.presets import checked_options
from capri.learners.prior import Prior
from capri.local.simulator import DeviceSimulator
from capri.players import CAPRI, make_capri
from capri.privacy.budget import Budget
from capri.simulation import Policy
from capri_lab.experiments.contract import playable
from capri_lab.experiments.worlds import (
    DIGEST,
    SUGGESTED,
    UNTOLD,
    Told,
    World,
    build_kernel,
    holds_rows,
    is_raw,
    read_kernel,
)
from capri_lab.own import digest, is_own
from capri_lab.rivals import RIVAL_NAMES, Rival, kind_of, reach_of, rival
from capri_lab.rivals.features import FEATURE_NAMES
from capri_lab.rivals.fixed import BEST_FIXED, FixedPlay, best_fixed_action
from capri_lab.streams import CONTEXT_LAW, PUBLIC_ROWS

PLAYER_NAMES = (CAPRI, *RIVAL_NAMES, BEST_FIXED)

# Every key of a ``[[policies]]`` table, and what it takes: the reference is written from it.
KEYS = {
    "name": "`capri`, `uniform`, `best-fixed`, a rival of `capri-lab arena`, or `module:Class`.",
    "label": "What tables and pictures call it; must differ between policies.",
    "kernel": 'What it is told instead of the truth; of CAPRI also "auto" and "suggested".',
    "lengthscale": "Of that kernel.",
    "law_error": "It is told a context law at this total variation distance from the true one.",
    "epsilons": "Its own, instead of those of the study.",
    "options": "Of the preset of CAPRI, or of the class of a rival.",
}
OF_CAPRI = {
    "model": '"joint", "local" (real devices and a real aggregator) or "shuffle".',
    "preset": '"practical" or "paper".',
    "reward_range": "The range of rewards that it is told.",
    "public_rows": "How many public rows it is told beforehand.",
    "rows_of": 'Where they come from: the "world", or its "opposite".',
}
OF_LINEAR = {"features": 'Of linear rivals: "kernel", "raw", "polynomial" or "fourier".'}


@dataclass(frozen=True, kw_only=True)
class Player:
    """Who plays, with which settings, and what it is told of the environment.

    ``epsilons`` are its own, where they differ from the study's.
    """

    label: str
    name: str
    settings: dict[str, Any]
    epsilons: tuple[float, ...] | None

    @property
    def private(self) -> bool:
        """Whether a budget makes a difference to it."""
        if self.name == CAPRI:
            return True
        kind = kind_of(self.name)
        return kind is not None and kind.promise.model not in ("none", "perfect")

    @property
    def reach(self) -> int:
        """The longest sensible horizon."""
        return 10**9 if self.name == CAPRI else reach_of(self.name)

    def to_dict(self) -> dict[str, Any]:
        """All that determines how it plays; the label does not."""
        return {"name": self.name, **self.settings}


def read_player(given: Given) -> Player:
    """A ``[[policies]]`` table."""
    given.only((*KEYS, *OF_CAPRI, *OF_LINEAR))
    name = given.take("name")
    if not (isinstance(name, str) and is_own(name)):
        name = given.word("name", PLAYER_NAMES)
    with given.at("name"):
        kind = kind_of(name)
    linear = kind is not None and kind.needs == "features"
    given.only((*KEYS, *(OF_CAPRI if name == CAPRI else OF_LINEAR if linear else ())))
    settings: dict[str, Any] = {}
    label = name
    if kind is not None and is_own(name):
        settings[DIGEST], label = digest(name), kind.name
    if name == CAPRI:
        settings["model"] = given.word("model", ("joint", "local", "shuffle"), "joint")
        settings["preset"] = given.word("preset", ("practical", "paper"), "practical")
        settings |= _read_public_rows(given)
        if given.has("reward_range"):
            ends = given.take("reward_range")
            with given.at("reward_range"):
                checked_scale(None, ends)
            settings["reward_range"] = [float(end) for end in ends]
        label = f"{name}-{settings['model']}"
    elif linear:
        settings["features"] = given.word("features", FEATURE_NAMES, "kernel")
    label = given.text("label", label)
    if name == CAPRI and given.has("kernel") and given.take("kernel") in (UNTOLD, SUGGESTED):
        settings["kernel"] = given.take("kernel")
    elif given.has("kernel") or given.has("lengthscale"):
        if not isinstance(given.take("kernel", ""), dict):
            for key in ("kernel", "lengthscale"):
                if not given.has(key):
                    raise given.error(
                        "kernel and lengthscale are given together or not at all", key
                    )
        settings["kernel"], settings["lengthscale"] = read_kernel(given)
    if given.has("law_error"):
        settings["law_error"] = given.number(
            "law_error", 0.0, lambda value: 0 <= value < 0.5, "a number from 0 to below 0.5"
        )
    own = read_epsilons(given) if given.has("epsilons") else None
    options = given.take("options", {})
    given.rest()
    _check_options(given, name, settings, options)
    if is_own(name):
        with given.at("name"):
            playable(name, options)
    if options:
        settings["options"] = options
    return Player(label=label, name=name, settings=settings, epsilons=own)


def read_epsilons(given: Given) -> tuple[float, ...]:
    """The key ``epsilons``: positive numbers; inf is no noise."""
    if not given.has("epsilons"):
        raise given.error("epsilons is missing: positive numbers; inf is no noise", "epsilons")
    allowed = "positive numbers (inf is no noise)"
    return tuple(map(float, several(given, "epsilons", None, lambda value: value > 0, allowed)))


def several(
    given: Given, key: str, default: Any, check: Callable[[Any], bool], allowed: str
) -> list[Any]:
    """One value or a list of different ones, each of which passes a check."""
    value = given.take(key, default)
    values = list(value) if isinstance(value, list | tuple | range) else [value]
    for each in values:
        Given({key: each}, given.source, given.path).number(key, None, check, allowed)
    if not values or len(set(values)) < len(values):
        raise given.error(f"{key} must be different numbers, at least one, got {value!r}", key)
    return values


def _check_options(
    given: Given, name: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    """Refuse an option that the policy does not take, before anything runs."""
    inner = given.inner(options, "options")
    if name == CAPRI:
        with inner.at("", *options):
            checked_options(settings["preset"], options)
        return
    inner.rest(own_options(name))
    if not options or not given.source.thorough:
        return
    # A rival checks its values when it is built: do that on a small world.
    kernel = RBF(lengthscale=0.3)
    world = random_rkhs(kernel, contexts=6, actions=5)
    with inner.at(next(iter(options)), *options):
        rival(name, world, kernel=kernel, horizon=100, simulation_seed=0, **options)


def misfit(player: Player, world: World) -> str | None:
    """Why a player cannot play on a world, as far as that shows without building either.

    The rest shows when a cell is played, and is recorded as its failure.
    """
    if player.settings.get("kernel") == SUGGESTED and not is_raw(world.name, world.options):
        return (
            f"kernel = {SUGGESTED!r} belongs to data with raw columns, and {world.label} has none: "
            "leave it out"
        )
    if not holds_rows(world.name):
        return None
    if player.settings.get("law_error"):
        return f"law_error needs a context law that is known: {world.label} has none"
    if is_raw(world.name, world.options):
        return None  # rivals see users as the nearest public prototypes
    if kind_of(player.name) is not None and not world.options.get("prototypes"):
        return (
            f"{player.name} plays on a pool of known contexts only, and users of {world.label} "
            "have contexts of their own: give that environment prototypes = 50, so that users come "
            f"as the nearest of 50 public ones, or leave {player.name} out"
        )
    return None


def own_options(name: str) -> tuple[str, ...]:
    """The options of a rival's class, beside what every rival takes."""
    kind = kind_of(name)
    if kind is None:
        return ()
    common = {*inspect.signature(Rival.__init__).parameters, "kernel", "features", "setting"}
    own = inspect.signature(kind.__init__).parameters
    return tuple(key for key in own if key not in common)


def make_player(
    player: dict[str, Any],
    told: Told,
    world: Environment,
    *,
    budget: Budget | None,
    rounds: int,
    seed: int,
) -> Policy:
    """The policy that a :class:`Player` describes, on a world, with a seed. None: no budget."""
    name = player["name"]
    if name == BEST_FIXED:
        return FixedPlay(
            actions=world.actions if told.actions is None else told.actions,
            horizon=rounds,
            action=best_fixed_action(world),
        )
    if player.get("law_error"):
        world = _with_wrong_law(world, player["law_error"], seed)
    kernel = UNTOLD if told.kernel is None else told.kernel
    common: dict[str, Any] = {"kernel": kernel, "horizon": rounds, "simulation_seed": seed}
    if name == CAPRI:
        return _make_capri(player, told, world, budget, common)
    options = told.options.get(name, {}) | player.get("options", {})
    if "features" in player:
        options["features"] = player["features"]
    if (kind := kind_of(name)) is not None:
        options["feature_options"] = {"count": max(told.features, kind.feature_count)}
    if told.noise is not None and "noise" in own_options(name):
        options["noise"] = told.noise
    return rival(name, world, budget=budget, actions=told.actions, **common, **options)


def _make_capri(
    player: dict[str, Any],
    told: Told,
    world: Environment,
    budget: Budget | None,
    common: dict[str, Any],
) -> Capri | DeviceSimulator:
    """CAPRI with a curator, or devices and an aggregator; the paper has its own local form."""
    model = player["model"]
    settings: dict[str, Any] = {
        "actions": world.actions if told.actions is None else told.actions,
        "contexts": public_pool(world),
        **_scale(player, told, world),
        **common,
        **_prior_of(player, world, common["simulation_seed"]),
        **told.options.get(f"{CAPRI}-{model}", {}),
        **player.get("options", {}),
    }
    return make_capri(model=model, preset=player["preset"], budget=budget, **settings)


def _scale(player: dict[str, Any], told: Told, world: Environment) -> dict[str, Any]:
    """The range of rewards: as the player is told, as the world is known for, or by its bound."""
    reward_range = player.get("reward_range", told.reward_range)
    if reward_range is None:
        return {"reward_bound": world.reward_bound}
    return {"reward_range": tuple(reward_range)}


def build_player(
    player: dict[str, Any], told: Told, world: Environment, **settings: Any
) -> tuple[Policy, str]:
    """That of :func:`make_player`, and a note where it is not quite what was asked for.

    A player that is told a kernel of its own takes it for the world's.
    """
    own = player.get("kernel")
    if own == UNTOLD:
        told = replace(told, kernel=None)
    elif own is not None and own != SUGGESTED:
        told = replace(told, kernel=build_kernel(player["kernel"], player["lengthscale"]))
    try:
        return make_player(player, told, world, **settings), ""
    except ConfigurationError:
        if player["name"] == CAPRI or not isinstance(told.kernel, Matern):
            raise
        # Some rivals exist for the RBF kernel only: they play with it, and the table says so.
        plain = replace(told, kernel=RBF(lengthscale=told.kernel.lengthscale))
        return make_player(player, plain, world, **settings), "with an RBF kernel"


def _with_wrong_law(world: Environment, distance: float, seed: int) -> TabularEnvironment:
    """The world as a policy is told it: its context law off by a total variation distance.

    A random half ``A`` of the contexts gains the probability ``d`` that the others lose:
    ``p'(c) = p(c) (P(A) + d) / P(A)`` in ``A`` and ``p(c) (1 - P(A) - d) / (1 - P(A))`` elsewhere.
    """
    if not isinstance(world, TabularEnvironment):
        raise ConfigurationError("law_error needs an environment whose context law is known")
    order = np.random.default_rng([seed, CONTEXT_LAW]).permutation(len(world.weights))
    gains = np.zeros(len(order), dtype=np.bool_)
    gains[order[: len(order) // 2]] = True
    share = float(world.weights[gains].sum())
    if not share > 0.0 or not distance < 1.0 - share:
        raise ConfigurationError(
            f"law_error must be below {1.0 - share:.3g} here, the probability of the contexts that "
            f"lose some, got {distance:g}"
        )
    factor = np.where(gains, 1.0 + distance / share, 1.0 - distance / (1.0 - share))
    weights = world.weights * factor
    return replace(world, weights=weights / weights.sum())


# Of the world itself, or of one in which every reward has the other sign.
_SOURCES = ("world", "opposite")


def _read_public_rows(given: Given) -> dict[str, Any]:
    """The keys of a player: how many rows, and of what."""
    if not given.has("public_rows"):
        if given.has("rows_of"):
            raise given.error("rows_of says what public_rows are of: give both", "rows_of")
        return {}
    whole = given.number(
        "public_rows",
        None,
        lambda value: value >= 1 and value == int(value),
        "a whole number of 1 or more",
    )
    source = given.word("rows_of", _SOURCES, _SOURCES[0])
    return {"public_rows": int(whole), "rows_of": source}


def _prior_of(player: dict[str, Any], world: Environment, seed: int) -> dict[str, Any]:
    """The argument ``prior`` of a policy, from rows under uniform play; nothing without them."""
    count = player.get("public_rows")
    if count is None:
        return {}
    if not isinstance(world.actions, np.ndarray):
        raise ConfigurationError("public_rows needs a world with a fixed list of actions")
    rng = np.random.default_rng([seed, PUBLIC_ROWS])
    context = world.draw_contexts(rng, count)
    action = rng.integers(len(world.actions), size=count)
    sign = -1.0 if player["rows_of"] == "opposite" else 1.0
    rewards = sign * world.rewards(rng, context, action)
    return {"prior": Prior.from_rows(world.contexts[context], action, rewards)}
