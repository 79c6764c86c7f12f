"""Nothing a user gave shows anywhere but in the noisy release, and bad input changes nothing."""

import copy
import json
import logging
import pickle
import struct
import traceback
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import CONTEXTS, play_epoch, small_policy, snapshot
from capri.epoch.storage import read_policy_file
from capri.errors import CapriError, ConfigurationError, HorizonError
from capri.privacy.layout import Norm
from capri.privacy.noise import SecureNoise
from epochs_inside import open_epoch

# Values that occur nowhere by accident: a hit in decimal, hexadecimal or bytes is a leak.
CONTEXT, REWARD, BEYOND = 0.7319528461903277, 0.41827364509173, 271.8281934652
USER = "katherine.johnson@example.org"


def traces(value: float) -> list[bytes]:
    """Forms in which a number may show: decimal digits, hexadecimal, memory of both orders."""
    digits = f"{value:.17g}".replace(".", "").lstrip("0")
    return [
        repr(value)[:8].encode(),  # also if printed with fewer digits
        f"{value:.6f}".encode(),
        digits[:9].encode(),
        value.hex().encode(),
        struct.pack("<d", value),
        struct.pack(">d", value),
        struct.pack("<f", value),
        struct.pack("<d", value).hex().encode(),
    ]


PLANTED = [trace for value in (CONTEXT, REWARD, BEYOND) for trace in traces(value)]
PLANTED.append(USER.encode())


def assert_clean(*texts: object) -> None:
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode()
        for trace in PLANTED:
            assert trace not in data, f"leak: {trace!r}"


def with_planted(policy: capri.Capri) -> list[capri.Decision]:
    """Three decisions for the planted user; the first two get the planted rewards."""
    users: dict[str, Any] = {} if policy._users is None else {"user": USER}
    decisions = [policy.act([CONTEXT], **users) for _ in range(3)]
    policy.update(decisions[0], REWARD)
    policy.update(decisions[1], BEYOND)
    return decisions


@pytest.fixture(params=["joint", "local"])
def private(request: pytest.FixtureRequest) -> capri.Capri:
    return small_policy(
        simulation_seed=None,
        model=request.param,
        contributions_per_user=60,
        contributions_per_epoch=60,
    )


def test_scan_would_find_a_leak() -> None:
    for form in (
        f"context {CONTEXT}",
        f"[{CONTEXT:.10g}]",
        np.array([1.0, REWARD]).tobytes(),
        USER,
    ):
        with pytest.raises(AssertionError, match="leak"):
            assert_clean(form)
    with pytest.raises(AssertionError, match="leak"):
        assert_clean(str(np.array([CONTEXT])))


# -- what is shown --------------------------------------------------------------------------------


