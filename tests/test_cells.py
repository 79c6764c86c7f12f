"""A cell is judged by itself: whatever stands in a private list, everybody else's is read alike."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import capri
from builders import CONTEXTS, small_policy
from capri import RewardIgnoredWarning, RewardStatus, VisitStatus
from capri.cells import as_number_rows, as_numbers
from capri.local.simulator import DeviceSimulator
from capri.schema import Boolean, Categorical, Numeric, Schema
from capri.simulation import PeakMemory
from capri_lab.datasets import BanditLog
from memory import MEMORY
from odd_cells import HELD, HUGE, Held, odd_cells

NAMES = ("red", "green", "blue")
SCHEMA = Schema(
    [
        Numeric("age", 0, 100, missing="own"),
        Categorical("plan", ["free", "pro", 1], missing="own"),
        Boolean("member"),
    ]
)
RECORDS: list[dict[str, Any]] = [
    {"age": 10 * row, "plan": ["free", "pro", 1][row % 3], "member": bool(row % 2)}
    for row in range(6)
]
VISITS = 6
places = st.integers(0, VISITS - 1)


def policy_of(store: str | None = None, **changes: Any) -> capri.Capri:
    """The default preset without a budget: what is released is exact, so nothing hides in noise."""
    usual: dict[str, Any] = {
        "actions": list(NAMES),
        "preset": "practical",
        "first_epoch": VISITS,
        "horizon": 100,
        "budget": None,
        "kernel": capri.kernels.ContextAction(
            capri.kernels.Matern(nu=2.5, lengthscale=0.4), capri.kernels.Categories(), 1
        ),
        "store": store,
    }
    return small_policy(**(usual | changes))


def with_schema(store: str | None = None, **changes: Any) -> capri.Capri:
    kernel = capri.kernels.Matern(nu=2.5, lengthscale=0.8)
    pool = capri.ContextPool(RECORDS, schema=SCHEMA)
    return policy_of(store, contexts=pool, kernel=kernel, **changes)


def replaced(cells: list[Any], place: int, cell: Any) -> list[Any]:
    return [*cells[:place], cell, *cells[place + 1 :]]


def told(decisions: capri.Decisions, but: int) -> list[Any]:
    """All that everybody else learns from a list of decisions."""
    return [
        (each.id, each.action_name, each.propensity, each.status)
        for place, each in enumerate(decisions)
        if place != but
    ]


def silently(play: Callable[[], Any]) -> Any:
    """The result of something that may not warn, but of a simulation's rewards."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RewardIgnoredWarning)
        with np.errstate(all="raise"):
            return play()


def stores(kind: str, build: Callable[[str | None], capri.Capri]) -> Any:
    """Two policies alike, on a store each or in memory."""
    if kind == "memory":
        return build(None), build(None)
    folder = tempfile.mkdtemp(dir=MEMORY)
    return tuple(build(f"sqlite:///{folder}/{name}.db") for name in "ab")


both = pytest.mark.parametrize("kind", ["memory", "sqlite"])
thorough = settings(max_examples=30, deadline=None)


@both
@thorough
@given(held=odd_cells, place=places, wide=st.booleans())
@example(held=Held(HUGE), place=0, wide=True)
def test_an_odd_context_is_its_own_affair(kind: str, held: Held, place: int, wide: bool) -> None:
    """As a cell of its row, or in the place of the row."""
    usual, odd = stores(kind, policy_of)
    rows = [[float(each)] for each in np.linspace(0, 1, VISITS)]
    first = usual.act_many(rows)
    second = silently(
        lambda: odd.act_many(replaced(rows, place, held.cell if wide else [held.cell]))
    )
    assert told(second, place) == told(first, place)
    usual.close()
    odd.close()


