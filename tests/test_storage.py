"""Saved policies: bit-for-bit continuation, no secrets, no pickle, and no half-read files."""

import io
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import (
    BUDGET,
    CONTEXTS,
    draw_contexts,
    play_epoch,
    records,
    small_policy,
    snapshot,
)
from capri import Capri, RewardIgnoredWarning, RewardStatus, StorageError
from epochs_inside import open_epoch

every_model = pytest.mark.parametrize("model", ["joint", "local"])
every_form = pytest.mark.parametrize("features", ["low-rank", "dense"])


def uniform_sampler(dimension: int = 1) -> capri.ContextSampler:
    return capri.ContextSampler(
        lambda generator, count: generator.random((count, dimension)), dimension
    )


def unpack(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The two parts of a bundle, read without the package."""
    with zipfile.ZipFile(path) as bundle:
        values = json.loads(bundle.read("state.json"))
    with np.load(path, allow_pickle=False) as stored:
        return values, {name: stored[name] for name in stored.files if name != "state.json"}


def pack(path: Path, values: Any, arrays: dict[str, Any], **save: Any) -> None:
    """Write a bundle by hand, right or wrong."""
    with path.open("wb") as file:
        np.savez(file, **arrays, **save)
    with zipfile.ZipFile(path, "a") as bundle:
        bundle.writestr("state.json", json.dumps(values))


def play_to_the_end(policy: Capri) -> None:
    while policy.remaining:
        play_epoch(policy, seed=policy.remaining)


# -- round trips ----------------------------------------------------------------------------------


@every_model
@every_form
def test_simulation_saved_between_epochs_continues_bit_for_bit(
    model: str, features: str, tmp_path: Path
) -> None:
    policy = small_policy(model=model, features=features)
    play_epoch(policy, seed=1)
    policy.save(tmp_path / "policy.capri")
    loaded = Capri.load(tmp_path / "policy.capri")
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)
    for each in (policy, loaded):
        play_to_the_end(each)
    np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))
    assert records(loaded) == records(policy)
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)


@every_model
@every_form
def test_simulation_saved_within_an_epoch_continues_bit_for_bit(
    model: str, features: str, tmp_path: Path
) -> None:
    """Open decisions, rewards given, rewards missing and the sum so far all come back."""
    policy = small_policy(model=model, features=features)
    play_epoch(policy, seed=1)
    decisions = policy.act_many(draw_contexts(2, 9))
    policy.update_many(list(decisions)[:4], [0.1, -0.9, 0.4, 2.0])
    policy.save(tmp_path / "policy.capri")
    loaded = Capri.load(tmp_path / "policy.capri")
    assert loaded.remaining == policy.remaining == 7
    for each in (policy, loaded):
        assert each.update(decisions[6], 0.3) is RewardStatus.ACCEPTED
        with pytest.warns(RewardIgnoredWarning, match="duplicate"):
            assert each.update(decisions[0], 0.3) is RewardStatus.DUPLICATE
        last = each.act_many(draw_contexts(3, 7))
        assert last.number.tolist() == list(range(17, 24))
        each.update_many(last, np.linspace(-1, 1, 7))
        play_to_the_end(each)
    np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)


def test_fresh_policy_survives_a_round_trip(tmp_path: Path) -> None:
    policy = small_policy(
        kernel=capri.kernels.ContextAction(
            capri.kernels.RBF(lengthscale=(0.2,)), capri.kernels.Matern(nu=np.inf), 1
        ),
        contexts=capri.ContextPool(CONTEXTS, weights=[0.1, 0.2, 0.3, 0.4]),
        reward_bound=2.5,
        tau=0.1,
        failure_probability=0.2,
        max_rank=7,
        model="local",
    )
    policy.save(tmp_path / "policy.capri")
    loaded = Capri.load(tmp_path / "policy.capri")
    assert snapshot(loaded, tmp_path) == snapshot(policy, tmp_path)
    assert loaded.guarantee == policy.guarantee
    assert loaded.horizon == policy.horizon
    for each in (policy, loaded):
        play_to_the_end(each)
    np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))


def test_closed_epochs_come_back_with_their_clock(tmp_path: Path) -> None:
    policy = small_policy()
    play_epoch(policy)
    policy.save(tmp_path / "policy.capri")
    assert Capri.load(tmp_path / "policy.capri").epochs == policy.epochs


@every_model
def test_run_without_privacy_comes_back_as_one(model: str, tmp_path: Path) -> None:
    policy = small_policy(budget=None, model=model, simulation_seed=None)
    play_epoch(policy)
    policy.save(tmp_path / "policy.capri")
    loaded = Capri.load(tmp_path / "policy.capri")
    assert "no privacy" in loaded.guarantee
    np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))


def test_private_run_comes_back_private_and_with_fresh_randomness(tmp_path: Path) -> None:
    """Two copies of one file must not make the same draws: equal noise would cancel."""
    policy = small_policy(simulation_seed=None)
    play_epoch(policy)
    policy.save(tmp_path / "policy.capri")
    copies = [Capri.load(tmp_path / "policy.capri", take_over=True) for _ in range(2)]
    estimates = []
    for copy in copies:
        assert copy.guarantee == "(1, 1e-05)-joint privacy"
        np.testing.assert_array_equal(copy.estimate(CONTEXTS), policy.estimate(CONTEXTS))
        copy.act_many(draw_contexts(0, 16))
        copy.close_epoch()
        estimates.append(copy.estimate(CONTEXTS))
    assert (estimates[0] != estimates[1]).all()


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    policy = small_policy(
        horizon=np.int64(60), reward_bound=np.float32(1.0), simulation_seed=np.int64(4)
    )
    policy.save(tmp_path / "policy.capri")
    assert Capri.load(tmp_path / "policy.capri").horizon == 60


@pytest.mark.parametrize(
    "changes",
    [
        {"max_rank": np.int64(5)},
        {"tau": np.float32(0.5)},
        {"budget": capri.Budget(epsilon=np.float32(1.0), delta=1e-5)},
    ],
    ids=["max_rank", "tau", "budget"],
)
def test_options_of_numpy_can_be_saved(changes: dict[str, Any], tmp_path: Path) -> None:
    small_policy(**changes).save(tmp_path / "policy.capri")
    assert Capri.load(tmp_path / "policy.capri").horizon == 60


# -- what a private run leaves on disk ------------------------------------------------------------


PLANTED = [0.123456789012345, 0.987654321098765, 0.314159265358979, 0.271828182845905]


def _private_open_policy(model: str) -> Capri:
    """A private run in its second epoch, with planted contexts and rewards in both."""
    policy = small_policy(simulation_seed=None, model=model)
    decisions = policy.act_many(np.array(PLANTED * 2)[:, None])
    policy.update_many(decisions, PLANTED * 2)
    decisions = policy.act_many(np.array(PLANTED)[:, None])
    policy.update_many(list(decisions)[:3], PLANTED[:3])
    return policy


def _all_bytes(path: Path) -> bytes:
    """The file, and each part of each part, uncompressed."""
    found = path.read_bytes()
    with zipfile.ZipFile(path) as bundle:
        for name in bundle.namelist():
            part = bundle.read(name)
            found += part
            if name.endswith(".npz"):
                with zipfile.ZipFile(io.BytesIO(part)) as arrays:
                    found += b"".join(arrays.read(inner) for inner in arrays.namelist())
    return found


@every_model
def test_private_file_holds_no_context_reward_or_sum(model: str, tmp_path: Path) -> None:
    policy = _private_open_policy(model)
    path = tmp_path / "policy.capri"
    policy.save(path)
    content = _all_bytes(path)
    for value in PLANTED:
        assert struct.pack("<d", value) not in content
        assert struct.pack(">d", value) not in content
        assert repr(value)[:10].encode() not in content
    # The sum so far: two neighbouring entries, as integers, floats or text, cannot occur by chance.
    first, second = (int(entry) for entry in open_epoch(policy).total[:2])
    step = policy.plan().layout.step
    assert first != 0
    for form in (
        struct.pack("<2q", first, second),
        struct.pack("<2d", first, second),
        struct.pack("<2d", first * step, second * step),
        f"{first}, {second}".encode(),
    ):
        assert form not in content


def test_premise_the_scan_finds_secrets_of_a_simulation(tmp_path: Path) -> None:
    """The scan above is able to find what it looks for."""
    policy = small_policy()
    policy.act_many(np.array(PLANTED)[:, None])
    policy.save(tmp_path / "policy.capri")
    content = _all_bytes(tmp_path / "policy.capri")
    assert all(struct.pack("<d", value) in content for value in PLANTED)
    policy.update_many([policy.act([0.3])], [0.7])
    policy.save(tmp_path / "policy.capri")
    assert struct.pack("<d", 0.7) in _all_bytes(tmp_path / "policy.capri")


@every_model
def test_private_file_holds_no_generator_and_no_open_book(model: str, tmp_path: Path) -> None:
    policy = _private_open_policy(model)
    policy.save(tmp_path / "policy.capri")
    values, arrays = unpack(tmp_path / "policy.capri")
    assert values["streams"] is None
    assert values["simulated"] is False
    assert not [name for name in arrays if name.startswith("rows.")]
    text = json.dumps(values).lower()
    for word in ("bit_generator", "pcg64", "seed", "noise_state", "waiting", "clipped"):
        assert word not in text
    # Whether and how many rewards arrived is secret too.
    epoch = values["repository"]["tables"]["epochs"][-1]
    known = {"number", "first", "length", "state", "plan"}
    assert {name for name, value in epoch.items() if value is not None} == known


def test_private_file_is_the_same_whatever_the_users_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same plan, other contexts and rewards in the open epoch: the same file."""
    policy = small_policy(simulation_seed=None)
    policy.act([0.3])
    policy.save(tmp_path / "plan.capri")
    twins = [Capri.load(tmp_path / "plan.capri", take_over=True) for _ in range(2)]
    for twin, level in zip(twins, (0.1, 0.9), strict=True):
        decisions = twin.act_many(np.full((5, 1), level))
        twin.update_many(list(decisions)[: int(10 * level) // 2], [level] * (int(10 * level) // 2))
    assert snapshot(twins[0], tmp_path) == snapshot(twins[1], tmp_path)


def test_private_run_loaded_within_an_epoch_counts_lost_rewards_as_missing(tmp_path: Path) -> None:
    policy = small_policy(simulation_seed=None)
    decisions = policy.act_many(draw_contexts(0, 5))
    policy.update_many(list(decisions)[:2], [1.0, 1.0])
    policy.save(tmp_path / "policy.capri")
    loaded = Capri.load(tmp_path / "policy.capri")
    assert loaded.remaining == 3
    # A decision made before the load is nobody's after it, as an object and by its id.
    statuses = loaded.update_many(decisions, np.ones(5))
    assert statuses.tolist() == [RewardStatus.UNKNOWN] * 5
    statuses = loaded.update_many(decisions.id.tolist(), np.ones(5))
    assert statuses.tolist() == [RewardStatus.UNKNOWN] * 5
    rest = loaded.act_many(draw_contexts(1, 3))
    assert not set(rest.id.tolist()) & set(decisions.id.tolist())
    assert rest.epoch == 1
    assert loaded.update_many(rest, np.zeros(3)).tolist() == [0, 0, 0]
    loaded.close_epoch()
    assert len(loaded.epochs) == 1


# -- no pickle ------------------------------------------------------------------------------------


def test_file_is_json_and_plain_arrays(tmp_path: Path) -> None:
    policy = small_policy()
    play_epoch(policy)
    policy.act([0.3])
    path = tmp_path / "policy.capri"
    policy.save(path)
    with zipfile.ZipFile(path) as bundle:
        arrays = [name for name in bundle.namelist() if name != "state.json"]
        assert arrays
        assert all(name.endswith(".npy") for name in arrays)
    values, arrays = unpack(path)  # allow_pickle=False
    assert (values["format"], values["version"]) == ("capri-policy", 3)
    assert all(array.dtype.kind in "fiu" for array in arrays.values())


def test_pickle_hidden_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    policy = small_policy()
    path = tmp_path / "policy.capri"
    policy.save(path)
    values, arrays = unpack(path)
    pack(path, values, arrays | {"actions": np.array([Trap()], dtype=object)}, allow_pickle=True)
    with pytest.raises(StorageError):
        Capri.load(path)
    assert not (tmp_path / "sprung").exists()


# -- damaged files --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    policy = small_policy()
    play_epoch(policy)
    policy.update(policy.act([0.3]), 0.5)
    path = tmp_path / "policy.capri"
    policy.save(path)
    return path


def test_truncated_file_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for end in [*range(0, len(whole), 97), len(whole) - 1]:
        saved.write_bytes(whole[:end])
        with pytest.raises(StorageError, match=re.escape(str(saved))):
            Capri.load(saved)


def test_file_with_a_flipped_byte_is_refused_with_the_documented_error(saved: Path) -> None:
    """Bytes all over: each load is refused, or gives the very same policy."""
    whole = saved.read_bytes()
    expected = snapshot(Capri.load(saved), saved.parent)
    central = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"PK\x01\x02"))
    places = {*range(0, len(whole), 41), *range(60), *range(central, len(whole))}
    refused = 0
    for place in sorted(places):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= mask
            saved.write_bytes(bytes(damaged))
            try:
                loaded = Capri.load(saved)
            except StorageError:
                refused += 1
                continue
            assert snapshot(loaded, saved.parent) == expected, (place, mask)
    # What is not refused are the few bytes a zip file does not need, such as dates.
    assert refused > 0.75 * 3 * len(places)


@pytest.mark.parametrize(
    "content", [b"", b"not a zip file", b"PK\x05\x06" + bytes(18), b"\x80\x04N."]
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.capri"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="not a saved policy, or is damaged"):
        Capri.load(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        Capri.load(tmp_path / "nothing.capri")
    with pytest.raises(StorageError):
        Capri.load(tmp_path)


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        values, arrays = unpack(path)
        change(values)
        pack(path, values, arrays)

    return apply


def _records(values: dict[str, Any]) -> Any:
    """Of the epochs that were learnt from."""
    return values["repository"]["tables"]["laws"][-1]["state"]["learning"]["epochs"]


def _epoch(values: dict[str, Any]) -> Any:
    """The row of the newest epoch."""
    return values["repository"]["tables"]["epochs"][-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format="other"), "is not a saved policy"),
        (lambda v: v.pop("format"), "is not a saved policy"),
        (lambda v: v.update(version=2), "version 2, this release reads version 3 alone"),
        (lambda v: v.update(version=4), "version 4, this release reads version 3 alone"),
        (lambda v: v.update(version="3"), "format version 3"),
        (lambda v: v.pop("version"), "format version None"),
        (lambda v: v.update(horizon=1), "damaged"),
        (lambda v: v.update(horizon="many"), "damaged"),
        (lambda v: v["problem"].update(budget={"epsilon": -1.0, "delta": 1e-5}), "damaged"),
        (lambda v: v["problem"].update(budget={"epsilon": 1.0}), "damaged"),
        (lambda v: v["problem"].update(kernel={"type": "Spline"}), "damaged"),
        (lambda v: v["problem"].update(kernel=None), "damaged"),
        (lambda v: v["problem"].update(model="central"), "damaged"),
        (lambda v: v.update(preset="next"), "damaged"),
        (lambda v: v["options"].update(colour=1), "damaged"),
        (lambda v: _records(v)[0].update(colour=1), "damaged"),
        (lambda v: _records(v)[0].pop("width"), "damaged"),
        (lambda v: v["streams"].pop("noise"), "damaged"),
        (lambda v: v["streams"]["noise"].update(bit_generator="MT19937"), "damaged"),
        (lambda v: _epoch(v)["plan"]["plan"]["layout"].pop("step"), "damaged"),
        (lambda v: _epoch(v).update(plan=None), "public value is missing"),
        (lambda v: v["repository"]["tables"].pop("laws"), "damaged"),
    ],
)
def test_file_with_wrong_values_is_refused(
    change: Callable[[dict[str, Any]], Any], message: str, saved: Path
) -> None:
    _edit(change)(saved)
    with pytest.raises(StorageError, match=message):
        Capri.load(saved)


