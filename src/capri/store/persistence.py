"""What a policy was built from, and how it is kept: in a store, or as a snapshot in a file.

A store is filled, or found to be that of this policy; the one of a curator also to be the newest
copy. A file is a snapshot of the policy's repository with its configuration. All that an aggregator
keeps may be published: reports are private by themselves. So nothing of it is sealed, and an older
copy harms nobody's privacy.
"""

import warnings
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capri.codec import packed, unpacked
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.problem import Problem
from capri.epoch.storage import (
    actions_from_state,
    damage_as_storage_error,
    problem_arguments,
    problem_state,
    read_policy_file,
    version_state,
    write_policy_file,
)
from capri.errors import BudgetError, ConfigurationError, PrivacyLeakWarning, StorageError
from capri.files import digest_of
from capri.learners.options import PracticalOptions
from capri.learners.prior import Observed, prior_state, stored_prior
from capri.privacy.certificate import Certificate
from capri.privacy.filters import Charge
from capri.privacy.layout import Norm
from capri.spaces import Actions, Contexts
from capri.store.memory import MemoryRepository
from capri.store.repository import Repository
from capri.store.reservation import Joined, Reservation, check_ledger, joined_values
from capri.store.rollback import Checkpoint, History, make_room, note_load, open_guard
from capri.store.sql import SqlRepository
from capri.store.transaction import empty_store, open_database
from capri.streams import Streams

if TYPE_CHECKING:
    from capri.learners.presets import Options

Described = tuple[dict[str, Any], dict[str, Any]]
# What a file or a store of an aggregator says that it holds; that of a curator says nothing.
AGGREGATOR = "aggregator"


def described(
    problem: Problem, horizon: int | None, options: Any, observed: Observed | None, **more: Any
) -> Described:
    """What a policy was built from, as its file and its store say it."""
    values, arrays = problem_state(problem)
    values = {"problem": values, "horizon": horizon, "options": asdict(options), **more}
    if observed is not None:
        values["prior"], known = prior_state(observed)
        arrays |= known
    return values, arrays


@dataclass(frozen=True, eq=False, kw_only=True)
class Configuration:
    """All that is settled before the first user, the actions aside, which may be replaced."""

    horizon: int | None
    preset: str
    options: "Options"
    blocks: bool | None  # as it was asked for
    observed: Observed | None  # what is known beforehand
    joined: Joined | None = None  # whose ledger it is in, and of which population

    def now(self, problem: Problem) -> "Configuration":
        """With the schedule of a problem, where that was changed."""
        terms = problem.schedule
        if terms is None:
            return self
        options = self.options
        if isinstance(options, PracticalOptions):
            options = replace(options, first_epoch=terms.first_epoch, growth=terms.growth)
        return replace(self, horizon=terms.horizon, options=options)

    def described(self, problem: Problem) -> Described:
        """Values and arrays, as a file and a store say it."""
        now = self.now(problem)
        more = {"preset": self.preset, **joined_values(self.joined)}
        return described(problem, now.horizon, now.options, self.observed, **more)

    def reserved(self, problem: Problem, repository: SqlRepository) -> Reservation | None:
        """What is held for the policy of a store in its organisation's ledger."""
        norms = (Norm.L2,) if self.preset == "paper" else problem.norms
        noise = {"gaussian": Norm.L2 in norms, "pure": Norm.L1 in norms}
        return reserved(self.joined, problem, repository, "policy", **noise)

    def settings(self, problem: Problem) -> dict[str, Any]:
        """The arguments that build such a policy again."""
        limit, now = problem.limit, self.now(problem)
        settings: dict[str, Any] = {
            "kernel": problem.kernel,
            "actions": problem.actions,
            "contexts": problem.contexts,
            "budget": problem.budget,
            "horizon": now.horizon,
            **problem.scale.arguments(),
            "model": str(problem.model),
            "preset": self.preset,
            "contributions_per_user": None if limit is None else limit.total,
            "contributions_per_epoch": None if limit is None else limit.per_epoch,
            "limits": problem.limits,
            "prior": self.observed,
            **problem.rewards.arguments(),
            **asdict(now.options),
        }
        if "blocks" in settings:  # as it was asked for: other actions may need the other learner
            settings["blocks"] = self.blocks
        return settings


def _settings(
    values: dict[str, Any], arrays: dict[str, Any], contexts: Contexts | None
) -> dict[str, Any]:
    """The arguments that a policy was built with, from what a file or a store says of it."""
    return {
        **problem_arguments(values["problem"], arrays, contexts),
        "horizon": values["horizon"],
        "preset": values["preset"],
        "simulation_seed": 0 if values["simulated"] else None,
        "prior": stored_prior(values, arrays),
        **values["options"],
    }


