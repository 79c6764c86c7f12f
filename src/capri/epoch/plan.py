"""The public objects of an epoch: its plan, what it released, and its record."""

from dataclasses import asdict, dataclass
from typing import Any, final

from capri.arrays import FloatArray
from capri.epoch.notice import Notice
from capri.errors import ConfigurationError
from capri.features import Function, ProjectedFeatures
from capri.files import html_table, text_table
from capri.privacy.histogram import HistogramLayout
from capri.privacy.ledger import ReleaseEvent
from capri.privacy.products import ProductLayout
from capri.privacy.sphere import Sphere
from capri.privacy.vector import VectorLayout

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
    exact products or one cell in the joint model, one vector in the paper and of reports.

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
    layout: VectorLayout | ProductLayout | HistogramLayout
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
    ``notices``: what was first seen not to fit with this release (docs/warnings.md); the first
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
