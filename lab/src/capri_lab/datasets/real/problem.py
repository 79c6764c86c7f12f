"""What a real problem is: where its rows come from, and what an action earns on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from capri_lab.datasets.rewards import LabelRule

if TYPE_CHECKING:
    import pandas


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The rows of a source: context columns as they are, and a label or one column per action."""

    frame: "pandas.DataFrame"
    context: tuple[str, ...]
    label: str | None = None
    actions: tuple[str, ...] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A bandit made of real rows.

    ``reward`` is the rule for a label. Without one every action has a column of its own, whose
    values lie within ``bound``; with ``bernoulli`` they are probabilities of the reward 1.
    ``invented`` says which part of the rewards nobody ever saw; empty where all were.
    ``dimensions`` is how many principal directions are kept where contexts are not left raw.
    """

    name: str
    title: str
    package: str
    licence: str
    pays: str
    read: Callable[[], Rows]
    reward: LabelRule | None = None
    bound: float | None = None
    bernoulli: bool = False
    invented: str = ""
    dimensions: int = 4
