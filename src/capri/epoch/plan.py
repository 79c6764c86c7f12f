"""The public objects of an epoch: its length, plan, release and record, and notices.

A notice is a function of public data, options and releases. It changes nothing that is played or
released, and it is said while a policy is built or while it learns from a release, never at a
moment that somebody's data choose.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import floor, isfinite, isqrt
from pathlib import Path
from types import FrameType
from typing import Any, final

from capri.arrays import FloatArray
from capri.errors import ConfigurationError, KernelWarning
from capri.features import Function, ProjectedFeatures
from capri.files import html_table, text_table
from capri.privacy.histogram import HistogramLayout
from capri.privacy.ledger import ReleaseEvent
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.sphere import Sphere
from capri.privacy.vector import VectorLayout

_PACKAGE = str(Path(__file__).parents[1])
_UNSAID = ContextVar("unsaid", default=False)


@final
@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that does not fit, in words and in numbers.

    ``kind`` names it, one row of docs/reference/glossary.md each. ``text`` says what was seen,
    what it means and what to do. ``numbers`` are those of the text.
    """

    kind: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "text": self.text, "numbers": dict(self.numbers)}


def unheard(notices: Iterable[Notice], known: Iterable[Notice]) -> tuple[Notice, ...]:
    """Notices of kinds that are not known yet, each kind once.

    >>> first, second = Notice(kind="rank", text="1"), Notice(kind="rank", text="2")
    >>> [notice.text for notice in unheard([first, second], [])]
    ['1']
    """
    kinds = {notice.kind for notice in known}
    found: dict[str, Notice] = {}
    for notice in notices:
        if notice.kind not in kinds:
            found.setdefault(notice.kind, notice)
    return tuple(found.values())


@contextmanager
def unsaid() -> Iterator[None]:
    """Within it notices are recorded and nobody is warned.

    For policies that play made-up functions: whoever forecasts, audits or studies knows already.
    """
    before = _UNSAID.set(True)
    try:
        yield
    finally:
        _UNSAID.reset(before)


def say(notices: Iterable[Notice]) -> None:
    """Warn of each, at the line outside of this package that led here."""
    if not _UNSAID.get():
        for notice in notices:
            warnings.warn(str(notice), KernelWarning, stacklevel=_levels_inside() + 1)


def _levels_inside() -> int:
    """How many callers of :func:`say`, and itself, belong to this package.

    In a thread of our own nobody's line led here: the thread's first line stands for it.
    """
    levels = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        levels, frame = levels + 1, frame.f_back
    ours = frame is None or frame.f_globals.get("__name__") == "threading"
    return levels - 1 if ours else levels


