"""Where an aggregator is kept: in memory, which can be saved to a file, or in a store.

Either is a repository. A file is a snapshot of it, beside what the aggregator was built from. All
of it may be published: reports are private by themselves. So nothing is sealed, and an older copy
harms nobody's privacy.
"""

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from capri.checks import whole
from capri.epoch.decisions import SIMULATED
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardTerms
from capri.epoch.storage import (
    problem_arguments,
    problem_state,
    read_policy_file,
    write_policy_file,
)
from capri.errors import ConfigurationError, StorageError
from capri.files import digest_of
from capri.learners.options import PracticalOptions
from capri.learners.start import Observed, stored_prior
from capri.spaces import Contexts
from capri.store.codec import packed, unpacked
from capri.store.memory import MemoryRepository
from capri.store.repository import Repository
from capri.store.sql import SqlRepository
from capri.store.transaction import empty_store, open_database

Described = tuple[dict[str, Any], dict[str, Any]]
# What a file or a store says that it holds.
KIND = "aggregator"
_SNAPSHOT = "repository"


@dataclass(frozen=True)
class BundleDraws:
    """The generator of everything in a bundle that is drawn."""

    public: np.random.Generator


def generator(seed: int | None) -> np.random.Generator:
    """Of public draws."""
    if seed is not None:
        whole("public_seed", seed, least=0)
    return np.random.default_rng(seed)


def described(
    problem: Problem,
    horizon: int | None,
    options: PracticalOptions,
    terms: RewardTerms,
    observed: Observed | None,
) -> Described:
    """What an aggregator was built from, as its file and its store say it."""
    values, arrays = problem_state(problem)
    configuration: dict[str, Any] = {
        "kind": KIND,
        "problem": values,
        "horizon": horizon,
        "options": asdict(options),
        "terms": terms.to_dict(),
    }
    if observed is not None:
        configuration["prior"], known = observed.state()
        arrays |= known
    return configuration, arrays


def settings_from(
    values: dict[str, Any], arrays: dict[str, Any], contexts: Contexts | None
) -> dict[str, Any]:
    """The arguments that an aggregator was built with."""
    arguments = problem_arguments(values["problem"], arrays, contexts)
    arguments |= RewardTerms.from_dict(values["terms"]).arguments()
    for name in ("model", "contributions_per_user", "contributions_per_epoch", "reward_rule"):
        del arguments[name]
    prior = stored_prior(values, arrays)
    return {**arguments, "horizon": values["horizon"], "prior": prior, **values["options"]}


def in_memory(law: Described, actions: Any, saved: Described | None) -> MemoryRepository:
    """A repository in this process, new or as a file says; ``actions``: those of now."""
    repository = MemoryRepository(0, SIMULATED, law, actions)
    if saved is not None:
        repository.restore(saved[0][_SNAPSHOT], saved[1], actions)
    return repository


def save_aggregator(
    path: str | PathLike[str], described: Described, repository: Repository
) -> None:
    """Write an aggregator to one file."""
    values, arrays = repository.read(lambda unit: repository.snapshot(secret=True))
    own, own_arrays = described
    write_policy_file(path, own | {_SNAPSHOT: values}, own_arrays | arrays)


def load_aggregator(path: str | PathLike[str]) -> Described:
    """Read a file that :func:`save_aggregator` wrote."""
    return read_policy_file(path, KIND)


def open_store(url: str, described: Described, law: Described) -> SqlRepository:
    """The store at an address: filled where it is empty, else refused if it is another's."""
    repository = SqlRepository(open_database(url), None)
    try:
        stored = repository.configuration()
        if stored is None:
            repository.create(described, packed(*law), None)
            stored = repository.configuration()
            assert stored is not None
        if digest_of(*stored) != digest_of(*unpacked(packed(*described))):
            raise ConfigurationError(
                f"{repository.database!r} was made for another policy: give another store, build "
                "the aggregator as it was built, or open it with LocalCapri.open"
            )
        repository.read_secrets()
    except BaseException:
        repository.close()
        raise
    return repository


def stored_configuration(url: str) -> Described:
    """What the aggregator of a store was built from."""
    database = open_database(url, create=False)
    try:
        found = SqlRepository(database, None).configuration()
    finally:
        database.close()
    if found is None:
        raise empty_store(repr(database))
    if found[0].get("kind") != KIND:
        raise StorageError(f"{database!r} holds a policy of another model: open it with Capri.open")
    return found
