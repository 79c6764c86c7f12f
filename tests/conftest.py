"""Settings that all tests share. Helpers beside this file are found by pytest's ``pythonpath``."""

import gc
import os
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from memory import MEMORY, swept_folder
from postgres_server import postgres_server, postgres_url  # noqa: F401  (fixtures)

# Processes that tests start shall not each compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if MEMORY is not None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers take the folder of whoever starts them
        os.environ["TMPDIR"] = swept_folder(MEMORY)
    tempfile.tempdir = os.environ["TMPDIR"]

# The same examples in every run, so that a failure belongs to the change; and no deadline and no
# look at how long examples take to draw, since machines that test may be busy.
# ``make audit`` looks at more of them: ``--hypothesis-profile=thorough``.
settings.register_profile(
    "capri",
    max_examples=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("capri"), max_examples=200)
settings.load_profile("capri")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Modules and tests stay to the end: looking through them for garbage is in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
