"""Schemas: what columns become, what is refused of them, and that no cell ever is."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capri
from capri import Boolean, Categorical, Numeric, Schema
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.kernels import Categories, ContextAction, Matern, schema_kernel
from capri.schema import UNKNOWN

SCHEMA = Schema(
    [
        Numeric("age", 20, 120),
        Numeric("score", -1.0, 1.0, missing="own"),
        Numeric("visits", 0, 10, missing=2),
        Categorical("plan", ["free", "pro"]),
        Categorical("rooms", [1, 2, 3], missing="own"),
        Categorical("colour", ["red", "blue"], missing="blue"),
        Boolean("member"),
        Boolean("mail", missing="own"),
        Boolean("child", missing=False),
    ]
)
RECORD = {
    "age": 70,
    "score": 0.0,
    "visits": 5,
    "plan": "pro",
    "rooms": 2,
    "colour": "red",
    "member": True,
    "mail": False,
    "child": True,
}


class Hostile:
    """Raises whatever it is asked."""

    def __hash__(self) -> int:
        raise RuntimeError("secret 4711")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret 4711")

    def __float__(self) -> float:
        raise RuntimeError("secret 4711")

    def __bool__(self) -> bool:
        raise RuntimeError("secret 4711")

    def __repr__(self) -> str:
        raise RuntimeError("secret 4711")


class Text(str):
    """A text that says something else of itself."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("secret 4711")


ODD: list[Any] = [
    None, math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e308, "41", "", "secret 4711",
    b"free", True, 0, 0.5, Decimal("0.5"), Decimal("sNaN"), Fraction(1, 3), 1j, object(), Hostile(),
    [1, 2], {"a": 1}, np.array([1.0, 2.0]), np.float32(0.25), np.int64(2), np.str_("pro"),
    np.bool_(True), np.ma.masked, np.datetime64("2020-01-01"), np.timedelta64(3, "s"),
    np.longdouble("1e4000"), pandas.NA, pandas.NaT, pandas.Timestamp("2020-01-01"), Text("red"),
]  # fmt: skip

cells = st.one_of(
    st.integers(0, len(ODD) - 1).map(ODD.__getitem__),  # some have no hash
    st.floats(),
    st.integers(),
    st.text(max_size=5),
    st.sampled_from(["free", "pro", "red", "blue", 1, 2, 3]),
)


def test_what_each_column_becomes() -> None:
    row = SCHEMA.row(RECORD)
    parts = {name: row[list(SCHEMA.places(name))].tolist() for name in SCHEMA.names}
    assert parts == {
        "age": [0.5],
        "score": [0.5, 0.0],
        "visits": [0.5],
        "plan": [0.0, 1.0, 0.0],
        "rooms": [0.0, 1.0, 0.0, 0.0, 0.0],
        "colour": [1.0, 0.0, 0.0],
        "member": [1.0],
        "mail": [0.0, 0.0],
        "child": [1.0],
    }
    assert len(SCHEMA.features) == len(set(SCHEMA.features)) == SCHEMA.dimension == len(row)


def test_what_a_missing_cell_means_is_declared() -> None:
    row = SCHEMA.row(dict.fromkeys(SCHEMA.names))
    parts = {name: row[list(SCHEMA.places(name))].tolist() for name in SCHEMA.names}
    assert math.isnan(parts.pop("age")[0])
    assert math.isnan(parts.pop("member")[0])
    assert parts == {
        "score": [0.5, 1.0],
        "visits": [0.2],
        "plan": [0.0, 0.0, 1.0],
        "rooms": [0.0, 0.0, 0.0, 0.0, 1.0],
        "colour": [0.0, 1.0, 0.0],
        "mail": [0.5, 1.0],
        "child": [0.0],
    }


def test_beyond_the_range_is_its_end() -> None:
    ages = [19.9, 121, math.inf, -math.inf, 10**400, -(10**400)]
    assert Numeric("age", 20, 120).encode(ages).ravel().tolist() == [0, 1, 1, 0, 1, 0]