def reserved(
    joined: Joined | None,
    problem: Problem,
    repository: Repository,
    kind: str,
    *,
    gaussian: bool,
    pure: bool,
) -> Reservation | None:
    """What is held for a stored policy in its organisation's ledger; None where it is in none.

    Refused where that does not fit, and where the ledger is older than the policy.
    """
    if joined is None:
        return None
    assert isinstance(repository, SqlRepository)
    assert problem.budget is not None
    try:
        held = Reservation(
            *joined,
            repository.store_id,
            Charge.of(problem.budget, gaussian=gaussian, pure=pure),
            kind=kind,
            composition=problem.composition,
            contributions=problem.contributions,
        )
        held.hold()
        held.require(repository.epoch_values("number"))
        if kind == "policy":  # readings of reports are noted beforehand, and release nothing
            held.require_newest(lambda: _released(repository), repr(repository.database))
    except BaseException:
        repository.close()
        raise
    return held


def _released(repository: Repository) -> list[int]:
    """Epochs whose release was committed."""
    with_release = zip(
        repository.epoch_values("number"), repository.epoch_values("released"), strict=False
    )
    return [number for number, released in with_release if released is not None]


# -- stores --------------------------------------------------------------------------------------


def stored_settings(url: str, contexts: Contexts | None, ledger: object) -> dict[str, Any]:
    """The arguments that the policy of a store is built with, the actions as they were at first."""
    found = stored_configuration(url, None, ledger)
    return _settings(*found, contexts) | ledger_arguments(found[0], ledger)


def ledger_arguments(values: dict[str, Any], ledger: object) -> dict[str, Any]:
    """Under which ledger, and of which population, a stored policy is."""
    return {"ledger": ledger, "population": values.get("ledger", {}).get("population")}


def stored_configuration(url: str, kind: str | None, ledger: object) -> Described:
    """What the policy of a store was built from: of a curator, or of an aggregator."""
    with closing(open_database(url, create=False)) as database:
        found = SqlRepository(database, None).configuration()
    if found is None:
        raise empty_store(repr(database))
    check_ledger(found[0], ledger, repr(database))
    return _of_kind(found, kind, database)


def _of_kind(found: Described, kind: str | None, database: object) -> Described:
    if found[0].get("kind") != kind:
        told = {None: "a policy", AGGREGATOR: "what devices report"}
        held = told.get(found[0].get("kind"), "the ledger of an organisation")
        opened = {None: "Capri.open", AGGREGATOR: "LocalCapri.open"}
        how = opened.get(found[0].get("kind"), "OrganisationLedger")
        raise StorageError(f"{database!r} holds {held}: open it with {how}")
    return found


def stored_now(url: str) -> tuple[dict[str, Any], Actions] | None:
    """As :func:`stored_settings`, and the actions as they are now; None for an empty store."""
    with closing(open_database(url)) as database:
        repository = SqlRepository(database, None)
        if (found := repository.configuration()) is None:
            return None
        settings = _settings(*_of_kind(found, None, database), None)
        kept = repository.read(lambda unit: unit.select("catalogues", ("version", "actions")))
        if not kept:
            return settings, settings["actions"]
        values, arrays = repository.codec.unpack(max(kept)[1])
        return settings, actions_from_state(values, arrays["rows"])


def open_store(
    url: str,
    described: Described,
    learning: LearningLoop,
    streams: Streams,
    *,
    store_key: bytes | None,
    after: Certificate | None,
    rollback_guard: str | None,
    new_rollback_guard: bool,
) -> SqlRepository:
    """The store at an address, for a policy of this configuration."""
    seen = None if after is None else _seen(after)
    held = open_guard(rollback_guard, url)
    if new_rollback_guard and held is None:
        raise ConfigurationError(
            "new_rollback_guard says that the guard is new: give rollback_guard, too"
        )
    repository = SqlRepository(
        open_database(url), store_key, held, new_rollback_guard=new_rollback_guard
    )
    try:
        loop_values, arrays = learning.state()
        law = {"learning": loop_values, "plan_seconds": 0.0, "played": 0}, arrays
        values = {**described[0], "simulated": streams.simulated}, described[1]
        fill_or_check(repository, values, law, streams.state())
        repository.open(seen)
        if streams.simulated:
            streams.restore(repository.streams())
        if store_key is None and repository.database.exposure is not None:
            warnings.warn(repository.database.exposure, PrivacyLeakWarning, stacklevel=4)
    except BaseException:
        repository.close()
        raise
    return repository


def open_aggregator(url: str, described: Described, law: Described) -> SqlRepository:
    """The store at an address, for an aggregator of this configuration."""
    repository = SqlRepository(open_database(url), None)
    try:
        fill_or_check(repository, described, law, None)
        repository.read_secrets()
    except BaseException:
        repository.close()
        raise
    return repository


