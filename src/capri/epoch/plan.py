"""The public objects of an epoch: its plan, what it released, and its record."""

from dataclasses import asdict, dataclass
from typing import Any, final

from capri.arrays import FloatArray
from capri.features import Predictor, ProjectedFeatures
from capri.notebook import html_table, text_table
from capri.privacy.grid import Grid
from capri.privacy.ledger import ReleaseEvent
from capri.privacy.sphere import Sphere


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """Everything about an epoch that is decided before its data.

    A function of earlier releases and public randomness alone, so it may be published.

    A user with pair ``w`` and reward ``y`` contributes, with ``t`` the residual
    ``(y - baseline(w)) / value_bound`` clipped to ``[-1, 1]`` and ``psi`` clipped to ``clip_norm``,

        V C [ sqrt(1 - s^2 - q^2) t psi(w) / C,  s (2 t^2 - 1),  q (2 e - 1) ]

    with ``V = value_bound`` and ``C = clip_norm``: its norm is at most ``V C``. The share
    ``s = moment_share`` pays for a private measure of how large the residuals are, the share
    ``q = tail_share`` for one of what clipping them cuts off (``e``, see
    :func:`capri.epoch.encode.encode`); both are 0 in the paper, and the coordinates absent.
    ``sphere`` is set where reports are made private by that randomizer instead of integer Gaussian
    noise.
    """

    epoch: int
    length: int
    features: ProjectedFeatures
    tau: float
    sigma_max: float
    value_bound: float
    clip_norm: float
    grid: Grid
    calibration: str
    baseline: Predictor | None = None
    moment_share: float = 0.0
    tail_share: float = 0.0
    sphere: Sphere | None = None

    @property
    def dimension(self) -> int:
        """Length of the released vector."""
        return self.features.rank + (self.moment_share > 0) + (self.tail_share > 0)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the released vector, or on each local report."""
        if self.sphere is not None:
            return self.sphere.deviation * self.value_bound * self.clip_norm
        return self.grid.noise_units * self.grid.step


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What left the gate: the noisy vector of a closed epoch. ``event`` is None without privacy."""

    plan: EpochPlan
    vector: FloatArray
    event: ReleaseEvent | None


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What may be said of a closed epoch. All of it is public.

    ``width`` is ``Delta_r`` (paper) or a typical width over the pairs in play; ``active_share`` the
    share of pairs that the next epoch may play; ``seconds`` the time spent on planning the epoch
    and on learning from it, None in a private run. Where the learner predicts it: the
    root-mean-square error of the estimate over the pairs in play, and the share of privacy noise in
    the variance of the released vector.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return asdict(self)


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
