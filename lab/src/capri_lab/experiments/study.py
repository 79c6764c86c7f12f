"""A study: environments x policies x epsilons x horizons x seeds, declared in one file."""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, final

from capri.errors import ConfigurationError
from capri.files import Given, Source, whole_from
from capri.privacy.budget import Budget
from capri_lab.experiments.cells import Cell, code_digest
from capri_lab.experiments.players import Player, misfit, read_epsilons, read_player, several
from capri_lab.experiments.worlds import DIGEST, World, read_world
from capri_lab.own import spelled

_SHIPPED = resources.files("capri_lab") / "studies"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
# Every key of a study, and what it takes: the reference is written from it.
KEYS = {
    "name": "Small letters, digits, `-` and `_`: the folder of results is called so.",
    "title": "What the report calls it; the name where it is left out.",
    "description": "Any text, shown in the report.",
    "rounds": "Horizons: one number or a list.",
    "epsilons": "Budgets to play private policies with; inf is no noise.",
    "delta": "Of every budget; 1e-5 where it is left out.",
    "seeds": "How many (0, 1, ...), or a list of numbers.",
    "code_version": "true: a changed source of the package makes every cell new.",
    "environments": "Tables `[[environments]]`: a table of results each.",
    "policies": "Tables `[[policies]]`.",
}


@final
@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared on what. ``text`` is the file it was read from, if any.

    With ``code_version`` a cell is also identified by the source of this package, so that a changed
    program computes it again.
    """

    name: str
    title: str
    description: str
    worlds: tuple[World, ...]
    players: tuple[Player, ...]
    epsilons: tuple[float, ...]
    delta: float
    rounds: tuple[int, ...]
    seeds: tuple[int, ...]
    code_version: bool = False
    text: str = field(default="", repr=False)

    @property
    def archive(self) -> str:
        """The file to keep beside the results: says what was in the files it names."""
        if not any(DIGEST in world.options for world in self.worlds):
            return self.text
        table = tomllib.loads(self.text)
        for given, world in zip(table["environments"], self.worlds, strict=True):
            given |= {key: value for key, value in world.options.items() if key == DIGEST}
        return to_toml(table)

    def cells(self) -> Iterator[Cell]:
        """One after the other, a whole seed before the next: half a study is a smaller study."""
        code = code_digest() if self.code_version else None
        for seed, world, rounds, player in product(
            self.seeds, self.worlds, self.rounds, self.players
        ):
            for epsilon in self._epsilons_of(player) if rounds <= player.reach else ():
                yield Cell(
                    study=self.name,
                    environment=world.label,
                    world=world.to_dict(),
                    policy=player.label,
                    player=player.to_dict(),
                    epsilon=epsilon,
                    delta=None if epsilon is None else self.delta,
                    rounds=rounds,
                    seed=seed,
                    maps=seed == self.seeds[0],
                    code=code,
                )

    def left_out(self) -> list[str]:
        """What is not played because the horizon is beyond a policy's reach, in words."""
        return [
            f"{player.label} at T = {rounds:g}: it reaches {player.reach:g}"
            for rounds in self.rounds
            for player in self.players
            if rounds > player.reach
        ]

    def _epsilons_of(self, player: Player) -> list[float | None]:
        """None is no budget: for those that spend none, and for epsilon = infinity."""
        if not player.private:
            return [None]
        wanted = self.epsilons if player.epsilons is None else player.epsilons
        return [None if epsilon == float("inf") else epsilon for epsilon in wanted]


