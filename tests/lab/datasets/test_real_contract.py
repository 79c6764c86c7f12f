"""What every real problem must be: split by its seed, bounded, named, licensed and offline."""

import socket
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

from capri.environments import Environment
from capri_lab.datasets import DATASET_NAMES, DataBandit, environment_by_name
from capri_lab.datasets.real import CHECK_NAMES, LISTED_NAMES, PROBLEMS, modelled

every_problem = pytest.mark.parametrize("name", PROBLEMS)


def parts(bandit: DataBandit) -> tuple[bytes, ...]:
    pool = (bandit.pool.rows, bandit.pool.weights)
    return tuple(each.tobytes() for each in (*pool, bandit.contexts, bandit.actions, bandit.means))


def test_names_are_those_of_the_catalogue() -> None:
    assert (*LISTED_NAMES, *CHECK_NAMES) == DATASET_NAMES
    assert len(set(DATASET_NAMES)) == len(DATASET_NAMES) == 16


@every_problem
def test_its_origin_is_told(name: str) -> None:
    problem = PROBLEMS[name]
    assert problem.name == name
    for text in (problem.title, problem.licence, problem.pays):
        assert len(text) > 10
        assert text == text.strip()
    assert version(problem.package)


@every_problem
def test_the_split_is_drawn_by_the_seed(name: str) -> None:
    one, again, other = (environment_by_name(name, raw=True, seed=seed) for seed in (3, 3, 4))
    assert parts(one) == parts(again)
    assert parts(one) != parts(other)


@every_problem
def test_every_row_is_either_public_or_private(name: str) -> None:
    """Together the two sides are the rows of the source, each as often as it is there."""
    bandit = environment_by_name(name, raw=True, seed=1)
    source = PROBLEMS[name].read()
    rows = source.frame[list(source.context)].to_numpy(dtype=np.float64) + 0.0
    public: Any = bandit.origin["public_rows"]
    assert public == round(0.3 * len(rows))
    counts = bandit.pool.weights * public
    np.testing.assert_allclose(counts, counts.round(), atol=1e-6)
    sides = [np.repeat(bandit.pool.rows, counts.round().astype(int), axis=0), bandit.contexts]
    both = np.concatenate(sides)
    assert len(both) == len(rows)
    np.testing.assert_array_equal(both[np.lexsort(both.T)], rows[np.lexsort(rows.T)])


@every_problem
def test_rewards_keep_their_bound(name: str) -> None:
    bandit = environment_by_name(name, raw=True)
    assert isinstance(bandit, Environment)
    assert np.abs(bandit.means).max() <= bandit.reward_bound == 1.0
    rng = np.random.default_rng(0)
    users = bandit.draw_contexts(rng, 2000)
    actions = rng.integers(len(bandit.actions), size=2000)
    rewards = bandit.rewards(rng, users, actions)
    assert np.abs(rewards).max() <= 1.0
    if bandit.bernoulli:
        assert set(rewards.tolist()) == {0.0, 1.0}
    # Something is to be learnt, and by contexts: no action is the best for everybody.
    assert bandit.uniform_regret() > 0.05
    assert len(np.unique(bandit.means.argmax(axis=1))) > 1


@every_problem
def test_actions_are_named_arms_or_points_on_a_line(name: str) -> None:
    bandit = environment_by_name(name, raw=True)
    names = bandit.action_names
    assert len(set(names)) == len(names) == len(bandit.actions)
    assert all(each.strip() == each != "" for each in names)
    if bandit.features == "dose":
        np.testing.assert_allclose(bandit.actions[:, 0], np.linspace(0.0, 1.0, len(names)))
    else:
        np.testing.assert_array_equal(bandit.actions, np.eye(len(names)))


@every_problem
def test_other_contexts_are_in_the_unit_ball(name: str) -> None:
    """The same users and rewards, seen through an encoder that public rows taught."""
    raw, plain = (environment_by_name(name, raw=each, seed=2) for each in (True, False))
    np.testing.assert_array_equal(raw.means, plain.means)
    assert len(raw.contexts) == len(plain.contexts)
    assert np.linalg.norm(plain.contexts, axis=1).max() <= 1.0
    assert plain.contexts.shape[1] == min(PROBLEMS[name].dimensions, raw.contexts.shape[1])


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    modelled._clicks.cache_clear()
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for problem in PROBLEMS.values():
        assert len(problem.read().frame) > 100


def test_packages_of_data_are_not_imported() -> None:
    """They ask for torch and for another pandas, and reading a table needs neither."""
    program = (
        "import sys\n"
        "from capri_lab.datasets.real import PROBLEMS\n"
        "for problem in PROBLEMS.values(): problem.read()\n"
        "print(sorted({'river', 'statsmodels', 'lifelines', 'obp', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
