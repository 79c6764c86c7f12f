"""The oracle test of the regression: every source of rows, two tables, one public result."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from oracle.blind import blind
from oracle.transcript import Transcript, assert_same, overheard, told_apart_by

ROWS, COLUMNS = 240, 2
QUESTIONS = np.random.default_rng(1).random((20, COLUMNS))
# Whether rows that are no numbers are served, too: the regression refused them once.
VALUES_ARE_TOTAL = True
Table = tuple[np.ndarray, np.ndarray]


def quiet_rows() -> Table:
    """Everybody the same."""
    return np.full((ROWS, COLUMNS), 0.5), np.zeros(ROWS)


def wild_rows() -> Table:
    """Far outside of all bounds, subnormal, ordinary."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(ROWS, COLUMNS)) * 10.0 ** rng.integers(-300, 100, (ROWS, 1))
    y = rng.normal(size=ROWS) * 10.0 ** rng.integers(-300, 100, ROWS)
    return X, y


def missing_rows() -> Table:
    """As before, with values that are no numbers in both."""
    X, y = wild_rows()
    X[::7, 0], X[1::7, 1], y[::5], y[1::11] = np.nan, np.inf, np.nan, -np.inf
    return X, y


def from_arrays(ridge: Any, table: Table, _: Path) -> None:
    ridge.fit(*table)


def from_chunks(ridge: Any, table: Table, _: Path) -> None:
    ridge.fit([(X, y) for X, y in _parts(table)])


def from_an_iterator(ridge: Any, table: Table, _: Path) -> None:
    ridge.fit(iter(_parts(table)))


def part_by_part(ridge: Any, table: Table, _: Path) -> None:
    for X, y in _parts(table):
        ridge.partial_fit(X, y)


def from_parquet(ridge: Any, table: Table, folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": table[0][:, 0], "b": table[0][:, 1], "y": table[1]})
    frame.to_parquet(folder / "rows.parquet")
    ridge.fit(folder / "rows.parquet", "y")


def from_dask(ridge: Any, table: Table, _: Path) -> None:
    dask_array = pytest.importorskip("dask.array")
    dask = pytest.importorskip("dask")
    X = dask_array.from_array(table[0], chunks=(100, COLUMNS))
    with dask.config.set(scheduler="synchronous"):
        ridge.fit(X, dask_array.from_array(table[1], chunks=100))


def _parts(table: Table) -> list[Table]:
    return [
        (table[0][start : start + 100], table[1][start : start + 100]) for start in (0, 100, 200)
    ]


SOURCES: list[Callable[[Any, Table, Path], None]] = [
    from_arrays,
    from_chunks,
    from_an_iterator,
    part_by_part,
    from_parquet,
    from_dask,
]


def fitted(source: Callable[[Any, Table, Path], None], table: Table, folder: Path) -> Transcript:
    """Everything that a fit shows: attributes, predictions, widths, account, the pickle."""
    transcript: Transcript = []
    ridge = capri.PrivateKernelRidge(
        epsilon=2.0, X_bounds=(0, 1), y_bounds=(-1, 1), rank=12, stream_rows=ROWS
    )
    with pytest.MonkeyPatch.context() as patch, overheard(transcript):
        blind(patch)
        source(ridge, table, folder)
        ridge.release()
        questions: Any = QUESTIONS
        if hasattr(ridge, "feature_names_in_"):
            pandas = pytest.importorskip("pandas")
            questions = pandas.DataFrame(QUESTIONS, columns=ridge.feature_names_in_)
        mean, width = ridge.predict(questions, return_std=True)
        transcript += [
            ("shown", (repr(ridge), ridge.n_rows_, ridge.rank_, np.asarray(ridge.tau_).tobytes())),
            ("prediction", (mean.tobytes(), np.asarray(width).tobytes())),
            ("ledger", (repr(ridge.ledger_), str(ridge.ledger_.events))),
            ("certificate", (ridge.certificate().to_json(), ridge.certificate().to_html())),
            ("pickle", pickle.dumps(ridge)),
        ]
    # Noise that ignores the rows tells of rows that count for nothing: said in every world alike.
    return [
        ("notices", found) if kind == "warnings" and _are_doubts(found) else (kind, found)
        for kind, found in transcript
    ]


def _are_doubts(found: Any) -> bool:
    return len(found) == 1 and "what was released of" in str(found[0])


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_fit_is_the_same_whatever_the_rows_hold(source: Any, tmp_path: Path) -> None:
    quiet = fitted(source, quiet_rows(), tmp_path)
    assert_same(quiet, fitted(source, wild_rows(), tmp_path))
    if VALUES_ARE_TOTAL:
        assert_same(quiet, fitted(source, missing_rows(), tmp_path))


def test_premise_rows_that_pass_beside_the_gate_are_seen(tmp_path: Path) -> None:
    """A leak planted in the public attributes: how many rows lay within their bounds."""
    transcripts = []
    for table in (quiet_rows(), wild_rows()):

        def leak(ridge: Any, rows: Table, folder: Path) -> None:
            from_arrays(ridge, rows, folder)
            ridge.n_rows_ = int(np.sum(np.abs(rows[0]).max(axis=1) <= 1))

        transcripts.append(fitted(leak, table, tmp_path))
    assert told_apart_by(*transcripts) == "shown"
