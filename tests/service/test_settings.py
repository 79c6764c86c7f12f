"""Policy files: what they say is what is built, and errors name the line and what is allowed."""

from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capri.cli import app
from capri.errors import ConfigurationError
from capri.kernels import Matern
from capri.service.settings import load_settings
from capri.spaces import ContextPool, FixedActions

GOOD = """\
name = "shop"
actions = ["mail", "call"]
kernel = "matern52"
lengthscale = 0.3
model = "joint"
horizon = 1e4
public = "public.csv"
[budget]
epsilon = 1.5
delta = 1e-6
[reward]
range = [-2, 1]
wait = "90 minutes"
missing = -1.0
rule = "last"
[users]
contributions = 5
contributions_per_epoch = 2
[epoch]
time = "1.5 days"
[service]
hosts = ["Bandit.example"]
rate = 7
[options]
first_epoch = 64
[[context]]
name = "age"
kind = "numeric"
low = 0
high = 100
missing = 40
[[context]]
name = "plan"
kind = "categorical"
levels = ["free", "pro"]
[[context]]
name = "member"
kind = "boolean"
missing = "own"
"""
PUBLIC = "age,plan,member,weight\n20,free,yes,1\n60,pro,no,2\n,gold,,1\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "public.csv").write_text(PUBLIC)
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    return path


def test_everything_that_may_be_declared(file: Path) -> None:
    settings = load_settings(file)
    policy = settings.policy(store=None)
    assert policy.kernel == Matern(nu=2.5, lengthscale=0.3)
    assert policy.actions.names == ("mail", "call")
    assert (policy.horizon, str(policy.model)) == (10_000, "joint")
    assert isinstance(policy.contexts, ContextPool)
    assert policy.contexts.rows.tolist() == [
        [0.2, 1, 0, 0, 1, 0], [0.6, 0, 1, 0, 0, 0], [0.4, 0, 0, 1, 0.5, 1],
    ]  # fmt: skip
    assert policy.contexts.weights.tolist() == [0.25, 0.5, 0.25]
    problem = policy.problem
    assert (problem.scale.low, problem.scale.high) == (-2.0, 1.0)
    assert problem.rewards.wait == timedelta(minutes=90)
    assert problem.rewards.missing == -1.0
    assert problem.rewards.epoch_time == timedelta(hours=36)
    assert problem.limit is not None
    assert (problem.limit.total, problem.limit.per_epoch) == (5, 2)
    assert settings.hosts == ("bandit.example",)
    assert settings.limits.rate == 7.0
    assert settings.default_store.endswith("policy.db")


def test_actions_with_features_from_tables_and_files(file: Path) -> None:
    (file.parent / "actions.csv").write_text("name,price,fast\nmail,1,no\ncall,3,yes\n")
    tables = (
        '[{ name = "mail", price = 1, fast = false }, { name = "call", price = 3, fast = true }]'
    )
    for said in ('"actions.csv"', tables):
        file.write_text(GOOD.replace('["mail", "call"]', said))
        actions = load_settings(file).policy(store=None).actions
        assert isinstance(actions, FixedActions)
        assert actions.names == ("mail", "call")
        assert actions.rows.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_without_public_rows_they_are_spread(file: Path) -> None:
    file.write_text(GOOD.replace('public = "public.csv"\n', ""))
    first, second = (load_settings(file).arguments["contexts"].rows for _ in range(2))
    assert (first == second).all()
    assert abs(first[:, 0].mean() - 0.5) < 0.05
    assert abs(first[:, 1].mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        (
            "[budget]\nepsilon = 1.5",
            "[budget]\nepsilon = 0",
            9,
            "epsilon must be a positive number",
        ),
        ("delta = 1e-6\n", "delta = 2\n", 10, "between 0 and 1"),
        ('model = "joint"', 'model = "lokal"', 5, "did you mean 'local'.*allowed: joint, local"),
        ('kernel = "matern52"', 'kernel = "spline"', 3, "rbf, matern12"),
        ('actions = ["mail", "call"]', 'actions = ["mail"]', 2, "at least two"),
        ('actions = ["mail", "call"]', 'actions = ["mail", "mail"]', 2, "different names"),
        ("range = [-2, 1]", "range = [1, 0]", 12, "the lower first"),
        ('wait = "90 minutes"', 'wait = "soon"', 13, "second, minute, hour, day, week"),
        ("missing = -1.0", "missing = 7", 14, "a number of the range"),
        ('rule = "last"', 'rule = "mean"', 15, "allowed: first, last, max, sum"),
        ("contributions = 5", "contributions = 0", 17, "1 or more"),
        ("first_epoch = 64", "first_epok = 64", 25, "first_epok"),
        ("rate = 7", "rote = 7", 23, "did you mean 'rate'"),
        ("low = 0\n", "low = 200\n", 29, "low must be below high"),
        ("low = 0\n", "", 26, "low is missing"),
        ('levels = ["free", "pro"]', "levels = []", 35, "at least one"),
        ("missing = 40", "missing = 400", 31, "a number of its range"),
        ('kind = "boolean"', 'kind = "bool"', 38, "did you mean 'boolean'"),
        ('public = "public.csv"', 'public = "none.csv"', 7, "cannot be read"),
        ('name = "shop"', 'nam = "shop"', 1, "did you mean 'name'"),
    ],
)
def test_errors_name_the_line_and_what_is_allowed(
    file: Path, before: str, after: str, line: int, said: str
) -> None:
    assert before in GOOD
    file.write_text(GOOD.replace(before, after))
    with pytest.raises(ConfigurationError, match=rf"policy\.toml, line {line}: .*{said}") as caught:
        load_settings(file)
    assert str(caught.value).count(", line ") == 1


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(path)
    path.write_text("name = \nmodel = 1")
    with pytest.raises(ConfigurationError, match=r"line 1"):
        load_settings(path)


def test_init_writes_a_file_that_serves(file: Path) -> None:
    sheet, output = file.parent / "public.csv", file.parent / "new.toml"
    command = ["init", str(sheet), "--actions", "mail, call,wait", "--output", str(output)]
    assert CliRunner().invoke(app, command).exit_code == 0
    settings = load_settings(output)
    policy = settings.policy(store=None)
    assert policy.actions.names == ("mail", "call", "wait")
    schema = policy.contexts.schema
    assert schema is not None
    assert [column.kind for column in schema.columns] == ["numeric", "categorical", "boolean"]
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "is there already" in again.output


def test_key_is_shown_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.keys"
    made = CliRunner().invoke(app, ["key", "shop", "--roles", "decide,reward", "--file", str(file)])
    assert made.exit_code == 0
    assert made.output.startswith("capri_")
    assert made.output.strip() not in file.read_text()
    wrong = CliRunner().invoke(app, ["key", "shop", "--roles", "cook", "--file", str(file)])
    assert wrong.exit_code == 2
    assert "allowed: decide, reward, read, operator, admin" in wrong.output
