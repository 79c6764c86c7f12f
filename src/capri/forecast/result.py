"""What a forecast says: expected regret by epsilon and horizon, and what each epoch can tell."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Any

from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Each verdict holds up to this ratio of the regret to that of uniform play.
VERDICTS = (
    (0.2, "good"),
    (0.5, "learns"),
    (0.9, "learns slowly"),
    (inf, "hopeless"),
)
# A known kernel with so many times the regret of "auto" is worth a warning.
_COSTLY = 1.15
_MEANING = {
    "good": "at most a fifth of the regret of uniform play",
    "learns": "at most half of the regret of uniform play",
    "learns slowly": "most of the regret of uniform play is left",
    "hopeless": "no better than uniform play",
}


@dataclass(frozen=True, kw_only=True)
class ExpectedRegret:
    """Expected regret after so many rounds, a mean over random functions with its standard error.

    ``ratio`` is the regret divided by that of uniform play on the same function. An epsilon of
    infinity stands for no privacy. ``kind`` is that of the functions, "all" for all kinds that the
    verdict is over; functions of kind "known" are those of the kernel that the policy takes for
    known. Standard errors are NaN where only one function was played.
    """

    kind: str = "all"
    epsilon: float
    rounds: int
    functions: int
    regret_per_round: float
    regret_standard_error: float
    ratio: float
    ratio_standard_error: float

    @property
    def grade(self) -> str:
        """By the mean ratio: "good" up to 0.2, "learns" to 0.5, "learns slowly" to 0.9, "hopeless".

        >>> expected = ExpectedRegret(epsilon=1.0, rounds=1000, functions=10, ratio=0.4,
        ...     ratio_standard_error=0.02, regret_per_round=0.1, regret_standard_error=0.01)
        >>> expected.grade
        'learns'
        >>> expected.verdict
        'learns: at most half of the regret of uniform play (0.400 +- 0.020)'
        """
        return next(name for limit, name in VERDICTS if not self.ratio > limit)

    @property
    def figure(self) -> str:
        """The ratio and its standard error, or that there is one function and no error."""
        error = self.ratio_standard_error
        return f"{self.ratio:.3f} " + ("(one function)" if isnan(error) else f"+- {error:.3f}")

    @property
    def verdict(self) -> str:
        """The grade, what it means, and the ratio with its standard error."""
        return f"{self.grade}: {_MEANING[self.grade]} ({self.figure})"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and the verdict."""
        return asdict(self) | {"grade": self.grade, "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class ExpectedEpoch:
    """What an epoch is expected to tell once it is released, as means over random functions.

    ``rounds``: rounds played when it closes. ``width``: as in :class:`~capri.EpochRecord`.
    ``predicted_error``: root-mean-square error of the estimate over the pairs in play; None where
    the preset does not predict it.

    ``gap``: the gap between two actions that can be told apart. Two standard deviations of a
    difference, ``2 sqrt(2) predicted_error``, as if the errors of two actions were independent;
    errors they share cancel, so smaller gaps may be seen too. Without a predicted error it is
    ``4 width``, at which the paper drops an action.

    ``noise_share`` and ``sampling_share`` split the variance of the released vector into privacy
    noise and the randomness of users and rewards. ``active_share``: share of pairs still in play.
    ``noise_scale``: standard deviation of the noise at the gate, or on each local report.
    """

    epsilon: float
    epoch: int
    length: int
    rounds: int
    width: float
    predicted_error: float | None
    gap: float
    noise_share: float
    sampling_share: float
    active_share: float
    noise_scale: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class KernelCost:
    """The known kernel against ``kernel="auto"`` on the same functions, users and noise.

    ``kind`` is that of the functions, "all" for all of them. ``known`` and ``auto`` are regrets
    divided by that of uniform play.
    """

    kind: str
    epsilon: float
    rounds: int
    functions: int
    known: float
    auto: float

    @property
    def cost(self) -> float:
        """How many times the regret of "auto" the known kernel has; below 1 it is better."""
        return self.known / self.auto if self.auto > 0 else inf

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self) | {"cost": self.cost}


