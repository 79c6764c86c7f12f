"""Public limits on what is played: floors, ceilings, shares, rules, and who is available."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import between, is_number, is_whole
from capri.epoch.bounds import Bounds, Rule
from capri.errors import ConfigurationError, ShapeError
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.spaces import Actions, Contexts

Name = str | int
# Sets that stand for independent availabilities: marginals are right to one in so many.
_SETS = 200
_MOST_SETS = 1 << 14


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """What the sampling law keeps to in every decision; all of it is public.

    Actions go by name, or by number where they have none. A limit stays with its name when actions
    are replaced, and rests while there is no action of that name.

    ``floor``: least probability of an action wherever it is offered: ``{"control": 0.05}``.
    ``ceiling``: its largest probability in any decision, whoever comes.
    ``share``: its largest share of all decisions under the public law of contexts, by a price on
    the action. Contexts in which it is worth most keep it.
    ``allowed``: an action is offered only where columns of the context lie within limits,
    ``{"loan": {"age": (18, None)}}``, or hold certain levels, ``{"loan": {"country": ["at"]}}``.
    A column goes by its number where there is no schema. Known to the plan, hence exact.
    ``availability``: how often users come with which sets of available actions (``available=`` of
    :meth:`Capri.act`), for the plan to expect: a probability for some actions, each independent of
    the others and of the context, or a public sample of sets, one row of truth values each.

    >>> limits = Limits(floor={"control": 0.05}, ceiling={"costly": 0.2})
    >>> from capri.choices import as_actions
    >>> from capri.spaces import ContextPool
    >>> limits.of(as_actions(["control", "costly", "cheap"]), ContextPool([[0.0]])).ceiling
    array([1. , 0.2, 1. ])
    """

    floor: Mapping[Name, float] = field(default_factory=dict)
    ceiling: Mapping[Name, float] = field(default_factory=dict)
    share: Mapping[Name, float] = field(default_factory=dict)
    allowed: Mapping[Name, Mapping[Name, Any]] = field(default_factory=dict)
    availability: Any = None
    # The actions that there were when a policy was built with these limits, where they had names.
    declared: tuple[str, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for kind in ("floor", "ceiling", "share", "allowed"):
            given = getattr(self, kind)
            if not isinstance(given, Mapping):
                raise ConfigurationError(
                    f"{kind} must be a mapping from actions, got {type(given).__name__}"
                )
            object.__setattr__(self, kind, dict(given))
        for kind in ("floor", "ceiling", "share"):
            for name, value in getattr(self, kind).items():
                between(f"the {kind} of {name!r}", value, 0, 1)
        for kind in ("ceiling", "share"):
            if 0 in getattr(self, kind).values():
                raise ConfigurationError(
                    f"a {kind} of 0 would take an action away: leave it out of the actions"
                )
        if isinstance(self.availability, Mapping):
            object.__setattr__(self, "availability", dict(self.availability))
            for name, value in self.availability.items():
                between(f"the availability of {name!r}", value, 0, 1)
        elif self.availability is not None:
            object.__setattr__(self, "availability", _sets(self.availability))

    def declared_for(self, names: tuple[str, ...] | None) -> "Limits":
        """By the names of the actions that a policy begins with, for as long as it lives.

        Numbers become the names that they stand for.
        """
        if self.declared is not None or names is None:
            return self

        def named(given: Mapping[Name, Any]) -> dict[Name, Any]:
            return {
                names[int(key)] if is_whole(key) and 0 <= int(key) < len(names) else key: value
                for key, value in given.items()
            }

        given = self.availability
        found = Limits(
            floor=named(self.floor),
            ceiling=named(self.ceiling),
            share=named(self.share),
            allowed=named(self.allowed),
            availability=named(given) if isinstance(given, dict) else given,
        )
        object.__setattr__(found, "declared", tuple(names))
        return found

    def of(self, actions: Actions, contexts: Contexts) -> Bounds:
        """As arrays over these actions."""
        place = _Places(actions, self.declared)
        rules = [
            rule
            for action, columns in self.allowed.items()
            for column, wanted in _columns_of(columns)
            if (number := place(action)) is not None
            for rule in _rules(number, column, wanted, contexts)
        ]
        return Bounds(
            floor=_filled(self.floor, place, 0.0),
            ceiling=_filled(self.ceiling, place, 1.0),
            shares=_filled(self.share, place, 1.0) if self.share else None,
            rules=tuple(rules),
            masks=self._masks(actions, place),
        )

    def _masks(self, actions: Actions, place: "_Places") -> BoolArray | None:
        """Sets that users are expected to come with, none of them empty."""
        given = self.availability
        if given is None:
            return None
        if isinstance(given, np.ndarray):
            return self._sampled(given, actions)
        chance = _filled(given, place, 1.0)
        generator = np.random.default_rng(0)  # public, and the same whenever it is asked for
        ranks = generator.permuted(np.tile(np.arange(_SETS) + 0.5, (len(chance), 1)), axis=1)
        masks = chance * _SETS > ranks.T
        return np.asarray(masks[masks.any(axis=1)])

    def _sampled(self, given: BoolArray, actions: Actions) -> BoolArray:
        """A public sample of sets over these actions, in their order."""
        names = self.declared or actions.names or tuple(map(str, range(actions.count)))
        if given.shape[1] != len(names):
            raise ShapeError(
                f"a set of available actions has {len(names)} truth values, one an action, "
                f"got {given.shape[1]}: give availability by name to replace actions"
            )
        if self.declared is None:
            return given
        new = [name for name in actions.names or () if name not in names]
        if new:
            raise ConfigurationError(
                f"availability is a sample of sets, which says nothing of {new[0]!r}: a policy "
                "whose availability goes by name takes new actions"
            )
        masks = given[:, [names.index(name) for name in actions.names or ()]]
        if not masks.any():
            raise ConfigurationError(
                "no set of the sample that availability gives holds any of these actions"
            )
        return np.asarray(masks[masks.any(axis=1)])

    # -- storage ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """JSON values: pairs, as actions may go by number."""
        values: dict[str, Any] = {
            kind: [[name, float(value)] for name, value in getattr(self, kind).items()]
            for kind in ("floor", "ceiling", "share")
        }
        values["allowed"] = [
            [action, [[column, _plain(wanted)] for column, wanted in columns.items()]]
            for action, columns in self.allowed.items()
        ]
        given = self.availability
        if isinstance(given, np.ndarray):
            values["availability"] = given.astype(int).tolist()
        elif given is not None:
            values["availability"] = {"by": [[name, float(p)] for name, p in given.items()]}
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], declared: list[str] | None = None) -> "Limits":
        """The inverse of :meth:`to_dict`; with the names that they were declared for."""
        given = values.get("availability")
        found = cls(
            floor=dict(values["floor"]),
            ceiling=dict(values["ceiling"]),
            share=dict(values["share"]),
            allowed={action: dict(columns) for action, columns in values["allowed"]},
            availability=dict(given["by"]) if isinstance(given, dict) else given,
        )
        if declared is not None:
            object.__setattr__(found, "declared", tuple(declared))
        return found


def _sets(given: Any) -> BoolArray:
    """A public sample of sets, one row each."""
    try:
        rows = np.array(given)
    except (TypeError, ValueError):
        rows = np.array(None)
    if rows.ndim != 2 or rows.dtype.kind not in "biu" or not rows.size:
        raise ShapeError(
            "availability must be probabilities by action, or rows of truth values, one a set"
        )
    if len(rows) > _MOST_SETS:
        raise ShapeError(f"availability takes at most {_MOST_SETS} sets, got {len(rows)}")
    masks = rows.astype(np.bool_)
    if not masks.any(axis=1).all():
        raise ConfigurationError("every set of available actions must hold one at least")
    return masks


class _Places:
    """Numbers of actions by name."""

    def __init__(self, actions: Actions, declared: tuple[str, ...] | None) -> None:
        self._actions, self._declared = actions, declared or ()
        self._names = {name: number for number, name in enumerate(actions.names or ())}

    def __call__(self, name: Name) -> int | None:
        """Where an action is; None for one that was declared and is gone."""
        if isinstance(name, str) and name in self._names:
            return self._names[name]
        if name in self._declared:
            return None
        if is_whole(name) and 0 <= int(name) < self._actions.count:
            return int(name)
        known = ", ".join(map(repr, self._names)) or f"0 to {self._actions.count - 1}"
        raise ConfigurationError(f"limits name an action {name!r}; there are {known}")

    @property
    def count(self) -> int:
        """Number of actions."""
        return self._actions.count


def _filled(values: Mapping[Name, float], place: _Places, rest: float) -> FloatArray:
    found = np.full(place.count, rest)
    for name, value in values.items():
        if (number := place(name)) is not None:
            found[number] = value
    return found


def _columns_of(columns: Any) -> list[tuple[Name, Any]]:
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigurationError(
            "allowed maps an action to columns and what they must hold, as in "
            "{'loan': {'age': (18, None)}}"
        )
    return list(columns.items())


def _rules(action: int, name: Name, wanted: Any, contexts: Contexts) -> list[Rule]:
    """What a column must hold, in the numbers of a row."""
    schema = contexts.schema
    if schema is None:
        if not is_whole(name) or not 0 <= int(name) < contexts.dimension:
            raise ConfigurationError(
                f"allowed names a column {name!r}: without a schema columns go by number, 0 to "
                f"{contexts.dimension - 1}"
            )
        return [Rule(action, (int(name),), *_ends(name, wanted))]
    if name not in schema.names:
        raise ConfigurationError(
            f"allowed names a column {name!r}; the schema has {', '.join(schema.names)}"
        )
    return _named_rules(action, str(name), wanted, schema)


def _named_rules(action: int, name: str, wanted: Any, schema: Schema) -> list[Rule]:
    places = schema.places(name)
    column = schema.columns[schema.names.index(name)]
    if isinstance(column, Categorical):
        levels = [wanted] if isinstance(wanted, str | int) else list(wanted)
        if not levels or not all(level in column.levels for level in levels):
            raise ConfigurationError(
                f"column {name!r} has the levels {', '.join(map(str, column.levels))}; allowed "
                f"asks for {wanted!r}"
            )
        chosen = tuple(places[column.levels.index(level)] for level in levels)
        return [Rule(action, chosen, 0.5, None)]
    # One that is missing is not known to be within limits.
    missing = [Rule(action, (place,), None, 0.5) for place in places[1:]]
    if isinstance(column, Boolean):
        if not isinstance(wanted, bool):
            raise ConfigurationError(f"column {name!r} is True or False, allowed asks {wanted!r}")
        return [Rule(action, places[:1], *((0.5, None) if wanted else (None, 0.5))), *missing]
    assert isinstance(column, Numeric)
    ends = _ends(name, wanted)
    for end in ends:
        if end is not None and not column.low <= end <= column.high:
            raise ConfigurationError(
                f"column {name!r} runs from {column.low:g} to {column.high:g}; allowed has an end "
                f"at {end:g}: what lies beyond the range is clipped to it"
            )
    low, high = (None if end is None else column.encode_one(end)[0] for end in ends)
    return [Rule(action, places[:1], low, high), *missing]


def _ends(name: Name, wanted: Any) -> tuple[float | None, float | None]:
    pair = isinstance(wanted, tuple | list) and len(wanted) == 2
    if not pair or not all(end is None or is_number(end) for end in wanted):
        raise ConfigurationError(
            f"column {name!r}: allowed takes a lowest and a highest number, either None, got "
            f"{wanted!r}"
        )
    low, high = (None if end is None else float(end) for end in wanted)
    if low is None and high is None:
        raise ConfigurationError(f"column {name!r}: allowed needs a lowest or a highest number")
    if low is not None and high is not None and low > high:
        raise ConfigurationError(f"column {name!r}: allowed is empty, {low:g} is above {high:g}")
    return low, high


def _plain(wanted: Any) -> Any:
    return list(wanted) if isinstance(wanted, tuple | list) else wanted
