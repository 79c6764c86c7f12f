"""The aggregator: takes what is well-formed, once, and nothing else moves it."""

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import (
    CONTEXTS,
    fill,
    honest_reports,
    open_epochs,
    sealed,
    small_aggregator,
    snapshot,
)

import capri
from builders import small_policy
from capri.errors import ConfigurationError, DataError, HorizonError, StorageError
from capri.local import wire
from capri.local.reports import EpochReports
from capri.privacy.sphere import DIRECTION_UNITS

ACCEPTED, STALE, UNKNOWN, REPLAYED, MALFORMED = capri.ReportStatus


def estimates(aggregator: capri.LocalCapri) -> bytes:
    return aggregator.estimate(CONTEXTS).tobytes()


def newest(aggregator: capri.LocalCapri) -> EpochReports:
    """The reports to the newest bundle."""
    return open_epochs(aggregator)[-1]


def sums(aggregator: capri.LocalCapri) -> np.ndarray:
    return newest(aggregator).total.copy()


def inner(aggregator: capri.LocalCapri) -> tuple[object, ...]:
    """All that a report could move, without a file."""
    return (
        sums(aggregator).tobytes(),
        frozenset(newest(aggregator).tokens),
        aggregator.reports,
        aggregator.remaining,
        len(aggregator.epochs),
        aggregator.bundle(),
    )


# -- what becomes of a report ---------------------------------------------------------------------


def test_statuses(tmp_path: Path) -> None:
    aggregator = small_aggregator()
    first, second = honest_reports(aggregator, 2)
    assert aggregator.receive(first) is ACCEPTED
    assert aggregator.remaining == 59
    before = snapshot(aggregator, tmp_path)
    assert aggregator.receive(first) is REPLAYED
    stranger = small_aggregator(reward_bound=2.0)
    assert aggregator.receive(honest_reports(stranger, 1)[0]) is UNKNOWN
    damaged = bytearray(second)
    damaged[30] ^= 1
    for bad in (
        bytes(damaged),
        second[:-1],
        second + b"\0",
        b"",
        bytes(len(second)),
        second.hex(),
        None,
        7,
        [second],
        np.frombuffer(second, np.uint8),
        b"\xca" * (1 << 21),
    ):
        assert aggregator.receive(bad) is MALFORMED  # type: ignore[arg-type]
    assert snapshot(aggregator, tmp_path) == before
    assert aggregator.receive(bytearray(second)) is ACCEPTED  # type: ignore[arg-type]
    assert aggregator.receive(memoryview(second)) is REPLAYED  # type: ignore[arg-type]
    fill(aggregator, first=2)
    assert len(aggregator.epochs) == 1
    before = snapshot(aggregator, tmp_path)
    for late in (
        first,
        second,
        *honest_reports(small_aggregator(), 3, first=500),
    ):
        assert aggregator.receive(late) is STALE
    assert snapshot(aggregator, tmp_path) == before


def test_statuses_have_names() -> None:
    assert [str(status) for status in capri.ReportStatus] == [
        "accepted",
        "stale",
        "unknown",
        "replayed",
        "malformed",
    ]


@pytest.mark.parametrize("byte", [0x11, 0x12, 0x21, 0x22, 3, 5])
def test_reports_of_other_versions_are_malformed(byte: int) -> None:
    aggregator = small_aggregator()
    report = honest_reports(aggregator, 1)[0]
    assert aggregator.receive(sealed(bytes([report[0], byte]) + report[2:-4])) is MALFORMED


def test_same_token_with_another_payload_is_a_replay() -> None:
    aggregator = small_aggregator()
    report = honest_reports(aggregator, 1)[0]
    body = bytearray(report[:-4])
    body[26] ^= 1
    twin = sealed(bytes(body))
    assert list(aggregator.receive_many([report, twin, report])) == [ACCEPTED, REPLAYED, REPLAYED]


def test_payloads_that_no_device_sends() -> None:
    """With a valid checksum: a direction that is not there."""
    aggregator = small_aggregator()
    report = honest_reports(aggregator, 1)[0]
    candidates = newest(aggregator).sphere.candidates
    bad = [number.to_bytes(2, "little") for number in (candidates, 4096, 65535)]
    before = inner(aggregator)
    for number, payload in enumerate(bad):
        token = number.to_bytes(16, "little")
        assert aggregator.receive(sealed(report[:10] + token + payload)) is MALFORMED
    assert inner(aggregator) == before


# -- batches --------------------------------------------------------------------------------------


