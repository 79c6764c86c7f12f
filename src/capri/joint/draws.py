"""The noisy values of closed epochs: drawn once, and kept until they are published.

A transaction that fails leaves its values in the server's log. So noise is not drawn inside the one
that publishes: two draws for one sum would lie there, and together they say more than one may. What
was drawn is stored first, sealed where there is a store key, and whatever fails from there on
publishes the same values again, in this process or in another one.
"""

from collections.abc import Callable, Collection

from capri.privacy.randomness import Streams
from capri.store.blobs import packed
from capri.store.shelf import Shelf
from capri.store.transaction import Transaction
from capri.store.view import CLOSED


class Draws:
    """What the releases of closed epochs will publish."""

    def __init__(self, shelf: Shelf, streams: Streams) -> None:
        self._shelf, self._streams = shelf, streams
        self._drawn: dict[int, bytes | None] = {}

    def of(
        self, epoch: int, draw: Callable[[], bytes | None], check: Callable[[Transaction], object]
    ) -> bytes | None:
        """What an epoch publishes, None where nobody came who is in a release.

        ``check`` refuses to store anything by a view that is over: the store key may be another.
        """
        found = self._shelf.database.read(lambda transaction: self._kept(transaction, epoch))
        if found is not None:
            return found
        before = self._streams.state()
        try:
            if epoch not in self._drawn:
                self._drawn[epoch] = draw()
            return self._keep(epoch, self._drawn[epoch], check)
        except BaseException:
            if before is not None:  # a simulation goes on from where its generators are stored
                self._streams.restore(before)
                self._drawn.pop(epoch, None)
            raise

    def _keep(
        self, epoch: int, blob: bytes | None, check: Callable[[Transaction], object]
    ) -> bytes | None:
        """Store what was drawn, unless another process was first: then that counts."""

        def keep(transaction: Transaction) -> bytes | None:
            transaction.hold_epoch(epoch)
            check(transaction)
            state = transaction.row("SELECT state FROM epochs WHERE number = ?", (epoch,))
            kept = self._kept(transaction, epoch)
            if kept is not None or state != (CLOSED,) or blob is None:
                return kept
            sealed = self._shelf.seal.seal("draws", epoch, "secret", blob)
            transaction.insert("draws", [(epoch, sealed)])
            streams = self._streams.state()
            if streams is not None:
                self._shelf.write_streams(transaction, packed(streams))
            return blob

        return self._shelf.database.write(keep)

    def _kept(self, transaction: Transaction, epoch: int) -> bytes | None:
        found = transaction.row("SELECT secret FROM draws WHERE number = ?", (epoch,))
        if found is None:
            return None
        return self._shelf.seal.open("draws", epoch, "secret", found[0])

    def forget_others(self, closed: Collection[int]) -> None:
        """Forget what belongs to epochs that were released, by whoever it was."""
        self._drawn = {epoch: kept for epoch, kept in self._drawn.items() if epoch in closed}
