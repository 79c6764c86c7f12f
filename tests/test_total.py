"""Values that libraries have for what is missing, masked or too large: served, without a word."""

import json
import pickle
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import capri
from builders import CONTEXTS, play_epoch, small_policy
from capri import RewardStatus, VisitStatus

MISSING: list[Any] = [
    None,
    float("nan"),
    pd.NA,
    pd.NaT,
    np.ma.masked,
    Decimal("NaN"),
    Decimal("sNaN"),
    10**400,
    float("inf"),
]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_missing_value_does_not_decide_over_others(value: Any) -> None:
    policy = small_policy(simulation_seed=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decisions = policy.act_many([[0.3], [value], [0.6]])
        statuses = policy.update_many(decisions, [0.5, 0.5, value])
    assert decisions.status.tolist() == [0, VisitStatus.INVALID, 0]
    assert statuses.tolist() == [0, RewardStatus.UNCOUNTED, RewardStatus.INVALID]
    assert policy.update(decisions[2], value) is RewardStatus.INVALID


@pytest.mark.parametrize("value", [True, np.float32(0.5), Fraction(1, 2), Decimal("0.5"), 1])
def test_numbers_of_any_library_are_numbers(value: Any) -> None:
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many([[value], [None]])
    assert policy.update_many(decisions, [value, None]).tolist() == [0, RewardStatus.UNCOUNTED]


def test_frames_and_masks_say_what_is_missing() -> None:
    policy = small_policy(simulation_seed=None)
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    assert policy.act_many(frame).status.tolist() == [0, VisitStatus.INVALID]
    masked = np.ma.array([[0.3], [0.4]], mask=[[True], [False]])
    decisions = policy.act_many(masked)
    assert decisions.status.tolist() == [VisitStatus.INVALID, 0]
    rewards = np.ma.array([0.1, 0.2], mask=[False, True])
    assert policy.update_many(decisions, rewards).tolist() == [
        RewardStatus.UNCOUNTED,
        RewardStatus.INVALID,
    ]


@pytest.mark.parametrize("model", ["joint", "local"])
def test_no_value_raises_whatever_numpy_was_told(model: str) -> None:
    policy = small_policy(simulation_seed=None, model=model)
    values = [5e-324, 1e-300, -0.0, 1e99, 1e308, np.nan, np.inf, 0.3]
    with np.errstate(all="raise"):
        decisions = policy.act_many([[value] for value in values])
        policy.update_many(decisions, values[::-1])
    policy.close_epoch()
    assert len(policy.epochs) == 1


def test_decisions_of_another_policy_are_nobodys() -> None:
    one, other = small_policy(simulation_seed=None), small_policy(simulation_seed=None)
    mine, others = one.act(CONTEXTS[0]), other.act(CONTEXTS[0])
    assert other.update(mine, 1.0) is RewardStatus.UNKNOWN
    assert other.update(others, 1.0) is RewardStatus.ACCEPTED
    batch = one.act_many(CONTEXTS[:2])
    assert (other.update_many(batch, [1.0, 1.0]) == RewardStatus.UNKNOWN).all()


def test_decision_that_travelled_is_known_by_its_id_alone() -> None:
    policy = small_policy(simulation_seed=None)
    decision = policy.act(CONTEXTS[0])
    back = pickle.loads(pickle.dumps(decision))
    assert policy.update(back, 0.5) is RewardStatus.ACCEPTED
    assert policy.update(json.loads(json.dumps(decision.id)), 0.5) is RewardStatus.DUPLICATE
    batch = policy.act_many(CONTEXTS[:2])
    with pytest.raises(TypeError, match="send decisions"):
        pickle.dumps(batch)
    assert not (policy.update_many(batch.id.tolist(), [0.1, 0.2])).any()
    simulated = small_policy().act_many(CONTEXTS[:2])
    assert (pickle.loads(pickle.dumps(simulated)).id == simulated.id).all()


def test_of_two_copies_the_second_cannot_save(tmp_path: Path) -> None:
    policy = small_policy(simulation_seed=None)
    play_epoch(policy)
    policy.save(tmp_path / "policy")
    copy = capri.Capri.load(tmp_path / "policy")
    policy.save(tmp_path / "policy")
    with pytest.raises(capri.StorageError, match="another copy was saved"):
        copy.save(tmp_path / "policy")
