"""The shuffler: waits until a batch is whole, forgets how it came, and passes it on at once.

It need not be trusted with data: a report is private by itself, up to the local epsilon. It is
trusted to mix. A token is uniform and never depends on a datum, so reports in the order of their
bytes are in an order that has nothing to do with when or whence they came; what is passed on is
the batch as a set.
"""

from collections.abc import Sequence

import numpy as np

from capri.arrays import IntArray
from capri.errors import BundleError
from capri.local import wire
from capri.local.bundle import open_bundle
from capri.local.gathering import Gathering, ReportStatus
from capri.local.intake import are_reports, by_size, judge


class Shuffler:
    """Collects the reports to one bundle, for an aggregator that must not see them one by one.

    Parameters
    ----------
    bundle:
        The bytes of :meth:`LocalCapri.bundle` of an aggregator with ``shuffle``. It says how many
        reports make a batch.
    """

    def __init__(self, bundle: bytes) -> None:
        opened = open_bundle(bundle)
        if opened.mixing is None:
            raise BundleError(
                "this bundle asks for no shuffler: its reports may be passed on as they come. "
                "Build the aggregator with shuffle=capri.Shuffle()"
            )
        self._kind = opened.randomizer
        self._gathering = Gathering(opened.plan, opened.randomizer, opened.digest[:8])
        self._needs = opened.plan.length
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
        return by_size(reports, self._add)

    def _add(self, rows: wire.Messages) -> IntArray:
        verdict = judge(rows, are_reports(rows, self._kind), [self._gathering], [])
        status = verdict.status
        accepted = np.flatnonzero(status == ReportStatus.ACCEPTED)
        room = self._needs - self._held
        status[accepted[room:]] = ReportStatus.STALE
        taken = rows[accepted[:room]]
        self._gathering.tokens.update(bytes(each) for each in taken[:, wire.TOKEN])
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
