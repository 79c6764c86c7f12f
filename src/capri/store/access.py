"""What a store keeps, for how long, and what of it is about one person.

Both for people: a privacy officer reads the first, and the person who asks is given the second.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.epoch.rewards import RewardTerms
from capri.store.codec import Played
from capri.store.maintenance import find_user
from capri.store.transaction import Transaction

if TYPE_CHECKING:
    from capri.store.sql import SqlRepository

_FOR_GOOD = "until the store is deleted"
_KEYS = "30 days after the wait for rewards, or key_retention"
Kept = dict[str, float | str | None]


def retention(repository: "SqlRepository") -> list[Kept]:
    """What is kept where, about whom and for how long, from the configuration of a store."""
    found = repository.configuration()
    assert found is not None
    values, sealed = found[0], bool(repository.rows.seal.identifier)
    if values.get("kind") is not None:
        return _of_reports(values)
    problem, secret = values["problem"], "sealed" if sealed else "NOT sealed"
    terms = RewardTerms.from_dict(problem["rewards"]) if "rewards" in problem else RewardTerms()
    wait = terms.wait
    waits = f"{wait}" if isinstance(wait, timedelta) else f"{wait} decisions"
    until = f"the release of its epoch: its last decision, {waits} more, and some seconds"
    rows = [
        _row("decisions", "context, action, propensity", secret, until),
        _row("rewards", "the sum, first, last or largest of a decision's rewards", secret, until),
        _row("draws", "what a release is about to publish", secret, "seconds"),
        _row("keys", "digest of a request's key, action, propensity", secret, _KEYS),
    ]
    if problem.get("limit") is not None:
        rows.append(
            _row("users, visits", "digest of an id, epochs it came in", "digest", _FOR_GOOD)
        )
    return [*rows, *_of_all()]


def _of_reports(values: dict[str, Any]) -> list[Kept]:
    """An aggregator, or an organisation's ledger: nothing of either needs to be kept secret."""
    if "organisation" in values:
        return [_row("operations", "promises, plans, releases", "about nobody", _FOR_GOOD)]
    return [
        _row("reports", "reports, private when they are made", "private", "its last reading"),
        *_of_all(),
    ]


def _of_all() -> list[Kept]:
    return [
        _row("epochs, laws", "plans, and releases with noise", "private", _FOR_GOOD),
        _row("history, operations", "digests; what operators did", "about nobody", _FOR_GOOD),
        _row("backups", "all of the above, as it was then", "as above", "you delete them"),
        _row("logs", "of the service: no context, action, reward or id", "about nobody", "yours"),
    ]


def _row(where: str, what: str, form: str, until: str) -> Kept:
    return {"where": where, "what": what, "form": form, "until": until}


def held_about(
    repository: "SqlRepository", digests: Collection[str], numbers: Collection[int] = ()
) -> dict[str, Any]:
    """All that a store holds about one person, in plain values; ``numbers``: of their decisions."""

    def look(unit: Transaction) -> dict[str, Any]:
        found = find_user(repository, unit, digests, numbers)
        made = sorted(number for each in found.decisions.values() for number in each)
        visits: dict[int, int] = {}
        for digest in digests:
            for epoch, count in unit.rows(
                "SELECT epoch, visits FROM visits WHERE digest = ? ORDER BY epoch", (digest,)
            ):
                visits[int(epoch)] = visits.get(int(epoch), 0) + int(count)
        return {
            "store": repository.store_id,
            "decisions": _decisions(repository, unit, made),
            "keyed_decisions": _keyed(repository, unit, found.keys),
            "contributions_by_epoch": visits,
            "not_found": (
                "sums of released epochs, in which noise hides everybody, cannot be told apart by "
                "person; copies that were made of this store are not looked at"
            ),
        }

    return repository.database.read(look)


def _decisions(
    repository: "SqlRepository", unit: Transaction, numbers: list[int]
) -> list[dict[str, Any]]:
    if not numbers:
        return []
    rows = unit.among("SELECT number, secret FROM decisions WHERE number", numbers)
    places = [row[0] for row in rows]
    seal, rewards = (
        repository.rows.seal,
        repository.rows.combined(unit, np.array(places, dtype=int)),
    )
    played = Played.read(seal.open_many("decisions", places, "secret", [row[1] for row in rows]))
    return [
        {
            "id": repository.ids.text(number),
            "counts": bool(played.status[at] == 0),  # else a slot, of which nothing is left
            "context": played.numbers[at].tolist(),
            "action_index": int(played.action[at]),
            "propensity": float(played.propensity[at]),
            "reward": rewards[number].total if number in rewards else None,
        }
        for at, number in enumerate(places)
    ]


def _keyed(repository: "SqlRepository", unit: Transaction, keys: list[str]) -> list[dict[str, Any]]:
    if not keys:
        return []
    rows = unit.among("SELECT digest, secret, number, epoch, expires FROM keys WHERE digest", keys)
    names = [row[0] for row in rows]
    opened = repository.rows.seal.open_many("keys", names, "secret", [row[1] for row in rows])
    played = Played.read(opened)
    return [
        {
            "id": repository.ids.text(row[2]),
            "epoch": int(row[3]),
            "action_index": int(played.action[at]),
            "propensity": float(played.propensity[at]),
            "kept_until": float(row[4]),
        }
        for at, row in enumerate(rows)
    ]
