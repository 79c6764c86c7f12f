"""Whatever is killed when: nobody is over the budget of their population."""

from collections import Counter
from pathlib import Path

import pytest

import ledger_crashes


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nobody_is_over_the_budget_after_kills(kind: str, tmp_path: Path) -> None:
    told = Counter[str]()
    with ledger_crashes.places(kind, str(tmp_path)) as place:
        for number in range(4):
            with place() as url:
                told += ledger_crashes.run(url, ["basic", "mixed"][number % 2], seed=number)
    assert told["sources"] >= 4  # something was opened in most of them
