"""``policy.toml``: what a policy is, checked where each value is taken; errors name its line."""

import hashlib
import json
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from capri.checks import is_number
from capri.epoch.plan import unsaid
from capri.epoch.rewards import AS_ESTIMATED, RewardRule
from capri.errors import CapriError, ConfigurationError, KernelWarning
from capri.files import Given, Source, whole_from, write_atomically
from capri.joint.policy import Capri
from capri.kernels import KERNEL_NAMES, from_dict, kernel_by_name
from capri.local.aggregator import LocalCapri
from capri.privacy.budget import Budget, PrivacyModel
from capri.schema import Schema
from capri.service.auth import ServiceLimits
from capri.service.tables import (
    KEYS,
    TIME,
    UNITS,
    read_actions,
    read_column,
    read_contexts,
    read_limits,
)  # fmt: skip
from capri.spaces import FixedActions
from capri.store.transaction import POSTGRES, SQLITE

_SHALLOWEST = 4
# Rounds and functions that a forecast plays.
_ROUNDS, _FUNCTIONS = 10_000, 3
_MODES = ("active", "shadow", "default")


@dataclass(frozen=True)
class Settings:
    """A policy file that was read and found sound."""

    path: Path
    name: str
    arguments: Mapping[str, Any]
    offered: object  # the actions as they are written
    mode: str = "active"
    default: str | None = None
    hosts: tuple[str, ...] = ()
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    rollback_guard: str | None = None
    control: str | None = None  # the action that was played before
    population: str | None = None  # in the organisation's ledger, whose address the operator gives

    def policy(self, **place: Any) -> Capri:
        """The policy, in its store; its key and its rollback guard are told as the policy is."""
        return Capri(**{**self.arguments, **place})

    def aggregator(self, store: str | None) -> LocalCapri:
        """What a file with ``model = "local"`` describes, in its store."""
        given = {name: value for name, value in self.arguments.items() if name != "model"}
        for name in ("contributions_per_user", "contributions_per_epoch"):
            if given.pop(name, None) is not None:
                raise ConfigurationError(
                    "contributions are limited by the devices of model 'local', each of which "
                    "reports once: leave [users] out"
                )
        if given.pop("reward_rule", "first") != "first":
            raise ConfigurationError(
                "reward_rule must be 'first' with model 'local': a device reports once, so the app "
                "combines several rewards to one before it reports"
            )
        given["budget"] = Budget(epsilon=given["budget"].epsilon)  # the sphere keeps delta = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KernelWarning)  # the page and /v1/policy tell of them
            population = None if store is None else self.population
            return LocalCapri(**given, store=store, population=population)

    @property
    def local(self) -> bool:
        """Whether devices decide, and this service adds up what they report."""
        return bool(self.arguments["model"] == PrivacyModel.LOCAL)

    def begin(self, policy: Capri) -> None:
        """Put a new policy into its first mode; later on operators change it."""
        if self.mode == "active" or policy.progress.decided:
            return
        if not any(each.kind == "mode" for each in policy.operations):
            policy.set_mode(self.mode, action=self.default)

    @property
    def default_store(self) -> str:
        """A file beside this one."""
        return f"sqlite:///{self.path.resolve().with_suffix('.db')}"


