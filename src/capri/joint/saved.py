"""A policy in a file: a snapshot of its repository, with the configuration it was built from."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from capri.epoch.course import Course
from capri.epoch.history import History, make_room, note_load
from capri.epoch.storage import (
    damage_as_storage_error,
    problem_arguments,
    read_policy_file,
    write_policy_file,
)
from capri.errors import StorageError
from capri.joint.configuration import Described
from capri.joint.engine import Engine
from capri.joint.record import kept_actions
from capri.learners.start import stored_prior
from capri.privacy.randomness import Streams
from capri.spaces import Contexts
from capri.store.memory import MemoryRepository
from capri.store.repository import Repository

# What a file without this was written by: a release before snapshots of repositories.
_SNAPSHOT = "repository"


def save_policy(
    path: str | PathLike[str],
    described: Described,
    streams: Streams,
    engine: Engine,
    history: History | None,
) -> History | None:
    """Write a policy to one file; the history it goes on with.

    A simulation is written whole. Of a private run only what is public is written.
    """
    repository = engine.repository  # one unit of work: other threads go on deciding after it
    snapshot = repository.read(lambda unit: repository.snapshot(secret=streams.simulated))
    stored = read_policy_file(path, None)[0] if Path(path).is_file() else None
    make_room(path, stored, history)
    values, arrays = described
    values = {
        **values,
        "simulated": streams.simulated,
        "streams": streams.state(),
        _SNAPSHOT: snapshot[0],
    }
    history = None if history is None else history.next()
    if history is not None:
        values["history"] = history.to_dict()
    # Digests of user ids can be guessed from: only the owner may read such a file.
    confidential = bool(snapshot[0]["users"])
    write_policy_file(path, values, arrays | snapshot[1], confidential=confidential)
    return history


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a file."""

    path: str | PathLike[str]
    values: dict[str, Any]
    arrays: dict[str, Any]
    settings: dict[str, Any]

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Whatever goes wrong while stored values are put together means a damaged file."""
        with damage_as_storage_error(self.path):
            yield

    def restored(
        self, course: Course, repository: Repository[Any], streams: Streams
    ) -> tuple[Course, Repository[Any]]:
        """What was learnt and what is kept, for a policy that was just built."""
        assert isinstance(repository, MemoryRepository)
        if streams.simulated:
            streams.restore(self.values["streams"])
        actions = kept_actions(course.learner.problem, repository.codec)
        repository.restore(self.values[_SNAPSHOT], self.arrays, actions)
        head, arrays = repository.codec.unpack(repository.law(repository.own_law))
        course.restore(head["course"], arrays, head["plan_seconds"])
        if not streams.simulated:  # of epochs under way the data so far are lost
            course.learner.keep(repository.open_epoch)
        return course, repository

    def history(self, *, take_over: bool) -> History:
        """The line of history that a private policy goes on with."""
        return note_load(self.path, History.of(self.values), take_over=take_over)


def load_policy(path: str | PathLike[str], contexts: Contexts | None) -> Saved:
    """Read a saved policy. A sampler of contexts is code and must be given again."""
    values, arrays = read_policy_file(path)
    if _SNAPSHOT not in values:
        raise StorageError(
            f"{path} was written by a release before 0.1.0, in format version "
            f"{values.get('version')}: open it with the release that wrote it"
        )
    with damage_as_storage_error(path):
        settings = {
            **problem_arguments(values["problem"], arrays, contexts),
            "horizon": values["horizon"],
            "preset": values["preset"],
            "simulation_seed": 0 if values["simulated"] else None,
            "prior": stored_prior(values, arrays),
            **values["options"],
        }
    return Saved(path, values, arrays, settings)
