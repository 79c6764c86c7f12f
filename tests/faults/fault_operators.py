"""Who operates a store is killed, too: at every place of the transactions that only operators make.

Forgetting a user, rotating either key, and dropping keys that were kept long enough happen too
seldom for a bad day to meet them. So each is begun and killed at each of its places in turn, on one
store. Until it is committed nothing has happened, and after that all of it; and the store is sound
at any time, as the check has it.
"""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import capri
from capri.cli.store import opened
from capri.store.check import BAD, Check
from capri.store.maintenance import find_user, rotate_id_key, rotate_store_key
from capri.store.rollback import open_guard
from capri.store.sql import SqlRepository
from capri.store.transaction import open_database
from fault_control import Control
from fault_points import PLACES, Points
from fault_worker import Setting
from fault_worker import opened as opened_policy
from recount import rows_of
from waiting import PATIENCE

VISITORS = 5
USER = 7
RETENTION = timedelta(days=30)  # of the settings: what every key has outlived by then
NEW_KEY = bytes(range(1, 33))
# What the check says of the servers of tests, which do not wait for their disk.
_SETTINGS = ("durability", "rights")


def _forget(setting: Setting) -> None:
    with opened_policy(setting) as policy:
        policy.forget(USER)


def _expire(setting: Setting) -> None:
    with opened_policy(setting, lambda: datetime.now(UTC) + 2 * RETENTION) as policy:
        policy._engine.loop.releases.drop_keys()  # type: ignore[union-attr]  # or the planner, before


def _rotate_ids(setting: Setting) -> None:
    with opened(setting.url, None) as shelf:
        rotate_id_key(shelf)


def _rotate_key(setting: Setting) -> None:
    with opened(setting.url, None) as shelf:
        rotate_store_key(shelf, NEW_KEY)


# In this order: the last one changes how the store is opened.
OPERATIONS: dict[str, Callable[[Setting], None]] = {
    "forget": _forget,
    "id-key": _rotate_ids,
    "expire": _expire,
    "store-key": _rotate_key,
}


def has_happened(name: str, setting: Setting) -> bool:
    """Whether an operation was made, read without making it."""
    if name == "expire":
        return not rows_of(setting.url, "SELECT digest FROM keys")
    if name != "forget":
        return (name.replace("-", " "),) in [
            tuple(row) for row in rows_of(setting.url, "SELECT kind FROM operations")
        ]
    with opened_policy(setting) as policy:
        backing: Any = policy._engine
        digest = policy._users.digests([USER])[0]  # type: ignore[union-attr]
        found = backing.repository.database.read(
            lambda transaction: find_user(backing.repository, transaction, [digest])
        )
    left = sum(map(len, found.decisions.values())), len(found.keys)
    assert left in ((1, 1), (0, 0)), "a user is forgotten by half"
    return left == (0, 0)


def _operate(setting: Setting, name: str, control: Path) -> None:
    """Where a process begins that is not to end."""
    Points(Control(control)).install()
    OPERATIONS[name](setting)


def kill_operators(setting: Setting, folder: Path, places: Sequence[str] = PLACES) -> Counter[str]:
    """Kill every operation at every place, the last of which is after it; how many died at each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_operators", "psycopg", "capri.joint.policy"])
    with opened_policy(setting) as policy:
        for place in range(VISITORS):
            made = policy.act([0.5], user=USER + place, key=f"k{place}")
            policy.update(made.id, 0.5, key="r")
    met: Counter[str] = Counter()
    for name in OPERATIONS:
        for place in places:
            control = Control(folder / f"{name}.{place}")
            control.arm(f"{name}.{place}", 1, 2)
            process = context.Process(target=_operate, args=(setting, name, control.path))
            process.start()
            process.join(PATIENCE)
            point, _ = control.died()
            died = process.exitcode == -signal.SIGKILL and point == f"{name}.{place}"
            if process.is_alive():
                process.kill()
            assert died, f"nobody died at {name}.{place}: {process.exitcode}, {point!r}"
            met[point] += 1
            committed = place == "after"
            assert has_happened(name, setting) == committed, f"{point}: by half, or not at all"
            check_sound(setting, NEW_KEY if name == "store-key" and committed else None)
    return met


def check_sound(setting: Setting, key: bytes | None) -> None:
    """Nothing that the check calls bad; a key that was rotated out opens the store no more."""
    with closing(open_database(setting.url, read_only=True)) as database:
        shelf = SqlRepository(database, key, open_guard(setting.rollback_guard, setting.url))
        shelf.read_secrets()
        found = Check(shelf).findings()
    bad = [each for each in found if each.state == BAD and each.name not in _SETTINGS]
    assert not bad, bad
    if key is not None:
        try:
            setting.open().close()
        except capri.StorageError:
            return
        raise AssertionError("a key that was rotated out still opens the store")
