"""Late reports: each counts once, for the bundle it answers, until the wait is over."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import (
    BUDGET,
    CONTEXTS,
    one_report,
    open_epochs,
    reward_of,
    small_aggregator,
    snapshot,
    take_apart,
)

import capri
from capri.environments import random_rkhs
from capri.epoch.plan import Release
from capri.epoch.storage import configuration_digest, read_policy_file
from capri.errors import BundleError, ConfigurationError, HorizonError
from capri.learners.learner import PracticalLearner
from capri.learners.residuals import cuts_off_too_much
from capri.local.bundle import open_bundle
from capri.local.device import Device, SimulatedRandomness
from capri.local.reports import EpochReports, ReportStatus, stale_notices
from capri.local.simulator import DeviceSimulator
from capri.privacy.certificate.verify import check_digests
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger

ACCEPTED, STALE, UNKNOWN, REPLAYED, MALFORMED = capri.ReportStatus


def reports_to(aggregator: capri.LocalCapri, count: int, *, first: int = 0) -> list[bytes]:
    """What simulated users upload who hold the newest bundle: those of ``honest_reports``."""
    bundle, budget = open_bundle(aggregator.bundle()), BUDGET
    users = np.arange(first, first + count)
    draws, device = SimulatedRandomness(5, users), Device(bundle)
    rows = CONTEXTS[users % len(CONTEXTS)]
    actions, _ = device.decide(rows, draws.action(count))
    rewards = [reward_of(int(u), int(a)) for u, a in zip(users, actions, strict=True)]
    gate = Gate(draws, Ledger(budget, tolerance=0.0))
    messages = device.report(rows, actions, np.array(rewards), gate)
    return [message.tobytes() for message in messages]


class Clock:
    """A public clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def tick(self, **time: float) -> None:
        self.now += timedelta(**time)


def told(aggregator: capri.LocalCapri) -> tuple[object, ...]:
    """Everything public that reports could move."""
    bundle = aggregator.bundle() if aggregator.remaining else b""
    return bundle, aggregator.estimate(CONTEXTS).tobytes(), aggregator.remaining


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Release]:
    """The readings to come."""
    seen: list[Release] = []
    read = EpochReports.read

    def watched(epoch: EpochReports, *, last: bool) -> Any:
        found = read(epoch, last=last)
        seen.append(found[0])
        return found

    monkeypatch.setattr(EpochReports, "read", watched)
    return seen


# -- what counts ----------------------------------------------------------------------------------


def test_nothing_late_changes_nothing() -> None:
    """With a wait that nobody needs, bundles and estimates are those without, to the bit."""
    plain = small_aggregator()
    patient = small_aggregator(reward_wait=timedelta(days=1))
    first = 0
    while plain.remaining:
        reports = reports_to(plain, plain.remaining, first=first)
        first += len(reports)
        for aggregator in (plain, patient):
            assert (aggregator.receive_many(reports) == ACCEPTED).all()
        assert told(plain) == told(patient)
    assert [record.length for record in patient.epochs] == [60, 90, 50]


def test_late_reports_count_for_the_bundle_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator = small_aggregator(reward_wait=1000, horizon=1000)
    seen = spied(monkeypatch)
    early = reports_to(aggregator, 100)  # forty of them are under way at first
    assert (aggregator.receive_many(early[:60]) == ACCEPTED).all()
    assert len(aggregator.epochs) == 1
    assert aggregator.remaining == 90
    newer = reports_to(aggregator, 50, first=200)
    assert (aggregator.receive_many([*newer[:20], *early[60:], *newer[20:49]]) == ACCEPTED).all()
    assert aggregator.remaining == 1
    assert [epoch.unread for epoch in open_epochs(aggregator)] == [40, 49]
    assert aggregator.receive(newer[49]) is ACCEPTED
    # Read in parts: each with its own plan and its own count.
    assert [(release.plan.epoch, release.counts) for release in seen] == [
        (1, (60,)),
        (1, (40,)),
        (2, (50,)),
    ]
    assert seen[0].plan is seen[1].plan
    assert [record.length for record in aggregator.epochs] == [60, 40, 50]
    for report in (early[0], early[70], newer[3]):
        assert aggregator.receive(report) is REPLAYED
    assert open_bundle(aggregator.bundle()).plan.epoch == 3