def load_settings(path: Path, *, thorough: bool = True) -> Settings:
    """Read a policy file, or say which line of it is not as it must be.

    ``thorough``: also build it, to find out whether that works.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no UTF-8 text"
        raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigurationError(f"{path}: {problem}") from None
    return settings_of(Given(table, Source(str(path), text, thorough)), path)


def settings_of(given: Given, path: Path) -> Settings:
    """What tables say, as those of the file at a path."""
    given.only((*KEYS[""], *filter(None, KEYS)))
    name = given.text("name", path.stem)
    columns = [read_column(each) for each in given.tables("context")]
    with given.at("context"):
        schema = Schema(tuple(columns))
    contexts = read_contexts(given, schema, path.parent)
    offered, actions = read_actions(given, path.parent)
    arguments: dict[str, Any] = {
        "contexts": contexts,
        "actions": actions,
        "kernel": _kernel(given),
        "model": given.word("model", [str(each) for each in PrivacyModel], "joint"),
        "budget": _budget(given),
        "horizon": _count(given, "horizon"),
        **_reward(given),
        **_users(given),
        **_epoch(given),
        "limits": read_limits(given, actions, contexts, path.parent),
    }
    mode = given.word("mode", _MODES, "active")
    if mode != "active" and arguments["model"] == PrivacyModel.LOCAL:
        raise given.error('mode must be "active" with model = "local": devices decide', "mode")
    default = _default(given, mode, actions)
    if given.has("tickets"):
        arguments["tickets"] = given.take("tickets")
        if arguments["model"] != PrivacyModel.LOCAL:
            raise given.error('tickets are for model = "local"', "tickets")
    hosts, limits, control = _service(given, actions)
    options = given.take("options", {})
    inner = given.inner(options, "options")
    arguments |= {key: inner.take(key) for key in options}
    rollback_guard = _rollback_guard(given, path.parent)
    if rollback_guard is not None and arguments["model"] == PrivacyModel.LOCAL:
        raise given.error(
            'rollback_guard is for model = "joint": reports may be public', "rollback_guard"
        )
    settings = Settings(
        path, name, arguments, offered, mode, default, hosts, limits, rollback_guard, control,
        given.text("population") if given.has("population") else None,
    )  # fmt: skip
    if given.source.thorough:
        _try(settings, given, options)
    return settings


def _try(settings: Settings, given: Given, options: Mapping[str, Any]) -> None:
    """Build it in memory: what does not fit together is found before the first user."""
    try:
        if settings.local:
            settings.aggregator(None)
        else:
            settings.policy(store=None)
    except CapriError as problem:
        said = str(problem)
        blamed: tuple[str | int, ...] = next(
            (("options", key) for key in options if key in said),
            next((path for word, path in _BLAMED.items() if word in said), ()),
        )
        raise given.error(said, *blamed) from None


_BLAMED: dict[str, tuple[str | int, ...]] = {
    "contributions_per_epoch": ("users", "contributions_per_epoch"),
    "per_epoch": ("users", "contributions_per_epoch"),
    "contributions": ("users", "contributions"),
    "epsilon": ("budget", "epsilon"),
    "delta": ("budget", "delta"),
    "missing_reward": ("reward", "missing"),
    "reward_wait": ("reward", "wait"),
    "kernel": ("kernel",),
    "action": ("actions",),
    "horizon": ("horizon",),
    "reward_rule": ("reward", "rule"),
}


def _default(given: Given, mode: str, actions: FixedActions) -> str | None:
    """The action that everybody gets in mode "default"."""
    if mode != "default":
        if given.take("action") is not None:
            raise given.error('action is of use with mode = "default" only', "action")
        return None
    return given.word("action", actions.names or ())


def _kernel(given: Given) -> Any:
    kernel = given.take("kernel", "auto")
    lengthscale = given.take("lengthscale")
    if kernel == "auto":
        if lengthscale is not None:
            raise given.error("lengthscale is of use with a named kernel only", "lengthscale")
        return "auto"
    with given.at("kernel", "lengthscale"):
        if isinstance(kernel, dict):
            return from_dict(kernel)
        if kernel not in KERNEL_NAMES:
            raise ConfigurationError(
                f"kernel must be 'auto', one of {', '.join(KERNEL_NAMES)}, or a table with a "
                f"type, got {kernel!r}"
            )
        return kernel_by_name(kernel, 0.5 if lengthscale is None else lengthscale)


# -- promises and rewards -------------------------------------------------------------------------


def _table(given: Given, key: str, more: Iterable[str] = ()) -> Given:
    inner = given.inner(given.take(key, {}), key)
    inner.only((*KEYS[key], *more))
    return inner


def _budget(given: Given) -> Budget:
    if not given.has("budget"):
        raise given.error("budget is missing: give a table [budget] with epsilon")
    inner = _table(given, "budget")
    epsilon = inner.number("epsilon", None, lambda value: 0 < value < np.inf, "a positive number")
    delta = inner.number("delta", 0.0, lambda value: 0 <= value < 1, "0, or between 0 and 1")
    with inner.at("epsilon", "delta"):
        return Budget(epsilon=epsilon, delta=delta)


def _count(given: Given, key: str) -> int | None:
    if not given.has(key):
        return None
    return int(given.number(key, None, whole_from(1), "a whole number of 1 or more"))


def _reward(given: Given) -> dict[str, Any]:
    inner = _table(given, "reward")
    ends = inner.take("range", [-1.0, 1.0])
    sound = isinstance(ends, list) and len(ends) == 2 and all(is_number(end) for end in ends)
    if not sound or not -np.inf < ends[0] < ends[1] < np.inf:
        raise inner.error(
            f"range must be two numbers, the lower first, such as [0, 1], got {ends!r}", "range"
        )
    missing = inner.take("missing", 0.0)
    if missing != AS_ESTIMATED and not (is_number(missing) and ends[0] <= missing <= ends[1]):
        raise inner.error(
            f"missing must be a number of the range or {AS_ESTIMATED!r}, got {missing!r}", "missing"
        )
    return {
        "reward_range": (float(ends[0]), float(ends[1])),
        **_wait(inner),
        "missing_reward": missing,
        "reward_rule": inner.word("rule", [str(each) for each in RewardRule], "first"),
    }


def _wait(inner: Given) -> dict[str, int | timedelta]:
    """Nothing where the file says nothing: each model has a default of its own."""
    wait = inner.take("wait", None)
    if wait is None:
        return {}
    if isinstance(wait, str):
        return {"reward_wait": _duration(inner, "wait", wait)}
    if not is_number(wait) or not whole_from(0)(wait):
        raise inner.error(
            f"wait must be a number of decisions, or a time such as '2 hours', got {wait!r}", "wait"
        )
    return {"reward_wait": int(wait)}


def _duration(inner: Given, key: str, text: object) -> timedelta:
    """A time such as "90 seconds" or "1.5 days"."""
    found = TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise inner.error(
            f"{key} must be a time: a number and one of {', '.join(UNITS.values())}, such as "
            f"'2 hours', got {text!r}",
            key,
        )
    return timedelta(**{UNITS[found[2][0]]: float(found[1])})


def _users(given: Given) -> dict[str, Any]:
    inner = _table(given, "users")
    return {
        "contributions_per_user": _count(inner, "contributions"),
        "contributions_per_epoch": _count(inner, "contributions_per_epoch"),
    }


def _epoch(given: Given) -> dict[str, Any]:
    inner = _table(given, "epoch")
    if not inner.has("time"):
        return {}
    return {"epoch_time": _duration(inner, "time", inner.take("time"))}


# -- the service ----------------------------------------------------------------------------------


def _rollback_guard(given: Given, folder: Path) -> str | None:
    """Where it is noted how far the store has come: a file, or a database without a password."""
    where = given.take("rollback_guard")
    if where is None:
        return None
    if not isinstance(where, str) or not where:
        raise given.error(
            "rollback_guard must be a file or a database outside of the store, such as "
            f"'/elsewhere/guard.json' or 'postgresql://host/name', got {where!r}",
            "rollback_guard",
        )
    if where.startswith(POSTGRES):
        if ":" in where.partition("://")[2].rpartition("@")[0] or "password" in where:
            # Not quoted: it would stand in a log.
            raise given.error(
                "an address with a password does not belong into this file: give it in "
                "CAPRI_ROLLBACK_GUARD",
                "rollback_guard",
            )
        return where
    scheme = SQLITE if where.startswith(SQLITE) else ""
    return scheme + str((folder / where.removeprefix(SQLITE)).resolve())


def _service(
    given: Given, actions: FixedActions
) -> tuple[tuple[str, ...], ServiceLimits, str | None]:
    inner = _table(given, "service", ServiceLimits.__dataclass_fields__)
    control = inner.word("control", actions.names or ()) if inner.has("control") else None
    hosts = inner.take("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts):
        raise inner.error(
            "hosts must be a list of names that requests may ask for, such as "
            f"['bandit.example.org'], got {hosts!r}",
            "hosts",
        )
    found: dict[str, Any] = {}
    for key, default in asdict(ServiceLimits()).items():
        if inner.has(key):
            # So deep the values of a list of visits are: what is cut off lies within one.
            least = _SHALLOWEST if key == "deepest" else 1
            check: Callable[[float], bool] = whole_from(least)
            allowed = f"a whole number of {least} or more"
            if isinstance(default, float):
                check, allowed = (lambda value: 0 < value < np.inf), "a positive number"
            found[key] = type(default)(inner.number(key, None, check, allowed))
    return tuple(host.lower() for host in hosts), ServiceLimits(**found), control


# -- a forecast beside the file --------------------------------------------------------------------


def read_forecast(path: Path) -> dict[str, Any] | None:
    """The forecast of a policy file as it is now; None where there is none."""
    try:
        found = json.loads(_forecast_file(path).read_text())
        if found["file"] != _digest(path):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {"functions": found["functions"], "epochs": found["epochs"]}


def write_forecast(path: Path) -> None:
    """Compute what to expect of a policy file, and keep it beside the file.

    Plays made-up functions: neither users nor the store are touched. The page shows the forecast
    against what happened.
    """
    settings = load_settings(path)
    with unsaid():
        policy = settings.policy(store=None)
        found = policy.forecast(horizons=(_ROUNDS,), functions=_FUNCTIONS, compare=False)
    budget = policy.budget
    epsilon = None if budget is None else budget.epsilon
    epochs = [epoch.to_dict() for epoch in found.epochs if epoch.epsilon == epsilon]
    text = json.dumps({"file": _digest(path), "functions": _FUNCTIONS, "epochs": epochs})
    write_atomically(_forecast_file(path), text.encode())


def _forecast_file(path: Path) -> Path:
    return path.with_suffix(".forecast.json")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
