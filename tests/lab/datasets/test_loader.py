"""One loader for every table, and clear words for what is wrong with one."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import capri
from capri.errors import ConfigurationError, DataError
from capri_lab.datasets import Closeness, Match, load, table_environment
from waiting import PATIENCE

PUBLIC = np.array([True, True, True, False, False, False])


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "height": [1.0, 2.0, 3.0, 1.0, 2.5, 3.0],
            "width": [0, 1, 0, 1, 1, 0],
            "colour": ["red", "blue", "red", "blue", "red", "green"],
            "level": [0.0, 10.0, 5.0, 2.0, -3.0, 30.0],
            "stay": [0.5, -2.0, 0.0, 3.0, 0.25, -9.0],
            "go": [0.0, 1.0, 1.0, 0.5, -1.0, 0.0],
        }
    )


def bandit_of(frame: Any = None, **options: Any) -> Any:
    settings = {"context": ["height", "width"], "label": "colour", "public": PUBLIC}
    settings.update(options)
    return load(table() if frame is None else frame, **settings)


def test_classes_pay_for_the_right_label() -> None:
    bandit = bandit_of(reward=Match(right=1.0, wrong=-0.5))
    assert bandit.action_names == ("blue", "red")
    np.testing.assert_array_equal(bandit.actions, np.eye(2))
    # The third user's label is unknown to the public: nothing is right for them.
    np.testing.assert_array_equal(bandit.means, [[1.0, -0.5], [-0.5, 1.0], [-0.5, -0.5]])
    assert bandit.reward_bound == 1.0
    np.testing.assert_array_equal(bandit.best(np.arange(3)), [1.0, 1.0, -0.5])


def test_classes_can_be_named() -> None:
    bandit = bandit_of(reward=Match(classes=["green", "red", "blue"]))
    assert bandit.action_names == ("green", "red", "blue")
    np.testing.assert_array_equal(bandit.means.argmax(axis=1), [2, 1, 0])


@pytest.mark.parametrize("classes", [[3, 7], [3.0, 7.0], ["3", "7.0"]])
def test_whole_numbers_are_the_same_label_as_text(tmp_path: Path, classes: list[Any]) -> None:
    file = tmp_path / "numbers.csv"
    labels = ["3.0", "7", "3", "7.0", "3.", "007"]
    rows = [f"{number},{number % 3},{label}" for number, label in enumerate(labels)]
    file.write_text("\n".join(["height,width,colour", *rows]))
    bandit = bandit_of(file, reward=Match(classes=classes))
    assert bandit.action_names == ("3", "7")
    # Numbers do not start with zeros: 007 is a name.
    np.testing.assert_array_equal(bandit.means, [[-1, 1], [1, -1], [-1, -1]])


def test_doses_pay_by_distance_in_the_public_range() -> None:
    bandit = bandit_of(label="level", reward=Closeness(doses=3, tolerance=0.5))
    assert bandit.action_names == ("0", "5", "10")
    np.testing.assert_array_equal(bandit.actions, [[0.0], [0.5], [1.0]])
    # Levels 2, -3 and 30 are 0.2, 0 and 1 of the public range 0 to 10.
    expected = [[0.6, 0.4, -0.6], [1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]]
    np.testing.assert_allclose(bandit.means, expected, atol=1e-12)


def test_action_columns_hold_rewards_clipped_at_the_public_bound() -> None:
    bandit = bandit_of(label=None, actions=["stay", "go"])
    assert bandit.reward_bound == 2.0
    np.testing.assert_array_equal(bandit.means, [[2.0, 0.5], [0.25, -1.0], [-2.0, 0.0]])
    assert bandit_of(label=None, actions=["stay", "go"], reward_bound=5.0).means[0, 0] == 3.0


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_files_and_frames_give_the_same_bandit(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"things{suffix}"
    if suffix == ".parquet":
        table().to_parquet(path)
    else:
        table().to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    for options in ({"label": "colour"}, {"label": "level", "reward": Closeness(doses=4)}):
        read, given = bandit_of(path, **options), bandit_of(**options)
        for name in ("contexts", "means", "actions"):
            np.testing.assert_array_equal(getattr(read, name), getattr(given, name))
        np.testing.assert_array_equal(read.pool.rows, given.pool.rows)
        assert read.action_names == given.action_names
        assert read.name in ("things", "things.csv")


def test_columns_of_every_kind_of_number_are_read() -> None:
    kinds = {"height": "Float64", "width": "boolean", "colour": "category"}
    nullable = bandit_of(table().astype(kinds))
    np.testing.assert_array_equal(nullable.contexts, bandit_of().contexts)
    np.testing.assert_array_equal(nullable.means, bandit_of().means)
    text = bandit_of(table().astype({"height": str, "width": object}))
    np.testing.assert_array_equal(text.contexts, bandit_of().contexts)


def test_plain_values_describe_the_same_bandit(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.csv")
    table().assign(open=PUBLIC).to_csv(path, index=False)
    plain: dict[str, Any] = {"path": path, "context": ["height", "width"], "public": "open"}
    for given, expected in (
        ({"label": "colour", "wrong": 0.0}, {"reward": Match(wrong=0.0)}),
        ({"label": "level", "reward": "closeness", "doses": 4}, {"reward": Closeness(doses=4)}),
        ({"actions": ["stay", "go"], "reward_bound": 9.0}, {"reward_bound": 9.0}),
    ):
        got = table_environment(**plain, **given)  # type: ignore[arg-type]
        outcome = {name: given.get(name) for name in ("label", "actions")}
        np.testing.assert_array_equal(got.means, bandit_of(**outcome, **expected).means)
        np.testing.assert_array_equal(got.contexts, bandit_of().contexts)
    for wrong, message in (
        (
            {"label": "colour", "reward": "best"},
            "reward must be one of 'match', 'closeness', got 'best'",
        ),
        ({"label": "colour", "public": True}, "public must name a column, got True"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            table_environment(**(plain | wrong))


def test_parameters_are_json() -> None:
    stored = json.loads(json.dumps(bandit_of().parameters(), allow_nan=False))
    assert stored["name"] == "data"
    assert (stored["contexts"], stored["public_rows"], stored["context_columns"]) == (3, 3, 2)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_a_missing_column_is_named_with_what_there_is(form: str, tmp_path: Path) -> None:
    source: Any = table()
    if form != "frame":
        path = tmp_path / f"rows.{form}"
        source.to_csv(path, index=False) if form == "csv" else source.to_parquet(path)
        source = path
    with pytest.raises(ConfigurationError) as caught:
        bandit_of(source, context=["height", "widht"])
    message = str(caught.value)
    assert "has no column 'widht'; did you mean 'width'?" in message
    assert "'height', 'width', 'colour'" in message


@pytest.mark.parametrize("form", ["frame", "csv"])
def test_problems_of_public_rows_are_counted(form: str, tmp_path: Path) -> None:
    frame = table().astype({"height": object, "width": float})
    frame.loc[[0, 2], "height"] = ["tall", "small"]
    frame.loc[1, "width"] = np.nan
    source: Any = frame
    if form == "csv":
        source = tmp_path / "rows.csv"
        frame.to_csv(source, index=False)
    with pytest.raises(DataError) as caught:
        bandit_of(source)
    assert str(caught.value).startswith(
        "column 'height' has text in 2 public rows; "
        "column 'width' has NaN, infinity or nothing in 1 public rows"
    )
    # Dropping passes over missing cells, never over text.
    with pytest.raises(DataError, match=r"^column 'height' has text in 2 public rows: write"):
        bandit_of(source, missing="drop")


@pytest.mark.parametrize("cell", ["secret-4711", np.nan, np.inf, None, pd.Timestamp("1947-11-04")])
@pytest.mark.parametrize("column", ["height", "level"])
def test_nothing_is_told_of_private_rows(cell: object, column: str) -> None:
    """The same words whatever the value, the column and the number of private rows."""
    messages = set()
    for rows in ([3], [3, 4, 5]):
        frame = table().astype({column: object})
        for row in rows:
            frame.at[row, column] = cell
        with pytest.raises(DataError) as caught:
            bandit_of(frame, label="level", reward=Closeness())
        messages.add(str(caught.value))
    (message,) = messages
    assert message.startswith("a private row has a cell that is no finite number")
    assert not re.search(r"\d|nan|inf\b|height|level|secret|1947", message)


def test_incomplete_rows_can_be_dropped_on_both_sides() -> None:
    frame = table().astype({"width": float})
    frame.loc[[1, 4], ["width"]] = np.nan
    frame.loc[5, "colour"] = None
    bandit = bandit_of(frame, reward=Match(classes=["red", "blue"]), missing="drop")
    assert bandit.parameters()["public_rows"] == 2
    assert len(bandit.contexts) == 1
    frame.loc[3, "width"] = np.nan
    with pytest.raises(DataError, match="too few complete private rows are left"):
        bandit_of(frame, reward=Match(classes=["red", "blue"]), missing="drop")


def test_a_broken_file_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("height,width,colour\n1,2,red\n1,2,red,secret-4711,9\n")
    with pytest.raises(DataError, match=r"rows\.csv cannot be read as a table") as caught:
        bandit_of(path)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    path.write_text("height,width,colour\n1,2,red,secret-4711\n1,2,red,x\n")
    with pytest.raises(DataError, match="cannot be read as a table"):
        bandit_of(path)
    path.write_text("")
    with pytest.raises(DataError, match="cannot be read as a table"):
        bandit_of(path)
    broken = tmp_path / "rows.parquet"
    broken.write_bytes(b"PAR1 this is not a table PAR1")
    with pytest.raises(DataError, match="not a Parquet file, or is damaged"):
        bandit_of(broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "height"}, "context must be a list of one or more columns, got 'height'"),
        ({"context": []}, r"context must be a list of one or more columns, got \[\]"),
        ({"context": ["height", "height"]}, "column 'height' cannot serve two ends"),
        ({"label": None}, "give either label or actions"),
        ({"actions": ["stay", "go"]}, "give either label or actions"),
        ({"label": None, "actions": ["go"]}, "actions must be a list of two or more columns"),
        ({"label": "height"}, "column 'height' cannot serve two ends"),
        ({"public": "colour"}, "column 'colour' cannot serve two ends"),
        ({"context": ["height", "q"]}, r"has no column 'q'\. It has 'height', 'width'"),
        ({"reward": "match"}, "reward must be a rule such as Match"),
        ({"reward_bound": 1.0}, "reward_bound belongs to actions"),
        ({"label": None, "actions": ["stay", "go"], "reward": Match()}, "reward is the rule for"),
        (
            {"label": None, "actions": ["stay", "go"], "features": "embedding"},
            "features='embedding' needs a label",
        ),
        ({"features": "words"}, "features must be one of 'one-hot', 'embedding', got 'words'"),
        ({"missing": "ignore"}, "missing must be one of 'error', 'drop', got 'ignore'"),
        (
            {"reward": Match(classes=["red", "bleu"])},
            "no public row has the class 'bleu', .* no class names: 'blue'",
        ),
        (
            {"features": "embedding", "reward": Match(classes=["red", "green", "blue"])},
            "needs a public row of every class, none has 'green'",
        ),
        ({"public": np.array([1, 0, 1, 0, 0, 0], dtype=bool)}, "at least two different labels"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bandit_of(**options)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (Match, {"right": 0.0, "wrong": 0.0}, "right must exceed wrong, got 0.0 and 0.0"),
        (Match, {"right": float("inf")}, "right must be a finite number, got inf"),
        (Match, {"classes": ["a"]}, "classes must be two or more different labels"),
        (Closeness, {"doses": 1}, "doses must be a whole number of 2 or more, got 1"),
        (Closeness, {"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
        (Closeness, {"low": 1.0}, "give both low and high, or neither"),
        (Closeness, {"low": 2.0, "high": 1.0}, "low must be below high, got 2.0 and 1.0"),
    ],
)
def test_rules_that_make_no_sense(rule: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rule(**options)


def test_what_public_rows_cannot_tell_must_be_stated() -> None:
    flat = table().assign(level=[5.0, 5.0, 5.0, 2.0, 8.0, 9.0], stay=0.0, go=[0, 0, 0, 1, 2, 3])
    with pytest.raises(ConfigurationError, match="the label is the same in all public rows"):
        bandit_of(flat, label="level", reward=Closeness())
    stated = bandit_of(flat, label="level", reward=Closeness(doses=3, low=0.0, high=10.0))
    assert stated.action_names == ("0", "5", "10")
    with pytest.raises(ConfigurationError, match="all rewards of public rows are 0"):
        bandit_of(flat, label=None, actions=["stay", "go"])
    assert bandit_of(flat, label=None, actions=["stay", "go"], reward_bound=3).means.max() == 3.0


def test_sources_that_are_none(tmp_path: Path) -> None:
    for source, message in (
        ([1, 2], "data must be a path to a CSV or Parquet file or a pandas DataFrame, got list"),
        ("rows.xlsx", "data files end in .csv"),
        (tmp_path / "nowhere.csv", "there is no file"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            bandit_of(source)


def test_a_column_that_never_varies_does_no_harm() -> None:
    bandit = bandit_of(table().assign(width=7.0))
    assert np.isfinite(bandit.contexts).all()


def test_missing_packages_are_named() -> None:
    """Without pandas or scikit-learn the module loads, and says what to install when needed."""
    code = (
        "import sys; sys.modules['pandas'] = None; sys.modules['sklearn'] = None\n"
        "import capri_lab.datasets as d\n"
        "for call in (lambda: d.load('x.csv', context=['a'], label='b', public_share=0.5),\n"
        "             lambda: d.environment_by_name('wine')):\n"
        "    try: call()\n"
        "    except d.loader.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines() == [
        "reading a table needs pandas: pip install 'capri-lab[data]'",
        "these data sets come with scikit-learn: pip install 'capri-lab[data]'",
    ]


def test_import_is_light() -> None:
    code = (
        "import sys, capri_lab.datasets; "
        "print([n for n in ('pandas', 'sklearn', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"


# -- contexts by a schema -------------------------------------------------------------------------

SCHEMA = capri.Schema(
    [
        capri.Numeric("age", 0, 100),
        capri.Categorical("plan", ["free", "pro"]),
        capri.Categorical("rooms", [1, 2]),
        capri.Boolean("member", missing="own"),
    ]
)
PEOPLE = pd.DataFrame(
    {
        "age": [10.0, 20.0, 30.0, 250.0, 50.0, 60.0],
        "plan": ["free", "pro", "gold", "free", "pro", "pro"],
        "rooms": [1, 2, 3, 1, 2, 1],
        "member": [True, False, None, True, True, False],
        "bought": ["tea", "cola", "tea", "cola", "tea", "tea"],
    }
)
FIRST_HALF = np.arange(6) < 3


@pytest.mark.parametrize("as_file", [False, True])
def test_a_schema_makes_the_contexts(as_file: bool, tmp_path: Path) -> None:
    """Of a frame and of a file, whose cells are all text, the same rows as of records."""
    source: Any = PEOPLE
    if as_file:
        source = tmp_path / "people.csv"
        PEOPLE.to_csv(source, index=False)
    bandit = load(source, context=SCHEMA, label="bought", public=FIRST_HALF)
    expected = SCHEMA.rows(PEOPLE)
    np.testing.assert_array_equal(bandit.contexts, expected[3:])
    assert bandit.pool.schema == SCHEMA
    assert sorted(bandit.pool.rows.tolist()) == sorted(expected[:3].tolist())
    policy = capri.Capri(
        kernel=capri.kernels.Matern(lengthscale=0.7),
        actions=capri.FixedActions(bandit.actions, names=bandit.action_names),
        contexts=bandit.pool,
        budget=capri.Budget(1.0, 1e-5),
        simulation_seed=1,
    )
    record = {"age": 41, "plan": "pro", "rooms": 2, "member": True}
    assert policy.act(record).action_name in ("tea", "cola")


def test_gaps_that_a_schema_does_not_expect_are_told_of_public_rows() -> None:
    gap = PEOPLE.assign(age=[None, *PEOPLE["age"][1:]])
    with pytest.raises(DataError, match="column 'age' has NaN, infinity or nothing in 1 public"):
        load(gap, context=SCHEMA, label="bought", public=FIRST_HALF)
    kept = load(gap, context=SCHEMA, label="bought", public=FIRST_HALF, missing="drop")
    assert kept.pool.size == 2
    with pytest.raises(ConfigurationError, match="by the schema alone"):
        load(PEOPLE, context=SCHEMA, label="bought", public=FIRST_HALF, dimensions=2)
    mixed = capri.Schema([capri.Categorical("plan", ["free", 1])])
    with pytest.raises(ConfigurationError, match="texts or whole numbers, not both"):
        load(PEOPLE, context=mixed, label="bought", public=FIRST_HALF)
