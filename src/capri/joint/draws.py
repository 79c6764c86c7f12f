"""The noisy values of closed epochs: drawn once, and kept until they are published.

A transaction that fails leaves its values in the server's log. So noise is not drawn inside the one
that publishes: two draws for one sum would lie there, and together they say more than one may. What
was drawn is stored first, sealed where there is a store key, and whatever fails from there on
publishes the same values again, in this process or in another one.
"""

from collections.abc import Callable, Collection
from typing import Any

from capri.privacy.randomness import Streams
from capri.store.repository import Repository
from capri.store.view import CLOSED


class Draws:
    """What the releases of closed epochs will publish."""

    def __init__(self, repository: Repository[Any], streams: Streams) -> None:
        self._repository, self._streams = repository, streams
        self._drawn: dict[int, Any] = {}

    def of(self, epoch: int, draw: Callable[[], Any], check: Callable[[Any], object]) -> Any:
        """What an epoch publishes, None where nobody came who is in a release.

        ``check`` refuses to store anything by a view that is over: the store key may be another.
        """
        rows = self._repository.rows
        found = self._repository.read(lambda unit: rows.draw_of(unit, epoch))
        if found is not None:
            return found
        try:
            with self._repository.drawing(self._streams):
                if epoch not in self._drawn:
                    self._drawn[epoch] = draw()
                return self._keep(epoch, self._drawn[epoch], check)
        except BaseException:
            if self._streams.simulated:  # it goes on from where its generators are stored
                self._drawn.pop(epoch, None)
            raise

    def _keep(self, epoch: int, drawn: Any, check: Callable[[Any], object]) -> Any:
        """Store what was drawn, unless another process was first: then that counts."""
        repository = self._repository

        def keep(unit: Any) -> Any:
            repository.hold(unit, epoch)
            check(unit)
            kept = repository.rows.draw_of(unit, epoch)
            if kept is not None or repository.state_of(unit, epoch) != CLOSED or drawn is None:
                return kept
            repository.rows.write_draw(unit, epoch, drawn)
            repository.write_streams(unit, self._streams)
            return drawn

        return repository.write(keep)

    def forget_others(self, closed: Collection[int]) -> None:
        """Forget what belongs to epochs that were released, by whoever it was."""
        self._drawn = {epoch: kept for epoch, kept in self._drawn.items() if epoch in closed}
