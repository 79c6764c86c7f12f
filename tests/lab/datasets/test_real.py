"""What single real problems are made of, and what is said where one cannot be had."""

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from capri.errors import ConfigurationError
from capri_lab.datasets import Sale, environment_by_name, load
from capri_lab.datasets.loader import public_mask
from capri_lab.datasets.real import PROBLEMS
from capri_lab.datasets.real.modelled import at_rate, fitted_logits, imputed
from capri_lab.datasets.real.problem import package_file

pandas = pytest.importorskip("pandas")


def test_a_missing_package_is_said_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("capri_lab.datasets.real.problem.distribution", missing)
    commands = {
        "phishing": r"river.*pip install 'capri-lab\[real\]'",
        "fair": r"statsmodels.*pip install 'capri-lab\[real\]'",
        "actg175": "lifelines.*pip install --no-deps lifelines",
    }
    for name, words in commands.items():
        with pytest.raises(ConfigurationError, match=words):
            environment_by_name(name)
    with pytest.raises(ConfigurationError, match=r"pip install --no-deps obp==0\.4\.1"):
        package_file("obp", "anything")


def test_a_version_without_the_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no file river/nothing\.csv.*constraints\.txt"):
        package_file("river", "river/nothing.csv")


def test_versions_are_those_of_the_constraints() -> None:
    """The command that an error tells installs what the tests were run with."""
    lines = (Path(__file__).parents[3] / "constraints.txt").read_text().splitlines()
    for package in ("river", "statsmodels", "lifelines", "obp"):
        assert f"{package}=={metadata.version(package)}" in lines


def test_the_arm_that_was_given_keeps_its_outcome() -> None:
    """And on data without luck every arm's own line is found again, but for the penalty."""
    rng = np.random.default_rng(0)
    rows, arm = rng.normal(size=(4000, 3)), rng.integers(2, size=4000)
    truth = np.stack([rows @ [1.0, 0.0, 2.0], 0.5 - rows @ [0.0, 1.0, 0.0]], axis=1)
    given = truth[np.arange(4000), arm]
    noisy = given + rng.normal(size=4000)
    table = imputed(rows, arm, noisy, 2)
    np.testing.assert_allclose(table[np.arange(4000), arm], noisy, atol=1e-12)
    assert np.abs(imputed(rows, arm, given, 2) - truth).mean() < 0.08


def test_the_trial_pays_the_measured_change_of_cells() -> None:
    rows = PROBLEMS["actg175"].read()
    frame = rows.frame
    change = (frame["cd420"] - frame["cd40"]).to_numpy() / 200.0
    assert rows.actions is not None
    table = frame[list(rows.actions)].to_numpy()
    np.testing.assert_allclose(table[np.arange(len(frame)), frame["arms"]], change, atol=1e-9)
    # The trial found zidovudine alone the worst of the four.
    assert table.mean(axis=0).argmin() == 0
    private = ~public_mask(len(frame), public_share=0.3, seed=5)
    bandit = environment_by_name("actg175", seed=5)
    np.testing.assert_array_equal(bandit.means, np.clip(table[private], -1.0, 1.0))


def test_clicks_come_at_two_percent() -> None:
    bandit = environment_by_name("open-bandit", seed=1)
    # Users are a sample of the rows that the rate holds for.
    assert bandit.means.mean() == pytest.approx(0.02, abs=5e-4)
    assert bandit.means.min() > 0.0
    best = bandit.means.max(axis=1).mean()
    fixed = (best - bandit.means.mean(axis=0).max()) / bandit.uniform_regret()
    assert 0.5 < fixed < 0.65


def test_the_model_of_clicks_finds_who_clicks_on_what() -> None:
    """Two kinds of users, each with an item of its own, and clicks a hundred times the sample's."""
    rng = np.random.default_rng(1)
    kind, item = rng.integers(2, size=20_000), rng.integers(80, size=20_000)
    chance = np.where(item == np.where(kind == 0, 3, 7), 0.8, 0.05)
    logits = fitted_logits(np.eye(2)[kind], item, (rng.random(20_000) < chance).astype(float))
    for each, own in ((0, 3), (1, 7)):
        chances = 1.0 / (1.0 + np.exp(-logits[kind == each][0]))
        assert chances.argmax() == own
        # 125 visits: 0.8 is known to 0.036, and the prior pulls down.
        assert 0.6 < chances[own] < 0.9
        assert np.delete(chances, own).max() < 0.4


def test_a_shift_changes_the_rate_and_not_the_order() -> None:
    logits = np.random.default_rng(2).normal(size=(50, 8))
    chances = at_rate(logits, 0.3)
    assert chances.mean() == pytest.approx(0.3, abs=1e-12)
    np.testing.assert_array_equal(chances.argsort(axis=1), logits.argsort(axis=1))


def test_prices_are_paid_by_those_who_would_pay_as_much() -> None:
    rule = Sale(prices=5)
    public, labels = np.array([0.0, 100.0]), np.array([-1.0, 0.0, 49.0, 50.0, 1000.0])
    actions = rule.actions(public)
    assert actions.names == ("0", "25", "50", "75", "100")
    np.testing.assert_array_equal(
        rule.rewards(labels, public, actions),
        [
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.25, 0.0, 0.0, 0.0],
            [0.0, 0.25, 0.5, 0.0, 0.0],
            [0.0, 0.25, 0.5, 0.75, 1.0],
        ],
    )
    with pytest.raises(ConfigurationError, match="same in all public rows: make more rows public"):
        rule.actions(np.ones(3))
    with pytest.raises(ConfigurationError, match="prices must be a whole number"):
        Sale(prices=1)


def test_raw_columns_are_left_alone_or_encoded_not_both() -> None:
    with pytest.raises(ConfigurationError, match="raw=True leaves them as they are"):
        environment_by_name("phishing", raw=True, dimensions=3)
    assert environment_by_name("phishing").contexts.shape[1] == 9
    assert environment_by_name("phishing", prototypes=20).pool.size <= 20
    assert environment_by_name("wine").contexts.shape[1] == 4


def test_chances_belong_to_columns_of_actions() -> None:
    frame = pandas.DataFrame({"x": np.arange(20.0), "a": 0.25, "b": 0.75, "label": ["u", "v"] * 10})
    with pytest.raises(ConfigurationError, match="bernoulli belongs to actions"):
        load(frame, context=["x"], label="label", public_share=0.5, bernoulli=True)
    coins = load(
        frame, context=["x"], actions=["a", "b"], reward_bound=1.0, public_share=0.5, bernoulli=True
    )
    index = np.zeros(40_000, dtype=np.int64)
    rewards = coins.rewards(np.random.default_rng(3), index, index + 1)
    assert set(rewards.tolist()) == {0.0, 1.0}
    # Five standard errors: further with probability below 6e-7.
    assert abs(rewards.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 40_000)