@given(st.lists(st.tuples(*[cells] * len(SCHEMA.names)), min_size=1, max_size=4))
def test_no_cell_is_refused_and_alone_is_as_among_others(rows: list[tuple[Any, ...]]) -> None:
    records = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    together = SCHEMA.rows(records)
    assert together.shape == (len(rows), SCHEMA.dimension)
    for place, record in enumerate(records):
        assert SCHEMA.row(record).tobytes() == together[place].tobytes()
    known = np.nan_to_num(together, nan=0.5)
    assert ((known >= 0) & (known <= 1)).all()
    for name in ("plan", "rooms", "colour"):
        block = together[:, SCHEMA.places(name)]
        assert (np.sort(block, axis=1)[:, :-1] == 0).all()
        assert (block.max(axis=1) == 1).all()


@pytest.mark.parametrize("cell", ODD, ids=lambda cell: type(cell).__name__)
def test_a_cell_does_not_move_those_of_others(cell: Any) -> None:
    """Whatever one user sends in every column, all others get the rows they would have got."""
    odd = dict.fromkeys(SCHEMA.names, cell)
    rows = SCHEMA.rows([RECORD, odd, RECORD])
    np.testing.assert_array_equal(rows[0], SCHEMA.row(RECORD))
    np.testing.assert_array_equal(rows[2], SCHEMA.row(RECORD))


def test_every_kind_of_table_gives_the_same_rows() -> None:
    records = [
        {"age": 30.0, "plan": "pro", "member": True},
        {"age": 90.0, "plan": "free", "member": False},
        {"age": 250.0, "plan": "gold", "member": True},
    ]
    schema = Schema(
        [Numeric("age", 20, 120), Categorical("plan", ["free", "pro"]), Boolean("member")]
    )
    expected = [[0.1, 0, 1, 0, 1], [0.7, 1, 0, 0, 0], [1.0, 0, 0, 1, 1]]
    frame = pandas.DataFrame(records).assign(other="not asked for")
    columns = {name: [record[name] for record in records] for name in schema.names}
    structured = np.array(
        [tuple(record.values()) for record in records],
        dtype=[("age", "f8"), ("plan", "U8"), ("member", "?")],
    )
    tables: list[Any] = [
        records,
        tuple(records),
        frame,
        frame.astype({"age": "Float32", "plan": "string", "member": "boolean"}),
        frame.astype({"plan": "category"}),
        columns,
        {name: np.array(column) for name, column in columns.items()},
        structured,
        structured.view(np.recarray),
        np.array(expected),
        [frame.iloc[place] for place in range(3)],
    ]
    for table in tables:
        np.testing.assert_allclose(schema.rows(table), expected, rtol=1e-15)
    assert schema.row(frame.iloc[2]).tolist() == expected[2]
    assert schema.rows(frame[:0]).shape == (0, 5)


def test_missing_cells_of_every_library_are_missing() -> None:
    schema = Schema([Numeric("x", 0, 1, missing="own"), Categorical("c", ["a"], missing="own")])
    gone = [0.5, 1.0, 0.0, 0.0, 1.0]
    frame = pandas.DataFrame({"x": [0.5, None], "c": ["a", None]})
    for table in (frame, frame.convert_dtypes(), frame.astype({"c": "category"})):
        np.testing.assert_array_equal(schema.rows(table)[1], gone)
    masked = np.ma.array(
        [(0.5, "a"), (0.1, "a")], dtype=[("x", "f8"), ("c", "U1")], mask=[(0, 0), (1, 1)]
    )
    np.testing.assert_array_equal(schema.rows(masked)[1], gone)


def test_describe_is_the_way_back() -> None:
    assert SCHEMA.describe(SCHEMA.row(RECORD)) == RECORD
    gone = SCHEMA.describe(SCHEMA.row(dict.fromkeys(SCHEMA.names)))
    assert gone == {
        **dict.fromkeys(("age", "score", "rooms", "member", "mail")),
        "visits": 2.0,
        "plan": UNKNOWN,
        "colour": "blue",
        "child": False,
    }
    with pytest.raises(ShapeError, match=r"19 numbers, got 3"):
        SCHEMA.describe([1.0, 2.0, 3.0])


