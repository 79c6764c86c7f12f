"""The device: decides, reports once, says nothing else."""

import contextlib
import copy
import pickle
import subprocess
import sys
import threading
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import (
    ACTIONS,
    BUDGET,
    CONTEXTS,
    fill,
    late_aggregator,
    late_bundle,
    small_aggregator,
)

import capri
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError

BUNDLE = small_aggregator().bundle()
SECRET = 0.7319528461903277


def device(**changes: Any) -> capri.LocalClient:
    return capri.LocalClient(BUNDLE, BUDGET, **changes)


def state(client: capri.LocalClient) -> tuple[object, ...]:
    pending = client._pending
    return (
        client.epoch,
        client.reported,
        client._bundle.digest,
        None if pending is None else (pending.context.tobytes(), pending.action.tobytes()),
    )


# -- decide and report ----------------------------------------------------------------------------


def test_decides_and_reports_once() -> None:
    client = device()
    assert client.private
    assert (client.epoch, client.reported) == (1, False)
    decision = client.act([0.2])
    assert decision.action == pytest.approx(ACTIONS[decision.action_index])
    assert 0 < decision.propensity <= 1
    report = client.report(0.5)
    assert isinstance(report, bytes)
    assert client.reported
    assert len(report) == 32
    client.act([0.2])  # deciding costs nothing: it goes on, and there is nothing more to report
    for reward in (0.5, None):
        with pytest.raises(BudgetError, match="has reported"):
            client.report(reward)


def test_report_needs_a_decision() -> None:
    client = device()
    with pytest.raises(DataError, match="act comes first"):
        client.report(0.5)
    assert not client.reported
    client.act([0.2])
    client.report(0.5)


def test_a_second_decision_replaces_the_first() -> None:
    client = device(simulation=(1, 1))
    client.act([0.0])
    client.act([0.9])
    alone = device(simulation=(1, 1))
    alone.act([0.9])
    assert client.report(0.5) == alone.report(0.5)


def test_sphere_reports_have_32_bytes_whatever_the_dimension() -> None:
    rows = np.linspace(0, 1, 40)[:, None]
    aggregator = small_aggregator(
        kernel=capri.kernels.Matern(nu=0.5, lengthscale=0.05),
        actions=rows,
        contexts=capri.ContextPool(rows),
        max_rank=400,
        horizon=10**7,
        first_epoch=10**7,
    )
    client = capri.LocalClient(aggregator.bundle(), BUDGET)
    assert client._bundle.dimension > 100
    client.act([0.5])
    assert len(client.report(1.0)) == 32


def test_a_missing_reward_is_a_reward_of_zero_to_the_bit() -> None:
    """Under the same randomness the same bytes: nobody can tell one from the other."""
    for bundle in (BUNDLE, late_bundle()):
        for user in range(20):
            made = []
            for reward in (None, 0.0, -0.0, 0):
                client = capri.LocalClient(bundle, BUDGET, simulation=(9, user))
                client.act(CONTEXTS[user % 6])
                made.append(client.report(reward))
            assert len(set(made)) == 1


def test_size_does_not_depend_on_the_datum() -> None:
    sizes = set()
    for reward in (None, 0.0, 1.0, -1.0, 1e300, -1e300, 5e-324):
        client = device()
        client.act([0.3])
        sizes.add(len(client.report(reward)))
    assert len(sizes) == 1


def test_contexts_far_away_and_rewards_beyond_the_bound_are_served() -> None:
    for context in ([1e100], [-1e100], [1e-320], [5.0]):
        client = device()
        client.act(context)
        assert client.report(1e308)


def test_actions_follow_the_public_law() -> None:
    """Pearson's chi-square over 2000 real devices; chance exceeds the bound with 4e-6.

    Of two million simulated tables of this law, the rarest action expected 31 times.
    """
    from scipy.stats import chi2

    aggregator = late_aggregator()
    client = capri.LocalClient(aggregator.bundle(), BUDGET)
    law = aggregator.probabilities([[0.4]])[0]
    chosen = [client.act([0.4]) for _ in range(2000)]
    counts = np.bincount([decision.action_index for decision in chosen], minlength=len(law))
    assert counts[law == 0].sum() == 0
    expected = 2000 * law[law > 0]
    statistic = float(((counts[law > 0] - expected) ** 2 / expected).sum())
    assert statistic <= chi2.ppf(1 - 1e-6, len(expected) - 1)
    for decision in chosen[:50]:
        assert decision.propensity == law[decision.action_index]


def test_randomness_of_real_devices_is_their_own() -> None:
    """Same datum, same bundle: no two tokens are equal (by chance: 2^-100)."""
    tokens, payloads = set(), set()
    for _ in range(300):
        client = device()
        client.act([0.5])
        report = client.report(1.0)
        tokens.add(report[10:26])
        payloads.add(report[26:-4])
    assert len(tokens) == 300
    assert len(payloads) > 3


