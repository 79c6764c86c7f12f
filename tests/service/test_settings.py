"""Policy files: what they say is what is built, and errors name the line and what is allowed."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from capri.cli import app
from capri.errors import ConfigurationError
from capri.kernels import Matern
from capri.privacy.budget import Budget
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


@pytest.mark.parametrize("delta", ["", "delta = 0\n"])
def test_a_promise_needs_no_delta(file: Path, delta: str) -> None:
    file.write_text(file.read_text().replace("delta = 1e-6\n", delta))
    settings = load_settings(file)
    assert settings.policy(store=None).budget == Budget(epsilon=1.5, delta=0.0)


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
        ('wait = "90 minutes"', 'wait = "soon"', 13, "seconds, minutes, hours, days, weeks"),
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


def test_init_from_columns_writes_a_file_that_learns_who_comes(file: Path) -> None:
    """The common case: nothing is public but ranges and levels."""
    output = file.parent / "new.toml"
    command = ["init", "--actions", "mail,call", "--output", str(output), "--columns"]
    told = "age = 18:98, plan=free|pro,member"
    assert CliRunner().invoke(app, [*command, told]).exit_code == 0
    policy = load_settings(output).policy(store=None)
    assert [each.name for each in policy.crowd().columns] == ["age", "plan", "member"]
    assert policy.crowd().step == "marginals"
    for wrong, why in {
        "": "one of the two",
        "age=98:18": "'age'",
        "age=0:inf": "'age' takes low:high",
        "age=18": "'age' takes low:high",
        "age=0:1,age=0:1": "age",
        "plan=free|free": "plan",
        ",": "name",
    }.items():
        refused = CliRunner().invoke(app, [*command[:4], str(output) + "x", "--columns", wrong])
        assert (wrong, refused.exit_code) == (wrong, 2)
        assert why in " ".join(refused.output.split())
    both = ["init", str(file.parent / "public.csv"), *command[1:4], str(output) + "x"]
    assert CliRunner().invoke(app, [*both, "--columns", told]).exit_code == 2


def test_key_is_shown_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.keys"
    made = CliRunner().invoke(app, ["key", "shop", "--roles", "decide,reward", "--file", str(file)])
    assert made.exit_code == 0
    assert made.output.startswith("capri_")
    assert made.output.strip() not in file.read_text()
    wrong = CliRunner().invoke(app, ["key", "shop", "--roles", "cook", "--file", str(file)])
    assert wrong.exit_code == 2
    assert "allowed: decide, reward, read, operator, admin" in wrong.output


LIMITS = """\
[limits]
floor = { mail = 0.1 }
ceiling = { call = 0.4 }
share = { call = 0.3 }
availability = { call = 0.8 }
[limits.allowed]
call = { age = [18, inf], plan = ["pro"], member = true }
"""


def test_limits_are_those_of_the_library(file: Path) -> None:
    (file.parent / "sets.csv").write_text("call,mail\nyes,no\nno,yes\nyes,yes\n")
    file.write_text(GOOD + LIMITS)
    limits = load_settings(file, thorough=False).policy(store=None).problem.limits
    assert limits is not None
    assert limits.to_dict() == {
        "floor": [["mail", 0.1]],
        "ceiling": [["call", 0.4]],
        "share": [["call", 0.3]],
        "allowed": [["call", [["age", [18, None]], ["plan", ["pro"]], ["member", True]]]],
        "availability": {"by": [["call", 0.8]]},
    }
    file.write_text(GOOD + LIMITS.replace("{ call = 0.8 }", '"sets.csv"'))
    limits = load_settings(file, thorough=False).policy(store=None).problem.limits
    assert limits is not None
    assert limits.to_dict()["availability"] == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("{ mail = 0.1 }", "{ mial = 0.1 }", 2, "did you mean 'mail'.*allowed: call, mail"),
        ("{ mail = 0.1 }", "{ mail = 1.5 }", 2, "from 0 to 1, got 1.5"),
        ("{ mail = 0.1 }", "0.1", 2, "a table of keys and values"),
        ("{ mail = 0.1 }", "{ call = 0.35 }", 2, "'call' is above its share: 0.35 and 0.3"),
        ("{ mail = 0.1 }", "{ mail = 0.8, call = 0.3 }", 2, "add up to at most 1, got 1.1"),
        ("ceiling = { call = 0.4 }", "ceiling = { call = 0 }", 3, "above 0 and up to 1"),
        ("ceiling = { call = 0.4 }", "ceiling = { mail = 0.4 }", 3, "leave nothing to play"),
        ("share =", "shares =", 4, "did you mean 'share'"),
        ("{ call = 0.8 }", '"none.csv"', 5, "cannot be read"),
        ("{ call = 0.8 }", '"public.csv"', 5, "no column 'mail'"),
        ("call = { age", "post = { age", 7, "unknown action 'post'.*allowed: call, mail"),
        ("{ age =", "{ ages =", 7, "did you mean 'age'.*allowed: age, member, plan"),
        ("[18, inf]", "[18, 200]", 7, "from 0 to 100, either of which may be -inf or inf"),
        ('["pro"]', '["gold"]', 7, "a list of levels, of free, pro"),
        ("member = true", "member = 1", 7, "true or false, got 1"),
    ],
)
def test_errors_in_limits_name_the_line(
    file: Path, before: str, after: str, line: int, said: str
) -> None:
    assert before in LIMITS
    file.write_text(GOOD + LIMITS.replace(before, after))
    line += GOOD.count("\n")
    with pytest.raises(ConfigurationError, match=rf"policy\.toml, line {line}: .*{said}"):
        load_settings(file)


def test_a_rollback_guard_is_found_from_the_file_and_has_no_password(file: Path) -> None:
    folder = file.parent.resolve()
    for said, meant in (
        ("other/guard.json", str(folder / "other/guard.json")),
        ("sqlite:///guard.db", f"sqlite:///{folder / 'guard.db'}"),
        ("postgresql://host/name", "postgresql://host/name"),
    ):
        file.write_text(f'rollback_guard = "{said}"\n' + GOOD)
        assert load_settings(file).rollback_guard == meant
    for wrong, why in (
        ('"postgresql://ann:secret@host/name"', "CAPRI_ROLLBACK_GUARD"),
        ("7", "a file or a database"),
    ):
        file.write_text(f"rollback_guard = {wrong}\n" + GOOD)
        with pytest.raises(ConfigurationError, match=rf"line 1: .*{why}") as caught:
            load_settings(file)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["--reward-wait", "--missing"])
def test_an_empty_option_of_init_is_refused_not_left_out(file: Path, name: str) -> None:
    """It was taken for one that is not given: the default, without a word."""
    sheet, output = file.parent / "public.csv", file.parent / "new.toml"
    command = ["init", str(sheet), "--output", str(output)]
    refused = CliRunner().invoke(app, [*command, name, ""])
    assert refused.exit_code == 2
    assert f"{name} must be a number" in refused.output
    assert not output.exists()
    given = CliRunner().invoke(app, [*command, name, {"--missing": " 0.5 "}.get(name, " 2d ")])
    assert given.exit_code == 0
    assert ("rewards count for" in given.output) == (name == "--missing")


def test_every_commented_line_of_init_may_be_used(file: Path) -> None:
    sheet, output = file.parent / "public.csv", file.parent / "new.toml"
    command = ["init", str(sheet), "--actions", "mail,call", "--output", str(output)]
    assert CliRunner().invoke(app, command).exit_code == 0
    text = output.read_text()
    used = re.sub(r"^# (?=\[\w+\]|\w+ = )", "", text, flags=re.MULTILINE)
    assert used.count("\n[") > text.count("\n[") + 3
    output.write_text(used)
    assert load_settings(output).policy(store=None).problem.limits is not None
    one = CliRunner().invoke(app, [*command[:3], "mail", "--output", str(file.parent / "x.toml")])
    assert one.exit_code == 2
    assert "at least two" in one.output


def test_a_service_loads_no_laboratory() -> None:
    """Data sets, rivals and studies would take longer to load than all the rest; so would plots."""
    code = (
        "import sys, capri.service.server, capri.service.app\n"
        "capri.service.app.page_files()\n"
        "names = ('matplotlib', 'capri.plots', 'capri_lab')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
