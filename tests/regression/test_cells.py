"""One odd cell, of any type and size, at any place and door, changes no other row's contribution.

The reference is the same table with the odd row missing: its contribution is zero. Noise is seeded,
so equal sums give equal bytes of everything that is predicted.
"""

import time
import tracemalloc
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capri import KernelWarning, PrivacyLeakWarning, PrivateKernelClassifier, PrivateKernelRidge
from capri.regression import PublicScaler
from capri.regression.classifier import _cells, _indicators
from capri.regression.tables import as_matrix, as_targets, as_weights, checked_block

ROWS, COLUMNS = 9, 2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((ROWS, COLUMNS))
Y = GENERATOR.random(ROWS)
TEST = GENERATOR.random((5, COLUMNS))


class Rude:
    """Whatever is asked of it, it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("secret")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret")

    def __float__(self) -> float:
        raise RuntimeError("secret")

    __hash__ = None  # type: ignore[assignment]


# No number among them: 0.5 in another coat is a number like any other.
ODD: list[Any] = [
    "text", "0.5", "", b"bytes", None, float("nan"), float("inf"), 10**400, -(10**400), 1j,
    Decimal("sNaN"), datetime(2020, 1, 1, tzinfo=UTC), date(2020, 1, 1), np.datetime64("NaT"),
    np.timedelta64(3, "s"), pd.NA, pd.NaT, np.ma.masked, [], [0.5], [[0.5]], (0.5, 0.5, 0.5),
    {"a": 1}, {1, 2}, object(), Rude(), np.array([0.5, 0.5, 0.5]), np.array("text"),
    pd.Series([0.5, 0.1, 0.2]), "x" * 2_000_000, np.longdouble("1e4000"), lambda: 1, type,
]  # fmt: skip
odd_cells = st.one_of(
    st.sampled_from(ODD),
    st.text(),
    st.binary(),
    st.dates(),
    st.lists(st.text(), min_size=1, max_size=3),
    st.complex_numbers().filter(lambda each: each.imag != 0),
    st.dictionaries(st.text(), st.integers()),
)
places = st.integers(0, ROWS - 1)
checked = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def quiet(call: Callable[[], Any]) -> Any:
    """What a call gives; any warning but those of seeds and of released values is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        warnings.simplefilter("ignore", KernelWarning)
        return call()


def ridge() -> PrivateKernelRidge:
    return PrivateKernelRidge(
        "rbf", X_bounds=(0, 1), y_bounds=(0, 1), rank=3, random_state=0, stream_rows=ROWS
    )


def with_cell(values: Any, place: int, cell: Any) -> list[Any]:
    """A list with one cell replaced, which NumPy never sees."""
    listed = values.tolist()
    listed[place] = cell
    return listed


def missing(values: np.ndarray, place: int) -> np.ndarray:
    values = values.copy()
    values[place] = np.nan
    return values


@checked
@given(odd_cells, places, st.integers(0, COLUMNS - 1))
def test_cell_of_a_table_is_judged_by_itself(cell: Any, place: int, column: int) -> None:
    """By every reading of tables in this package; a row is what is left out, no other."""
    listed = X.tolist()
    listed[place][column] = cell
    objects = X.astype(object)
    objects[place, column] = cell
    frame = pd.DataFrame({name: [row[i] for row in listed] for i, name in enumerate("ab")})
    cut = [frame.iloc[[i]].infer_objects() for i in range(ROWS)]  # a type for each row
    for found in (
        quiet(lambda: as_matrix(listed, "X")),
        quiet(lambda: as_matrix([tuple(row) for row in listed], "X", width=COLUMNS)),
        quiet(lambda: as_matrix(objects, "X")),
        quiet(lambda: as_matrix(frame, "X")),
        np.concatenate([quiet(lambda row=row: checked_block(row, [0.5])[0]) for row in cut]),
        quiet(lambda: PublicScaler((0, 1)).fit(listed).transform(listed)),
    ):
        assert found.shape == X.shape
        others = np.arange(ROWS) != place
        assert np.array_equal(found[others], X[others])
        assert not np.isfinite(found[place, column])


@checked
@given(odd_cells, places)
def test_row_target_and_weight_are_judged_by_themselves(cell: Any, place: int) -> None:
    others = np.arange(ROWS) != place
    rows = quiet(lambda: as_matrix(with_cell(X, place, cell), "X"))
    assert np.array_equal(rows[others], X[others])
    assert not np.isfinite(rows[place]).all()
    for wanted in (Y, X):  # one output, and two
        listed = with_cell(wanted, place, cell)
        forms = [listed, pd.Series(pd.array(listed, dtype=object))] if wanted is Y else [listed]
        for form in forms:
            found = quiet(lambda form=form: as_targets(form))
            assert found.shape == wanted.shape
            assert np.array_equal(found[others], wanted[others])
    weights = quiet(lambda: as_weights(with_cell(Y, place, cell), 1.0, ROWS))[:, 0]
    assert np.array_equal(weights[others], Y[others])