def test_batches_and_order_do_not_matter_to_the_bit() -> None:
    reports = honest_reports(small_aggregator(), 60)
    shuffled = reports[:]
    random.Random(1).shuffle(shuffled)
    rows = np.frombuffer(b"".join(reports), np.uint8).reshape(60, -1)
    ends = []
    for feed in (
        lambda a: a.receive_many(reports),
        lambda a: a.receive_many(tuple(shuffled)),
        lambda a: a.receive_many(rows),
        lambda a: [a.receive(report) for report in reports],
        lambda a: [a.receive_many(shuffled[i : i + 7]) for i in range(0, 60, 7)],
        lambda a: a.receive_many(
            [x for report in reports for x in (b"junk", report, None, report)]
        ),
    ):
        aggregator = small_aggregator()
        feed(aggregator)
        assert len(aggregator.epochs) == 1
        ends.append((estimates(aggregator), aggregator.bundle()))
    assert len(set(ends)) == 1


def test_an_epoch_closes_after_its_number_of_reports() -> None:
    aggregator = small_aggregator()
    assert aggregator.remaining == 60
    reports = honest_reports(aggregator, 70)
    first = aggregator.bundle()
    assert (aggregator.receive_many(reports[:59]) == ACCEPTED).all()
    assert (aggregator.remaining, len(aggregator.epochs)) == (1, 0)
    assert aggregator.bundle() == first
    # The last one, twice, and those that come too late in the same batch.
    found = aggregator.receive_many([reports[58], reports[59], reports[59], *reports[60:]])
    assert list(found) == [REPLAYED, ACCEPTED] + [STALE] * 11
    assert (aggregator.remaining, len(aggregator.epochs)) == (90, 1)
    assert aggregator.bundle() != first
    assert aggregator.digest == aggregator.bundle()[-32:]
    assert aggregator.epochs[0].length == 60
    # The late ones left no trace.
    clean = small_aggregator()
    clean.receive_many(reports[:60])
    assert clean.bundle() == aggregator.bundle()


def test_rows_of_bytes_across_the_end_of_an_epoch() -> None:
    aggregator = small_aggregator()
    reports = honest_reports(aggregator, 65)
    rows = np.frombuffer(b"".join(reports), np.uint8).reshape(65, -1)
    assert list(aggregator.receive_many(rows)) == [ACCEPTED] * 60 + [STALE] * 5
    assert list(aggregator.receive_many(rows[:, :-1])) == [MALFORMED] * 65
    assert len(aggregator.receive_many([])) == 0
    assert len(aggregator.receive_many(rows[:0])) == 0


def test_the_horizon() -> None:
    aggregator = small_aggregator(horizon=100)
    early = fill(aggregator)
    assert aggregator.remaining == 40
    fill(aggregator, first=60)
    assert (aggregator.remaining, len(aggregator.epochs), aggregator.horizon) == (0, 2, 100)
    for ask in (aggregator.bundle, lambda: aggregator.digest):
        with pytest.raises(HorizonError, match="100 reports"):
            ask()
    for report in early[:3]:
        assert aggregator.receive(report) is STALE
    for bad in (b"", b"x", bytes(32), None):
        assert aggregator.receive(bad) is MALFORMED  # type: ignore[arg-type]
    assert list(aggregator.receive_many(np.zeros((2, 0), np.uint8))) == [MALFORMED] * 2
    assert aggregator.estimate(CONTEXTS).shape == (6, 5)


def test_no_horizon_goes_on() -> None:
    aggregator = small_aggregator(horizon=None)
    for number in range(3):
        fill(aggregator, first=1000 * number)
    assert len(aggregator.epochs) == 3
    assert aggregator.horizon is None


# -- what one client can do -----------------------------------------------------------------------


def test_one_report_moves_the_sum_by_one_unit_vector() -> None:
    """Any accepted sphere message, however it was made up."""
    aggregator = small_aggregator(first_epoch=2000, horizon=5000)
    report = honest_reports(aggregator, 1)[0]
    sphere = newest(aggregator).plan.sphere
    assert sphere is not None
    chooser = random.Random(2)
    tokens = [bytes(16), b"\xff" * 16, *(chooser.randbytes(16) for _ in range(1000))]
    # Found by inverting the hash: a seed whose first four Gaussians vanish where care is missing.
    tokens.append((0x1196F20).to_bytes(8, "little") + (0x1890D796264F1756).to_bytes(8, "little"))
    for token in tokens:
        number = chooser.randrange(sphere.candidates) if token != tokens[-1] else 0
        before = sums(aggregator)
        message = sealed(report[:10] + token + number.to_bytes(2, "little"))
        assert aggregator.receive(message) is ACCEPTED
        moved = np.linalg.norm((sums(aggregator) - before) / DIRECTION_UNITS)
        assert moved == pytest.approx(1, abs=1e-6)


