"""How a curator's policy is written to a file, and read back."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Self

from capri.epoch.accumulate import OpenEpoch
from capri.epoch.history import History, make_room, note_load
from capri.epoch.modes import Mode, Operation, newest_mode
from capri.epoch.shadow import ShadowRecord
from capri.epoch.storage import (
    below,
    damage_as_storage_error,
    ledger_from_state,
    ledger_state,
    named,
    next_from_state,
    next_state,
    plan_from_state,
    problem_arguments,
    read_policy_file,
    write_policy_file,
)
from capri.joint.configured import Configured
from capri.learners.start import stored_prior
from capri.privacy.users import Participation
from capri.spaces import Contexts, FixedActions


class Saved(Configured):
    """The part of :class:`capri.Capri` that outlives its process."""

    _participation: Participation | None
    _history: History | None
    _decided: int
    _opened: int
    _played: int
    _open: OpenEpoch | None
    _waiting: list[OpenEpoch]
    _mode: Mode
    _operations: list[Operation]
    _shadows: list[ShadowRecord]

    @abstractmethod
    def __init__(self, **settings: Any) -> None:
        """See :class:`capri.Capri`."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to one file.

        A simulation is stored whole and continues bit for bit. A private run stores only what is
        public: the un-noised sum of an open epoch and its pending decisions are dropped, and the
        dropped decisions contribute nothing. Save when an epoch has just closed to lose nothing.
        A private policy writes over the file it wrote or read last, and over no other policy's.
        """
        with self._lock:
            stored = read_policy_file(path, None)[0] if Path(path).is_file() else None
            make_room(path, stored, self._history)
            values, arrays = self._state()
            history = None if self._history is None else self._history.next()
            if history is not None:
                values["history"] = history.to_dict()
            # Digests of user ids can be guessed from: only the owner may read such a file.
            write_policy_file(path, values, arrays, confidential=self._participation is not None)
            self._history = history

    def __getstate__(self) -> dict[str, Any]:
        """Let simulations be copied and pickled; two copies of private data would both release."""
        if self.private:
            raise TypeError(
                "a private policy is neither pickled nor copied: use policy.save and Capri.load"
            )
        return super().__getstate__()

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        contexts: Contexts | None = None,
        clock: Callable[[], datetime] | None = None,
        key_retention: timedelta | None = None,
        take_over: bool = False,
    ) -> Self:
        """Read a saved policy. A context sampler and a clock are code and must be given again.

        The file of a private run is loaded once by a process, unless ``take_over`` says that the
        first copy is gone: two that both go on would count users twice.
        """
        values, arrays = read_policy_file(path)
        with damage_as_storage_error(path):
            policy = cls(
                **problem_arguments(values["problem"], arrays, contexts),
                horizon=values["horizon"],
                preset=values["preset"],
                clock=clock,
                key_retention=key_retention,
                simulation_seed=0 if values["simulated"] else None,
                prior=stored_prior(values, arrays),
                **values["options"],
            )
            policy._restore(values, arrays)
            if policy.private:
                policy._history = note_load(path, History.of(values), take_over=take_over)
        return policy

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        configuration, problem_arrays = self._configuration()
        course_values, course_arrays = self._course.state()
        values: dict[str, Any] = {
            **configuration,
            "simulated": self._streams.simulated,
            "streams": self._streams.state(),
            "decided": self._decided,
            **course_values,
            "ledger": None if self._ledger is None else ledger_state(self._ledger),
            "participation": None if self._participation is None else self._participation.state(),
            "open": None,
        }
        # What few policies have is left out of the files of the others.
        if self._operations:
            values["operations"] = [each.to_dict() for each in self._operations]
        if self._shadows:
            values["shadows"] = [each.to_dict() for each in self._shadows]
        arrays: dict[str, Any] = course_arrays | problem_arrays
        if self._open is not None:
            values["open"], open_arrays = self._open.public_state()
            values["open"]["plan_seconds"] = self._course.plan_seconds
            arrays |= open_arrays
            if self._streams.simulated:
                arrays |= named("open", self._open.state())
        # Whom a private run waits for is dropped with their data: nothing of them will be released.
        waiting = []
        for place, epoch in enumerate(self._waiting if self._streams.simulated else []):
            public, waiting_arrays = epoch.public_state()
            waiting.append(public)
            if epoch.actions is not self._problem.actions and isinstance(
                epoch.actions, FixedActions
            ):  # they were replaced since
                waiting_arrays["played_actions"] = epoch.actions.rows
            arrays |= named(f"waiting.{place}", waiting_arrays | named("open", epoch.state()))
        next_values, next_arrays = next_state(self._next)
        values, arrays = values | next_values, arrays | next_arrays
        if self._problem.rewards.overlapping:
            values |= {"waiting": waiting, "opened": self._opened, "played": self._played}
        return values, arrays

    def _restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        if values["simulated"]:
            self._streams.restore(values["streams"])
        if self._participation is not None:
            self._participation.restore(values["participation"])
        if self._ledger is not None:
            ledger_from_state(self._ledger, values["ledger"])
        self._next = next_from_state(values, arrays, self._problem)
        self._operations = [Operation.from_dict(each) for each in values.get("operations", ())]
        self._mode = newest_mode(self._operations)
        self._shadows = [ShadowRecord(**each) for each in values.get("shadows", ())]
        self._decided = values["decided"]
        stored = values["open"]
        self._course.restore(values, arrays, 0.0 if stored is None else stored["plan_seconds"])
        for place, each in enumerate(values.get("waiting", [])):
            self._waiting.append(self._restored(each, below(f"waiting.{place}", arrays)))
        if stored is not None:
            self._open = self._restored(stored, arrays)
            if not values["simulated"]:
                self._open.forsake(stored["issued"])
        if not values["simulated"]:
            self._course.learner.keep(None if self._open is None else self._open.plan.epoch)
        newest = self._open.plan.epoch if self._open is not None else len(self._course.records)
        self._opened = values.get("opened", newest)
        self._played = values.get("played", len(self._course.records))

    def _restored(self, values: dict[str, Any], arrays: dict[str, Any]) -> OpenEpoch:
        """An epoch that is not released yet; in a simulation with its data."""
        plan = plan_from_state(values["plan"], arrays, self._problem.kernel)
        problem = self._problem
        if "played_actions" in arrays:  # they were replaced since
            actions = FixedActions(arrays["played_actions"])
            problem = replace(problem, actions=actions, limits=None, bounds=None)
        epoch = OpenEpoch(plan, values["first_decision"], problem, self._gate)
        epoch.restore_public(values, arrays)
        if data := below("open", arrays):
            epoch.restore(data)
        return epoch
