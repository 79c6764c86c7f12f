"""Changes that operators make to a stored policy: each is one publication, seen by every process.

A decision compares the generation in its transaction, so none is made by a mode or a catalogue that
its process has not read.
"""

from collections.abc import Callable
from hashlib import sha256

from capri.epoch.modes import Mode, Operation
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowRecord
from capri.joint.keeper import Keeper
from capri.joint.record import actions_blob
from capri.store.blobs import unpacked
from capri.store.transaction import Transaction


class Changes:
    """What may be changed while a stored policy serves, and what was."""

    def __init__(self, keeper: Keeper, now: Callable[[], float]) -> None:
        self._keeper, self._shelf, self._now = keeper, keeper.shelf, now

    def set_mode(self, mode: Mode) -> None:
        """From the next decision on."""
        with self._keeper.lock:
            self._keeper.refresh()
            for problem in self._keeper.problems(self._keeper.ground):
                mode.check(problem.actions)

            def change(transaction: Transaction) -> None:
                _, generation = self._keeper.current(transaction)
                self._shelf.note_operation(
                    transaction, generation, "mode", mode.to_dict(), self._now()
                )

            self._keeper.write(change)
            self._keeper.refresh()  # and let the anchor know

    def replace_actions(self, renewed: Callable[[Problem], Problem]) -> None:
        """A new version of the catalogue: one that was asked for before and never played is gone.

        ``renewed`` gives the problem with the new actions in the place of the latest ones.
        """
        with self._keeper.lock:
            self._keeper.refresh()
            problem = renewed(self._keeper.problems(self._keeper.ground)[-1])
            blob = actions_blob(problem)

            def change(transaction: Transaction) -> None:
                _, generation = self._keeper.current(transaction)
                version = generation + 1
                transaction.run("DELETE FROM catalogues WHERE epoch IS NULL")
                transaction.insert("catalogues", [(version, None, blob)])
                record = {
                    "version": version,
                    "actions": problem.actions.count,
                    "digest": sha256(blob).hexdigest(),
                }
                self._shelf.note_operation(
                    transaction, generation, "catalogue", record, self._now()
                )

            self._keeper.write(change)
            self._keeper.refresh()  # and let the anchor know

    def operations(self) -> tuple[Operation, ...]:
        """Every line of the history, in order."""
        return tuple(
            Operation(str(kind), float(made), unpacked(record)[0])
            for kind, made, record in self._shelf.operations()
        )

    def shadows(self) -> tuple[ShadowRecord, ...]:
        """One record for each released epoch with shadow visits."""
        rows = self._shelf.database.read(
            lambda transaction: transaction.rows(
                "SELECT release FROM epochs WHERE release IS NOT NULL ORDER BY number"
            )
        )
        found = (unpacked(release)[0].get("shadow") for (release,) in rows)
        return tuple(ShadowRecord(**each) for each in found if each is not None)