def test_logs_output_and_warnings_are_silent(
    private: capri.Capri, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Everything turned on: the debug log, both streams, every warning."""
    caplog.set_level(logging.DEBUG)
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            decisions = with_planted(private)
            private.update(decisions[0], REWARD)  # duplicate
            count = private.remaining
            private.act_many(np.full((count, 1), CONTEXT), users=[USER] * count)
            private.close_epoch()
            private.update(decisions[2], REWARD)  # late
            private.update("AAAAAAAAAAAAAAAAAAAA", REWARD)  # unknown
            private.update(private.act([float("nan")], user=USER), REWARD)  # uncounted
            private.update(private.act([CONTEXT], user=USER), None)  # invalid
    finally:
        logging.captureWarnings(False)
    captured = capfd.readouterr()
    assert caplog.records == []
    assert (captured.out, captured.err) == ("", "")
    assert caught == [], "a private run never warns: what became of a reward is its caller's"


def everything_shown(policy: capri.Capri, decisions: list[capri.Decision]) -> list[str]:
    """repr and str of every object a caller can get hold of."""
    many = policy.act_many([[CONTEXT], [CONTEXT]], users=[USER, USER])
    policy.update_many(many, [REWARD, BEYOND])
    objects: list[object] = [
        policy,
        policy.guarantee,
        *decisions,
        many,
        many[0],
        policy.epochs,
        policy.ledger,
        policy.ledger.events,
        policy.ledger.spent,
        policy.ledger.spent_by(USER),
        policy.certificate(),
        policy.certificate().to_json(),
        policy.certificate().to_html(),
        policy._engine,
        policy._engine.repository,
        policy._engine.repository.rows,
        policy._users,
        policy._gate,
        policy._streams,
        policy._gate._source,
        policy._learning.learner,
        policy._problem,
        policy.plan(),
        policy._learning,
        policy._engine.state,
    ]
    return [text for thing in objects for text in (repr(thing), str(thing), f"{thing}")]


def test_nothing_prints_what_users_did(private: capri.Capri) -> None:
    decisions = with_planted(private)
    assert_clean(*everything_shown(private, decisions))
    count = private.remaining
    private.act_many(np.full((count, 1), CONTEXT), users=[USER] * count)
    private.close_epoch()
    assert_clean(*everything_shown(private, decisions))


def test_decision_shows_its_number_only() -> None:
    """Action, propensity and status belong to the user: not in repr. Look at new fields."""
    assert {field.name for field in fields(capri.Decision) if field.repr} == {"id", "epoch"}
    assert {field.name for field in fields(capri.Decisions) if field.repr} == {"epoch"}


def test_files_hold_no_data(private: capri.Capri, tmp_path: Path) -> None:
    """Open epoch with data, then closed: bytes of the file, of every member, of every array."""
    with_planted(private)
    for name in ("open", "closed"):
        if name == "closed":
            count = private.remaining
            private.act_many(np.full((count, 1), CONTEXT), users=[USER] * count)
            private.close_epoch()
        private.save(tmp_path / name)
        assert_clean((tmp_path / name).read_bytes())
        with zipfile.ZipFile(tmp_path / name) as bundle:
            for member in bundle.namelist():
                assert_clean(bundle.read(member))
        values, stored = read_policy_file(tmp_path / name)
        assert not any("rows." in key for key in stored)
        assert_clean(json.dumps(values), *(repr(array.tolist()) for array in stored.values()))
        for array in stored.values():
            assert not np.isclose(array.astype(float), CONTEXT, atol=1e-9).any()


def test_simulation_does_store_the_open_epoch(tmp_path: Path) -> None:
    """The contrast: the scan above sees a file that holds data."""
    policy = small_policy()
    policy.act([CONTEXT])
    policy.save(tmp_path / "policy")
    with pytest.raises(AssertionError, match="leak"):
        assert_clean((tmp_path / "policy").read_bytes())


def test_pickle_holds_no_data(private: capri.Capri) -> None:
    with_planted(private)
    try:
        data = pickle.dumps(private)
    except (CapriError, TypeError):
        return  # refusing will do
    assert_clean(data)


def test_rewards_leave_no_trace_in_an_open_private_epoch(
    private: capri.Capri, tmp_path: Path
) -> None:
    """File, repr, ledger and records are the same before and after rewards: no value, no count."""
    decisions = [private.act([0.3], user=number) for number in range(5)]

    def public() -> Any:
        return (
            snapshot(private, tmp_path),
            repr(private),
            private.ledger.events,
            private.epochs,
            private.remaining,
            private.estimate(CONTEXTS).tobytes(),
            private.active(CONTEXTS).tobytes(),
            repr(private._engine),
            repr(private._engine.repository.rows),
        )

    before = public()
    for decision in decisions:
        private.update(decision, REWARD)
        assert public() == before


def test_contexts_leave_no_trace_in_an_open_private_epoch(tmp_path: Path) -> None:
    """Two continuations of one file that differ in their users' contexts save the same file."""
    policy = small_policy(simulation_seed=None)
    policy.act([0.3])
    policy.save(tmp_path / "start")
    states = []
    for context in (0.3, CONTEXT, 1e6, -5e-324):
        loaded = capri.Capri.load(tmp_path / "start", take_over=True)
        loaded.update(loaded.act([context]), context)
        states.append(snapshot(loaded, tmp_path))
    assert all(state == states[0] for state in states)


def test_clipping_is_not_shown(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A reward beyond its bound and one at it are the same, and nobody is told."""
    states = []
    for reward in (1.0, BEYOND, 1e308):
        policy = small_policy()
        decision = policy.act([0.3])
        assert policy.update(decision, reward) is capri.RewardStatus.ACCEPTED
        states.append(snapshot(policy, tmp_path))
    assert all(state == states[0] for state in states)
    assert not recwarn.list


# -- swapping one user's data ---------------------------------------------------------------------


def run_with(
    swap: dict[int, tuple[float, float]],
    tmp_path: Path,
    *,
    end: int,
    one_by_one: bool,
    **changes: Any,
) -> tuple[list[bytes], list[Any], list[bytes]]:
    """Actions of all decisions up to ``end``, estimates after each epoch, and states before it.

    ``swap`` gives the context and reward of some decisions instead of the usual ones.
    """
    policy = small_policy(**changes)
    rng = np.random.default_rng(4)
    contexts, rewards = rng.choice(CONTEXTS[:, 0], 24), rng.uniform(-1, 1, 24)
    for number, (context, reward) in swap.items():
        contexts[number], rewards[number] = context, reward
    actions: list[bytes] = []
    states: list[Any] = []
    estimates: list[bytes] = []
    start = 0
    while start < end:
        stop = start + policy.remaining
        part = slice(start, stop)
        if one_by_one:
            decisions = [policy.act([context]) for context in contexts[part]]
        else:
            decisions = list(policy.act_many(contexts[part, None]))
        actions += [struct.pack("<qd", d.action_index, d.propensity) for d in decisions]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
            policy.update_many(decisions, rewards[part])
        policy.close_epoch()
        if stop < end:
            states.append(snapshot(policy, tmp_path))
        estimates.append(policy.estimate(CONTEXTS).tobytes())
        start = stop
    return actions, states, estimates


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper"},
    "practical": {"preset": "practical", "first_epoch": 8, "growth": 2.0, "draws": 8},
}
MODELS = [("joint", "paper"), ("joint", "practical"), ("local", "paper")]


@pytest.mark.parametrize(("model", "preset"), MODELS)
@pytest.mark.parametrize("one_by_one", [True, False], ids=["act", "act_many"])
@pytest.mark.parametrize("number", [0, 3, 7, 8, 23])
def test_one_user_changes_no_other_action_of_the_epoch_and_no_earlier_release(
    tmp_path: Path, preset: str, model: str, one_by_one: bool, number: int
) -> None:
    """Fixed action randomness, epochs of 8 and 16: byte for byte, for any data of the user."""
    end = 8 if number < 8 else 24
    settings: dict[str, Any] = {"end": end, "one_by_one": one_by_one, "model": model}
    settings |= PRESETS[preset]
    actions, states, estimates = run_with({}, tmp_path, **settings)
    assert len(actions) == end
    assert len(states) == (number >= 8)
    nan, inf = float("nan"), float("inf")
    values = [(0.0, 1.0), (1.0, -1.0), (CONTEXT, REWARD), (1e6, 0.0), (-2.5, 1e308)]
    for data in (*values, (nan, 1.0), (0.3, nan), (inf, -inf)):
        changed = run_with({number: data}, tmp_path, **settings)
        others = [i for i in range(end) if i != number]
        assert [changed[0][i] for i in others] == [actions[i] for i in others]
        if number >= 8:
            assert changed[1][0] == states[0]
            assert changed[2][0] == estimates[0]
        # And the release of the user's own epoch does change: the data was there.
        if data == values[0]:
            assert changed[2][-1] != estimates[-1]


@pytest.mark.parametrize(("model", "preset"), MODELS)
def test_missing_reward_is_a_zero_reward(tmp_path: Path, model: str, preset: str) -> None:
    """Seeded: the same bits leave the gate, and all that follows is the same."""
    states = []
    for zero in (True, False):
        policy = small_policy(model=model, **PRESETS[preset])
        play_epoch(policy)  # from the second epoch on a zero may be encoded as a residual
        decisions = policy.act_many(np.full((policy.remaining, 1), 0.3))
        policy.update_many(list(decisions)[1:], np.linspace(-1, 1, len(decisions) - 1))
        if zero:
            policy.update(decisions[0], 0.0)
        policy.close_epoch()
        states.append((snapshot(policy, tmp_path), policy.estimate(CONTEXTS).tobytes()))
    assert states[0] == states[1]


@pytest.mark.parametrize("rewarded", [0, 1, 5, 8])
def test_local_release_carries_the_noise_of_every_report(
    monkeypatch: pytest.MonkeyPatch, rewarded: int
) -> None:
    """Eight decisions, eight noise vectors, however many rewards came: the count stays hidden."""
    drawn: list[int] = []
    honest = SecureNoise.add

    def counted(
        self: SecureNoise, values: Any, scale: float, reports: int = 1, norm: Any = Norm.L2
    ) -> Any:
        drawn.append(reports)
        return honest(self, values, scale, reports, norm)

    monkeypatch.setattr(SecureNoise, "add", counted)
    policy = small_policy(simulation_seed=None, model="local")
    decisions = policy.act_many(np.full((policy.remaining, 1), 0.3))
    assert len(decisions) == 8
    for decision in list(decisions)[:rewarded]:
        policy.update(decision, 0.5)
    policy.close_epoch()
    assert sum(drawn) == 8


def test_epoch_closes_on_the_number_of_decisions() -> None:
    """Never before its last decision, whatever rewards came; then without any reward at all."""
    policy = small_policy(simulation_seed=None)
    length = policy.remaining
    decisions = [policy.act([0.3]) for _ in range(length - 1)]
    for decision in decisions:
        policy.update(decision, 1.0)
    assert policy.epochs == ()
    with pytest.raises(HorizonError, match="closes on its number of decisions"):
        policy.close_epoch()
    silent = small_policy(simulation_seed=None)
    silent.act_many(np.full((length, 1), 0.3))
    silent.act([0.3])
    assert len(silent.epochs) == 1


@pytest.mark.parametrize("model", ["joint", "local"])
def test_private_records_carry_no_clock(model: str, tmp_path: Path) -> None:
    """A clock near private data tells of it: none in records, none in files, open or closed."""
    policy = small_policy(simulation_seed=None, model=model)
    play_epoch(policy)
    policy.act([0.3])
    assert policy.epochs[0].seconds is None
    policy.save(tmp_path / "policy")
    values, _ = read_policy_file(tmp_path / "policy")
    law = values["repository"]["tables"]["laws"][-1]["state"]
    assert law["learning"]["epochs"][0]["seconds"] is None
    assert law["plan_seconds"] == 0


# -- bad input ------------------------------------------------------------------------------------

# Values that are no numbers: private, so they are served, and counted as nothing.
NO_VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "none": None,
    "huge int": 10**400,
}
# Types that are no numbers: private as values are, so they are missing ones.
OTHER_TYPES: dict[str, Any] = {
    "text": "0.41827364509173",
    "bytes": b"0.41827364509173",
    "complex": 0.41827364509173 + 1j,
    "object": object(),
    "date": np.datetime64("2024-01-01"),
    "dict": {"reward": REWARD},
}
NUMBERS: dict[str, Any] = {
    "1e308": 1e308,
    "-1e308": -1e308,
    "-0.0": -0.0,
    "denormal": 5e-324,
    "int": 1,
    "large int": 2**63,
    "bool": True,
    "float32": np.float32(0.25),
    "int8": np.int8(-1),
}


def rejected(action: Callable[[], object], policy: capri.Capri, folder: Path) -> CapriError:
    """The error an action raises, after checking that it changed nothing and tells nothing."""
    before = snapshot(policy, folder)
    with pytest.raises(CapriError) as caught:
        action()
    assert snapshot(policy, folder) == before
    assert_clean(str(caught.value), repr(caught.value))
    assert_clean("".join(traceback.format_exception(caught.value)))
    return caught.value


@pytest.mark.parametrize("value", NO_VALUES.values(), ids=NO_VALUES)
def test_reward_that_is_no_number_is_a_missing_one(tmp_path: Path, value: Any) -> None:
    """Alone and in a batch: it changes nothing, the good ones count, and it may come again."""
    policy, twin = small_policy(), small_policy()
    decisions, same = policy.act_many([[0.3], [0.6]]), twin.act_many([[0.3], [0.6]])
    before = snapshot(policy, tmp_path)
    with pytest.warns(capri.RewardIgnoredWarning, match="invalid"):
        assert policy.update(decisions[0], value) is capri.RewardStatus.INVALID
    assert snapshot(policy, tmp_path) == before
    with pytest.warns(capri.RewardIgnoredWarning, match="invalid"):
        codes = policy.update_many(decisions, [value, REWARD])
    assert codes.tolist() == [capri.RewardStatus.INVALID, capri.RewardStatus.ACCEPTED]
    twin.update(same[1], REWARD)
    assert snapshot(policy, tmp_path) == snapshot(twin, tmp_path)
    assert policy.update(decisions[0], 0.5) is capri.RewardStatus.ACCEPTED


@pytest.mark.parametrize("other", [True, np.bool_(True), np.int8(1), 1, 2**70], ids=repr)
@pytest.mark.parametrize("value", NO_VALUES.values(), ids=NO_VALUES)
def test_value_that_is_missing_does_not_decide_over_the_others(other: Any, value: Any) -> None:
    """A list with a None has another type for NumPy; its other numbers are taken all the same."""
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many([[other], [value]])
    assert decisions.status.tolist() == [capri.VisitStatus.SERVED, capri.VisitStatus.INVALID]
    decisions = policy.act_many([[0.3], [0.6]])
    codes = policy.update_many(decisions, [other, value])
    assert codes.tolist() == [capri.RewardStatus.ACCEPTED, capri.RewardStatus.INVALID]


@pytest.mark.parametrize("value", NO_VALUES.values(), ids=NO_VALUES)
def test_context_that_is_no_number_is_served(tmp_path: Path, value: Any) -> None:
    policy, twin = small_policy(), small_policy()
    bad = [policy.act([value]), *policy.act_many([[CONTEXT], [value]])]
    good = [twin.act([0.3]), *twin.act_many([[CONTEXT], [0.3]])]
    invalid, served = capri.VisitStatus.INVALID, capri.VisitStatus.SERVED
    assert [each.status for each in bad] == [invalid, served, invalid]
    assert [each.id for each in bad] == [each.id for each in good]
    assert bad[1] == good[1]
    assert [bad[0].propensity, bad[2].propensity] == [1 / 3] * 2
    # Whoever asks about a law asks in public, and is told that a question makes no sense.
    for ask in (policy.estimate, policy.active, policy.probabilities):
        rejected(lambda ask=ask: ask([[value]]), policy, tmp_path)


@pytest.mark.parametrize("value", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_reward_of_another_type_is_missing(tmp_path: Path, value: Any) -> None:
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many([[0.3], [0.6]])
    assert policy.update(decisions[0], value) is capri.RewardStatus.INVALID
    codes = policy.update_many(decisions, [REWARD, value])
    assert codes.tolist() == [capri.RewardStatus.ACCEPTED, capri.RewardStatus.INVALID]
    assert policy.update(decisions[1], 0.5) is capri.RewardStatus.ACCEPTED


@pytest.mark.parametrize("value", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_context_of_another_type_is_served(tmp_path: Path, value: Any) -> None:
    for form in (value, [value], [[value]]):
        policy, twin = small_policy(), small_policy()
        bad = [policy.act(form), *policy.act_many([[CONTEXT], form])]
        good = [twin.act([0.3]), *twin.act_many([[CONTEXT], [0.3]])]
        assert [str(each.status) for each in bad] == ["invalid", "served", "invalid"]
        assert [each.id for each in bad] == [each.id for each in good]
        assert bad[1] == good[1]
    rejected(lambda: policy.act_many(value), policy, tmp_path)  # no list at all
    for ask in (policy.estimate, policy.active):
        rejected(lambda ask=ask: ask([[value]]), policy, tmp_path)


@pytest.mark.parametrize(
    "shape",
    [
        [CONTEXT, CONTEXT],
        [[CONTEXT, CONTEXT]],
        [[[CONTEXT]]],
        [[CONTEXT], [CONTEXT, CONTEXT]],
        [[]],
    ],
    ids=["two numbers", "two columns", "three axes", "ragged", "empty"],
)
def test_context_of_another_shape_is_rejected(tmp_path: Path, shape: Any) -> None:
    """Where no context of a call has the right one."""
    policy = small_policy(contexts=capri.ContextPool(np.zeros((2, 3))))
    rejected(lambda: policy.act(shape), policy, tmp_path)
    rejected(lambda: policy.act_many(shape), policy, tmp_path)
    assert len(policy.act_many([])) == 0


def test_rewards_of_another_shape_are_rejected(tmp_path: Path) -> None:
    policy = small_policy()
    decisions = policy.act_many([[0.3], [0.6]])
    for rewards in ([REWARD], [REWARD] * 3, np.array([[REWARD], [REWARD]]), REWARD):
        rejected(lambda rewards=rewards: policy.update_many(decisions, rewards), policy, tmp_path)


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
def test_any_finite_reward_is_clipped(tmp_path: Path, value: Any) -> None:
    """Documented: clipped to [-B, B], never an error, and the sum stays within its bound."""
    states = []
    for reward in (value, float(np.clip(float(value), -1, 1))):
        policy = small_policy()
        decision = policy.act([0.3])
        assert policy.update(decision, reward) is capri.RewardStatus.ACCEPTED
        squared = sum(int(unit) ** 2 for unit in open_epoch(policy).total)
        assert squared <= policy.plan().layout.norm_limit ** 2
        states.append(snapshot(policy, tmp_path))
    assert states[0] == states[1]


@pytest.mark.parametrize("kernel", ["Matern", "RBF", "RationalQuadratic"])
@pytest.mark.parametrize(
    "value",
    [
        *NUMBERS.values(),
        1e200,
    ],
    ids=str,
)
def test_any_finite_context_is_served(kernel: str, value: Any) -> None:
    """One user's odd context must not spoil the epoch of the others, with or without a reward."""
    for reward in (None, 1.0):
        policy = small_policy(kernel=getattr(capri.kernels, kernel)(lengthscale=0.3))
        left = policy.remaining
        decision = policy.act([value])
        assert policy.remaining == left - 1
        counts = abs(float(value)) <= 1e100
        assert (decision.status is capri.VisitStatus.SERVED) == counts
        if reward is not None and counts:
            assert policy.update(decision, reward) is capri.RewardStatus.ACCEPTED
        for _ in range(policy.remaining):
            policy.act([0.3])
        policy.close_epoch()
        assert len(policy.epochs) == 1
        assert np.isfinite(policy.estimate(CONTEXTS)).all()


def test_minus_zero_and_a_denormal_are_ordinary(tmp_path: Path) -> None:
    """-0.0 is 0.0 to the bit: the same pool row and the same file; a denormal is a context."""
    states = []
    for zero in (0.0, -0.0):
        policy = small_policy()
        policy.update(policy.act([zero]), zero)
        states.append(snapshot(policy, tmp_path))
    assert states[0] == states[1]
    policy = small_policy()
    policy.update(policy.act([5e-324]), 5e-324)


def test_context_beyond_the_kernel_is_served_and_clipped() -> None:
    """``k(w, w) > 1`` at a user's context is the user's secret: the contribution is cut to the
    bound of all others, in integers, and the visit is like any other."""
    policy = small_policy(
        kernel=capri.kernels.Linear(),
        contexts=capri.ContextPool([[0.1], [0.2]]),
        actions=[[0.0], [0.5]],
    )
    for context in (BEYOND, -BEYOND, 1e99):
        decision = policy.act([context])
        assert decision.status is capri.VisitStatus.SERVED
        before = open_epoch(policy).total
        assert policy.update(decision, 1.0) is capri.RewardStatus.ACCEPTED
        moved = open_epoch(policy).total - before
        squared = sum(int(unit) ** 2 for unit in moved)
        assert squared <= policy.plan().layout.norm_limit ** 2
    policy.act_many([[0.1]] * policy.remaining)
    policy.close_epoch()
    assert np.isfinite(policy.estimate([[0.1], [0.2]])).all()


BAD_BUDGETS = [-1.0, float("inf"), float("-inf"), float("nan"), True, "1", None, 1j]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("epsilon", "delta") for value in BAD_BUDGETS),
        ("epsilon", 0),
        ("epsilon", 0.0),
    ],
    ids=str,
)
def test_budget_that_promises_nothing_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        capri.Budget(**({"epsilon": 1.0, "delta": 1e-5} | {name: value}))


