"""Reward rules: what an action earns on a row. Actions come from public rows or are stated."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import final

import numpy as np

from capri.arrays import FloatArray
from capri.checks import is_number, positive, whole
from capri.errors import ConfigurationError

# Not 007: that is a name.
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)\.0*")


@dataclass(frozen=True, eq=False, kw_only=True)
class ActionSet:
    """What can be done: a name and a feature row for each action."""

    names: tuple[str, ...]
    rows: FloatArray = field(repr=False)


class LabelRule(ABC):
    """From the label of a row to the reward of every action."""

    # Whether labels are numbers; else they are names.
    numeric: bool

    @property
    @abstractmethod
    def bound(self) -> float:
        """No reward exceeds this in absolute value."""

    @abstractmethod
    def actions(self, public_labels: np.ndarray) -> ActionSet:
        """The actions, from the labels of public rows only."""

    @abstractmethod
    def rewards(
        self, labels: np.ndarray, public_labels: np.ndarray, actions: ActionSet
    ) -> FloatArray:
        """Reward of every action on rows with these labels, ``(n, actions)``."""


@final
@dataclass(frozen=True, kw_only=True)
class Match(LabelRule):
    """Classification: ``right`` for the row's own label, ``wrong`` for any other.

    ``classes`` names the actions; left out, they are the labels seen in public rows. A name that no
    public row has is refused while public rows have labels without a name: it is likely misspelt,
    and would never be right. A private row
    with another label earns ``wrong`` whatever is done: that it exists is nobody's business.
    """

    right: float = 1.0
    wrong: float = -1.0
    classes: Sequence[str] | None = None
    numeric = False

    def __post_init__(self) -> None:
        for name in ("right", "wrong"):
            object.__setattr__(self, name, _finite(name, getattr(self, name)))
        if not self.right > self.wrong:
            raise ConfigurationError(f"right must exceed wrong, got {self.right} and {self.wrong}")
        if self.classes is not None:
            if isinstance(self.classes, str) or len(set(self.classes)) < 2:
                raise ConfigurationError(
                    f"classes must be two or more different labels, got {self.classes!r}"
                )
            names = tuple(label_name(each) for each in dict.fromkeys(self.classes))
            object.__setattr__(self, "classes", names)

    @property
    def bound(self) -> float:
        """The larger of both rewards, in absolute value."""
        return max(abs(self.right), abs(self.wrong))

    def actions(self, public_labels: np.ndarray) -> ActionSet:
        """One action per class, as one-hot rows."""
        names, seen = self.classes, set(public_labels.tolist())
        if names is None:
            names = tuple(sorted(seen, key=_natural))
        unseen = [name for name in names if name not in seen]
        unnamed = sorted(seen.difference(names), key=_natural)
        if unseen and unnamed:
            shown = ", ".join(repr(name) for name in unnamed[:20])
            raise ConfigurationError(
                f"no public row has the class {unseen[0]!r}, and public rows have labels that no "
                f"class names: {shown}. Correct the class, leave it out, or name these as well"
            )
        if len(names) < 2:
            raise ConfigurationError(
                f"public rows must show at least two different labels, got {len(names)}: make more "
                "rows public or name the labels with Match(classes=[...])"
            )
        return ActionSet(names=tuple(names), rows=np.eye(len(names)))

    def rewards(
        self, labels: np.ndarray, public_labels: np.ndarray, actions: ActionSet
    ) -> FloatArray:
        """``right`` where the action is the label."""
        hit = labels[:, None] == np.array(actions.names, dtype=object)
        return np.where(hit.astype(np.bool_), self.right, self.wrong)


@final
@dataclass(frozen=True, kw_only=True)
class Closeness(LabelRule):
    """Dosing: ``1 - |dose - y| / tolerance``, cut at -1, with ``doses`` levels spread over [0, 1].

    The label is first mapped to ``y`` in [0, 1] by the range of the public labels (or ``low`` and
    ``high``); labels beyond it are cut. ``tolerance`` is the distance at which nothing is earned.
    """

    doses: int = 11
    tolerance: float = 0.5
    low: float | None = None
    high: float | None = None
    numeric = True

    def __post_init__(self) -> None:
        whole("doses", self.doses, least=2)
        positive("tolerance", self.tolerance)
        if (self.low is None) != (self.high is None):
            raise ConfigurationError("give both low and high, or neither")
        if (
            self.low is not None
            and self.high is not None
            and not _finite("low", self.low) < _finite("high", self.high)
        ):
            raise ConfigurationError(f"low must be below high, got {self.low} and {self.high}")

    @property
    def bound(self) -> float:
        """Rewards lie in [-1, 1]."""
        return 1.0

    def actions(self, public_labels: np.ndarray) -> ActionSet:
        """Equally spaced doses, named by the label they stand for."""
        return _levels(*self._range(public_labels), self.doses)

    def rewards(
        self, labels: np.ndarray, public_labels: np.ndarray, actions: ActionSet
    ) -> FloatArray:
        """``max(-1, 1 - |dose - y| / tolerance)``."""
        low, high = self._range(public_labels)
        wanted = np.clip((labels - low) / (high - low), 0.0, 1.0)
        distance = np.abs(actions.rows[:, 0] - wanted[:, None])
        return np.asarray(np.maximum(-1.0, 1.0 - distance / self.tolerance))

    def _range(self, public_labels: np.ndarray) -> tuple[float, float]:
        if self.low is not None and self.high is not None:
            return float(self.low), float(self.high)
        return _seen_range(public_labels, "give its range, Closeness(low=, high=)")


@final
@dataclass(frozen=True, kw_only=True)
class Sale(LabelRule):
    """Pricing: ``price`` where ``price <= y``, else 0, with ``prices`` levels spread over [0, 1].

    The label is what somebody would pay, mapped to ``y`` by the range of the public labels, so that
    everybody whom public rows show buys at the lowest price, for a reward of 0.
    """

    prices: int = 11
    numeric = True

    def __post_init__(self) -> None:
        whole("prices", self.prices, least=2)

    @property
    def bound(self) -> float:
        """The highest price is 1."""
        return 1.0

    def actions(self, public_labels: np.ndarray) -> ActionSet:
        """Equally spaced prices, named in units of the label."""
        return _levels(*self._range(public_labels), self.prices)

    def rewards(
        self, labels: np.ndarray, public_labels: np.ndarray, actions: ActionSet
    ) -> FloatArray:
        """The price, where it is accepted."""
        low, high = self._range(public_labels)
        price = actions.rows[:, 0]
        return np.where(price <= ((labels - low) / (high - low))[:, None], price, 0.0)

    def _range(self, public_labels: np.ndarray) -> tuple[float, float]:
        return _seen_range(public_labels, "make more rows public")


def _levels(low: float, high: float, count: int) -> ActionSet:
    """Equally spaced points of [0, 1], named by the label they stand for."""
    levels = np.linspace(0.0, 1.0, count)
    return ActionSet(
        names=tuple(f"{low + level * (high - low):g}" for level in levels), rows=levels[:, None]
    )


def _seen_range(public_labels: np.ndarray, advice: str) -> tuple[float, float]:
    low, high = float(public_labels.min()), float(public_labels.max())
    if not low < high:
        raise ConfigurationError(f"the label is the same in all public rows: {advice}")
    return low, high


def label_name(value: object) -> str:
    """A label as text. Whole numbers are written alike however the file stored them.

    >>> label_name(3.0), label_name(3), label_name("3"), label_name("3.0"), label_name("good")
    ('3', '3', '3', '3', 'good')
    """
    if isinstance(value, Real) and float(value).is_integer():
        return str(int(float(value)))
    text = str(value).strip()
    return str(int(text.partition(".")[0])) if _WHOLE.fullmatch(text) else text


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers first, by size; then text."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _finite(name: str, value: object) -> float:
    if not is_number(value) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ConfigurationError(f"{name} must be a finite number, got {value!r}")
    return float(value)  # type: ignore[arg-type]