def test_batches_do_not_matter_to_the_bit() -> None:
    """Across readings, ends of waits and sizes of reports."""
    feeder = small_aggregator(reward_wait=70, horizon=2000)
    queue: list[bytes] = []
    for number in range(3):
        reports = reports_to(feeder, 130, first=1000 * number)
        feeder.receive_many(reports[: feeder.remaining])
        queue += reports
    order = np.random.default_rng(1).permutation(len(queue))
    queue = [*queue[:60], *(queue[place] for place in order)]
    ends = set()
    for size in (1, 100, len(queue)):
        aggregator = small_aggregator(reward_wait=70, horizon=2000)
        statuses = [
            status
            for start in range(0, len(queue), size)
            for status in aggregator.receive_many(queue[start : start + size]).tolist()
        ]
        ends.add((tuple(statuses), told(aggregator)))
    assert len(ends) == 1
    assert {ACCEPTED, STALE, REPLAYED} <= set(statuses)


def test_the_wait_is_a_number_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports to any bundle count towards it; then the earlier one is stale, read or not."""
    aggregator = small_aggregator(reward_wait=30, horizon=1000)
    seen = spied(monkeypatch)
    early = reports_to(aggregator, 80)
    aggregator.receive_many(early[:60])
    newer = reports_to(aggregator, 100, first=200)
    found = aggregator.receive_many([*newer[:19], *early[60:70], *newer[19:21], *early[70:]])
    assert (found[:30] == ACCEPTED).all()
    assert found[30] == ACCEPTED  # to the newest
    assert (found[31:] == STALE).all()
    assert aggregator.receive(early[0]) is STALE
    aggregator.receive_many(newer[21:])
    assert [(release.plan.epoch, release.counts, release.last) for release in seen] == [
        (1, (60,), False),
        (1, (10,), True),
        (2, (80,), False),
    ]
    # The waiting epoch is forgotten, by the learner too.
    assert [epoch.plan.epoch for epoch in open_epochs(aggregator)] == [2, 3]
    assert sorted(aggregator._learning.learner.known.pending) == [2, 3]


def test_the_wait_is_a_time() -> None:
    clock = Clock()
    aggregator = small_aggregator(reward_wait=timedelta(hours=2), clock=clock, horizon=1000)
    early = reports_to(aggregator, 70)
    aggregator.receive_many(early[:60])
    clock.tick(hours=1.9)
    assert aggregator.receive(early[60]) is ACCEPTED
    clock.tick(hours=0.1)
    assert aggregator.receive(early[61]) is STALE
    assert aggregator.remaining == 89
    fresh = reports_to(aggregator, 89, first=200)
    assert (aggregator.receive_many(fresh) == ACCEPTED).all()
    assert [record.length for record in aggregator.epochs] == [60, 1, 89]


def test_an_epoch_ends_on_the_clock() -> None:
    """By the time since its first report; what is read is what came."""
    clock = Clock()
    aggregator = small_aggregator(
        epoch_time=timedelta(days=1), reward_wait=10, clock=clock, horizon=1000
    )
    bundle = aggregator.bundle()
    clock.tick(days=30)  # nobody came: nothing to read
    assert aggregator.bundle() == bundle
    reports = reports_to(aggregator, 40)
    aggregator.receive_many(reports[:25])
    clock.tick(hours=23)
    assert aggregator.bundle() == bundle
    aggregator.receive_many(reports[25:30])
    clock.tick(hours=1)
    assert aggregator.bundle() != bundle
    assert [record.length for record in aggregator.epochs] == [30]
    assert (aggregator.receive_many(reports[30:]) == ACCEPTED).all()
    assert aggregator.receive(reports[0]) is STALE


def test_early_ends() -> None:
    """What is read is scaled by what came: public counts, nothing else."""
    aggregator = small_aggregator(reward_wait=50, horizon=1000)
    bundle = aggregator.bundle()
    aggregator.close_epoch(early=True)  # nobody came
    assert aggregator.bundle() == bundle
    reports = reports_to(aggregator, 40)
    aggregator.receive_many(reports[:25])
    with pytest.raises(HorizonError, match=r"35 reports .* early=True"):
        aggregator.close_epoch()
    aggregator.close_epoch(early=True)
    assert [record.length for record in aggregator.epochs] == [25]
    assert aggregator.bundle() != bundle
    assert aggregator.remaining == 60 + 25 // 2
    assert (aggregator.receive_many(reports[25:]) == ACCEPTED).all()
    aggregator.close_epoch(early=True)
    assert [record.length for record in aggregator.epochs] == [25, 15]


def test_the_horizon_counts_all_reports() -> None:
    aggregator = small_aggregator(reward_wait=1000, horizon=100)
    early = reports_to(aggregator, 80)
    aggregator.receive_many(early[:60])
    newer = reports_to(aggregator, 30, first=200)
    found = aggregator.receive_many([*early[60:], *newer])
    assert list(found) == [ACCEPTED] * 40 + [STALE] * 10
    assert aggregator.remaining == 0
    assert sum(record.length for record in aggregator.epochs) == 100
    assert not open_epochs(aggregator)
    assert not aggregator._learning.learner.known.pending
    with pytest.raises(HorizonError):
        aggregator.bundle()


def test_an_interrupted_reading_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = (small_aggregator(reward_wait=100, horizon=1000) for _ in range(2))
    early = reports_to(whole, 100)
    for aggregator in (whole, broken):
        aggregator.receive_many(early[:60])
    newer = reports_to(whole, 50, first=200)
    whole.receive_many([*early[60:], *newer])
    learn, calls = PracticalLearner.learn, []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) in (1, 3):
            raise KeyboardInterrupt
        return learn(*given)

    monkeypatch.setattr(PracticalLearner, "learn", interrupted)
    broken.receive_many([*early[60:], *newer[:-1]])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            broken.receive(newer[-1])
    assert broken.receive(newer[-1]) is REPLAYED
    assert told(broken) == told(whole)
    assert [record.length for record in broken.epochs] == [60, 40, 50]


# -- what is read ---------------------------------------------------------------------------------


def encoded(bundle: bytes, contexts: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> Any:
    """The sum of the contributions before they were made private."""
    opened = open_bundle(bundle)
    units = Device(opened).encode(contexts, actions, rewards)
    return units.sum(axis=0) * opened.plan.vector.step


def test_readings_are_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an earlier bundle and of the newest: the vector is the sum of contributions plus noise.

    Twenty coordinates or fewer at 5.5 deviations each: chance fails with less than 1e-6.
    """
    count, budget = 8000, BUDGET
    aggregator = small_aggregator(
        first_epoch=count, horizon=10 * count, reward_wait=count, clip_scale=0.5
    )
    fleet = DeviceSimulator(aggregator, budget, simulation_seed=11)
    seen = spied(monkeypatch)
    generator = np.random.default_rng(4)
    sums, decided = [], []
    for size in (2 * count, 1000):  # half of the first are late: they answer an earlier bundle
        bundle = aggregator.bundle()
        rows = CONTEXTS[generator.integers(len(CONTEXTS), size=size)]
        decisions = fleet.act_many(rows)
        rewards = 0.9 - 0.3 * rows[:, 0] + generator.uniform(-0.1, 0.1, size)
        sums.append((bundle, rows, decisions.action_index, rewards))
        decided.append((decisions, rewards))
        if len(decided) == 1:
            fleet.update_many(decisions, rewards)
    fleet.update_many(*decided[1])
    aggregator.close_epoch(early=True)
    assert [release.counts for release in seen] == [(count,), (count,), (1000,)]
    halves = slice(0, count), slice(count, 2 * count), slice(0, 1000)
    for release, half, which in zip(seen, halves, (0, 0, 1), strict=True):
        bundle, *data = sums[which]
        expected = encoded(bundle, *(part[half] for part in data))
        deviation = release.plan.noise_scale * np.sqrt(release.participants)
        assert len(expected) <= 20
        assert (np.abs(release.vector - expected) < 5.5 * deviation).all()
        # The check can fail: with the unit of the other bundle, or half of the users, it would.
        assert which == 1 or np.abs(expected).max() > 11 * deviation
    assert seen[0].plan.value_bound != seen[2].plan.value_bound