@pytest.mark.parametrize("delta", [1.0, 1.5])
def test_delta_of_one_promises_nothing(delta: float) -> None:
    with pytest.raises(ConfigurationError, match="delta"):
        capri.Budget(epsilon=1.0, delta=delta)


def test_more_decisions_than_the_epoch_or_the_horizon_has(tmp_path: Path) -> None:
    policy = small_policy()
    policy.act([0.3])
    error = rejected(
        lambda: policy.act_many(np.full((policy.remaining + 1, 1), CONTEXT)), policy, tmp_path
    )
    assert isinstance(error, HorizonError)
    while policy.remaining:
        play_epoch(policy)
    assert len(policy.epochs) == 4
    for action in (lambda: policy.act([CONTEXT]), lambda: policy.act_many([[CONTEXT]])):
        assert isinstance(rejected(action, policy, tmp_path), HorizonError)
    assert len(policy.epochs) == 4


def test_ignored_rewards_change_nothing(tmp_path: Path) -> None:
    """Late, duplicate, unknown: a warning without a value, and the same state."""
    policy = small_policy()
    late = play_epoch(policy)[0]
    decision = policy.act([0.3])
    policy.update(decision, 0.5)
    before = snapshot(policy, tmp_path)
    unknown = capri.Decision("seven", 2, 0, np.zeros(1), 1.0)
    negative = "AAAAAAAAAAAAAAAAAAAA"
    for other, status in (
        (late, "late"),
        (decision, "duplicate"),
        (unknown, "unknown"),
        (negative, "unknown"),
    ):
        with pytest.warns(capri.RewardIgnoredWarning, match=status) as caught:
            assert str(policy.update(other, REWARD)) == status
        assert_clean(*(str(warning.message) for warning in caught))
        assert snapshot(policy, tmp_path) == before


def test_private_policy_is_neither_copied_nor_pickled() -> None:
    """Saving is the one way out, and saving knows what is secret. Simulations may be copied."""
    private, simulation = small_policy(simulation_seed=None), small_policy()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            duplicate(private)
    again = copy.deepcopy(simulation)
    played = [play_epoch(policy).action_index.tolist() for policy in (simulation, again)]
    assert played[0] == played[1]