def test_round_trip_through_json() -> None:
    again = Schema.from_dict(json.loads(json.dumps(SCHEMA.to_dict(), allow_nan=False)))
    assert again == SCHEMA
    assert hash(again) == hash(SCHEMA)
    np.testing.assert_array_equal(again.row(RECORD), SCHEMA.row(RECORD))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the description of a schema"),
        ({"version": 2}, "version 2, this release reads version 1"),
        ({"columns": None}, "lists its columns"),
        ({"columns": []}, "at least one column"),
        ({"columns": [{"kind": "text", "name": "x"}]}, "numeric, categorical, boolean"),
        ({"columns": [{"kind": "boolean", "name": "x", "unit": "m"}]}, "newer version"),
        ({"columns": [{"kind": "numeric", "name": "x"}]}, "has the fields name, low, high"),
        ({"columns": [{"kind": "boolean", "name": "x"}] * 2}, "each name once"),
    ],
)
def test_bad_descriptions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Schema.from_dict(SCHEMA.to_dict() | change)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Numeric("x", 1, 1), "'x': low must be below high, got 1 and 1"),
        (lambda: Numeric("x", 0, math.inf), "'x': high must be a finite number, got inf"),
        (lambda: Numeric("x", -1e308, 1e308), "low must be below high"),
        (lambda: Numeric("x", 0, 1, missing=2), "a number of its range, got 2"),
        (lambda: Numeric("", 0, 1), "a name of 1 to 200 characters, got ''"),
        (lambda: Numeric("n" * 201, 0, 1), "a name of 1 to 200 characters"),
        (lambda: Boolean("x", missing=1), "True or False, got 1"),  # type: ignore[arg-type]
        (lambda: Categorical("x", []), "at least one, each once, got 0"),  # type: ignore[arg-type]
        (lambda: Categorical("x", ("a", "a")), "each once, got 2"),
        (lambda: Categorical("x", "ab"), "a list of texts or whole numbers, got str"),  # type: ignore[arg-type]
        (lambda: Categorical("x", (1.5,)), "a whole number up to 2.53, got float"),  # type: ignore[arg-type]
        (lambda: Categorical("x", ("a",), missing="b"), "one of the levels, got 'b'"),
        (lambda: Categorical("x", ("own",), missing="own"), "call the level something else"),
        (lambda: Schema("age"), "a list of columns"),  # type: ignore[arg-type]
        (lambda: SCHEMA.places("size"), "no column 'size': there are age, score"),
    ],
)  # fmt: skip
def test_bad_declarations_say_what_is_allowed(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([{"age": 3, "plan": "secret 4711"}, {"age": 4}], "'score' is declared and not there"),
        ([{"age": "secret 4711"}, None], "'score' is declared and not there"),
        (pandas.DataFrame({"age": ["secret 4711"]}), "'score' is declared and not there"),
        ({"age": ["secret 4711"]}, "'score' is declared and not there"),
        (RECORD | {"plan": "secret 4711"}, "'age' must be a list of cells"),
        ({name: [1] * (2 + (name == "age")) for name in SCHEMA.names}, "age: 3, score: 2"),
        ({name: np.zeros((2, 2)) for name in SCHEMA.names}, r"'age' .* got shape \(2, 2\)"),
        ([["secret 4711"]], "a table with named columns, or numbers"),
    ],
)
def test_shapes_and_names_are_refused_without_a_cell(table: Any, message: str) -> None:
    with pytest.raises((DataError, ShapeError), match=message) as problem:
        SCHEMA.rows(table)
    assert "4711" not in str(problem.value)


@pytest.mark.parametrize("odd", [None, "secret 4711", 7, [1.0], [], {}, {"age": 3}, object()])
def test_a_row_that_is_none_leaves_the_others_alone(odd: Any) -> None:
    """Rows by name and rows of numbers, in one list or not; the odd one anywhere."""
    made = SCHEMA.rows([RECORD])
    for usual in (RECORD, made[0], made[0].tolist()):
        for place in range(3):
            listed: list[Any] = [usual, RECORD]
            listed.insert(place, odd)
            rows = SCHEMA.rows(listed)
            np.testing.assert_array_equal(np.delete(rows, place, axis=0), np.repeat(made, 2, 0))
            assert np.isnan(rows[place]).any()