@pytest.mark.parametrize("delay", [37, 150])
def test_a_late_fleet_is_late_clients(delay: int) -> None:
    """One client after another, each report as many decisions late, gives the same bits."""
    settings = {"reward_wait": 120, "horizon": 400}
    fleet = DeviceSimulator(
        small_aggregator(**settings),
        BUDGET,
        simulation_seed=5,
        delay=delay,
    )
    users = 0
    while users < 250:
        count = min(fleet.remaining, 250 - users)
        rows = CONTEXTS[np.arange(users, users + count) % len(CONTEXTS)]
        decisions = fleet.act_many(rows)
        numbers = zip(decisions.number, decisions.action_index, strict=True)
        fleet.update_many(
            decisions, [reward_of(int(user), int(action)) for user, action in numbers]
        )
        users += count
    alone = small_aggregator(**settings)
    queue: list[bytes] = []
    statuses: dict[capri.ReportStatus, int] = {}
    for user in range(250):
        queue.append(one_report(alone.bundle(), BUDGET, user))
        if len(queue) > delay:
            status = alone.receive(queue.pop(0))
            statuses[status] = statuses.get(status, 0) + 1
    assert statuses == dict(fleet.statuses)
    assert told(alone) == told(fleet.aggregator)
    assert sum(statuses.values()) == max(0, 250 - delay)


