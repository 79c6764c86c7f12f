"""What goes over the wire, as types: requests, answers, refusals."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

LONGEST_KEY: Final = 200
LONGEST_ID: Final = 64

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
UserId = Key | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]

# What requests are made of holds nothing that holds it: the collector of cycles need not look.


class Visit(Struct, forbid_unknown_fields=True, gc=False):
    """Somebody is to be decided for.

    All of ``context`` and ``actions`` is private: whatever is there is served.
    """

    context: Any = None
    key: Key | None = None
    user: UserId | None = None
    actions: Any = UNSET
    chosen: Any = UNSET
    chosen_propensity: Any = UNSET
    detail: bool = False


class RewardItem(Struct, forbid_unknown_fields=True, gc=False):
    """The reward of a decision. ``reward`` is private: one that is no number counts as missing."""

    id: Id
    reward: Any = None
    key: Key | None = None


class Decided(Struct, omit_defaults=True, gc=False):
    """A decision, by names. ``index`` and ``features`` come where ``detail`` was asked for."""

    id: str
    action: str
    propensity: float
    epoch: int
    status: str
    marks: tuple[str, ...] = ()
    index: int | UnsetType = UNSET
    features: list[float] | UnsetType = UNSET


class Rewarded(Struct):
    """What became of a reward."""

    status: str


class Report(Struct, forbid_unknown_fields=True):
    """What a device uploads, as hexadecimal digits."""

    report: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]


class Reported(Struct):
    """What became of a report."""

    status: str


class Problem(Struct, omit_defaults=True):
    """Why something was refused: the field, and what is allowed. No value is ever quoted."""

    problem: str
    field: str = ""


class Refused(Struct):
    """An item of a list that did not get through; others of the list did.

    ``status`` is ``refused``: it was not done; or ``in doubt``: it was done or not, and asking
    again with the same key settles it.
    """

    status: str
    error: Problem


class Catalogue(Struct, forbid_unknown_fields=True):
    """A new version of the actions, from the next epoch on."""

    actions: list[Any]


class Mode(Struct, forbid_unknown_fields=True):
    """Who decides from now on."""

    mode: str
    action: str | None = None


class Close(Struct, forbid_unknown_fields=True):
    """Close the epochs whose decisions are all taken; ``early``, also the one under way."""

    early: bool = False


class RefusalError(Exception):
    """A request whose envelope is not as it must be. ``problem`` quotes nothing of it."""

    def __init__(self, status: int, problem: str, field: str = "", *, wait: int = 0) -> None:
        super().__init__(problem)
        self.status, self.problem, self.wait = status, Problem(problem, field), wait

    def item(self) -> Refused:
        """The same for one item of a list."""
        return Refused("refused", self.problem)


encode = msgspec.json.Encoder().encode