def test_a_matrix_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(n, 19\), as this schema makes them, got \(2, 3\)"):
        SCHEMA.rows(np.zeros((2, 3)))


def test_columns_are_inferred_from_public_rows() -> None:
    frame = pandas.DataFrame(
        {
            "age": [20, 70, 45],
            "same": [3.0, 3.0, 3.0],
            "plan": ["pro", None, "free"],
            "member": [True, False, True],
            "mail": [True, None, False],
        }
    )
    schema = Schema.from_frame(frame)
    assert schema.columns == (
        Numeric("age", 20, 70),
        Numeric("same", 3, 6),
        Categorical("plan", ("free", "pro"), missing="own"),
        Boolean("member"),
        Boolean("mail", missing="own"),
    )
    assert np.isfinite(schema.rows(frame)).all()
    assert Schema.from_frame(frame.to_dict("records")) == schema


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": [None, None]}, "'x' holds no value"),
        ({"x": [1, "a"]}, "one kind of them"),
        ({"x": [1.0, math.inf]}, "truth values, numbers or texts"),
        ({"x": [pandas.Timestamp("2020-01-01")]}, "truth values, numbers or texts"),
        ({"x": [str(number) for number in range(101)]}, "101 different texts, more than 100"),
        (np.zeros((3, 2)), "a table with named columns"),
    ],
)
def test_what_cannot_be_inferred_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Schema.from_frame(table)


def test_kernel_of_a_schema_is_the_product_over_its_columns() -> None:
    schema = Schema(
        [Categorical("plan", ["free", "pro"]), Numeric("age", 0, 100), Boolean("member")]
    )
    kernel = schema_kernel(schema, numeric=Matern(nu=1.5, lengthscale=0.2), similarity=0.3)
    left = schema.rows([{"plan": "free", "age": 10, "member": True}])
    right = schema.rows(
        [
            {"plan": "free", "age": 10, "member": True},
            {"plan": "pro", "age": 10, "member": True},
            {"plan": "gold", "age": 10, "member": False},
            {"plan": "free", "age": 40, "member": True},
        ]
    )
    far = Matern(nu=1.5, lengthscale=0.2)(np.array([[0.1]]), np.array([[0.4]]))[0, 0]
    np.testing.assert_allclose(kernel(left, right)[0], [1.0, 0.3, 0.09, far], rtol=1e-14)


def test_levels_lie_equally_far_from_each_other() -> None:
    """So kernels of a distance work on the row as well."""
    rows = Categorical("plan", ["a", "b", "c"], missing="own").encode(["a", "b", "c", "?", None])
    distance = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.testing.assert_allclose(distance[~np.eye(5, dtype=bool)], math.sqrt(2))


def test_one_object_serves_ridge_and_bandit() -> None:
    """The rows of a schema are what the regression takes too."""
    generator = np.random.default_rng(5)
    schema = Schema([Numeric("age", 0, 100), Categorical("plan", ["free", "pro"])])
    records = [
        {"age": float(age), "plan": plan}
        for age, plan in zip(
            generator.uniform(0, 100, 2000), generator.choice(["free", "pro"], 2000), strict=True
        )
    ]
    target = np.array([0.5 if record["plan"] == "pro" else -0.5 for record in records])
    model = capri.PrivateKernelRidge(
        kernel=schema_kernel(schema),
        epsilon=8.0,
        y_bounds=(-1, 1),
        public_X=schema.rows(records[:100]),
        random_state=1,
    )
    with pytest.warns(capri.PrivacyLeakWarning):  # seeded
        model.fit(schema.rows(records), target)
    found = model.predict(schema.rows([{"age": 50, "plan": p} for p in ("free", "pro")]))
    assert found[0] < -0.2
    assert found[1] > 0.2
    kernel = ContextAction(schema_kernel(schema), Categories(), schema.dimension)
    policy = capri.Capri(
        kernel=kernel,
        actions=2,
        contexts=capri.ContextPool(records[:50], schema=schema),
        budget=capri.Budget(1.0, 1e-5),
        simulation_seed=1,
    )
    assert policy.act(records[60]).action.tolist() in ([1.0, 0.0], [0.0, 1.0])