@both
@thorough
@given(held=odd_cells, place=places, column=st.sampled_from([None, *SCHEMA.names]))
def test_an_odd_record_is_its_own_affair(
    kind: str, held: Held, place: int, column: str | None
) -> None:
    """In a column that is declared, or in the place of the record."""
    usual, odd = stores(kind, with_schema)
    record = held.cell if column is None else RECORDS[place] | {column: held.cell}
    first = usual.act_many(RECORDS)
    second = silently(lambda: odd.act_many(replaced(RECORDS, place, record)))
    assert told(second, place) == told(first, place)
    if column is not None:  # alone it is served as among others
        alone = SCHEMA.row(record)
        np.testing.assert_array_equal(alone, SCHEMA.rows([*RECORDS, record])[-1])
    usual.close()
    odd.close()


@both
@thorough
@given(held=odd_cells, place=places)
@example(held=Held(HUGE), place=0)
def test_an_odd_reward_is_its_own_affair(kind: str, held: Held, place: int) -> None:
    """Others' statuses and the release itself are as if nothing had come, or that number."""
    usual, odd = stores(kind, policy_of)
    rewards: list[Any] = np.linspace(-1, 1, VISITS).tolist()
    found = []
    for policy in (odd, usual):
        decisions = policy.act_many(CONTEXTS[np.arange(VISITS) % 4])
        own: Any = held.cell
        if policy is usual:  # what the odd one was taken for
            own = None if found[0][0][place] == RewardStatus.INVALID else float(held.cell)
        values = replaced(rewards, place, own)
        statuses = silently(lambda d=decisions, v=values: policy.update_many(list(d), v))  # noqa: B023
        policy.close_epoch()
        found.append((statuses.tolist(), policy.estimate(CONTEXTS).tobytes()))
    assert found[0] == found[1]
    assert np.delete(found[0][0], place).tolist() == [RewardStatus.ACCEPTED] * (VISITS - 1)
    usual.close()
    odd.close()


@thorough
@given(held=odd_cells, place=places, whole=st.booleans())
def test_an_odd_set_of_actions_is_its_own_affair(held: Held, place: int, whole: bool) -> None:
    usual, odd = policy_of(), policy_of()
    sets: list[Any] = [["red", "blue"], [0, 1], None, [True, False, True], ("green",), {2}]
    rows = [[0.2]] * VISITS
    first = usual.act_many(rows, available=sets)
    given_sets = replaced(sets, place, held.cell if whole else ["red", held.cell])
    second = silently(lambda: odd.act_many(rows, available=given_sets))
    assert told(second, place) == told(first, place)


@thorough
@given(held=odd_cells, place=places, propensity=st.booleans())
def test_what_another_system_chose_is_its_own_affair(
    held: Held, place: int, propensity: bool
) -> None:
    """In mode "shadow", with the action and with its propensity."""
    chosen: list[Any] = [NAMES[row % 3] for row in range(VISITS)]
    chances: list[Any] = [0.5] * VISITS
    seen = []
    for own in (held.cell, None):
        policy = policy_of()
        policy.set_mode("shadow")
        made = silently(
            lambda policy=policy, own=own: policy.act_many(
                [[0.2]] * VISITS,
                chosen=chosen if propensity else replaced(chosen, place, own),
                chosen_propensities=replaced(chances, place, own) if propensity else chances,
            )
        )
        seen.append(told(made, place))
    assert seen[0] == seen[1]


def test_a_visit_of_one_is_served_as_among_others() -> None:
    policy, schema = policy_of(first_epoch=2_000, horizon=4_000), with_schema(first_epoch=2_000)
    for held in HELD:
        cell = held.cell
        alone = silently(lambda c=cell: policy.act([c], available=["red", c]))
        among = silently(lambda c=cell: policy.act_many([[0.5], [c]], available=[None, ["red", c]]))
        assert (alone.status, alone.propensity) == (among[1].status, among[1].propensity)
        told_alone = silently(lambda c=cell, d=alone: policy.update(d, c))
        assert told_alone == silently(lambda c=cell, d=among: policy.update_many([d[1]], [c]))[0]
        record = {"age": cell, "plan": cell, "member": True}
        assert silently(lambda r=record: schema.act(r)).status is VisitStatus.SERVED


