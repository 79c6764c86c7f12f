"""Results as a DataFrame and as Parquet."""

import json
from pathlib import Path

import pandas
import pytest

from capri.errors import StorageError
from capri_lab.experiments import Here, load_results, run_study
from capri_lab.experiments.records import to_parquet
from small_studies import results_of, small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("frames")
    run_study(small(rounds="20", seeds="2"), output, backend=Here())
    return output


def test_one_row_per_cell_with_the_numbers_of_the_record(folder: Path) -> None:
    frame = load_results(folder / "small")
    records = results_of(folder / "small")
    assert len(frame) == len(records) == 8
    for (_, row), record in zip(frame.iterrows(), records, strict=True):
        assert row["cell"] == record["cell"]
        assert row["ratio"] == record["ratio"]
        assert row["epsilon"] == record["epsilon"] or (
            pandas.isna(row["epsilon"]) and record["epsilon"] is None
        )
        assert row["promise_model"] == record["promise"]["model"]
        assert row["curve_regret"] == record["curve"]["regret"]
        assert json.loads(row["player"]) == record["player"]
        assert row["simulated"]
        if record["certificate"] is not None:
            assert json.loads(row["certificate"])["claim"].startswith("none")
        assert row["seconds"] > 0
    # What people do with it.
    means = frame.groupby("policy")["ratio"].mean()
    assert set(means.index) == {"capri-joint", "gp-ucb", "uniform"}


def test_a_folder_of_studies_is_read_as_a_whole(folder: Path) -> None:
    assert load_results(folder).equals(load_results(folder / "small"))


def test_parquet_holds_the_same(folder: Path, tmp_path: Path) -> None:
    to_parquet(folder, tmp_path / "all.parquet")
    back, frame = (
        pandas.read_parquet(tmp_path / "all.parquet"),
        load_results(folder),
    )
    assert list(back.columns) == list(frame.columns)
    assert back["ratio"].tolist() == frame["ratio"].tolist()
    assert [list(curve) for curve in back["curve_regret"]] == frame["curve_regret"].tolist()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all.parquet"]


def test_a_study_without_records_has_the_columns(tmp_path: Path) -> None:
    from capri_lab.experiments.records import Records

    with Records(tmp_path, small()):
        pass
    frame = load_results(tmp_path)
    assert len(frame) == 0
    assert "ratio" in frame.columns


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no results"):
        load_results(tmp_path)