def test_late_reports_are_learnt_from() -> None:
    """Reports 1,000 decisions late: most are stale without a wait, and regret shows it."""
    kernel = capri.kernels.RBF(lengthscale=0.6)
    world = random_rkhs(
        kernel, contexts=8, actions=8, context_dimension=1, action_dimension=1, noise=0.1, seed=1
    )
    ratios = {}
    for wait in (0, 1000):
        fleet = DeviceSimulator.build(
            budget=capri.Budget(epsilon=1.0),
            simulation_seed=2,
            delay=1000,
            kernel=kernel,
            actions=world.actions,
            contexts=capri.ContextPool(world.contexts),
            reward_wait=wait,
            horizon=10_000,
        )
        ratios[wait] = capri.simulate(fleet, world, 10_000, seed=3).ratio
        assert (fleet.statuses[STALE] > 2000) == (wait == 0)
    assert ratios[1000] < 0.6 * ratios[0]
    assert ratios[1000] < 0.35


# -- missing rewards ------------------------------------------------------------------------------


def test_a_missing_reward_is_what_the_bundle_says() -> None:
    budget = BUDGET
    aggregator = small_aggregator(missing_reward=0.4)
    bundle = aggregator.bundle()
    reports = []
    for reward in (None, float("nan"), 0.4, 0.0):
        client = capri.LocalClient(bundle, budget, simulation=(5, 1))
        client.act(CONTEXTS[2])
        reports.append(client.report(reward))
    assert reports[0] == reports[1] == reports[2]
    opened = open_bundle(bundle)
    row, action = CONTEXTS[2:3], np.zeros(1, dtype=np.int64)
    units = [Device(opened).encode(row, action, np.array([value])) for value in (np.nan, 0.4, 0.0)]
    assert (units[0] == units[1]).all()
    assert (units[0] != units[2]).any()
    # It travels only where it is not the default.
    header, _ = take_apart(bundle)
    assert header["missing_reward"] == 0.4
    plain, _ = take_apart(small_aggregator().bundle())
    assert "missing_reward" not in plain


