"""Changes that operators make to a stored policy: each is one publication, seen by every process.

A decision compares the generation in its transaction, so none is made by a mode or a catalogue that
its process has not read.
"""

from collections.abc import Callable
from typing import Any

from capri.epoch.modes import Mode, Operation
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowRecord
from capri.joint.keeper import Keeper
from capri.joint.record import kept_actions


class Changes:
    """What may be changed while a stored policy serves, and what was."""

    def __init__(self, keeper: Keeper, now: Callable[[], float]) -> None:
        self._keeper, self._repository, self._now = keeper, keeper.repository, now

    def set_mode(self, mode: Mode) -> None:
        """From the next decision on."""
        with self._keeper.lock:
            self._keeper.refresh()
            for problem in self._keeper.problems(self._keeper.ground):
                mode.check(problem.actions)

            def change(unit: Any) -> None:
                _, generation = self._keeper.current(unit)
                record = mode.to_dict()
                self._repository.note_operation(unit, generation, "mode", record, self._now())

            self._keeper.write(change)
            self._keeper.refresh()  # and let the anchor know

    def replace_actions(self, renewed: Callable[[Problem], Problem]) -> None:
        """A new version of the catalogue: one that was asked for before and never played is gone.

        ``renewed`` gives the problem with the new actions in the place of the latest ones.
        """
        with self._keeper.lock:
            self._keeper.refresh()
            problem = renewed(self._keeper.problems(self._keeper.ground)[-1])
            codec = self._repository.codec
            kept = kept_actions(problem, codec)

            def change(unit: Any) -> None:
                _, generation = self._keeper.current(unit)
                version = generation + 1
                self._repository.offer(unit, version, kept)
                record = {
                    "version": version,
                    "actions": problem.actions.count,
                    "digest": codec.mark(kept).hex(),
                }
                self._repository.note_operation(unit, generation, "catalogue", record, self._now())

            self._keeper.write(change)
            self._keeper.refresh()  # and let the anchor know

    def operations(self) -> tuple[Operation, ...]:
        """Every line of the history, in order."""
        return self._repository.operations()

    def shadows(self) -> tuple[ShadowRecord, ...]:
        """One record for each released epoch with shadow visits."""
        kept = self._repository.read(self._repository.releases)
        found = (self._repository.codec.unpack(each)[0].get("shadow") for each in kept)
        return tuple(ShadowRecord(**each) for each in found if each is not None)
