"""One service for all tests that leave it as it was."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory import MEMORY
from service_process import Running, service


@pytest.fixture(scope="session")
def shop() -> Iterator[Running]:
    """A service with keys on SQLite."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        service(Path(folder)) as running,
    ):
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that needs no disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)