@pytest.mark.parametrize("held", HELD, ids=repr)
def test_a_device_takes_any_cell(held: Held) -> None:
    """Alone on a device: a report is made, the same as that of a number or of nothing."""
    server = capri.LocalCapri(
        actions=list(NAMES),
        contexts=capri.ContextPool(CONTEXTS),
        budget=capri.Budget(epsilon=2.0),
        first_epoch=20,
        public_seed=0,
    )
    cell = held.cell
    bundle, number = server.bundle(), as_numbers([cell])[0]
    made = []
    for context, reward in (([cell], cell), ([number], number)):
        client = capri.LocalClient(bundle, capri.Budget(epsilon=2.0), simulation=(1, 2))
        decision = silently(lambda c=client, x=context: c.act(x))
        made.append((decision.action_index, silently(lambda c=client, r=reward: c.report(r))))
    assert made[0] == made[1]
    fleet = DeviceSimulator(server, capri.Budget(epsilon=2.0), simulation_seed=0)
    decisions = silently(lambda: fleet.act_many([[0.1], [cell], [0.3]]))
    assert len(silently(lambda: fleet.update_many(decisions, [0.5, 0.5, cell]))) == 3


def test_one_huge_text_costs_no_more_than_itself() -> None:
    """NumPy would make 20,000 texts of its length: 160 gigabytes."""
    policy = policy_of(first_epoch=20_000, horizon=20_000)
    with PeakMemory() as before:
        decisions = policy.act_many([[0.5]] * 20_000)
    with PeakMemory() as memory, pytest.warns(RewardIgnoredWarning):
        statuses = policy.update_many(decisions, [*[0.5] * 19_999, HUGE])
    assert memory.peak_bytes < before.peak_bytes + 200e6
    assert statuses[-1] == RewardStatus.INVALID
    assert (statuses[:-1] == RewardStatus.ACCEPTED).all()
    rows = as_number_rows([*[[0.5]] * 999, HUGE, [HUGE]], 1)
    assert np.isnan(rows[-2:]).all()


@pytest.mark.parametrize("wide", ["1e4000", "-1e4000", "nan"])
def test_long_doubles_and_masks_are_silent(wide: str) -> None:
    """What a double cannot hold is a missing reward and no context, masked or not."""
    values = np.array([np.longdouble("0.25"), np.longdouble(wide), np.longdouble("0.5")])
    hidden = np.ma.array(values, mask=[False, True, False])
    masked = [False, True, False]
    for given_values in (
        values,
        hidden,
        hidden.astype(object),
        np.ma.array([1, 2, 3], mask=masked),
    ):
        policy = policy_of()
        contexts = given_values[:, None]
        decisions = silently(lambda p=policy, c=contexts: p.act_many(c))
        assert decisions.status.tolist() == [0, VisitStatus.INVALID, 0]
        statuses = silently(lambda p=policy, d=decisions, v=given_values: p.update_many(d, v))
        assert statuses.tolist() == [0, RewardStatus.UNCOUNTED, 0]
        decisions = policy.act_many([[0.5]] * 3)
        statuses = silently(lambda p=policy, d=decisions, v=given_values: p.update_many(d, v))
        assert statuses.tolist() == [0, RewardStatus.INVALID, 0]
        table = {
            "age": given_values,
            "plan": given_values,
            "member": np.ma.array([True] * 3, mask=masked),
        }
        assert np.isnan(silently(lambda t=table: SCHEMA.rows(t))).any(axis=1).tolist() == masked


def test_logs_are_read_cell_by_cell(tmp_path: Path) -> None:
    """A log is refused for what it holds, and says nothing of types that NumPy would make."""
    with pytest.raises(capri.DataError, match="finite numbers"):
        BanditLog(
            contexts=[[0.0], [1.0]], action_index=[0, 1], rewards=[1.0, "0.5"],
            propensities=[0.5, 0.5], actions=2,
        )  # fmt: skip
    prior = capri.Prior.from_rows([[0.0], [1.0]], ["red", "green"], [0.5, HUGE])
    with pytest.raises(capri.ConfigurationError, match="must be finite"):
        policy_of(prior=prior)
