"""Names in, names out: policies, devices and files that speak of records and named actions."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import capri
from capri import Boolean, Categorical, Numeric, Schema
from capri.epoch.storage import read_policy_file
from capri.errors import BundleError, ConfigurationError, DataError, ShapeError, StorageError
from capri.kernels import Categories, ContextAction, Matern, schema_kernel
from capri.local.bundle import open_bundle
from capri.local.simulator import DeviceSimulator

BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)
SCHEMA = Schema([Numeric("age", 0, 100), Categorical("plan", ["free", "pro"]), Boolean("member")])
RECORDS = [
    {"age": age, "plan": plan, "member": member}
    for age in (20, 50, 80)
    for plan in ("free", "pro", "gold")
    for member in (False, True)
]
KERNEL = ContextAction(schema_kernel(SCHEMA), Categories(0.1), SCHEMA.dimension)
NAMES = ["mail", "call", "wait"]


def policy_of(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": NAMES,
        "contexts": capri.ContextPool(RECORDS, schema=SCHEMA),
        "budget": BUDGET,
        "simulation_seed": 5,
    }
    return capri.Capri(**(settings | changes))


def test_a_record_comes_in_and_a_name_goes_out() -> None:
    policy = policy_of()
    decision = policy.act({"age": 41, "plan": "pro", "member": True})
    assert decision.action_name == NAMES[decision.action_index]
    assert decision.status is capri.VisitStatus.SERVED
    assert pickle.loads(pickle.dumps(decision)).action_name == decision.action_name
    assert repr(decision).count("=") == 2  # the name belongs to the user, like the action
    decisions = policy.act_many(pandas.DataFrame(RECORDS))
    names = decisions.action_name
    assert names is not None
    assert names.tolist() == [NAMES[index] for index in decisions.action_index]
    assert [each.action_name for each in decisions[3:5]] == names[3:5].tolist()
    nobody = policy.act_many(pandas.DataFrame(RECORDS)[:0]).action_name
    assert nobody is not None
    assert len(nobody) == 0


def test_records_and_their_rows_are_the_same_to_a_policy() -> None:
    """A simulation on records equals one on the rows that the schema makes of them."""
    by_name, by_row = policy_of(), policy_of()
    generator = np.random.default_rng(1)
    for _ in range(3):
        count = by_name.remaining
        chosen = generator.integers(len(RECORDS), size=count)
        records = [RECORDS[place] for place in chosen]
        first = by_name.act_many(records)
        second = by_row.act_many(SCHEMA.rows(records))
        np.testing.assert_array_equal(first.action_index, second.action_index)
        rewards = generator.uniform(0, 1, count)
        by_name.update_many(first, rewards)
        by_row.update_many(second, rewards)
        by_name.close_epoch()
        by_row.close_epoch()
    np.testing.assert_array_equal(by_name.estimate(RECORDS), by_row.estimate(SCHEMA.rows(RECORDS)))
    np.testing.assert_array_equal(by_name.probabilities(RECORDS), by_row.probabilities(RECORDS))
    assert by_name.active(RECORDS).shape == (len(RECORDS), 3)


def test_names_are_learnt() -> None:
    """An unrelated action that is best for one level only is found for that level."""
    policy = policy_of(budget=capri.Budget(epsilon=8.0, delta=1e-5))
    generator = np.random.default_rng(2)
    for _ in range(7):
        count = policy.remaining
        records = [RECORDS[place] for place in generator.integers(len(RECORDS), size=count)]
        decisions = policy.act_many(records)
        best = np.array(["call" if record["plan"] == "pro" else "mail" for record in records])
        policy.update_many(decisions, (decisions.action_name == best) * 1.0)
        policy.close_epoch()
    found = policy.estimate(RECORDS).argmax(axis=1)
    expected = [NAMES.index("call" if each["plan"] == "pro" else "mail") for each in RECORDS]
    assert found.tolist() == expected


def test_what_one_user_sends_changes_nothing_for_the_others() -> None:
    odd: dict[str, Any] = {"age": "secret", "plan": object(), "member": [1]}
    plain, strange = policy_of(), policy_of()
    others = RECORDS[:5]
    first = plain.act_many([*others, RECORDS[7], *others])
    second = strange.act_many([*others, odd, *others])
    kept = np.arange(11) != 5
    np.testing.assert_array_equal(first.action_index[kept], second.action_index[kept])
    np.testing.assert_array_equal(first.id, second.id)
    assert second.status[5] == capri.VisitStatus.INVALID
    assert strange.act(odd).status is capri.VisitStatus.INVALID


def test_a_declared_column_must_be_there() -> None:
    policy = policy_of(simulation_seed=None)
    with pytest.raises(DataError, match="'member' is declared and not there") as problem:
        policy.act({"age": 4711, "plan": "secret"})
    assert "4711" not in str(problem.value)
    assert "secret" not in str(problem.value)
    assert not policy.pending


def test_actions_of_every_kind() -> None:
    table = [
        {"name": "tea", "price": 2.0, "hot": True},
        {"name": "cola", "price": 3.0, "hot": False},
    ]
    wide = Matern(nu=2.5, lengthscale=0.5)
    for actions in (table, pandas.DataFrame(table), {k: [r[k] for r in table] for k in table[0]}):
        policy = policy_of(actions=actions, kernel=wide)
        assert policy.actions.names == ("tea", "cola")
        assert policy.actions.rows.tolist() == [[0.0, 1.0], [1.0, 0.0]]  # type: ignore[attr-defined]
        assert policy.act(RECORDS[0]).action_name in ("tea", "cola")
    unnamed = policy_of(actions=pandas.DataFrame({"price": [1.0, 2.0, 4.0]}), kernel=wide)
    assert unnamed.act(RECORDS[0]).action_name is None
    assert unnamed.act_many(RECORDS).action_name is None
    assert policy_of(actions=12, kernel=wide).actions.count == 12
    assert policy_of(actions=pandas.DataFrame({"name": NAMES})).actions.names == tuple(NAMES)
    assert policy_of(actions=np.array(NAMES)).actions.names == tuple(NAMES)
    assert policy_of(actions=pandas.Series(NAMES)).actions.names == tuple(NAMES)
    rows = capri.FixedActions([[0.0], [1.0]], names=["low", "high"])
    assert policy_of(actions=rows, kernel=wide).act(RECORDS[0]).action_name in ("low", "high")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (["a", "a"], "2 actions need as many different names, got 1 in 2"),
        (["a", 1], "names of actions must be texts"),
        ("a", "got one text"),
        (0, "actions must be a whole number of 1 or more, got 0"),
        (True, "must be a matrix"),
        ([{"name": "a", "x": 1.0}, {"name": "a", "x": 2.0}], "different names"),
    ],
)
def test_bad_names_of_actions(actions: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        policy_of(actions=actions)
    with pytest.raises(ConfigurationError, match="2 actions need as many"):
        capri.FixedActions([[0.0], [1.0]], names=["a"])


def test_bad_contexts_with_names() -> None:
    with pytest.raises(ConfigurationError, match=r"need a schema.*Schema\.from_frame"):
        capri.ContextPool(RECORDS)
    with pytest.raises(ConfigurationError, match=r"column 'age' has a missing value.*'own'"):
        capri.ContextPool([*RECORDS, {"age": None, "plan": "a", "member": True}], schema=SCHEMA)
    with pytest.raises(ConfigurationError, match=r"schema must be a capri\.Schema, got str"):
        capri.ContextPool(RECORDS, schema="age")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="have 5 numbers, got dimension 2"):
        capri.ContextSampler(lambda generator, count: RECORDS, 2, schema=SCHEMA)  # type: ignore[arg-type,return-value]


def sampler(schema: Schema = SCHEMA) -> capri.ContextSampler:
    def draw(generator: np.random.Generator, count: int) -> Any:
        return [RECORDS[place] for place in generator.integers(len(RECORDS), size=count)]

    return capri.ContextSampler(draw, schema=schema)


def test_a_sampler_may_give_records(tmp_path: Path) -> None:
    policy = policy_of(contexts=sampler())
    assert policy.contexts.dimension == SCHEMA.dimension
    policy.act(RECORDS[0])
    policy.save(tmp_path / "sampled.capri")
    again = capri.Capri.load(tmp_path / "sampled.capri", contexts=sampler())
    assert again.act(RECORDS[1]).action_name == policy.act(RECORDS[1]).action_name
    other = Schema([Numeric("age", 0, 90), *SCHEMA.columns[1:]])
    with pytest.raises(StorageError, match="another schema of its contexts"):
        capri.Capri.load(tmp_path / "sampled.capri", contexts=sampler(other))


@pytest.mark.parametrize("seed", [None, 3])
def test_files_keep_schema_and_names(seed: int | None, tmp_path: Path) -> None:
    table = pandas.DataFrame({"name": NAMES, "price": [1.0, 2.0, 5.0]})
    policy = policy_of(actions=table, kernel=Matern(lengthscale=0.7), simulation_seed=seed)
    policy.save(tmp_path / "named.capri")
    again = capri.Capri.load(tmp_path / "named.capri")
    assert again.contexts.schema == SCHEMA
    assert again.actions.names == tuple(NAMES)
    assert again.actions.schema == policy.actions.schema  # type: ignore[attr-defined]
    assert again.act(RECORDS[0]).action_name in NAMES
    assert again.kernel == policy.kernel
    assert again.budget == BUDGET
    assert json.dumps(read_policy_file(tmp_path / "named.capri")[0]["problem"]["context_schema"])


def test_files_without_names_say_that_there_are_none(tmp_path: Path) -> None:
    plain = policy_of(
        actions=[[0.0], [1.0]], kernel=Matern(), contexts=capri.ContextPool([[0.0], [1.0]])
    )
    plain.save(tmp_path / "plain.capri")
    problem = read_policy_file(tmp_path / "plain.capri")[0]["problem"]
    assert {problem[name] for name in ("action_names", "action_schema", "context_schema")} == {None}


def test_the_certificate_tells_configurations_with_other_names_apart() -> None:
    def digest(**changes: Any) -> str:
        return str(policy_of(simulation_seed=None, **changes).certificate().to_dict()["digests"])

    assert digest() == digest()
    assert digest() != digest(actions=["mail", "call", "visit"])


# -- devices --------------------------------------------------------------------------------------


def aggregator_of(**changes: Any) -> capri.LocalCapri:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": NAMES,
        "contexts": capri.ContextPool(RECORDS, schema=SCHEMA),
        "budget": capri.Budget(epsilon=4.0, delta=0.0),
        "public_seed": 1,
    }
    return capri.LocalCapri(**(settings | changes))


def test_devices_take_records_and_give_names(tmp_path: Path) -> None:
    aggregator = aggregator_of()
    client = capri.LocalClient(aggregator.bundle(), capri.Budget(epsilon=4.0, delta=0.0))
    decision = client.act({"age": 30, "plan": "pro", "member": False})
    assert decision.action_name in NAMES
    assert aggregator.receive(client.report(1.0)) is capri.ReportStatus.ACCEPTED
    odd = capri.LocalClient(aggregator.bundle(), capri.Budget(epsilon=4.0, delta=0.0))
    assert odd.act({"age": "?", "plan": [], "member": None}).action_name in NAMES
    assert len(odd.report(1.0)) == 32
    aggregator.save(tmp_path / "aggregator.capri")
    again = capri.LocalCapri.load(tmp_path / "aggregator.capri")
    assert again.bundle() == aggregator.bundle()
    assert again.actions.names == tuple(NAMES)


def test_a_fleet_on_records_is_one_on_rows() -> None:
    settings = {"kernel": KERNEL, "actions": NAMES, "budget": capri.Budget(4.0, 0.0)}
    pool = capri.ContextPool(RECORDS, schema=SCHEMA)
    by_name = DeviceSimulator.build(contexts=pool, simulation_seed=4, **settings)
    by_row = DeviceSimulator.build(contexts=pool, simulation_seed=4, **settings)
    first, second = by_name.act_many(RECORDS), by_row.act_many(SCHEMA.rows(RECORDS))
    np.testing.assert_array_equal(first.action_index, second.action_index)
    assert first.action_name is not None
    assert set(first.action_name) <= set(NAMES)


def test_a_bundle_with_a_bad_schema_is_refused() -> None:
    aggregator = aggregator_of()
    good = aggregator.bundle()
    assert open_bundle(good).schema == SCHEMA
    for wrong in (
        {"schema": {"format": "capri-schema", "version": 1, "columns": []}},
        {"schema": Schema([Numeric("age", 0, 1)]).to_dict()},
        {"schema": "age"},
        {"schema": SCHEMA.to_dict() | {"version": 2}},
        {"action_names": ["a", "b"]},
        {"action_names": "abc"},
        {"action_names": [1, 2, 3]},
    ):
        with pytest.raises(BundleError):
            open_bundle(_changed(good, wrong))


def _changed(bundle: bytes, changes: dict[str, Any]) -> bytes:
    """The same bundle with other values in its header, and a digest that fits."""
    from hashlib import sha256

    from capri.local.bundle import _HEAD

    magic, version, length = _HEAD.unpack_from(bundle)
    start = _HEAD.size + length
    header = json.loads(bundle[_HEAD.size : start]) | changes
    text = json.dumps(header, separators=(",", ":")).encode()
    body = _HEAD.pack(magic, version, len(text)) + text + bundle[start:-32]
    return body + sha256(body).digest()


def test_names_too_long_for_a_device_are_refused_at_once() -> None:
    levels = [f"{'long name ' * 15}{number}" for number in range(1000)]
    schema = Schema([Categorical("town", levels)])
    with pytest.raises(BundleError, match="fewer or shorter names"):
        aggregator_of(
            kernel=Matern(),
            contexts=capri.ContextPool([{"town": levels[0]}], schema=schema),
        )


def test_rivals_and_uniform_play_know_names_too() -> None:
    from capri.simulation import UniformPlay

    play = UniformPlay(actions=NAMES, horizon=100, simulation_seed=1)
    names = play.act_many(SCHEMA.rows(RECORDS)).action_name
    assert names is not None
    assert set(names) <= set(NAMES)


# -- keys and stores ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 2])
def test_a_store_keeps_schema_and_names(seed: int | None, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'named.db'}"
    told: list[int] = []
    with policy_of(store=url, simulation_seed=seed, first_epoch=20) as policy:
        policy.on_release(lambda record: told.append(record.epoch))
        first = policy.act(RECORDS[0], key="order-1")
        assert first.action_name in NAMES
        for _ in range(2):
            while policy.remaining:
                decisions = policy.act_many(RECORDS[: min(5, policy.remaining)])
                policy.update_many(decisions, np.ones(len(decisions)))
                if told:
                    break
            policy.close_epoch(early=True)
        assert policy.act(RECORDS[3], key="order-1").action_name == first.action_name
        assert told == [record.epoch for record in policy.epochs] != []
        policy.act(RECORDS[4])  # an epoch is under way, however busy the machine is
        policy.replace_actions(["call", "write"])
    with capri.Capri.open(url) as again:
        assert again.contexts.schema == SCHEMA
        under_way = again.act(RECORDS[5])
        assert under_way.action_name in NAMES
        played: set[str | None] = set()
        for place in range(6):
            again.close_epoch(early=True)
            decision = again.act(RECORDS[place])
            if decision.epoch > under_way.epoch + 1:  # the next one may have been planned ahead
                played.add(decision.action_name)
        assert played
        assert played <= {"call", "write"}
        assert again.act(RECORDS[3], key="order-1").action_name == first.action_name


def test_every_process_tells_its_own_functions_once(tmp_path: Path) -> None:
    """Whoever learns from a release: the other one reads of it and tells too."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    settings = {"store": url, "simulation_seed": None, "first_epoch": 20}
    with policy_of(**settings) as one, policy_of(**settings) as other:
        mine: list[int] = []
        yours: list[int] = []
        one.on_release(lambda record: mine.append(record.epoch))
        other.on_release(lambda record: yours.append(record.epoch))
        for _ in range(3):
            decisions = one.act_many(RECORDS[: min(5, one.remaining)])
            one.update_many(decisions, np.ones(len(decisions)))
            one.close_epoch(early=True)
        assert mine == [record.epoch for record in other.epochs] == yours != []


def test_a_key_keeps_its_action_when_actions_are_replaced() -> None:
    policy = policy_of(first_epoch=10)
    first = policy.act(RECORDS[0], key="order-1")
    policy.replace_actions(["write", "call", "mail", "sing"])
    policy.act_many([RECORDS[1]] * 9)
    later = policy.act(RECORDS[0], key="order-2")
    assert policy.actions.names == ("write", "call", "mail", "sing")
    both = policy.act_many([RECORDS[2]] * 2, keys=["order-1", "order-2"])
    assert both.action_name is not None
    assert both.action_name.tolist() == [first.action_name, later.action_name]
    assert both[0].action_name == first.action_name
    assert both[:1].action_name.tolist() == [first.action_name]  # type: ignore[union-attr]
    np.testing.assert_array_equal(both.action[0], [*first.action, 0.0, 0.0])