@pytest.mark.parametrize("cell", ["text", None, 10**400, 1j, [0.5], "x" * 2_000_000])
def test_fit_and_prediction_are_those_without_the_row(cell: Any) -> None:
    """To the byte, by fit and by parts, for an odd cell in X, in y and in questions."""
    place = 4
    reference = quiet(lambda: ridge().fit(missing(X, place), Y)).predict(TEST)
    listed = X.tolist()
    listed[place][1] = cell
    asked = TEST.tolist()
    asked[2][0] = cell
    model = quiet(lambda: ridge().fit(listed, Y.tolist()))
    assert np.array_equal(model.predict(TEST), reference)
    answers = quiet(lambda: model.predict(asked))
    assert np.array_equal(answers[[0, 1, 3, 4]], reference[[0, 1, 3, 4]])
    targets = with_cell(Y, place, cell)
    assert np.array_equal(quiet(lambda: ridge().fit(X.tolist(), targets)).predict(TEST), reference)
    parts = ridge()
    for start in range(0, ROWS, 3):
        part = slice(start, start + 3)
        quiet(lambda part=part: parts.partial_fit(listed[part], targets[part]))
    whole = quiet(lambda: ridge().partial_fit(missing(X, place), Y).release())
    assert np.array_equal(quiet(lambda: parts.predict(TEST)), whole.predict(TEST))


@pytest.mark.parametrize("cell", ["text", None, 1j, datetime(2020, 1, 1, tzinfo=UTC)])
def test_partitions_of_one_row_may_have_a_type_of_their_own(cell: Any) -> None:
    """Data frames of a single row, Dask partitions and Arrow tables take their type from a cell."""
    import dask
    import dask.dataframe as dd

    place, names = 4, ["a", "b"]
    rows = [pd.DataFrame([row], columns=names) for row in X.tolist()]
    rows[place] = pd.DataFrame([[cell, 0.5]], columns=names)
    frame = pd.DataFrame(missing(X, place), columns=names)
    test = pd.DataFrame(TEST, columns=names)
    reference = quiet(lambda: ridge().fit(frame, Y)).predict(test)
    chunks = [(row, np.array([target])) for row, target in zip(rows, Y, strict=True)]
    assert np.array_equal(quiet(lambda: ridge().fit(chunks)).predict(test), reference)
    parts = [dask.delayed(row) for row in rows]
    targets = [dask.delayed(pd.DataFrame({"y": [each]})) for each in Y]
    with dask.config.set(scheduler="synchronous"):
        lazy = dd.from_delayed(parts, meta=rows[0], verify_meta=False)
        sums = dd.from_delayed(targets, meta=pd.DataFrame({"y": [0.5]}))
        model = quiet(lambda: ridge().fit(lazy, sums))
    assert np.array_equal(model.predict(test), reference)
    if cell != 1j:  # which Arrow has no type for
        tables = [(pa.Table.from_pandas(row), targets) for row, targets in chunks]
        assert np.array_equal(quiet(lambda: ridge().fit(tables)).predict(test), reference)


# -- labels ---------------------------------------------------------------------------------------


def classifier(classes: Any) -> PrivateKernelClassifier:
    return PrivateKernelClassifier(classes, kernel="rbf", X_bounds=(0, 1), rank=3, random_state=0)


@pytest.mark.parametrize("classes", [[0, 1], [False, True], [0.5, 1.5], ["no", "yes"], [0, "1"]])
def test_odd_label_leaves_the_others_as_they_are(classes: list[Any]) -> None:
    """One text among numbers made texts of all, so that no row counted: epsilon 4.4, not 1."""
    place = 4
    labels = [classes[int(each > 0.5)] for each in Y]

    def forms(cell: Any) -> list[Any]:
        odd = [*labels[:place], cell, *labels[place + 1 :]]
        held = pd.Series(odd, dtype=object)
        return [odd, tuple(odd), held, held.to_frame(), [[each] for each in odd]]

    reference = _indicators([*labels[:place], None, *labels[place + 1 :]], classes)
    for cell in ODD:
        for form in forms(cell):
            found = _indicators(_cells(form, texts=True).ravel().tolist(), classes)
            assert np.array_equal(found, reference, equal_nan=True)
    wanted = quiet(lambda: classifier(classes).fit(X, forms(None)[0])).predict_proba(TEST)
    for cell in ("text", 1j, "x" * 2_000_000):
        model = quiet(lambda cell=cell: classifier(classes).fit(X, forms(cell)[0]))
        assert np.array_equal(model.predict_proba(TEST), wanted)
        assert model.classes_.tolist() == classes


def test_long_label_costs_its_own_length() -> None:
    """A label of two million characters beside 20,000 others: no copy of it for each of them."""
    labels: list[Any] = [0, 1] * 10_000
    labels[7] = "x" * 2_000_000
    rows = np.random.default_rng(1).random((20_000, 1))
    model = PrivateKernelClassifier([0, 1], kernel="rbf", rank=3, X_bounds=(0, 1))
    tracemalloc.start()
    begin = time.thread_time()
    model.fit(rows, labels)
    assert time.thread_time() - begin < 60  # it was refused memory before
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


@pytest.mark.parametrize("odd", ["x", np.datetime64("2020-01-01"), b"x"])
def test_labels_that_numpy_made_alike_are_refused_by_their_type(odd: Any) -> None:
    """One text has made texts of all: the numbers are lost, and none would match a class."""
    model = PrivateKernelClassifier(classes=[0, 1], X_bounds=[(0, 1)] * COLUMNS)
    labels = np.array([0, 1] * (ROWS // 2) + [odd], dtype=np.asarray(odd).dtype.kind)
    with pytest.raises(TypeError, match="no class is a text: give a list"):
        model.fit(X, labels)
