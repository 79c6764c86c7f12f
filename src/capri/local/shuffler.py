"""The shuffler: waits until a batch is whole, forgets how it came, and passes it on at once.

It need not be trusted with data: a report is private by itself, up to the local epsilon. It is
trusted to mix, by people who do not trust the aggregator: what the aggregator's bundle claims of a
batch counts for nothing here. The shuffler works out what the batch costs, and refuses a bundle
whose batch would break its own promise.

A token is uniform and never depends on a datum, so reports in the order of their bytes are in an
order that has nothing to do with when or whence they came; what is passed on is the batch as a set.
"""

from collections.abc import Sequence

import numpy as np

from capri.arrays import IntArray
from capri.checks import whole
from capri.errors import BundleError
from capri.local import wire
from capri.local.bundle import open_bundle
from capri.local.reports import EpochReports, ReportStatus, as_rows, judge
from capri.privacy.budget import Budget
from capri.privacy.shuffle import Shuffle


class Shuffler:
    """Collects the reports to one bundle, for an aggregator that must not see them one by one.

    Parameters
    ----------
    bundle:
        The bytes of :meth:`LocalCapri.bundle` of an aggregator with ``shuffle``. Its length is how
        many reports make a batch; nothing else of it is believed.
    budget:
        What this shuffler promises of every batch that it hands over, to people whose reports are
        in it. A bundle whose batch costs more is refused.
    least:
        The smallest batch that it hands over, whatever the cost: how many others people are hidden
        among. Without a default, since this is what its operator promises.
    shuffle:
        Its own terms: the local epsilon that no report may exceed, and the share of reports that it
        takes for honest. :class:`~capri.Shuffle` by default.
    """

    def __init__(
        self, bundle: bytes, budget: Budget, *, least: int, shuffle: Shuffle | None = None
    ) -> None:
        opened, terms = open_bundle(bundle), Shuffle() if shuffle is None else shuffle
        plan = opened.plan
        if opened.mixing is None:
            raise BundleError(
                "this bundle asks for no shuffler: its reports may be passed on as they come. "
                "Build the aggregator with shuffle=capri.Shuffle()"
            )
        terms.check(budget)
        self._epoch = EpochReports(plan, opened.digest[:8])
        sphere = self._epoch.sphere
        if plan.length < whole("least", least):
            raise BundleError(
                f"a batch of this bundle has {plan.length} reports, and this shuffler mixes at "
                f"least {least}. Ask for longer epochs (first_epoch), or give another least",
                "too-costly",
            )
        if not terms.keeps(budget, sphere, plan.length):
            cost = terms.central_epsilon(budget, sphere, plan.length)
            raise BundleError(
                f"a batch of {plan.length} reports of a local epsilon of {sphere.epsilon:.3g} "
                f"costs {cost:.3g} at delta {budget.delta:g}, and this shuffler promises "
                f"{budget.epsilon:g}, and {terms.most:g} of a single report. Ask for longer epochs "
                "or for less a report, or give another budget",
                "too-costly",
            )
        self._needs = plan.length
        self._rows: list[wire.Messages] = []
        self._held = 0

    def __repr__(self) -> str:
        return f"Shuffler({self._held} of {self._needs} reports)"

    @property
    def needs(self) -> int:
        """Reports of a whole batch."""
        return self._needs

    @property
    def held(self) -> int:
        """Reports that wait; public, like the number of those who take part."""
        return self._held

    def add(self, reports: Sequence[bytes] | wire.Messages) -> IntArray:
        """Take reports in; a :class:`ReportStatus` code for each, as the aggregator would say.

        What comes after the batch is whole is stale: it cannot hide in it any more.
        """
        return as_rows(reports, self._add)

    def _add(self, rows: wire.Messages) -> IntArray:
        verdict = judge(rows, wire.are_reports(rows), [self._epoch], [])
        status = verdict.status
        accepted = np.flatnonzero(status == ReportStatus.ACCEPTED)
        room = self._needs - self._held
        status[accepted[room:]] = ReportStatus.STALE
        taken = rows[accepted[:room]]
        self._epoch.tokens.update(bytes(each) for each in taken[:, wire.TOKEN])
        self._rows.append(taken.copy())
        self._held += len(taken)
        return status

    def batch(self) -> wire.Messages | None:
        """The whole batch in the order of its bytes, or None while reports are missing.

        Rows of bytes for :meth:`LocalCapri.receive_many`. The same batch again if asked again:
        pass it on once more where the first time was lost.
        """
        if self._held < self._needs:
            return None
        rows = np.concatenate(self._rows)
        self._rows = [rows[np.lexsort(rows.T[::-1])]]
        return self._rows[0].copy()
