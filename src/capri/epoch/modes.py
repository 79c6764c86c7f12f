"""Who decides, and what operators did.

The mode is public and so is since when. In all of them a visit takes a slot, gets an id and counts
towards the length of its epoch; only in mode "active" does it teach the learner:

    active     the policy decides and learns
    shadow     another system decides; visits count in the estimate of what the policy would be
               worth, and nowhere else: how they were chosen is not known, so no design tells
               what they would teach
    default    a named action for everybody, with propensity 1; visits count for nothing. Rules and
               users' own sets still hold: who may not have it gets the default law. Floors and
               ceilings rest
    frozen     the policy decides by what it has learnt; visits count for nothing, and there is no
               horizon. So it goes on where the horizon is reached
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from capri.checks import is_whole, one_of
from capri.errors import ConfigurationError
from capri.privacy.budget import PrivacyModel
from capri.spaces import Actions, FixedActions

if TYPE_CHECKING:
    from capri.epoch.problem import Problem


MODES = ("active", "shadow", "default", "frozen")


@dataclass(frozen=True)
class Mode:
    """Who decides; ``action`` is the name (or the number) of the default."""

    name: str = "active"
    action: str | int | None = None

    @property
    def active(self) -> bool:
        """Whether the policy decides and learns."""
        return self.name == "active"

    @property
    def contributes(self) -> bool:
        """Whether visits are in a release, so that users' limits are used up."""
        return self.name in ("active", "shadow")

    @property
    def endless(self) -> bool:
        """Whether it goes on beyond the horizon, since visits count for nothing."""
        return not self.contributes

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"mode": self.name} | ({} if self.action is None else {"action": self.action})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Mode":
        """The inverse of :meth:`to_dict`."""
        return cls(values["mode"], values.get("action"))

    def check(self, actions: Actions) -> None:
        """Refuse a default that is none of these actions."""
        if self.name == "default":
            self.place(actions)

    def place(self, actions: Actions) -> int:
        """The number of the default action."""
        names = actions.names
        if isinstance(self.action, str) and names is not None and self.action in names:
            return names.index(self.action)
        if is_whole(self.action) and 0 <= int(self.action or 0) < actions.count:
            return int(self.action or 0)
        known = f"0 to {actions.count - 1}" if names is None else ", ".join(names[:20])
        raise ConfigurationError(
            f"action {self.action!r} is none of the actions that are played, or about to be: give "
            f"one of {known}"
        )


def checked_mode(name: object, action: object, problem: "Problem") -> Mode:
    """A mode that this problem can be in."""
    one_of("mode", name, MODES)
    if (name == "default") != (action is not None):
        raise ConfigurationError(
            'mode "default" needs an action, and the others take none: '
            'set_mode("default", action="name")'
        )
    if name == "shadow" and problem.model is not PrivacyModel.JOINT:
        raise ConfigurationError(
            'mode "shadow" needs model="joint": a report made private by itself has no room for '
            "what another system chose"
        )
    if name == "default" and not isinstance(problem.actions, FixedActions):
        raise ConfigurationError('mode "default" needs fixed actions: contexts bring their own')
    if action is not None and not isinstance(action, str) and not is_whole(action):
        raise ConfigurationError(f"action must be a name or a number, got {type(action).__name__}")
    return Mode(str(name), action if isinstance(action, str | None) else int(str(action)))


@dataclass(frozen=True)
class Operation:
    """One line of the history of operations."""

    kind: str
    made: float  # seconds on the public clock
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(self.made, UTC)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": self.kind, "made": self.made, **self.record}

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in sorted(self.record.items()))
        return f"{self.time:%Y-%m-%d %H:%M:%S} {self.kind} {said}"
