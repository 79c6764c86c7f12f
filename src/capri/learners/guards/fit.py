"""Whether releases are what the belief expected: the chi-square of innovations.

Before a release is learnt from, the belief ``theta ~ N(m, P)`` predicts it, and with ``R`` the
covariance of privacy and sampling noise

    e = g - H (m - baseline),     S = H P H^T + R,     e^T S^-1 e ~ chi2(rank)

if kernel, prior, pool and noise are what the learner takes them for. Given the releases before it
an innovation is independent of theirs, so sums over releases are chi-square, too. A kernel that is
too smooth cannot express ``f``: the belief becomes certain of something wrong, and ``e`` is many
deviations long.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import chdtrc

from capri.learners.active import epoch_failure
from capri.learners.belief import Told
from capri.learners.drift import Believed, innovation

# How often a policy whose model is right says that it is wrong, over all of its releases.
FALSE_ALARMS = 5e-3


@dataclass(frozen=True)
class Innovation:
    """``e^T S^-1 e`` of one release, and its degrees of freedom."""

    chi_square: float
    degrees: int

    @classmethod
    def of(cls, told: Iterable[Told], before: Believed) -> "Innovation":
        """The release against what was believed before it."""
        chi_square, _, degrees = innovation(told, before)
        return cls(chi_square, degrees)


@dataclass(frozen=True)
class Fit:
    """Innovations so far: their sum, its degrees of freedom, and how many they are."""

    chi_square: float = 0.0
    degrees: int = 0
    releases: int = 0

    def after(self, innovation: Innovation) -> "Fit":
        """With one more."""
        return Fit(
            self.chi_square + innovation.chi_square,
            self.degrees + innovation.degrees,
            self.releases + 1,
        )

    @property
    def ratio(self) -> float:
        """Chi-square per degree of freedom: about 1 where the model is right."""
        return self.chi_square / max(self.degrees, 1)

    def chance(self, newest: Innovation) -> float:
        """How often a right model would look this wrong at some release: at most so often.

        Release ``r`` has the share ``6/(pi r)^2`` of all false alarms, which sum to 1 over any
        number of releases; half of it for the release alone, half for the sum so far. A jump shows
        in the first, a drift that no single release tells in the second.
        """
        alone = float(chdtrc(newest.degrees, newest.chi_square))
        together = float(chdtrc(self.degrees, self.chi_square))
        return min(1.0, 2 * min(alone, together) / epoch_failure(1.0, self.releases))
