"""A policy file against the store that it describes: what would change, and what cannot.

A service that finds another file than its store was told of goes by the store, and says so: a
change is made by who asks for it, never by a restart.
"""

import copy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from capri.choices import successor
from capri.epoch.learning_loop import same_actions
from capri.epoch.limits import Limits
from capri.epoch.rewards import RewardTerms
from capri.errors import ConfigurationError
from capri.files import Given, Source
from capri.joint.changes import CHANGEABLE, plain, reason
from capri.kernels import Auto, Kernel
from capri.learners.presets import checked_options
from capri.service.settings import Settings, load_settings, settings_of
from capri.service.tables import UNITS
from capri.spaces import ContextPool
from capri.store.persistence import stored_now

# Where a policy file has a setting that may change.
PLACES = {
    "actions": ("actions",),
    "limits": ("limits",),
    "horizon": ("horizon",),
    "reward_wait": ("reward", "wait"),
    "missing_reward": ("reward", "missing"),
    "epoch_time": ("epoch", "time"),
    "first_epoch": ("options", "first_epoch"),
    "growth": ("options", "growth"),
}
_USUAL: dict[str, Any] = {"limits": None, **RewardTerms().arguments()}


@dataclass(frozen=True)
class Difference:
    """A setting that the file and the store do not share; ``why`` it cannot change, if so."""

    setting: str
    stored: Any
    wanted: Any
    why: str = ""

    def __str__(self) -> str:
        place = ".".join(PLACES.get(self.setting, (self.setting,)))
        said = f"{place}: {self._shown(self.stored)} in the store"
        said += f", {self._shown(self.wanted)} in the file"
        return f"{said}. It cannot change: {self.why}" if self.why else said

    def _shown(self, value: Any) -> str:
        if self.setting == "actions":
            return ", ".join(map(str, value.names or ()))
        if self.setting == "contexts":
            return f"{len(value.rows)} rows"
        if isinstance(value, timedelta):
            return _as_written(value)
        return str(plain(self.setting, value))


def _as_written(time: timedelta) -> str:
    """In the largest unit of a policy file that a time is a whole number of."""
    whole = (unit for unit in UNITS.values() if time % timedelta(**{unit: 1}) == timedelta(0))
    unit = min(whole, key=lambda unit: time / timedelta(**{unit: 1}), default="seconds")
    return f"{time / timedelta(**{unit: 1}):g} {unit}"


class PolicyFile:
    """A policy file and the store that it describes."""

    def __init__(self, path: Path, store: str | None) -> None:
        self.path, self._store = path, store

    @property
    def settings(self) -> Settings:
        """What the file says now."""
        return load_settings(self.path, thorough=False)

    def differences(self) -> list[Difference]:
        """What the file says that the store does not; nothing where the store is empty."""
        settings = self.settings
        found = stored_now(self._store or settings.default_store)
        return [] if found is None else [*_compared(settings, *found)]

    def arguments(self) -> dict[str, Any]:
        """What the policy is built with: by the file, and by the store where that may change."""
        settings = self.settings
        found = stored_now(self._store or settings.default_store)
        if found is None:
            return dict(settings.arguments)
        stored = _USUAL | found[0]
        return {**settings.arguments, **{name: stored[name] for name in CHANGEABLE}}

    def requested(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What tables as those of the file ask for: checked like the file with them in it."""
        table = copy.deepcopy(tomllib.loads(self.path.read_text(encoding="utf-8")))
        asked = []
        for path, value in _leaves(body):
            name = next((name for name, place in PLACES.items() if place == path), None)
            if name is None:
                place = ".".join(path)
                raise ConfigurationError(
                    f"{place} cannot be changed while a policy runs: {reason(path[-1])}"
                )
            asked.append(name)
            inner = table
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            if value is None:
                inner.pop(path[-1], None)
            else:
                inner[path[-1]] = value
        source = Source("the request", None)
        return asked_for(settings_of(Given(table, source), self.path), asked)


def asked_for(settings: Settings, names: list[str]) -> dict[str, Any]:
    """Some settings of a file, as a change takes them."""
    given = {"actions": settings.offered, "first_epoch": None, "growth": 1.5}
    given |= {name: value for name, value in settings.arguments.items() if name != "actions"}
    return {name: given[name] for name in names}


def _leaves(body: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for name, value in body.items():
        place = (*path, name)
        if isinstance(value, dict) and place not in PLACES.values():
            yield from _leaves(value, place)
        else:
            yield place, value


def _compared(settings: Settings, stored: dict[str, Any], actions: Any) -> Iterator[Difference]:
    offered = settings.arguments["actions"]
    if not same_actions(actions, successor(actions, settings.offered)):
        yield Difference("actions", actions, offered)
    ours, theirs = _comparable(settings.arguments), _comparable(stored)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            why = "" if name in CHANGEABLE else reason(name)
            shown = ({**_USUAL, **stored}.get(name), settings.arguments.get(name))
            yield Difference(name, *shown, why)


def _comparable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that can be compared, the actions aside."""
    found = _USUAL | dict(arguments)
    options = {
        name: found.pop(name)
        for name in list(found)
        if name in checked_options("practical", {}).__dataclass_fields__
    }
    settled = vars(checked_options("practical", options))
    found |= {name: value for name, value in settled.items() if name != "blocks"}
    bound = found.pop("reward_bound", None)
    if bound is not None:
        found["reward_range"] = (-bound, bound)
    if isinstance(found["limits"], Limits):
        found["limits"] = found["limits"].to_dict()
    kernel, pool = found["kernel"], found["contexts"]
    found["kernel"] = (kernel if isinstance(kernel, Kernel) else Auto()).to_dict()
    assert isinstance(pool, ContextPool)
    schema = None if pool.schema is None else pool.schema.to_dict()
    found["contexts"] = pool.rows.tobytes(), pool.weights.tobytes(), schema
    left = ("actions", "preset", "simulation_seed", "prior", "reward_transform")
    return {name: value for name, value in found.items() if name not in left}