@dataclass(frozen=True, kw_only=True, repr=False)
class Forecast:
    """Everything a forecast found; ``print(forecast)`` shows the grid of epsilon and horizon.

    ``rows``: one outlook per epsilon and horizon. ``curves``: outlooks at more rounds, for a
    picture. ``epochs``: one per epsilon and epoch, of the run to the longest horizon.
    ``uniform_regret_per_round`` is what uniform play loses, the mean over the functions.
    ``contexts`` says in words which contexts were played. ``delta_buys`` says what a delta buys:
    from the noise of either kind at the policy's own epsilon; empty where there is one kind alone.

    Rows and curves are means over all kinds of functions, the same for every kernel: their verdict
    is over the whole family, and verdicts of different kernels can be compared. ``kinds`` tells the
    kinds apart, and shows functions of a known kernel beside them. ``costs``: what a known kernel
    costs against ``kernel="auto"``; empty where none is known.
    """

    model: str
    preset: str
    delta: float | None
    functions: int
    noise: float
    seed: int
    contexts: str
    uniform_regret_per_round: float
    rows: tuple[ExpectedRegret, ...]
    curves: tuple[ExpectedRegret, ...]
    epochs: tuple[ExpectedEpoch, ...]
    kinds: tuple[ExpectedRegret, ...] = ()
    costs: tuple[KernelCost, ...] = ()
    delta_buys: str = ""

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The epsilons that were asked for, in that order."""
        return tuple(dict.fromkeys(row.epsilon for row in self.rows))

    @property
    def horizons(self) -> tuple[int, ...]:
        """The horizons, from short to long."""
        return tuple(dict.fromkeys(row.rounds for row in self.rows))

    def at(self, epsilon: float, horizon: int) -> ExpectedRegret:
        """The outlook of one epsilon and one horizon."""
        for row in self.rows:
            if (row.epsilon, row.rounds) == (epsilon, horizon):
                return row
        raise ConfigurationError(
            f"this forecast holds epsilon {_listed(self.epsilons)} and horizons "
            f"{_listed(self.horizons)}, got {epsilon:g} and {horizon}"
        )

    def epochs_of(self, epsilon: float) -> tuple[ExpectedEpoch, ...]:
        """The epochs of one epsilon; empty where none closes before the longest horizon."""
        return tuple(epoch for epoch in self.epochs if epoch.epsilon == epsilon)

    def curve_of(self, epsilon: float) -> tuple[ExpectedRegret, ...]:
        """The outlooks of one epsilon from the first rounds to the longest horizon."""
        return tuple(point for point in self.curves if point.epsilon == epsilon)

    def kinds_at(self, epsilon: float, horizon: int) -> tuple[ExpectedRegret, ...]:
        """The kinds of functions at one epsilon and one horizon."""
        return tuple(
            each for each in self.kinds if (each.epsilon, each.rounds) == (epsilon, horizon)
        )

    @property
    def advice(self) -> str:
        """What a known kernel costs against "auto", in two sentences; or that none was compared."""
        if not self.costs:
            return "No known kernel was compared with kernel='auto'."
        every, *kinds = self.costs
        worst = max(kinds, key=lambda each: each.cost)
        found = (
            f"On the same functions the known kernel has {every.cost:.2g} times the regret of "
            f"kernel='auto' after {every.rounds:,} rounds"
            f"{f' at epsilon {every.epsilon:g}' if every.epsilon < inf else ''}, "
            f"on those of kind '{worst.kind}' {worst.cost:.2g} times."
        )
        if every.cost > _COSTLY:
            return f"{found} Leave the kernel out unless you know it."
        return f"{found} It is " + ("worth giving." if every.cost < 1 / _COSTLY else "harmless.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity stands for no privacy."""
        plain = {name: value for name, value in vars(self).items() if not isinstance(value, tuple)}
        for name in ("rows", "curves", "epochs", "kinds", "costs"):
            plain[name] = [entry.to_dict() for entry in getattr(self, name)]
        return plain

    def plot(self) -> "Figure":
        """A picture of the regret, the gaps and the shares; ``.savefig(path)`` writes it."""
        from capri.plots import forecast_figure

        return forecast_figure(self, VERDICTS)

    def __str__(self) -> str:
        lines = [f"regret per round divided by uniform play, mean of {self.functions} functions"]
        for epsilon in self.epsilons:
            lines.append(f"epsilon {epsilon:g}" if epsilon < inf else "no privacy")
            for horizon in self.horizons:
                row = self.at(epsilon, horizon)
                lines.append(f"{horizon:>13,} rounds  {row.figure}  {row.grade}")
            lines += [
                f"{'':>15}{each.kind:<15} {each.figure}  {each.grade}"
                for each in self.kinds_at(epsilon, self.horizons[-1])
            ]
        lines += [self.advice] if self.costs else []
        lines += [self.delta_buys] if self.delta_buys else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