def study_from_text(text: str, *, name: str = "study.toml", thorough: bool = True) -> Study:
    """Read a study from TOML; ``name`` is what errors call the file.

    ``thorough=False`` takes on trust what was run before, without building any of it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigurationError(f"{name} is no TOML: {problem}") from None
    return _read(Given(table, Source(name, text, thorough=thorough)), text)


def study_from_dict(table: dict[str, Any]) -> Study:
    """A study declared in Python, with the keys of the file.

    A policy's or an environment's name may also be a class or a function of one's own.

    >>> study = study_from_dict({
    ...     "name": "small", "rounds": 100, "seeds": 2, "epsilons": [1.0],
    ...     "environments": [{"name": "branin"}],
    ...     "policies": [{"name": "capri"}, {"name": "uniform"}],
    ... })
    >>> len(list(study.cells()))
    4
    """
    for key in ("environments", "policies"):  # classes and functions go by their names
        table = table | {key: [_named(each) for each in table.get(key, ())]}
    study = _read(Given(table, Source("study", None)), "")
    return study_from_text(to_toml(table), name=study.name)


def _named(given: Any) -> Any:
    if not isinstance(given, dict) or not callable(given.get("name")):
        return given
    return given | {"name": spelled(given["name"])}


def load_study(path: str | PathLike[str], *, thorough: bool = True) -> Study:
    """The study in a file, or the one of that name that is shipped with the package."""
    file, name = Path(path), str(path)
    if file.suffix != ".toml" and name in shipped_studies():
        name += ".toml"
        return study_from_text((_SHIPPED / name).read_text("utf-8"), name=name, thorough=thorough)
    if not file.is_file():
        raise ConfigurationError(
            f"no study {path}: neither a file nor one of {', '.join(shipped_studies())}"
        )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigurationError(f"cannot read {path}: {problem}") from None
    return study_from_text(text, name=name, thorough=thorough)


def with_seeds(study: Study, count: int) -> Study:
    """The study with its first seeds only; the file is changed in the same way."""
    table = tomllib.loads(study.text)
    return study_from_dict(table | {"seeds": list(study.seeds[:count])})


def shipped_studies() -> tuple[str, ...]:
    """Names of the studies that come with the package."""
    names = (each.name for each in _SHIPPED.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def _read(given: Given, text: str) -> Study:
    given.only(KEYS)
    name = given.text("name")
    if not _NAME.fullmatch(name):
        raise given.error(
            f"name must be small letters, digits, - and _: a folder is named so, got {name!r}",
            "name",
        )
    title = given.text("title", name)
    description = given.take("description", "")
    if not isinstance(description, str):
        raise given.error(f"description must be a text, got {description!r}", "description")
    rounds = several(given, "rounds", None, whole_from(2), "whole numbers of 2 or more")
    delta = given.number("delta", 1e-5, lambda value: 0 < value < 1, "strictly between 0 and 1")
    code_version = given.take("code_version", False)
    if not isinstance(code_version, bool):
        raise given.error(f"code_version must be true or false, got {code_version}", "code_version")
    seeds = _seeds(given)
    players = tuple(read_player(each) for each in given.tables("policies"))
    epsilons: tuple[float, ...] = ()
    if given.has("epsilons") or any(each.private and not each.epsilons for each in players):
        epsilons = read_epsilons(given)
    for epsilon in epsilons:
        if epsilon != float("inf"):
            with given.at("epsilons"):
                Budget(epsilon=epsilon, delta=delta)
    worlds = tuple(read_world(each) for each in given.tables("environments"))
    for key, named in (("policies", players), ("environments", worlds)):
        labels = [each.label for each in named]
        for number, label in enumerate(labels):
            if label in labels[:number]:
                raise given.error(
                    f"two {key} are called {label!r}: give each a label of its own", key, number
                )
    for number, player in enumerate(players):
        for world in worlds:
            problem = misfit(player, world)
            if problem and given.source.thorough:
                raise given.error(problem, "policies", number)
    return Study(
        name=name,
        title=title,
        description=" ".join(description.split()),
        worlds=worlds,
        players=players,
        epsilons=epsilons,
        delta=delta,
        rounds=tuple(map(int, rounds)),
        seeds=seeds,
        code_version=code_version,
        text=text,
    )


def _seeds(given: Given) -> tuple[int, ...]:
    """``seeds = 5`` is 0 to 4; a list is taken as it is."""
    value = given.take("seeds", 1)
    allowed = "how many there are (1 or more), or a list of whole numbers of 0 or more"
    if isinstance(value, list | tuple | range):
        return tuple(map(int, several(given, "seeds", None, whole_from(0), allowed)))
    (count,) = several(given, "seeds", 1, whole_from(1), allowed)
    return tuple(range(int(count)))


def to_toml(table: dict[str, Any]) -> str:
    """The TOML of a table whose arrays of tables are one level deep, to keep beside results.

    >>> print(to_toml({"name": "a", "policies": [{"name": "capri", "options": {"draws": 8}}]}))
    name = "a"
    <BLANKLINE>
    [[policies]]
    name = "capri"
    options = { draws = 8 }
    <BLANKLINE>
    """
    lines, after = [], []
    for key, value in table.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for each in value:
                after += ["", f"[[{key}]]", *(f"{name} = {_value(v)}" for name, v in each.items())]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *after, ""])


def _value(value: Any) -> str:
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)  # as TOML writes them
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple | range):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return repr(value)