def test_crooked_seed_in_few_dimensions() -> None:
    """With at most four coordinates one chosen token must not wreck the sum."""
    aggregator = small_aggregator(kernel=capri.kernels.RBF(lengthscale=0.6))
    plan = newest(aggregator).plan
    assert plan.dimension <= 4
    report = honest_reports(aggregator, 1)[0]
    token = (0x1196F20).to_bytes(8, "little") + (0x1890D796264F1756).to_bytes(8, "little")
    assert aggregator.receive(sealed(report[:10] + token + bytes(2))) is ACCEPTED
    assert np.linalg.norm(sums(aggregator) / DIRECTION_UNITS) == pytest.approx(1, abs=1e-6)


# -- fuzz -----------------------------------------------------------------------------------------


def mutate(report: bytes, chooser: random.Random) -> bytes:
    """A message that no device of this epoch makes: never one that should be accepted."""
    kind = chooser.randrange(8)
    body = bytearray(report[:-4])
    if kind == 0:  # damage anywhere, checksum as it was
        data = bytearray(report)
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        return bytes(data)
    if kind == 1:
        return report[: chooser.randrange(len(report))]
    if kind == 2:
        return report + chooser.randbytes(chooser.randrange(1, 100))
    if kind == 3:
        return chooser.randbytes(chooser.choice((len(report), chooser.randrange(200))))
    # The rest with a checksum that is right.
    if kind == 4:  # magic or version
        body[chooser.randrange(2)] ^= 1 << chooser.randrange(8)
    elif kind == 5:  # another bundle
        body[chooser.randrange(2, 10)] ^= 1 << chooser.randrange(8)
    elif kind == 6:  # a payload beyond what is possible
        body[26:] = chooser.randrange(4096, 65536).to_bytes(2, "little")
    else:  # cut or grown, and sealed again
        size = chooser.choice((chooser.randrange(len(body)), len(body) + chooser.randrange(1, 40)))
        body = (body + chooser.randbytes(40))[:size]
    return sealed(bytes(body))


def fuzz(count: int, seed: int, folder: Path) -> None:
    aggregator = small_aggregator(horizon=1000)
    old = fill(aggregator)
    fresh = honest_reports(aggregator, 40, first=100)
    assert (aggregator.receive_many(fresh[:20]) == ACCEPTED).all()
    chooser = random.Random(seed)
    before, saved = inner(aggregator), snapshot(aggregator, folder)
    sent = 0
    while sent < count:
        batch = [mutate(chooser.choice(fresh), chooser) for _ in range(100)]
        batch += chooser.sample(old, 3) + chooser.sample(fresh[:20], 3)
        chooser.shuffle(batch)
        statuses = aggregator.receive_many(batch)
        assert (statuses != ACCEPTED).all()
        assert inner(aggregator) == before
        sent += 100
    for report in (mutate(chooser.choice(fresh), chooser) for _ in range(300)):
        assert aggregator.receive(report) is not ACCEPTED
    assert inner(aggregator) == before
    assert snapshot(aggregator, folder) == saved
    # The control: what was mutated is accepted as it was.
    assert (aggregator.receive_many(fresh[20:]) == ACCEPTED).all()
    assert inner(aggregator) != before


def test_mutated_reports_change_nothing(tmp_path: Path) -> None:
    fuzz(10_000, 1, tmp_path)


@pytest.mark.slow
def test_many_mutated_reports(tmp_path: Path) -> None:
    fuzz(200_000, 2, tmp_path)


# -- storage --------------------------------------------------------------------------------------


def played(aggregator: capri.LocalCapri, first: int) -> Iterator[object]:
    """Epochs to the horizon and all that is public on the way."""
    while aggregator.remaining:
        fill(aggregator, first=first)
        first += 1000
        yield estimates(aggregator)
        if aggregator.remaining:
            yield aggregator.bundle()


def test_save_and_load_continue_bit_for_bit(tmp_path: Path) -> None:
    aggregator = small_aggregator()
    for number in range(2):  # in the first epoch, then in the second
        reports = honest_reports(aggregator, 20, first=500 * number)
        aggregator.receive_many(reports)
        aggregator.save(tmp_path / "aggregator.capri")
        loaded = capri.LocalCapri.load(tmp_path / "aggregator.capri")
        copied = pickle.loads(pickle.dumps(aggregator))
        for other in (loaded, copied):
            assert inner(other) == inner(aggregator)
            assert snapshot(other, tmp_path) == snapshot(aggregator, tmp_path)
            assert other.certificate().to_json() == aggregator.certificate().to_json()
            # Tokens are remembered.
            assert (other.receive_many(reports) == REPLAYED).all()
        fill(aggregator, first=500 * number + 100)
        fill(loaded, first=500 * number + 100)
        assert loaded.bundle() == aggregator.bundle()
        assert (loaded.receive_many(reports) == STALE).all()
    assert list(played(loaded, 9000)) == list(played(aggregator, 9000))
    aggregator.save(tmp_path / "done.capri")
    done = capri.LocalCapri.load(tmp_path / "done.capri")
    assert done.remaining == 0
    assert estimates(done) == estimates(aggregator)
    with pytest.raises(HorizonError):
        done.bundle()


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.capri"
    small_aggregator().save(path)
    with pytest.raises(StorageError, match="aggregator"):
        capri.Capri.load(path)
    small_policy().save(path)
    with pytest.raises(StorageError, match="curator"):
        capri.LocalCapri.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(StorageError):
        capri.LocalCapri.load(path)
    with pytest.raises(StorageError, match="no such file"):
        capri.LocalCapri.load(tmp_path / "missing")


