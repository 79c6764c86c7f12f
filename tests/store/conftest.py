"""What tests of the store share."""

import pytest

from capri.store import sqlite


@pytest.fixture
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite leaves it to the operating system when a page reaches the disk.

    A killed process loses nothing by that, and tests that do not cut the power are faster.
    """
    settings = tuple(each.replace("FULL", "OFF") for each in sqlite._SETTINGS)
    monkeypatch.setattr(sqlite, "_SETTINGS", settings)