def test_file_without_any_one_of_its_values_is_refused(tmp_path: Path) -> None:
    """Of a policy that uses them all: a budget, users with ids, an open epoch."""
    policy = small_policy(contributions_per_user=2)
    decisions = policy.act_many(draw_contexts(0, 8), users=list("abcdefgh"))
    policy.update_many(decisions, np.ones(8))
    policy.act([0.3], user="a")
    path = tmp_path / "policy.capri"
    policy.save(path)
    values, arrays = unpack(path)
    kept = values["repository"]
    less = [{name: values[name] for name in values if name != key} for key in values]
    for key in kept:
        own = {name: kept[name] for name in kept if name != key}
        less.append({**values, "repository": own})
    for each in less:
        pack(path, each, arrays)
        with pytest.raises(StorageError):
            Capri.load(path)


def test_file_without_any_one_of_its_arrays_is_refused(saved: Path) -> None:
    values, arrays = unpack(saved)
    assert {"actions", "contexts", "weights", "rows.status", "rows.reward"} <= set(arrays)
    assert any(name.endswith("/releases.0.predictor.points") for name in arrays)
    for key in arrays:
        pack(saved, values, {name: array for name, array in arrays.items() if name != key})
        with pytest.raises(StorageError):
            Capri.load(saved)


@pytest.mark.parametrize("content", [b"[]", b"3", b"{", b"\xff\xfe", b"null"])
def test_file_whose_json_is_no_state_is_refused(content: bytes, saved: Path) -> None:
    _, arrays = unpack(saved)
    np.savez(saved, **arrays)
    with zipfile.ZipFile(saved.with_name(f"{saved.name}.npz"), "a") as bundle:
        bundle.writestr("state.json", content)
    saved.with_name(f"{saved.name}.npz").replace(saved)
    with pytest.raises(StorageError):
        Capri.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["layout"].update(noise_units=0.0),
        lambda plan: plan["layout"].update(noise_units=plan["layout"]["noise_units"] / 100),
        lambda plan: plan["layout"].update(norm_limit=plan["layout"]["norm_limit"] * 1000),
    ],
    ids=["no noise", "little noise", "large contributions"],
)
def test_stored_plan_weaker_than_its_budget_is_refused(
    change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    """A private run must not publish with less noise than the budget in the same file needs."""
    policy = small_policy(simulation_seed=None)
    policy.act([0.3])
    path = tmp_path / "policy.capri"
    policy.save(path)
    _edit(lambda values: change(_epoch(values)["plan"]["plan"]))(path)
    with pytest.raises(StorageError):
        Capri.load(path)


# -- samplers -------------------------------------------------------------------------------------


def test_sampler_policy_needs_its_sampler_again(tmp_path: Path) -> None:
    """Code is not stored; with the same sampler the run continues bit for bit."""
    policy = small_policy(contexts=uniform_sampler())
    play_epoch(policy)
    path = tmp_path / "policy.capri"
    policy.save(path)
    with pytest.raises(StorageError, match="load it with contexts=sampler"):
        Capri.load(path)
    loaded = Capri.load(path, contexts=uniform_sampler())
    for each in (policy, loaded):
        play_to_the_end(each)
    np.testing.assert_array_equal(loaded.estimate(CONTEXTS), policy.estimate(CONTEXTS))


def test_sampler_of_another_dimension_is_refused(tmp_path: Path) -> None:
    policy = small_policy(contexts=uniform_sampler())
    policy.act([0.3])
    policy.save(tmp_path / "policy.capri")
    with pytest.raises(capri.CapriError):
        Capri.load(tmp_path / "policy.capri", contexts=uniform_sampler(2))


# -- atomic writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
def test_failed_save_leaves_the_old_file_as_it_was(
    written: float, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    size = len(before)

    def full_disk(handle: int) -> None:
        os.truncate(handle, int(written * size))
        raise OSError(28, "No space left on device")

    policy = small_policy(budget=BUDGET)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(StorageError, match="No space left"):
            policy.save(saved)
    assert list(saved.parent.glob("*.partial")) == []
    assert saved.read_bytes() == before
    assert len(Capri.load(saved).epochs) == 1
    policy.save(saved)  # and what the failure left behind is no obstacle
    assert len(Capri.load(saved).epochs) == 0


def test_save_replaces_an_old_file_and_leaves_nothing_beside_it(saved: Path) -> None:
    small_policy().save(saved)
    assert len(Capri.load(saved).epochs) == 0
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_saving_changes_nothing(tmp_path: Path) -> None:
    policy = small_policy()
    play_epoch(policy)
    policy.act([0.3])
    assert snapshot(policy, tmp_path) == snapshot(policy, tmp_path)
