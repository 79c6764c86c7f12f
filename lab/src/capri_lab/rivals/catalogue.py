"""Rivals by name: what the shell speaks, and one way to build any of them for an environment."""

from typing import Any, TypeAlias

from capri.environments import Environment, public_pool
from capri.errors import ConfigurationError
from capri.kernels import Kernel
from capri.privacy.budget import Budget, Promise
from capri.simulation import UniformPlay
from capri.spaces import Actions, FixedActions
from capri_lab.own import is_own, load, place_of
from capri_lab.rivals.arms.elimination import SajedSheffet, Tenenbaum
from capri_lab.rivals.arms.ucb import LDPUCB, AdaPUCB
from capri_lab.rivals.base import Rival
from capri_lab.rivals.features import feature_rows
from capri_lab.rivals.kernel.bkb import BKB
from capri_lab.rivals.kernel.gp_threds import GPThreDS
from capri_lab.rivals.kernel.kharkovskii import Kharkovskii
from capri_lab.rivals.kernel.optimism import GPUCB, IGPUCB, KernelUCB
from capri_lab.rivals.kernel.release import USCA, Kusner
from capri_lab.rivals.kernel.shrinking import REDS, BatchedExploration
from capri_lab.rivals.kernel.square_cb import SquareCB
from capri_lab.rivals.linear.dubey import DubeyJoint, DubeyLocal
from capri_lab.rivals.linear.han import HanOLS, HanSGD
from capri_lab.rivals.linear.linucb import LinUCB
from capri_lab.rivals.linear.moments import BatchedLinear, ShariffSheffet, Zheng
from capri_lab.rivals.linear.zhou_tan import ZhouTan

# One line per rival: everything else is in the class. Kinds of promise stay together.
PRIVATE_RIVALS: tuple[type[Rival], ...] = (
    # joint
    ShariffSheffet,
    BatchedLinear,
    DubeyJoint,
    USCA,
    SajedSheffet,
    AdaPUCB,
    # central: private release of an output
    Kusner,
    Kharkovskii,
    # local
    Zheng,
    HanOLS,
    HanSGD,
    DubeyLocal,
    ZhouTan,
    LDPUCB,
    # shuffle
    Tenenbaum,
)
RIVALS: tuple[type[Rival], ...] = (
    GPUCB,
    IGPUCB,
    KernelUCB,
    BatchedExploration,
    REDS,
    GPThreDS,
    BKB,
    LinUCB,
    SquareCB,
    *PRIVATE_RIVALS,
)

BY_NAME: dict[str, type[Rival]] = {kind.name: kind for kind in RIVALS}
RIVAL_NAMES: tuple[str, ...] = (UniformPlay.name, *BY_NAME)

RivalPolicy: TypeAlias = Rival | UniformPlay
# What a policy of one's own must say, and what for.
_MEMBERS = {
    "name": "what tables call it",
    "reference": "where it comes from",
    "needs": '"kernel", "features" or "arms": what it sees of a pair',
    "reach": "the longest sensible horizon",
}


def kind_of(name: str) -> type[Rival] | None:
    """The class of a rival, shipped or of one's own ("module:Class"); None for other names."""
    if not is_own(name):
        return BY_NAME.get(name)
    kind = load(name)
    if not (isinstance(kind, type) and issubclass(kind, Rival)):
        raise ConfigurationError(
            f"{name} must be a class that derives from capri_lab.rivals.Rival ({place_of(kind)})"
        )
    for member, meaning in _MEMBERS.items():
        if not hasattr(kind, member):
            raise ConfigurationError(f"{name} lacks {member}, {meaning} ({place_of(kind)})")
    if kind.needs not in ("kernel", "features", "arms"):
        raise ConfigurationError(
            f"{name}: needs must be {_MEMBERS['needs']}, got {kind.needs!r} ({place_of(kind)})"
        )
    if kind.__abstractmethods__:
        left = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigurationError(f"{name} lacks {left} ({place_of(kind)})")
    return kind


def rival(
    name: str,
    environment: Environment,
    *,
    kernel: Kernel,
    horizon: int,
    simulation_seed: int,
    budget: Budget | None = None,
    actions: Actions | None = None,
    features: str = "kernel",
    feature_options: dict[str, Any] | None = None,
    **options: Any,
) -> RivalPolicy:
    """Build a rival for an environment; ``options`` are those of its class.

    ``budget`` is left out for a rival that spends none. ``features`` are those of
    :func:`capri_lab.rivals.features.feature_rows`, for rivals that need some. ``actions`` replaces
    the environment's, for time-varying ones.

    >>> from capri import environments, kernels
    >>> kernel = kernels.RBF(lengthscale=0.3)
    >>> world = environments.random_rkhs(kernel, contexts=4, actions=3)
    >>> rival("uniform", world, kernel=kernel, horizon=10, simulation_seed=0).remaining
    10
    """
    if name == UniformPlay.name:
        return UniformPlay(
            actions=environment.actions if actions is None else actions,
            horizon=horizon,
            simulation_seed=simulation_seed,
        )
    kind = kind_of(name)
    if kind is None:
        raise ConfigurationError(f"rival must be one of {', '.join(RIVAL_NAMES)}, got {name!r}")
    chosen = FixedActions(environment.actions) if actions is None else actions
    settings: dict[str, Any] = {
        "actions": chosen,
        "contexts": public_pool(environment),
        "horizon": horizon,
        "reward_bound": environment.reward_bound,
        "simulation_seed": simulation_seed,
    }
    if kind.promise.model != "none":
        settings["budget"] = budget
    if kind.needs == "kernel":
        settings["kernel"] = kernel
    elif kind.needs == "features":
        pairs = chosen.pairs(settings["contexts"].rows)
        wanted = {"count": kind.feature_count} | (feature_options or {})
        settings["features"] = feature_rows(
            features, pairs.reshape(-1, pairs.shape[-1]), kernel=kernel, **wanted
        )
    return kind(**settings, **options)


def reach_of(name: str) -> int:
    """The longest horizon that is sensible for a rival."""
    kind = kind_of(name)
    return 10**9 if kind is None else kind.reach


def promise_of(policy: object) -> Promise:
    """What a policy promises, CAPRI and uniform play included; nothing for a run without budget."""
    promise = getattr(policy, "promise", None)
    if not isinstance(promise, Promise):
        raise ConfigurationError(f"no promise is known of {type(policy).__name__}")
    return promise
