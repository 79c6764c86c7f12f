"""Users who come back: the worst they can do, the cap, and what the cap costs."""

import warnings
from collections import Counter
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capri
from builders import play_epoch, small_policy, snapshot
from capri.errors import ConfigurationError, ShapeError
from capri.privacy.budget import UserId, UserLimit, check_users, user_digest
from capri.store.memory import MemoryUnit
from capri.store.memory_rows import MemoryRows
from epochs_inside import open_epoch

SECRET_ID = "grace.hopper@example.org"


def splits(total: int, largest: int) -> list[tuple[int, ...]]:
    """All ways to spread up to ``total`` contributions over epochs, at most ``largest`` in one."""
    found: list[tuple[int, ...]] = [()]
    for first in range(1, min(total, largest) + 1):
        found += [(first, *rest) for rest in splits(total - first, first)]
    return found


@pytest.mark.parametrize("total", range(1, 10))
def test_composition_is_the_worst_of_all_splits(total: int) -> None:
    """Group privacy in an epoch, composition across: ``sqrt(sum a_e^2)``, by brute force."""
    for per_epoch in range(1, total + 1):
        limit = UserLimit(total=total, per_epoch=per_epoch)
        every = splits(total, per_epoch)
        worst = max(sqrt(sum(a * a for a in split)) for split in every)
        assert limit.composition() == pytest.approx(worst, rel=1e-15)
        # Local: each report has its own noise, wherever it is.
        worst = max(sqrt(sum(split)) for split in every)
        assert limit.composition(local=True) == pytest.approx(worst, rel=1e-15)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
@pytest.mark.parametrize("name", ["total", "per_epoch"])
def test_limit_that_is_no_count_is_refused(name: str, value: object) -> None:
    with pytest.raises(
        ConfigurationError, match=f"{name} contributions must be a whole number of 1"
    ):
        UserLimit(**({"total": 3} | {name: value}))


def test_epoch_cap_above_the_total_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot exceed the total"):
        UserLimit(total=2, per_epoch=3)


# -- the counts of a repository -------------------------------------------------------------------


def visits(rows: MemoryRows, users: Sequence[UserId], epoch: int, limit: UserLimit) -> list[bool]:
    """Which of these visits are within the limit."""
    check_users(users)
    digests = [user_digest(user, rows.salt) for user in users]
    return [bool(within) for within in rows.reserve(MemoryUnit(), digests, epoch, limit)]


def counts(rows: MemoryRows, user: UserId) -> Counter[int]:
    return Counter(rows.visits_of(user_digest(user, rows.salt)))


def test_cap_in_all_and_per_epoch() -> None:
    """A visit over either limit is told so, and is not counted."""
    rows, limit = MemoryRows(1), UserLimit(total=3, per_epoch=2)
    assert visits(rows, ["ann", "ann", "bob"], 1, limit) == [True, True, True]
    assert visits(rows, ["ann"], 1, limit) == [False]
    assert visits(rows, ["ann"], 2, limit) == [True]
    assert visits(rows, ["ann"], 3, limit) == [False]
    assert visits(rows, ["bob", "bob", "bob"], 3, limit) == [True, True, False]
    assert visits(rows, ["bob"], 4, limit) == [False]
    assert counts(rows, "ann") == {1: 2, 2: 1}
    assert counts(rows, "bob") == {1: 1, 3: 2}
    assert counts(rows, "eve") == {}


@given(
    seen=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=30),
    total=st.integers(1, 4),
    per_epoch=st.integers(1, 2),
)
def test_nobody_is_counted_beyond_the_limit_nor_for_the_visits_of_others(
    seen: list[tuple[str, int]], total: int, per_epoch: int
) -> None:
    """Counts stay within the limit, and each user's are those they would have alone."""
    limit = UserLimit(total=total, per_epoch=min(per_epoch, total))
    together = MemoryRows(1)
    alone = {user: MemoryRows(1) for user in "abc"}
    for user, epoch in sorted(seen, key=lambda visit: visit[1]):
        told = visits(together, [user], epoch, limit)
        assert told == visits(alone[user], [user], epoch, limit)
    for user in "abc":
        found = counts(together, user)
        assert found == counts(alone[user], user)
        assert found.total() <= limit.total
        assert max(found.values(), default=0) <= limit.per_epoch


@pytest.mark.parametrize("user", [1.5, True, None, b"ann", ["ann"]])
def test_id_of_another_kind_is_refused(user: object) -> None:
    """Types are public; nobody of such a batch is counted."""
    rows = MemoryRows(1)
    with pytest.raises(ConfigurationError, match="a string or an integer"):
        visits(rows, ["ann", user], 1, UserLimit(total=1))  # type: ignore[list-item]
    assert not rows.counted


def test_number_and_its_text_are_two_users() -> None:
    rows = MemoryRows(1)
    visits(rows, [1, "1"], 1, UserLimit(total=1))
    assert counts(rows, 1) == counts(rows, "1") == {1: 1}


def test_state_holds_digests_under_a_salt_of_its_own() -> None:
    """Two repositories agree on no digest, and no id is in plain sight."""
    states = []
    for _ in range(2):
        rows = MemoryRows(1)
        visits(rows, [SECRET_ID, 31337], 1, UserLimit(total=1))
        states.append(rows.users())
        assert SECRET_ID not in repr(rows) + str(states[-1])
        assert "31337" not in repr(rows) + str(list(states[-1]["counts"]))
    assert not set(states[0]["counts"]) & set(states[1]["counts"])