def test_operating_system_is_asked_for_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are what os.urandom gives; coins and picks come from the module secrets."""
    from capri.local import device as randomness

    asked: list[str] = []

    def spy(name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            asked.append(name)
            return real(*arguments)

        return call

    monkeypatch.setattr(randomness.os, "urandom", lambda count: bytes(range(count)))
    for name in ("randbits", "randbelow"):
        monkeypatch.setattr(randomness.secrets, name, spy(name, getattr(randomness.secrets, name)))
    client = device()
    client.act([0.5])
    assert client.report(1.0)[10:26] == bytes(range(16))
    assert asked.count("randbits") >= 3  # action, rounding, coin
    assert "randbelow" in asked


def test_coin_and_pick_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coin compares 63 bits with the chance: exactly ``chance`` of the ``2^63`` values win."""
    from capri.local import device as randomness
    from capri.privacy.sphere import COIN

    source = randomness.SystemRandomness()
    for chance in (1, COIN // 3, COIN - 1):
        for value, expected in ((chance - 1, True), (chance, False), (0, True)):
            monkeypatch.setattr(randomness.secrets, "randbits", lambda bits, v=value: v)
            assert source.coin(1, chance)[0] == expected


def test_simulated_devices_make_no_claim() -> None:
    client = device(simulation=(3, 4))
    assert not client.private
    twin = device(simulation=(3, 4))
    for one in (client, twin):
        one.act([0.1])
    made = client.report(0.3)
    assert made == twin.report(0.3)
    other = device(simulation=(3, 5))
    other.act([0.1])
    assert other.report(0.3) != made


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [[], [0.1, 0.2], [[0.1], [0.2]], [[0.1], [0.2, 0.3]]])
def test_contexts_of_another_shape_change_nothing(context: Any) -> None:
    client = device()
    client.act([0.5])
    before = state(client)
    with pytest.raises(DataError):
        client.act(context)
    assert state(client) == before
    client.report(0.5)


NOT_NUMBERS: tuple[Any, ...] = (
    [nan], [inf], [-inf], [1e101], [-1e308], [None], [10**400], np.longdouble("1e4000"), None,
    "text", ["0.5"], {"a": 1}, 1j, [[0.1, 0.2]], b"xx", object(), np.array(["x"]), [np.ma.masked],
)  # fmt: skip
NO_REWARDS: tuple[Any, ...] = (
    nan, inf, -inf, 10**400, -(10**400), [None], np.float32(nan), "0.5", [0.1, 0.2], [], {}, 1j,
    b"1", object(), np.longdouble("1e4000"), np.ma.masked,
)  # fmt: skip


@pytest.mark.parametrize("context", NOT_NUMBERS)
def test_any_context_is_served(context: Any) -> None:
    """By a uniform law, with a report that contributes nothing and looks like every other."""
    bundle = late_bundle()
    usual = capri.LocalClient(bundle, BUDGET, simulation=(1, 1))
    usual.act([0.5])
    size = len(usual.report(0.5))
    chosen = set()
    for user in range(40):
        made = []
        for reward in (None, nan, 1.0, -1.0):
            client = capri.LocalClient(bundle, BUDGET, simulation=(1, user))
            decision = client.act(context)
            assert decision.propensity == 1 / len(ACTIONS)
            made.append(client.report(reward))
        chosen.add(decision.action_index)
        assert len(set(made)) == 1  # whatever the reward was
        assert len(made[0]) == size
    assert len(chosen) == len(ACTIONS)  # misses one with probability 5 (4/5)^40 < 1e-3: fixed seed
    units = client._device.encode(np.array([[nan], [0.5]]), np.array([0, 0]), np.array([1.0, 1.0]))
    assert not units[0].any()
    assert units[1].any()


@pytest.mark.parametrize("reward", NO_REWARDS)
def test_a_reward_that_is_no_number_is_missing(reward: Any) -> None:
    made = []
    for value in (reward, None):
        client = device(simulation=(2, 3))
        client.act([0.5])
        made.append(client.report(value))
    assert made[0] == made[1]


def test_no_value_warns() -> None:
    """Warnings are errors here: a warning for some values only would tell of them."""
    for context in (*NOT_NUMBERS, [5e-324], [1e100]):
        for reward in (5e-324, 1e308, -1e308, *NO_REWARDS):
            client = device()
            client.act(context)
            client.report(reward)


def test_errors_and_reprs_show_no_value() -> None:
    client = device()
    decision = client.act([SECRET])
    texts = [repr(client), str(client), repr(decision), str(vars(client).keys())]
    for call in (
        lambda: client.act([SECRET, SECRET]),
        lambda: client.act([[SECRET], f"{SECRET}"]),
    ):
        with pytest.raises(DataError) as caught:
            call()
        texts += [str(caught.value), repr(caught.value)]
    client.report(SECRET)
    with pytest.raises(BudgetError) as spent:
        client.report(SECRET)
    texts.append(str(spent.value))
    texts.append(repr(client))
    for text in texts:
        assert "73195" not in text
        assert "action" not in text or text.startswith("dict_keys")


@pytest.mark.parametrize("budget", [None, 4.0, (4.0, 0.0), "4"])
def test_budget_must_be_one(budget: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"capri\.Budget"):
        capri.LocalClient(BUNDLE, budget)


