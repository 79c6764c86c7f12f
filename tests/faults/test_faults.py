"""Workers are killed at random points, and nothing that was acknowledged is lost or counted twice.

A few kills on every run of the tests; `make faults` does a thousand on each store.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from fault_operators import OPERATIONS
from fault_points import PLACES, TRANSACTIONS, name_of
from fault_simulation import CREATING, EVERY
from fault_verdict import OUTCOMES
from run_faults import PARTS, conclude, killed_operators, one_day, one_run

KILLS = 5  # on each of two runs
CREATED = set(CREATING)
POINTS = 12  # kills of a short day, most of them while the store is made


def test_killed_workers_leave_one_true_history_in_a_file() -> None:
    outcome, verdict = one_run(
        "sqlite", private=True, kills=KILLS, seed=4, sealed=True, first_epoch=30
    )
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2


@pytest.mark.usefixtures("postgres_server")  # a missing server is told once, in one place
def test_killed_workers_and_servers_leave_one_true_history() -> None:
    outcome, verdict = one_run("postgres", private=False, kills=KILLS, seed=5, first_epoch=30)
    assert outcome.kills >= KILLS
    assert len(verdict.releases) >= 2


def test_a_bad_day_leaves_one_true_history_in_a_file() -> None:
    day, verdict = one_day(
        "sqlite", private=False, timed=False, kills=POINTS, seed=6, first_epoch=30
    )
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2
    assert set(day.killed) >= CREATED


@pytest.mark.usefixtures("postgres_server")
def test_a_bad_day_leaves_one_true_history_on_a_server() -> None:
    day, verdict = one_day("postgres", private=True, kills=POINTS, seed=7, first_epoch=30)
    assert day.outcome.kills >= POINTS
    assert len(verdict.releases) >= 2


def test_a_bad_day_of_a_service_leaves_one_true_history() -> None:
    day, verdict = one_day(
        "sqlite", private=False, timed=False, kills=2, seed=9, workers=1, first_epoch=20, made=True
    )
    assert day.outcome.kills >= 2
    assert len(verdict.releases) >= 2


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        ("forgetful", "another answer"),
        ("change lost", "history of operations"),
        ("change twice", "history of operations"),
    ],
)
def test_premise_defects_are_found(plant: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that forget what they answered, or that change nothing or twice."""
    monkeypatch.setitem(EVERY, "change", 2)
    monkeypatch.setitem(EVERY, "arm", 12)
    with pytest.raises(AssertionError, match=found):
        one_day(
            *("sqlite",), private=False, timed=False, kills=5, seed=8, plant=plant,
            first_epoch=30, made=True,
        )  # fmt: skip


def test_every_transaction_of_the_package_has_a_name() -> None:
    """Whoever writes to a store can be killed at it; one without a name would end the process."""
    from pathlib import Path

    import capri

    written: set[str] = set()
    package = Path(capri.__file__).parent
    for path in [*package.glob("store/*.py"), *package.glob("joint/*.py")]:
        for node, place in _functions(ast.parse(path.read_text()), ""):
            calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
            if any(_writes(call) for call in calls):
                written.add(place)
    # By their callers' functions, or a copy that nobody serves from yet.
    # An organisation's ledger is a store of its own: tests/privacy kills at it.
    elsewhere = {"PublicState.write", "Engine._publish_change", "copy_store"}
    elsewhere |= {"OrganisationLedger.append"}
    opening = {"SqliteDatabase._begin", "PostgresDatabase._begin"}
    assert written - elsewhere - opening <= set(TRANSACTIONS), written
    assert {"Releases.drop_keys", "forget_user", "rotate_store_key", "rotate_id_key"} <= written


def _functions(tree: ast.AST, within: str) -> Iterator[tuple[ast.AST, str]]:
    """Functions of modules and methods of classes, by their names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield node, within + node.name


def _writes(call: ast.Call) -> bool:
    """``database.write(...)``, of whatever has a database."""
    found = call.func
    return (
        isinstance(found, ast.Attribute)
        and found.attr == "write"
        and (
            ast.unparse(found.value).split(".")[-1].strip("_")
            in ("database", "target", "repository")
        )
    )


def test_killed_operators_leave_all_of_it_or_nothing() -> None:
    met = killed_operators("sqlite", ("inside", "after"))
    assert set(met) == {f"{name}.{place}" for name in OPERATIONS for place in ("inside", "after")}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_operators_are_killed_at_every_place(store: str) -> None:
    met = killed_operators(store)
    assert set(met) == {f"{name}.{place}" for name in OPERATIONS for place in PLACES}


def test_a_long_run_asks_for_every_point_and_event() -> None:
    result = {"met": {}, "events": {}, "kills": 1000, "crashes": 0}
    with pytest.raises(AssertionError, match=r"never met.*decide\.inside.*disk full"):
        conclude("sqlite", [result], long=True)
    assert len(OUTCOMES) == 15
    assert sum(part.share for part in PARTS) == pytest.approx(1.0)


def test_premise_points_have_the_names_of_transactions_that_exist() -> None:
    """A function that is renamed would never be met again, and nobody would notice."""
    from capri.joint import decisions, engine, loop, release, rewards, slots
    from capri.store import maintenance, postgres, sql, sqlite

    stores = (sql, sqlite, postgres, maintenance)
    modules = (decisions, rewards, release, loop, slots, engine, *stores)
    known = {name for module in modules for name in vars(module)}
    for place in TRANSACTIONS:
        owner, _, method = place.partition(".")
        assert owner in known
        found = next(vars(module)[owner] for module in modules if owner in vars(module))
        assert name_of(getattr(found, method) if method else found) == TRANSACTIONS[place]


def test_the_package_has_no_points_to_die_at() -> None:
    from pathlib import Path

    import capri

    files = list(Path(capri.__file__).parent.rglob("*.py"))
    assert files
    # A worker whose supervisor is gone asks itself to stop, which is no death.
    stops = r"\(os\.getpid\(\), signal\.SIGTERM\)"
    dies = re.compile(rf"SIGKILL|\bfault|os\.kill\b(?!{stops})|os\.abort")
    assert not [path.name for path in files if dies.search(path.read_text())]
