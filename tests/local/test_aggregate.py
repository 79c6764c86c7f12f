"""Reports from files: the sum that an aggregator would make of them, replays found."""

import gzip
import json
import os
import re
import shutil
from dataclasses import replace
from math import ceil, nan
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from devices import CONTEXTS, honest_reports, open_epochs, small_aggregator
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import capri
from capri.cli import app
from capri.errors import ConfigurationError, DataError, StorageError
from capri.local import summing, wire
from capri.local.on_dask import dask_cluster
from capri.local.reports import EpochSum
from capri.local.summing import aggregate, pieces, report_files
from capri.privacy.sphere import reported_sum


def aggregator(epsilon: float = 2.0, **more: Any) -> capri.LocalCapri:
    return capri.LocalCapri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.4),
        actions=np.linspace(0, 1, 4)[:, None],
        contexts=capri.ContextPool(np.linspace(0, 1, 5)[:, None]),
        budget=capri.Budget(epsilon=epsilon),
        public_seed=3,
        first_epoch=100_000,
        **more,
    )


def reports_to(bundle: bytes, count: int, seed: int) -> wire.Messages:
    """Reports as no device drew them, but as any could have."""
    draw = np.random.default_rng(seed)
    epoch = summing.epoch_of(bundle)
    tokens = draw.integers(0, 2**64, (count, 2), dtype=np.uint64)
    numbers = draw.integers(0, epoch.sphere.candidates, count)
    return wire.pack(epoch.digest, tokens, numbers)