def test_a_very_generous_budget_works() -> None:
    client = capri.LocalClient(BUNDLE, capri.Budget(epsilon=1e6))
    client.act([0.5])
    assert client.report(1.0)


# -- later bundles --------------------------------------------------------------------------------


def test_renewing_drops_a_pending_datum() -> None:
    aggregator = small_aggregator()
    early, client = aggregator.bundle(), device()
    assert client.renew(early) is False  # the same bundle: nothing happens
    client.act([0.5])
    assert client.renew(early) is False
    fill(aggregator)
    later = aggregator.bundle()
    assert client.renew(later, digest=aggregator.digest) is True
    assert client.epoch == 2
    with pytest.raises(DataError, match="act comes first"):
        client.report(0.5)
    client.act([0.5])
    assert aggregator.receive(client.report(0.5)) == capri.ReportStatus.ACCEPTED


def test_renewing_without_a_datum_drops_nothing() -> None:
    client = device()
    assert client.renew(late_bundle()) is False
    assert client.epoch == 2


def test_no_way_back_and_no_bad_bundle() -> None:
    late = late_bundle()
    client = capri.LocalClient(late, BUDGET)
    client.act([0.5])
    before = state(client)
    strict = small_aggregator(budget=capri.Budget(epsilon=9.0, delta=BUDGET.delta))
    fill_with = strict.bundle()
    for bundle, digest in (
        (BUNDLE, None),  # older
        (late[:-1], None),  # damaged
        (late, bytes(32)),  # not the published one
        (fill_with, None),  # weaker than the budget
        (b"", None),
    ):
        with pytest.raises(BundleError):
            client.renew(bundle, digest=digest)
        assert state(client) == before
    client.report(0.5)


def test_renewing_gives_no_second_report() -> None:
    client = device()
    client.act([0.5])
    client.report(0.5)
    client.renew(late_bundle())
    assert client.reported
    client.act([0.5])
    with pytest.raises(BudgetError):
        client.report(0.5)


# -- once, whatever happens -----------------------------------------------------------------------


def test_an_interrupted_report_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = device()
    client.act([0.5])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client._randomness, "seeds", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.report(0.5)
    monkeypatch.undo()
    with pytest.raises(BudgetError):
        client.report(0.5)


def test_copies_are_refused() -> None:
    client = device()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="report twice"):
            duplicate(client)


def test_threads_get_one_report() -> None:
    client = device()
    client.act([0.5])
    made: list[bytes] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        with contextlib.suppress(BudgetError, DataError):
            made.append(client.report(0.5))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_renewing_in_the_middle_of_a_decision_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datum decided under one bundle is never encoded under another."""
    client, later = device(), late_bundle()
    decide = client._device.decide

    def slow(*arguments: Any) -> Any:
        client.renew(later)
        return decide(*arguments)

    monkeypatch.setattr(client._device, "decide", slow)
    assert client.act([0.5]).epoch == 1
    with pytest.raises(DataError, match="act comes first"):
        client.report(0.5)


# -- a light program ------------------------------------------------------------------------------


def run_alone(code: str, bundle: bytes, folder: Path) -> str:
    (folder / "bundle").write_bytes(bundle)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder / "bundle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_is_all_it_needs(tmp_path: Path) -> None:
    """Sphere reports without SciPy, OpenDP and the rest, with a bundle of every law."""
    code = """
import sys
for name in ("scipy", "opendp", "matplotlib", "dp_accounting", "rich", "typer", "threadpoolctl",
             "sklearn", "pandas", "dask"):
    sys.modules[name] = None
import capri
client = capri.LocalClient(open(sys.argv[1], "rb").read(), capri.Budget(epsilon=4.0))
client.act([0.5])
assert len(client.report(0.5)) == 32
"""
    changes: list[dict[str, Any]] = [
        {},
        {"limits": capri.Limits(floor={0: 0.1})},
        {"kernel": "auto"},
    ]
    for change in changes:
        bundle = late_bundle(**change)
        run_alone(code, bundle, tmp_path)


def test_slow_kernels_are_refused_on_both_sides() -> None:
    """Bessel functions take longer at some distances than at others: time would tell which."""
    with pytest.raises(BundleError, match="half-integer order below 20 only"):
        small_aggregator(kernel=capri.kernels.Matern(nu=0.7, lengthscale=0.4))


def test_heavy_modules_are_not_loaded(tmp_path: Path) -> None:
    code = """
import sys
import capri
client = capri.LocalClient(open(sys.argv[1], "rb").read(), capri.Budget(epsilon=4.0))
client.act([0.5]); client.report(0.5)
heavy = ("scipy", "opendp", "matplotlib", "dp_accounting", "rich", "typer", "threadpoolctl",
         "capri.learners", "capri.joint.policy", "capri.local.aggregator", "capri.epoch.storage",
         "capri.simulation", "capri.environments")
print([name for name in heavy if name in sys.modules])
"""
    assert run_alone(code, BUNDLE, tmp_path).strip() == "[]"