def test_counts_go_on_after_a_restart() -> None:
    rows, again, limit = MemoryRows(1), MemoryRows(1), UserLimit(total=2)
    visits(rows, ["ann"], 1, limit)
    again.restore_users(rows.users())
    assert visits(again, ["ann"], 2, limit) == [True]
    assert visits(again, ["ann"], 3, limit) == [False]


# -- the policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "per_user", "per_epoch", "factor"),
    [
        ("joint", 3, 1, sqrt(3)),
        ("joint", 3, 3, 3.0),
        ("joint", 5, 2, 3.0),
        ("local", 3, 1, sqrt(3)),
        ("local", 3, 3, sqrt(3)),
    ],
)
@pytest.mark.parametrize("calibration", ["analytic", "paper"])
def test_cap_is_paid_for_in_noise(
    model: str, per_user: int, per_epoch: int, factor: float, calibration: str
) -> None:
    """k contributions in k epochs need sqrt(k) times the noise; in one epoch, k times."""
    once = small_policy(model=model, calibration=calibration)
    often = small_policy(
        model=model,
        calibration=calibration,
        contributions_per_user=per_user,
        contributions_per_epoch=per_epoch,
    )
    play_epoch(once)
    users = list(range(often.remaining))
    often.update_many(often.act_many(np.zeros((len(users), 1)), users=users), np.zeros(len(users)))
    often.close_epoch()
    assert often.epochs[0].sigma_max == once.epochs[0].sigma_max
    assert often.epochs[0].noise_scale / once.epochs[0].noise_scale == pytest.approx(
        factor, rel=1e-5
    )
    # What any user can have lost at most is the promise, however often they came.
    assert often.ledger.spent.epsilon <= often.ledger.budget.epsilon
    if calibration == "analytic":
        assert often.ledger.spent.epsilon == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("seed", [None, 3], ids=["private", "simulation"])
def test_user_over_the_cap_is_served_and_contributes_zero(seed: int | None) -> None:
    """Their visits take slots, get actions of the law and are told; their rewards count nothing."""
    policy = small_policy(contributions_per_user=1, simulation_seed=seed)
    first = policy.act([0.3], user=SECRET_ID)
    over = policy.act_many([[0.3], [0.6], [0.3]], users=[SECRET_ID, "bob", SECRET_ID])
    served, limited = capri.VisitStatus.SERVED, capri.VisitStatus.OVER_LIMIT
    assert first.status is served
    assert over.status.tolist() == [limited, served, limited]
    assert over.propensity.tolist() == [1 / 3] * 3
    assert policy.remaining == 4
    assert policy.ledger.spent_by(SECRET_ID) == policy.ledger.spent_by("bob")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
        codes = policy.update_many(over, np.ones(3))
    accepted, uncounted = capri.RewardStatus.ACCEPTED, capri.RewardStatus.UNCOUNTED
    assert codes.tolist() == [uncounted, accepted, uncounted]


def test_sum_is_the_same_whether_a_user_over_the_cap_is_rewarded_or_absent() -> None:
    """The integers before the gate: a visit over the limit adds the zero vector."""
    sums = []
    for extra in (True, False):
        policy = small_policy(contributions_per_user=1)
        decisions = [policy.act([0.3], user="ann")]
        if extra:
            decisions += [policy.act([1.0], user="ann"), policy.act([0.6], user="ann")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
            policy.update_many(decisions, np.ones(len(decisions)))
        sums.append(open_epoch(policy).total.tolist())
    assert sums[0] == sums[1] != [0] * len(sums[0])


def test_refused_id_at_the_end_of_an_epoch_changes_nothing(tmp_path: Path) -> None:
    """An id of a wrong type is refused before it could release an epoch whose rewards come."""
    policy = small_policy(contributions_per_user=1)
    count = policy.remaining
    policy.act_many(np.zeros((count, 1)), users=list(range(count)))
    before = snapshot(policy, tmp_path)
    with pytest.raises(ConfigurationError, match="a string or an integer"):
        policy.act([0.3], user=1.5)
    assert snapshot(policy, tmp_path) == before


def test_ids_are_needed_with_a_cap_and_only_then(tmp_path: Path) -> None:
    with_ids, without = small_policy(contributions_per_user=2), small_policy()
    with pytest.raises(ConfigurationError, match="user ids are needed"):
        with_ids.act([0.3])
    with pytest.raises(ConfigurationError, match="user ids are needed"):
        without.act([0.3], user="ann")
    with pytest.raises(ShapeError, match="one user id per context"):
        with_ids.act_many([[0.3], [0.6]], users=["ann"])


@pytest.mark.parametrize("seed", [None, 3], ids=["private", "simulation"])
def test_cap_survives_a_restart(tmp_path: Path, seed: int | None) -> None:
    policy = small_policy(contributions_per_user=1, simulation_seed=seed)
    policy.act([0.3], user=SECRET_ID)
    policy.save(tmp_path / "policy")
    loaded = capri.Capri.load(tmp_path / "policy")
    assert loaded.act([0.3], user=SECRET_ID).status is capri.VisitStatus.OVER_LIMIT
    assert loaded.act([0.3], user="bob").status is capri.VisitStatus.SERVED
    assert SECRET_ID.encode() not in (tmp_path / "policy").read_bytes()
