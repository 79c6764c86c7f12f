"""Whether rewards still come when the wait is over: the rate of answers by how long was waited.

The last decision of an epoch is waited for as long as ``reward_wait`` says, the first one longer,
by as long as the epoch takes. With ``F(a)`` the share of rewards that come within ``a`` decisions,
an epoch of ``n`` decisions and wait ``w`` has the rate

    F(infinity) - (1/n) sum_{j < n} (F(infinity) - F(w + j))

which does not depend on ``n`` where the wait covers all delays, and rises with ``n`` where it does
not. Purchases that take longer than bounces are then lost more often than bounces, and estimates
are of those that were quick. Every epoch releases its rate where missing rewards are measured, so
comparing long epochs with the first ones is post-processing: it costs nothing.
"""

from dataclasses import dataclass, replace
from math import sqrt

from capri.epoch.notice import Notice
from capri.epoch.plan import Release

# Epochs of up to twice the length of the first are short, from six times on they are long.
_SHORT, _LONG = 2, 6
# A rise of the rate by less costs little; beyond it, so many standard deviations count.
_RISE, _DEVIATIONS = 0.03, 4.5


@dataclass(frozen=True)
class Rates:
    """Rates of answers of short and of long epochs, weighted by their precision."""

    first: int = 0
    short: float = 0.0
    short_precision: float = 0.0
    long: float = 0.0
    long_precision: float = 0.0

    def after(self, release: Release) -> "Rates":
        """With the rate of one more epoch, where it was measured."""
        layout, length = release.plan.layout, release.participants
        if "count" not in layout.blocks or length == 0:
            return self
        missing = float(layout.part(release.vector, "count")[0])
        return self.measured(1 - missing / length, layout.deviation("count") / length, length)

    def measured(self, rate: float, deviation: float, length: int) -> "Rates":
        """``deviation`` is that of the privacy noise; who answers is a coin of its own."""
        first = self.first or length
        likely = min(max(rate, 0.05), 0.95)
        precision = 1 / (deviation**2 + likely * (1 - likely) / length)
        if length <= _SHORT * first:
            return replace(
                self,
                first=first,
                short=self.short + precision * rate,
                short_precision=self.short_precision + precision,
            )
        if length >= _LONG * first:
            return replace(
                self,
                long=self.long + precision * rate,
                long_precision=self.long_precision + precision,
            )
        return self

    @property
    def rise(self) -> tuple[float, float] | None:
        """How much higher the rate of long epochs is, and the standard deviation of that."""
        if not (self.short_precision and self.long_precision):
            return None
        higher = self.long / self.long_precision - self.short / self.short_precision
        return higher, sqrt(1 / self.short_precision + 1 / self.long_precision)

    def notice(self) -> Notice | None:
        """Rewards that come after the wait, said beyond doubt."""
        if self.rise is None:
            return None
        higher, deviation = self.rise
        if not higher > _RISE + _DEVIATIONS * deviation:
            return None
        short, long = self.short / self.short_precision, self.long / self.long_precision
        return Notice(
            kind="wait",
            text=(
                f"{long:.0%} of decisions have a reward where the epoch was long and hence the "
                f"wait, {short:.0%} where it was short: rewards still come when reward_wait is "
                "over. If it depends on the outcome how long they take, as with purchases and "
                "bounces, estimates are of the quick ones. Wait longer. (Else people answer more "
                "often since better actions are played, and all is well.)"
            ),
            numbers={"short": short, "long": long, "deviation": deviation},
        )