def fill_or_check(
    repository: SqlRepository, described: Described, law: Described, streams: Any
) -> None:
    """Fill an empty store, or check that it is this policy's."""
    stored = repository.configuration()
    if stored is None:
        state = None if streams is None else packed(streams)
        repository.create(described, packed(*law), state)
        stored = repository.configuration()
        assert stored is not None
    differences = _differences(stored, unpacked(packed(*described)))
    if differences:
        raise StorageError(
            f"{repository.database!r} holds a policy of another configuration: "
            f"{', '.join(differences)} differ. Build it as it was built, open it as it is, or give "
            "another store"
        )


def _seen(certificate: Certificate) -> Checkpoint:
    """What a certificate says of its store."""
    if not isinstance(certificate, Certificate):
        raise ConfigurationError(
            f"after must be a certificate of this store, got {type(certificate).__name__}"
        )
    found = certificate.digests.get("store")
    if found is None:
        raise BudgetError(
            "this certificate is of a policy without a store: it cannot tell an older copy"
        )
    return Checkpoint(found["store_id"], found["generation"], found["digest"])


def _differences(stored: Described, own: Described) -> list[str]:
    """Names of what two configurations do not share."""
    flat = [_flat(values) for values, _ in (stored, own)]
    names = [
        name
        for name in sorted(set(flat[0]) | set(flat[1]))
        if flat[0].get(name, ...) != flat[1].get(name, ...)
    ]
    digests = [
        {name: digest_of({}, {name: array}) for name, array in arrays.items()}
        for _, arrays in (stored, own)
    ]
    both = sorted(set(digests[0]) | set(digests[1]))
    names += [name for name in both if digests[0].get(name) != digests[1].get(name)]
    return names


def _flat(values: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and key in ("problem", "options", "rewards", "terms"):
            flat |= _flat(value, f"{name}{key}.")
        else:
            flat[f"{name}{key}"] = value
    return flat


# -- files ---------------------------------------------------------------------------------------


def save_policy(
    path: str | PathLike[str],
    described: Described,
    streams: Streams,
    repository: Repository,
    history: History | None,
) -> History | None:
    """Write a policy to one file; the history it goes on with.

    A simulation is written whole. Of a private run only what is public is written.
    """
    # One unit of work: other threads go on deciding after it.
    snapshot = repository.read(lambda unit: repository.snapshot(secret=streams.simulated))
    stored = read_policy_file(path, None)[0] if Path(path).is_file() else None
    make_room(path, stored, history)
    values, arrays = described
    values = {
        **values,
        "simulated": streams.simulated,
        "streams": streams.state(),
        "repository": snapshot[0],
    }
    history = None if history is None else history.next()
    if history is not None:
        values["history"] = history.to_dict()
    # Digests of user ids can be guessed from: only the owner may read such a file.
    confidential = bool(snapshot[0]["users"])
    write_policy_file(path, values, arrays | snapshot[1], confidential=confidential)
    return history


def save_aggregator(
    path: str | PathLike[str], described: Described, repository: Repository
) -> None:
    """Write an aggregator to one file."""
    values, arrays = repository.read(lambda unit: repository.snapshot(secret=True))
    own, own_arrays = described
    write_policy_file(path, own | {"repository": values}, own_arrays | arrays)


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a file."""

    path: str | PathLike[str]
    values: dict[str, Any]
    arrays: dict[str, Any]
    settings: dict[str, Any]

    def restored(
        self, learning: LearningLoop, repository: Repository, streams: Streams
    ) -> tuple[LearningLoop, Repository]:
        """What was learnt and what is kept, for a policy that was just built."""
        assert isinstance(repository, MemoryRepository)
        if streams.simulated:
            streams.restore(self.values["streams"])
        actions = version_state(learning.learner.problem)
        repository.restore(self.values["repository"], self.arrays, actions)
        head, arrays = repository.codec.unpack(
            repository.value("laws", "state", generation=repository.own_law)
        )
        learning.restore(head["learning"], arrays, head["plan_seconds"])
        if not streams.simulated:  # of epochs under way the data so far are lost
            learning.learner.keep(repository.open_epoch)
        return learning, repository

    def history(self, *, take_over: bool) -> History:
        """The history that a private policy goes on with."""
        return note_load(self.path, History.of(self.values), take_over=take_over)


def load_policy(path: str | PathLike[str], contexts: Contexts | None) -> Saved:
    """Read a saved policy. A sampler of contexts is code and must be given again."""
    values, arrays = read_policy_file(path)
    with damage_as_storage_error(path):
        settings = _settings(values, arrays, contexts)
    return Saved(path, values, arrays, settings)