def written(folder: Path, rows: wire.Messages, files: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(np.array_split(rows, files)):
        paths.append(folder / f"{number:03}.reports")
        part.tofile(paths[-1])
    return paths


@given(st.integers(0, 70), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_checksums_are_those_of_zlib(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 2**64, (count, 2), dtype=np.uint64)
    rows = wire.pack(random.bytes(32), tokens, random.integers(0, 64, count))
    assert all(crc32(row[:28].tobytes()).to_bytes(4, "little") == bytes(row[28:]) for row in rows)
    assert wire.are_reports(rows).all()
    damaged = rows ^ (1 << random.integers(8, size=(count, 1), dtype=np.uint8)) * (
        np.arange(32) == random.integers(32, size=(count, 1))
    ).astype(np.uint8)
    assert not wire.are_reports(damaged).any()


def test_the_sum_is_that_of_an_aggregator(tmp_path: Path) -> None:
    """Replays, damaged ones and those to another bundle among them, in any division."""
    server = aggregator()
    bundle = server.bundle()
    rows = reports_to(bundle, 900, 3001)
    replayed = rows[np.random.default_rng(3002).integers(0, 300, 50)]
    damaged = rows[:20].copy()
    damaged[:, 27] ^= 1
    other = reports_to(aggregator(epsilon=1.5).bundle(), 30, 3003)
    everything = np.concatenate([rows, replayed, damaged, other])
    np.random.default_rng(3004).shuffle(everything)
    statuses = server.receive_many(everything)
    (newest,) = open_epochs(server)
    for files, piece in ((1, 10_000), (7, 100), (40, 33)):
        made = aggregate(bundle, written(tmp_path / str(files), everything, files), piece=piece)
        assert (made.total == newest.total).all()
        counts = (made.accepted, made.unknown, made.replayed, made.malformed)
        assert counts == (900, 30, 50, 20)
    found = np.bincount(statuses, minlength=5)
    assert found.tolist() == [900, 0, 30, 50, 20]


def test_of_reports_with_one_token_the_smallest_number_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However files are ordered, and however few reports are in memory at a time."""
    bundle = aggregator().bundle()
    epoch = summing.epoch_of(bundle)
    tokens = np.repeat(np.array([[1, 2], [1, 3], [7, 2]], dtype=np.uint64), 40, axis=0)
    numbers = np.tile(np.arange(40)[::-1] % (epoch.sphere.candidates - 1) + 1, 3)
    rows = wire.pack(epoch.digest, tokens, numbers)
    ones = np.ones(3, dtype=np.int64)
    expected = reported_sum(tokens[::40], ones, epoch.plan.dimension)
    monkeypatch.setattr(summing, "_BLOCK", 10)
    for seed in range(3):
        np.random.default_rng(seed).shuffle(rows)
        made = aggregate(bundle, written(tmp_path / str(seed), rows, 9), piece=11)
        assert (made.accepted, made.replayed) == (3, 117)
        assert (made.total == expected).all()


def test_two_dask_workers_make_the_same_bits(tmp_path: Path) -> None:
    bundle = aggregator().bundle()
    rows = reports_to(bundle, 5000, 3005)
    rows = np.concatenate([rows, rows[::50]])
    files = written(tmp_path / "in", rows, 6)
    alone = aggregate(bundle, files, piece=700)
    with dask_cluster(2) as run:
        spread = aggregate(bundle, files, scratch=tmp_path, run=run, piece=700)
        files[3].write_bytes(files[3].read_bytes() + b"x")
        fewer = aggregate(bundle, files, scratch=tmp_path, run=run)
    assert re.search(r"003\.reports has .* 1 are left over", *fewer.set_aside)
    assert fewer.accepted < alone.accepted
    assert spread.to_dict() == alone.to_dict()
    assert spread.replayed == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]  # scratch files are gone


def test_a_sum_teaches_as_its_reports_do(tmp_path: Path) -> None:
    """An aggregator that takes the sum up is the one that received the reports."""
    one, other = aggregator(), aggregator()
    bundle = one.bundle()
    assert bundle == other.bundle()
    rows = reports_to(bundle, 2000, 3006)
    one.receive_many(rows)
    one.close_epoch(early=True)
    made = aggregate(bundle, written(tmp_path, rows, 3))
    made.save(tmp_path / "sum.json")
    told = EpochSum.load(tmp_path / "sum.json")
    other.receive_sum(told)
    assert one.bundle() == other.bundle() != bundle
    assert (one.estimate([[0.3]]) == other.estimate([[0.3]])).all()
    with pytest.raises(DataError, match="taken up before"):
        other.receive_sum(told)
    assert other.receive(rows[0].tobytes()) is capri.ReportStatus.STALE
    third = aggregator()
    third.receive(rows[0].tobytes())
    with pytest.raises(DataError, match="one by one"):
        third.receive_sum(told)
    short = aggregator(horizon=50)
    dimension = summing.epoch_of(short.bundle()).plan.dimension
    with pytest.raises(capri.HorizonError, match="2000 reports, and 50 of the horizon"):
        short.receive_sum(
            EpochSum(short.digest, 1, np.zeros(dimension, dtype=np.int64), 2000, 0, 0, 0)
        )


def test_a_sum_that_cannot_be_is_refused_before_it_counts(tmp_path: Path) -> None:
    """Every public invariant of a sum, by one that breaks it alone; then the true one counts."""
    taker = small_aggregator()
    bundle = taker.bundle()
    file = tmp_path / "reports"
    file.write_bytes(b"".join(honest_reports(taker, 20)))
    true = aggregate(bundle, [file])
    longest = ceil(summing.epoch_of(bundle).reach) * 20
    far = np.zeros_like(true.total)
    far[0] = longest
    lucky = small_aggregator()
    lucky.receive_sum(replace(true, total=far))  # as long as 20 reports can be
    far[1] = 1 << 20
    impossible = [
        {"accepted": -20}, {"accepted": True}, {"accepted": 20.0}, {"accepted": nan},
        {"accepted": 0}, {"replayed": -1}, {"unknown": "3"}, {"malformed": None}, {"epoch": 2},
        {"epoch": -1}, {"epoch": 1.0}, {"digest": true.digest[:8]}, {"digest": true.digest.hex()},
        {"total": true.total[:-1]}, {"total": np.append(true.total, 0)},
        {"total": true.total[None]}, {"total": true.total.astype(float)},
        {"total": true.total.tolist()},
        {"total": np.full_like(true.total, np.iinfo(np.int64).max)},
        {"total": np.full_like(true.total, np.iinfo(np.int64).min)}, {"total": far},
    ]  # fmt: skip
    for change in impossible:
        with pytest.raises(DataError):
            taker.receive_sum(replace(true, **change))
    with pytest.raises(DataError, match="no bundle of its digest"):
        taker.receive_sum(replace(true, digest=bytes(32)))
    assert taker.bundle() == bundle
    taker.receive_sum(true)
    assert taker.certificate().releases[0]["reports"] == 20
    assert np.isfinite(taker.estimate(CONTEXTS)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("accepted", 3.7), ("accepted", "3"), ("epoch", None), ("digest", "ab"), ("sum", [0.5]),
     ("sum", ["9" * 30]), ("sum", "12"), ("unknown", -1), ("format", "other")],
)  # fmt: skip
def test_a_file_that_is_no_sum_is_refused(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "sum.json"
    true = EpochSum(bytes(32), 1, np.zeros(2, dtype=np.int64), 3, 0, 0, 0)
    true.save(path)
    assert EpochSum.load(path).to_dict() == true.to_dict()
    path.write_text(json.dumps(true.to_dict() | {name: value}))
    with pytest.raises(StorageError, match="it is no sum of reports"):
        EpochSum.load(path)


def test_the_command(tmp_path: Path) -> None:
    bundle = aggregator().bundle()
    (tmp_path / "bundle").write_bytes(bundle)
    rows = reports_to(bundle, 100, 3007)
    written(tmp_path / "day" / "hour", rows, 2)
    (tmp_path / "day" / "_SUCCESS").write_text("all there")
    (tmp_path / "day" / ".hidden").write_text("half a file")
    output = tmp_path / "sum.json"
    command = ["aggregate", str(tmp_path / "bundle"), str(tmp_path / "day"), "--workers", "0"]
    done = CliRunner().invoke(app, [*command, "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "epoch 1: 100 reports" in done.output
    values = json.loads(output.read_text())
    assert (values["accepted"], values["digest"]) == (100, bundle[-32:].hex())
    assert all(isinstance(each, str) for each in values["sum"])
    (tmp_path / "bundle").write_bytes(aggregator(epsilon=1.5).bundle())
    none = CliRunner().invoke(app, [*command, "-o", str(output)])
    assert none.exit_code == 1
    assert "unknown: 100" in none.output


def test_what_is_wrong_with_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a file nor a folder"):
        report_files([tmp_path / "nowhere"])
    with pytest.raises(ConfigurationError, match="no files of reports"):
        report_files([tmp_path])
    path = tmp_path / "a"
    path.write_bytes(b"x" * 64)
    assert report_files([path, tmp_path]) == [path]  # one file by two ways is one
    (piece,) = pieces({path: 2}, 32)
    path.write_bytes(b"x" * 40)
    bundle = aggregator().bundle()
    with pytest.raises(StorageError, match=r"32 bytes: 8 are left .* Nothing was added up"):
        aggregate(bundle, [path])
    with pytest.raises(StorageError, match="shorter while it was read"):
        summing.spill(bundle, 1, (1, 2), (piece, tmp_path / "t"))
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(StorageError, match="no sum of reports"):
        EpochSum.load(tmp_path / "no.json")


def test_files_of_an_object_store_are_added_up_as_those_of_a_folder(tmp_path: Path) -> None:
    """At any depth, packed or not; what is hidden is left out, what is damaged is named."""
    import fsspec

    bundle = aggregator().bundle()
    rows = reports_to(bundle, 300, 3012)
    store = fsspec.filesystem("memory")
    store.pipe("/reports/day/one", rows[:100].tobytes())
    store.pipe("/reports/day/below/two.gz", gzip.compress(rows[100:].tobytes()))
    store.pipe("/reports/day/below/three", b"x" * 33)
    store.pipe("/reports/day/_SUCCESS", b"all there")
    store.pipe("/reports/other", rows.tobytes())
    try:
        files = report_files(["memory://reports/day", "memory:///reports/day/one"])
        assert len(files) == 3
        made = aggregate(bundle, files, piece=70)
        with pytest.raises(ConfigurationError, match="no files of reports"):
            report_files(["memory://nothing"])
    finally:
        store.rm("/reports", recursive=True)
    assert (made.accepted, made.replayed) == (300, 0)
    (aside,) = made.set_aside
    assert "below/three has 33 bytes" in aside
    assert (made.total == aggregate(bundle, written(tmp_path, rows, 2)).total).all()
    with pytest.raises(StorageError, match=r"nowhere://x cannot be listed \(ValueError\)"):
        report_files(["nowhere://x"])


def test_few_reports_need_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting workers takes longer than adding up a few million reports."""
    path = tmp_path / "reports"
    path.write_bytes(bytes(32 * 100))
    assert summing.workers_for([path]) == 0
    monkeypatch.setattr(summing, "_ALONE", 99)
    assert summing.workers_for([path]) == os.cpu_count()
    assert summing.workers_for(["s3://bucket/day"]) == os.cpu_count()


def test_files_that_are_damaged_are_set_aside_and_named(tmp_path: Path) -> None:
    """Cut short, older, no gzip, a gzip that ends in the middle: the others are added up."""
    bundle = aggregator().bundle()
    rows = reports_to(bundle, 600, 3011)
    files = written(tmp_path, rows, 6)
    for path in files[:2]:
        packed = path.with_suffix(".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    whole = aggregate(bundle, report_files([tmp_path]), piece=70)
    assert (whole.accepted, whole.set_aside) == (600, ())
    assert (whole.total == aggregate(bundle, written(tmp_path / "all", rows, 1)).total).all()
    data = files[2].read_bytes()
    for name, content in (
        ("cut", data[:-5]),
        ("older", b"\xca\x11" + data[2:]),
        ("none.gz", data),
        ("half.gz", gzip.compress(data)[:-20]),
    ):
        (tmp_path / name).write_bytes(content)
    shutil.rmtree(tmp_path / "all")
    command = ["aggregate", "--workers", "0", "-o", str(tmp_path / ".sum"), str(tmp_path / ".b")]
    (tmp_path / ".b").write_bytes(bundle)
    told = CliRunner().invoke(app, [*command, str(tmp_path)])
    assert told.exit_code == 0
    assert all(f"{tmp_path / name} " in told.output for name in ("cut", "older"))
    assert told.output.count("set aside: ") == 4
    found = EpochSum.load(tmp_path / ".sum")
    assert (found.accepted, len(found.set_aside)) == (600, 4)
    assert (found.total == whole.total).all()