def test_a_sampler_has_to_be_given_again(tmp_path: Path) -> None:
    sampler = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
    aggregator = small_aggregator(contexts=sampler)
    aggregator.save(tmp_path / "file.capri")
    with pytest.raises(StorageError, match="contexts=sampler"):
        capri.LocalCapri.load(tmp_path / "file.capri")
    loaded = capri.LocalCapri.load(tmp_path / "file.capri", contexts=sampler)
    assert loaded.bundle() == aggregator.bundle()


# -- what is public -------------------------------------------------------------------------------


def test_public_seed_is_all_the_randomness_there_is() -> None:
    one, two = small_aggregator(), small_aggregator()
    for aggregator in (one, two):
        fill(aggregator)
    assert one.bundle() == two.bundle()
    other = small_aggregator(public_seed=4)
    fill(other)
    assert other.bundle() != one.bundle()


def test_certificate_states_what_is_kept() -> None:
    aggregator = small_aggregator(budget=capri.Budget(epsilon=4.0, delta=1e-3))
    assert "pure 4-local privacy" in aggregator.guarantee
    certificate = aggregator.certificate()
    assert (certificate.epsilon, certificate.delta, certificate.model) == (4.0, 0.0, "local")
    assert certificate.spent == {"epsilon": 0.0, "delta": 0.0}
    assert "pure epsilon, delta = 0" in certificate.calibration
    aggregator.receive(honest_reports(aggregator, 1)[0])
    # A report spends when it is made, not when its epoch closes.
    assert aggregator.certificate().spent == {"epsilon": 4.0, "delta": 0.0}
    fill(aggregator, first=1)
    certificate = aggregator.certificate()
    assert 3.999 < certificate.spent["epsilon"] <= 4.0
    assert certificate.releases[0]["bytes"] == 32
    assert certificate.releases[0]["reports"] == 60
    assert "pure epsilon" in certificate.to_json()


@pytest.mark.parametrize("epsilon", [0.5, 5.0, 8.0, 16.0])
def test_stated_spending_is_within_the_promise(epsilon: float) -> None:
    budget = capri.Budget(epsilon=epsilon)
    aggregator = small_aggregator(budget=budget, first_epoch=5)
    bundle = aggregator.bundle()
    for _ in range(5):
        client = capri.LocalClient(bundle, budget)
        client.act([0.5])
        aggregator.receive(client.report(0.0))
    assert aggregator.certificate().spent["epsilon"] <= epsilon


def test_public_views() -> None:
    aggregator = small_aggregator()
    assert (aggregator.estimate(CONTEXTS) == 0).all()
    assert aggregator.active(CONTEXTS).all()
    assert aggregator.probabilities(CONTEXTS).sum(axis=1) == pytest.approx(1)
    assert "LocalCapri(pure 4-local" in repr(aggregator)
    for bad in ([[np.nan]], "text", [[0.1, 0.2]]):
        with pytest.raises(DataError):
            aggregator.estimate(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"budget": None},
        {"budget": 4.0},
        {"randomizer": "sphere"},
        {"budget": capri.Budget(epsilon=31.0)},
        {"budget": capri.Budget(epsilon=1e-4)},
        {"public_seed": -1},
        {"public_seed": "x"},
        {"horizon": 0},
        {"growth": 0.5},
        {"no_such_option": 1},
        {"contexts": CONTEXTS},
        {"kernel": "rbf"},
        {"reward_bound": 0.0},
    ],
)
def test_bad_settings(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        small_aggregator(**change)


def test_the_head_of_a_report() -> None:
    aggregator = small_aggregator()
    report = honest_reports(aggregator, 1)[0]
    assert len(report) == wire.SIZE
    assert report[:2] == bytes([wire.MAGIC, wire.VERSION])
    assert report[2:10] == aggregator.digest[:8]


def test_noise_the_learner_expects_is_that_of_the_reports() -> None:
    """The standard deviation of the sum of all reports, in the decoded vector.

    A report has two coordinates beside those of the features, hence a little more noise.
    """
    aggregator = small_aggregator()
    plan = newest(aggregator).plan
    design = aggregator._learning.learner.known.pending[plan.epoch][0].design
    assert design is not None
    added = plan.noise_scale * np.sqrt(plan.length) / design.main_share
    assert design.noise == pytest.approx(added, rel=0.05)
