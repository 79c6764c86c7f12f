"""Opening the store of a policy: it is filled, or found to be the newest copy of this policy."""

import warnings
from dataclasses import asdict
from typing import Any

from capri.epoch.course import Course
from capri.epoch.rewards import RewardTerms
from capri.epoch.storage import problem_arguments
from capri.errors import BudgetError, ConfigurationError, PrivacyLeakWarning, StorageError
from capri.files import digest_of
from capri.joint.configuration import Described
from capri.learners.presets import checked_options
from capri.learners.start import stored_prior
from capri.privacy.certificate import Certificate
from capri.privacy.randomness import Streams
from capri.spaces import Contexts
from capri.store.address import open_database
from capri.store.codec import packed, unpacked
from capri.store.rollback import Checkpoint, open_anchor
from capri.store.sql import SqlRepository
from capri.store.transaction import empty_store

_WITHOUT_ANCHOR = (
    "this store has an anchor and was opened without it: an older copy would not be noticed, and "
    "release data again. Give anchor="
)


def stored_settings(url: str, contexts: Contexts | None) -> dict[str, Any]:
    """The arguments that the policy of a store was built with."""
    database = open_database(url, create=False)
    try:
        found = SqlRepository(database, None).configuration()
    finally:
        database.close()
    if found is None:
        raise empty_store(repr(database))
    values, arrays = found
    return {
        **problem_arguments(values["problem"], arrays, contexts),
        "horizon": values["horizon"],
        "preset": values["preset"],
        "simulation_seed": 0 if values["simulated"] else None,
        "prior": stored_prior(values, arrays),
        **values["options"],
    }


def open_store(
    url: str,
    described: Described,
    course: Course,
    streams: Streams,
    *,
    store_key: bytes | None,
    after: Certificate | None,
    anchor: str | None,
    new_anchor: bool,
) -> SqlRepository:
    """The store at an address, for a policy of this configuration."""
    seen = None if after is None else _seen(after)
    held = open_anchor(anchor, url)
    if new_anchor and held is None:
        raise ConfigurationError("new_anchor says that the anchor is new: give the anchor, too")
    repository = SqlRepository(open_database(url), store_key, held, new_anchor=new_anchor)
    try:
        _fill_or_check(repository, described, course, streams)
        repository.open(seen)
        if streams.simulated:
            streams.restore(repository.streams())
        if store_key is None and repository.database.exposure is not None:
            warnings.warn(repository.database.exposure, PrivacyLeakWarning, stacklevel=4)
        if held is None and repository.has_anchor():
            warnings.warn(_WITHOUT_ANCHOR, PrivacyLeakWarning, stacklevel=4)
    except BaseException:
        repository.close()
        raise
    return repository


def _fill_or_check(
    repository: SqlRepository, described: Described, course: Course, streams: Streams
) -> None:
    """Fill an empty store, or check that it is this policy's."""
    values, arrays = described
    values = {**values, "simulated": streams.simulated}
    stored = repository.configuration()
    if stored is None:
        course_values, course_arrays = course.state()
        law = packed({"course": course_values, "plan_seconds": 0.0, "played": 0}, course_arrays)
        state = streams.state()
        repository.create((values, arrays), law, None if state is None else packed(state))
        stored = repository.configuration()
        assert stored is not None
    differences = _differences(_completed(stored), unpacked(packed(values, arrays)))
    if differences:
        raise StorageError(
            f"{repository.database!r} holds a policy of another configuration: "
            f"{', '.join(differences)} differ. Build the policy as it was built, or open it "
            "with Capri.open"
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
    return Checkpoint(found["line"], found["generation"], found["digest"])


def _completed(stored: Described) -> Described:
    """With the defaults of options that are newer than the store."""
    values, arrays = stored
    defaults, _ = unpacked(packed(asdict(checked_options(values["preset"], {}))))
    return {**values, "options": defaults | values["options"]}, arrays


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
    if "kernel" in values:  # of a problem: terms that nobody asked for are left out there
        values = {"rewards": RewardTerms().to_dict()} | values
    for key, value in values.items():
        if isinstance(value, dict) and key in ("problem", "options", "rewards"):
            flat |= _flat(value, f"{name}{key}.")
        else:
            flat[f"{name}{key}"] = value
    return flat