@pytest.mark.parametrize("bad", [2.0, -1.5, "as-estimated", None, True, float("nan")])
def test_a_hostile_missing_reward_is_refused(bad: object) -> None:
    from devices import put_together

    header, arrays = take_apart(small_aggregator().bundle())
    with pytest.raises(BundleError):
        open_bundle(put_together({**header, "missing_reward": bad}, arrays))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward_wait": -1}, "reward_wait"),
        ({"reward_wait": 0.5}, "reward_wait"),
        ({"reward_wait": timedelta(seconds=-1)}, "negative"),
        ({"missing_reward": "as-estimated"}, "joint"),
        ({"missing_reward": 1.5}, "missing_reward"),
        ({"reward_rule": "sum"}, "the app combines"),
        ({"epoch_time": 3}, "epoch_time"),
    ],
)
def test_terms_that_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        small_aggregator(**change)


# -- devices --------------------------------------------------------------------------------------


def test_a_device_may_keep_its_datum_for_a_late_reward() -> None:
    aggregator = small_aggregator(reward_wait=100, horizon=1000)
    bundle = aggregator.bundle()
    kept, dropped = (capri.LocalClient(bundle, BUDGET) for _ in range(2))
    for client in (kept, dropped):
        client.act(CONTEXTS[1])
    aggregator.receive_many(reports_to(aggregator, 60))
    newer = aggregator.bundle()
    assert dropped.renew(newer)
    assert not kept.renew(newer, keep=True)
    assert kept.epoch == 2
    report = kept.report(0.5)
    assert report[2:10] == bundle[-32:][:8]
    assert aggregator.receive(report) is ACCEPTED
    with pytest.raises(capri.CapriError, match="nothing to report"):
        dropped.report(0.5)


# -- storage and certificate ----------------------------------------------------------------------


def in_flight(**changes: Any) -> tuple[capri.LocalCapri, list[bytes]]:
    """Three open epochs, two of them with reports that no reading has seen; more to come."""
    settings = {"reward_wait": 400, "horizon": 2000} | changes
    aggregator = small_aggregator(**settings)
    first = reports_to(aggregator, 90)
    aggregator.receive_many(first[:60])
    second = reports_to(aggregator, 150, first=200)
    aggregator.receive_many([*first[60:70], *second[:80]])
    third = reports_to(aggregator, 190, first=500)
    aggregator.receive_many([*first[70:80], *second[80:100], *third[:10]])
    return aggregator, [*first[80:], *second[100:], *third[10:]]


@pytest.mark.parametrize("wait", [400, timedelta(days=1)])
def test_save_and_load_with_open_epochs(wait: int | timedelta, tmp_path: Path) -> None:
    clock = Clock() if isinstance(wait, timedelta) else None
    aggregator, rest = in_flight(reward_wait=wait, clock=clock)
    assert [epoch.unread for epoch in open_epochs(aggregator)] == [10, 20, 10]
    path = tmp_path / "aggregator.capri"
    aggregator.save(path)
    loaded = capri.LocalCapri.load(path, clock=clock)
    others = [loaded] if clock is not None else [loaded, pickle.loads(pickle.dumps(aggregator))]
    everybody = [aggregator, *others]
    for other in others:
        assert snapshot(other, tmp_path) == snapshot(aggregator, tmp_path)
        assert other.certificate().to_json() == aggregator.certificate().to_json()
    found = {each.receive_many(rest).tobytes() for each in everybody}
    assert len(found) == 1
    assert len({told(each) for each in everybody}) == 1
    assert len({str(each.certificate().releases) for each in everybody}) == 1
    assert len(aggregator.epochs) > 5


def test_certificate_of_late_reports(tmp_path: Path) -> None:
    """One report a user, epsilon a report: readings in parts list every report once."""
    aggregator, rest = in_flight()
    aggregator.receive_many(rest)
    certificate = aggregator.certificate()
    promised = BUDGET
    assert certificate.spent == {"epsilon": promised.epsilon, "delta": promised.delta}
    listed = [(entry["epoch"], entry["reports"]) for entry in certificate.releases]
    assert sum(reports for _, reports in listed) == sum(each.length for each in aggregator.epochs)
    assert len({epoch for epoch, _ in listed}) < len(listed)
    aggregator.save(tmp_path / "aggregator.capri")
    values, arrays = read_policy_file(tmp_path / "aggregator.capri", "aggregator")
    plans = values["repository"]["tables"]["laws"][-1]["state"]["learning"]["plans"]
    assert check_digests(certificate, configuration_digest(values, arrays), plans) == 0
    values["terms"]["wait"] = 401
    other = configuration_digest(values, arrays)
    with pytest.raises(capri.CapriError):
        check_digests(certificate, other, plans)