# An epoch may go on beyond its planned length, while the next plan is being made, up to so often.
_CAPACITY = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Consecutive decisions of an epoch that share a public law, baseline and bound.

    A user's message is bounded whatever these are, so they may change within an epoch, as long as
    they are fixed by earlier releases before the segment's first decision. ``number`` counts from 1
    within the epoch.
    """

    number: int
    value_bound: float
    baseline: Function | None


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """Everything about an epoch that is decided before its data.

    A function of earlier releases and public randomness alone, so it may be published.

    A user with pair ``w`` and reward ``y`` sends the message that ``layout`` makes of ``psi(w)``,
    clipped to ``clip_norm``, and of the residual ``y - baseline(w)``, clipped to ``value_bound``:
    exact products or one cell in the joint model, one vector in the paper and of reports. Where
    nothing is public but ranges, the messages of the first epochs tell of contexts alone.

    Only the shape ``psi`` and the layout hold for the whole epoch. ``value_bound`` ``V`` and
    ``baseline`` are those of its opening segment; later ones measure residuals ``z`` by their own
    bound ``B_s``, so ``V t = V z / B_s`` is what is summed.
    """

    epoch: int
    length: int
    features: ProjectedFeatures
    tau: float
    sigma_max: float
    value_bound: float
    clip_norm: float
    layout: VectorLayout | ProductLayout | HistogramLayout | CountLayout | PairLayout
    baseline: Function | None = None

    @property
    def opening(self) -> Segment:
        """The segment it begins with."""
        return Segment(number=1, value_bound=self.value_bound, baseline=self.baseline)

    @property
    def capacity(self) -> int:
        """Decisions that its sums have room for."""
        return _CAPACITY * self.length

    @property
    def dimension(self) -> int:
        """Length of the released vector."""
        return self.layout.coordinates

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the released vector, or on each local report."""
        return self.layout.noise_scale(self.value_bound * self.clip_norm)

    @property
    def asked(self) -> VectorLayout | ProductLayout | HistogramLayout:
        """The layout of messages that tell of rewards."""
        assert not isinstance(self.layout, CountLayout | PairLayout)
        return self.layout

    @property
    def vector(self) -> VectorLayout:
        """The layout of reports, which is always one of vectors."""
        if not isinstance(self.layout, VectorLayout):
            raise ConfigurationError(
                "devices report vectors, made private by the sphere: this plan is for sums of a "
                "curator"
            )
        return self.layout

    @property
    def sphere(self) -> Sphere | None:
        """The randomizer of reports, where they are made so."""
        return self.layout.sphere if isinstance(self.layout, VectorLayout) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What left the gate: the noisy vector of a closed epoch. ``event`` is None without privacy.

    ``counts``: how many decisions were really made in each of its ``segments``. ``last``: nothing
    more comes of this epoch. Only reports that are private by themselves may be read in parts.
    """

    plan: EpochPlan
    vector: FloatArray
    event: ReleaseEvent | None
    segments: tuple[Segment, ...]
    counts: tuple[int, ...]
    last: bool = True

    @classmethod
    def as_planned(
        cls, plan: EpochPlan, vector: FloatArray, event: ReleaseEvent | None = None
    ) -> "Release":
        """Of an epoch of one segment and of the planned length."""
        segments, counts = (plan.opening,), (plan.length,)
        return cls(plan=plan, vector=vector, event=event, segments=segments, counts=counts)

    @property
    def participants(self) -> int:
        """Decisions that were really made: what is read is scaled by them."""
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What may be said of a closed epoch. All of it is public.

    ``length`` is the number of decisions that were really made, in so many ``segments`` of one law
    each. ``width`` is ``Delta_r`` (paper) or a typical width over the pairs in play;
    ``active_share`` the share of pairs that the next epoch may play; ``seconds`` the time spent on
    planning the epoch and on learning from it, None in a private run. Where the learner predicts
    it: the root-mean-square error of the estimate over the pairs in play, and the share of privacy
    noise in the variance of the released vector. ``response_rate``: the share of decisions whose
    reward came, as measured in private; None where a missing reward counts as a number.
    ``mismatch``: how much of the pool's weight would have to move to make the law of contexts that
    the releases so far speak for, as measured in private; None where that is not learnt.
    ``notices``: what was first seen not to fit with this release; the first
    record has those of the configuration, too.
    """

    epoch: int
    length: int
    rank: int
    tau: float
    sigma_max: float
    noise_scale: float
    width: float
    active_share: float
    seconds: float | None
    predicted_error: float | None = None
    noise_share: float | None = None
    segments: int = 1
    response_rate: float | None = None
    mismatch: float | None = None
    notices: tuple[Notice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; what only some epochs have is left out where it says nothing."""
        values = asdict(self)
        if self.segments == 1:
            del values["segments"]
        for name in ("response_rate", "mismatch"):
            if values[name] is None:
                del values[name]
        if not self.notices:
            del values["notices"]
        return values

    @property
    def kinds(self) -> str | None:
        """The kinds of its notices in one line; None where there are none."""
        return ", ".join(notice.kind for notice in self.notices) or None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EpochRecord":
        """The inverse of :meth:`to_dict`."""
        notices = tuple(Notice(**notice) for notice in values.get("notices", ()))
        return cls(**{**values, "notices": notices})


# What a table of epochs shows of a record, by the name of the column.
_COLUMNS = {
    "epoch": "epoch",
    "rounds": "length",
    "rank": "rank",
    "noise": "noise_scale",
    "width": "width",
    "predicted error": "predicted_error",
    "noise share": "noise_share",
    "in play": "active_share",
    "seconds": "seconds",
    "notices": "kinds",
}


@final
class Epochs(tuple[EpochRecord, ...]):
    """Records of closed epochs: a tuple that shows itself as a table."""

    __slots__ = ()

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {name: getattr(record, field) for name, field in _COLUMNS.items()} for record in self
        ]

    def __repr__(self) -> str:
        return text_table(self._rows()) if self else "no epoch is closed yet"

    def _repr_html_(self) -> str:
        return html_table(self._rows()) if self else repr(self)


@dataclass(frozen=True, kw_only=True)
class ScheduleTerms:
    """What an operator asks of a schedule: ``first_epoch`` None for what the learner finds best."""

    first_epoch: int | None
    growth: float
    horizon: int | None


@dataclass(frozen=True)
class Schedule:
    """Epoch lengths ``T_1, growth T_1, growth^2 T_1, ...`` that add up to the horizon.

    The last epoch is truncated to the horizon (the paper prints "log T" epochs; with doubling there
    are ``ceil(log2(T / T_1 + 1))``). Without a horizon the lengths never end.

    >>> list(Schedule.paper(100))
    [10, 20, 40, 30]
    >>> from itertools import islice
    >>> list(islice(Schedule(first=100, growth=1.5), 4))
    [100, 150, 225, 337]
    """

    first: int
    growth: float = 2.0
    horizon: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1:
            raise ConfigurationError(f"the first epoch needs at least 1 round, got {self.first}")
        if not (isfinite(self.growth) and self.growth >= 1.0):
            raise ConfigurationError(f"epoch growth must be at least 1, got {self.growth}")
        if self.horizon is not None and self.horizon < 2:
            raise ConfigurationError(f"horizon must be at least 2, got {self.horizon}")

    @classmethod
    def paper(cls, horizon: int) -> "Schedule":
        """``T_1 = ceil(sqrt T)`` and doubling (Alg. 1, lines 2 and 20)."""
        return cls(first=isqrt(max(horizon, 1) - 1) + 1, growth=2.0, horizon=horizon)

    def __iter__(self) -> Iterator[int]:
        """Yield the length of each epoch in turn."""
        total, ideal = 0, float(self.first)
        while self.horizon is None or total < self.horizon:
            length = floor(ideal)
            if self.horizon is not None:
                length = min(length, self.horizon - total)
            yield length
            total += length
            ideal *= self.growth

    def length(self, epoch: int) -> int:
        """Length of epoch ``epoch`` (counted from 1), or 0 beyond the horizon.

        >>> Schedule.paper(100).length(4), Schedule.paper(100).length(5)
        (30, 0)
        """
        return next(islice(self, epoch - 1, None), 0)

    def after(self, decided: int, epoch: int) -> int:
        """Length of epoch ``epoch`` when it begins after so many decisions; 0 at the horizon.

        As scheduled where epochs were as long as planned, else ``first + (growth - 1) decided``:
        the same lengths, for epochs that ended early or began while others wait.

        >>> schedule = Schedule(first=100, growth=1.5)
        >>> schedule.after(250, 3), schedule.after(40, 2)
        (225, 120)
        """
        if self._as_scheduled(decided, epoch):
            return self.length(epoch)
        length = floor(self.first + (self.growth - 1) * decided)
        return length if self.horizon is None else max(0, min(length, self.horizon - decided))

    def _as_scheduled(self, decided: int, epoch: int) -> bool:
        """Whether the epochs before this one have so many decisions by the schedule."""
        total = 0
        for length in islice(self, epoch - 1):
            total += length
            if total > decided:  # long before lengths that grow for ever leave the numbers
                return False
        return total == decided
