"""Contexts of a list are read column by column, and each as if it were alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capri import Boolean, Categorical, Numeric, Schema
from capri.service.decisions import ContextReader

SCHEMA = Schema([Numeric("age", 0, 100), Categorical("plan", ["free", "pro"]), Boolean("member")])
CELLS = st.one_of(
    st.floats(allow_nan=True), st.integers(-(10**400), 10**400), st.text(max_size=3), st.none(),
    st.booleans(), st.sampled_from(["free", "pro", 1, 0, [], {}, "x" * 10_000]),
)  # fmt: skip
USUAL = st.fixed_dictionaries(
    {"age": st.floats(0, 100), "plan": st.sampled_from(["free", "pro"]), "member": st.booleans()}
)
ODD = st.one_of(st.dictionaries(st.sampled_from(["age", "plan", "member", "agee"]), CELLS), CELLS)


@given(st.lists(st.one_of(USUAL, USUAL, ODD), max_size=40))
def test_each_is_read_as_if_it_were_alone(contexts: list[object]) -> None:
    reader = ContextReader(SCHEMA, lambda context: None)
    rows, marks = reader.rows(contexts)
    alone = [reader.row(context) for context in contexts]
    assert marks == [mark for _, mark in alone]
    for row, (numbers, _) in zip(rows, alone, strict=True):
        np.testing.assert_allclose(row, numbers, rtol=1e-12, atol=0)
