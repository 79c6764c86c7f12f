"""Whether those who come can have come from the public pool.

Every message of the joint model carries combinations ``q`` of its own second moments, whatever its
reward is and whether one came: the one thing said of pairs that no reward is mixed with. Under the
pool's law they are known in advance,

    e = sum q - n E[q],     C = sigma^2 I + n Cov[q],     e^T C^-1 e ~ chi2(size),

and independent from release to release, so sums over releases are chi-square, too. With many users
any pool is found out, even one that is as good as a sample can be: an alarm also asks for a law
learnt from the moments that is far from the pool's. Post-processing.
"""

from dataclasses import dataclass, field

from capri.epoch.notice import Notice
from capri.learners.guards import words
from capri.learners.guards.fit import Fit, Innovation
from capri.learners.law import Moments


@dataclass(frozen=True)
class Comers:
    """How far who came is from whom the pool says.

    ``mismatch``: total variation between the learnt law and the pool's. ``elsewhere``: the share of
    users that the pool has nobody like.
    """

    fit: Fit = field(default_factory=Fit)
    mismatch: float = 0.0
    elsewhere: float = 0.0

    def after(
        self, moments: Moments | None, mismatch: float, elsewhere: float
    ) -> tuple["Comers", Notice | None]:
        """With one more release; ``moments`` None where it tells nothing of who came."""
        if moments is None:
            return self, None
        newest = Innovation(moments.chi_square, moments.degrees)
        seen = Comers(self.fit.after(newest), mismatch, elsewhere)
        return seen, words.pool(seen.fit, newest, mismatch, elsewhere)