def test_a_few_late_reports_do_not_cry_wolf() -> None:
    """All noise: that clipping cuts off too much is not for them to say. For a full epoch it is."""
    aggregator, _ = in_flight()
    plan = open_epochs(aggregator)[-1].plan
    assert plan.vector.tail_share > 0
    design = aggregator._learning.learner.known.pending[plan.epoch][0].design
    assert design is not None
    for share, alarm in ((1, True), (3, True), (5, False), (plan.length, False)):
        count = plan.length // share
        vector = np.zeros(plan.dimension)
        vector[-1] = 1e6 * count  # everything was cut off, and more
        release = replace(Release.as_planned(plan, vector), counts=(count,))
        assert cuts_off_too_much(release, design, 1.0) is alarm


def test_the_page_shows_what_was_measured() -> None:
    """Every row of the benchmark, and a wait is better than none."""
    root = Path(__file__).parents[2]
    text = (root / "docs/results.md").read_text()
    rows = json.loads((root / "benchmarks/results/local.json").read_text())["late"]
    means = {(row["delay"], row["wait"]): row["mean"] for row in rows}
    assert len(means) == 5
    for (delay, wait), mean in means.items():
        shown = f"**{mean:.3f}**" if wait else f"{mean:.3f}"
        assert any(shown in line for line in text.splitlines() if line.startswith(f"| {delay:,} |"))
        assert mean <= means[delay, 0]


# -- by default ------------------------------------------------------------------------------------


def in_order(aggregator: capri.LocalCapri, users: int, delay: int) -> Counter[str]:
    """What becomes of reports that arrive so many decisions late."""
    told: Counter[str] = Counter()
    waiting: list[bytes] = []
    for user in range(users):
        waiting.append(one_report(aggregator.bundle(), BUDGET, user))
        if len(waiting) > delay:
            told[str(aggregator.receive(waiting.pop(0)))] += 1
    return told


def test_reports_that_are_under_way_count_by_default() -> None:
    patient = small_aggregator(reward_wait=None, horizon=None)
    hasty = small_aggregator(horizon=None)
    assert in_order(patient, 900, 300) == {"accepted": 600}
    assert len(patient.epochs) > 4
    told = in_order(hasty, 900, 300)
    assert told["stale"] > 200
    assert not patient.notices
    # Fewer than 500 are not judged; a share of 5 % and chance are not told.
    hasty = small_aggregator(horizon=None)
    assert in_order(hasty, 750, 300)["stale"] > 200
    assert not hasty.notices
    in_order(hasty, 400, 300)
    (notice,) = [each for each in hasty.notices if each.kind == "stale reports"]
    assert notice.numbers["stale"] / notice.numbers["reports"] > 0.3
    assert "reward_wait" in notice.text


@pytest.mark.parametrize(("stale", "told"), [(0, 0), (80, 0), (114, 0), (115, 1), (1600, 1)])
def test_a_share_of_five_percent_is_not_told(stale: int, told: int) -> None:
    """Of 1,600: 80 are 5 %, and four deviations are 34.9. By chance 3e-5 at a share of 5 %."""
    judged = {int(ReportStatus.STALE): stale, int(ReportStatus.ACCEPTED): 1600 - stale}
    assert len(stale_notices(judged)) == told


def test_a_batch_that_is_mixed_waits_for_nobody() -> None:
    mixing = small_aggregator(
        budget=capri.Budget(1.0, 1e-6), shuffle=capri.Shuffle(most=8.0), reward_wait=None,
        first_epoch=300, horizon=None,
    )  # fmt: skip
    assert mixing.again().remaining == mixing.remaining
