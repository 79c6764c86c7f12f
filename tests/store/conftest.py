"""What tests of the store share."""

from pathlib import Path

import pytest

from capri.store import sqlite


@pytest.fixture
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite leaves it to the operating system when a page reaches the disk.

    A killed process loses nothing by that, and tests that do not cut the power are faster.
    """
    settings = tuple(each.replace("FULL", "OFF") for each in sqlite._SETTINGS)
    monkeypatch.setattr(sqlite, "_SETTINGS", settings)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of either kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/store.db"
