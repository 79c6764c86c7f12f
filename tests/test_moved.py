"""Old import paths still work, and say where things are now."""

import importlib
import subprocess
import sys

import pytest

from capri import moved


@pytest.mark.parametrize("old", moved._HOMES)
def test_every_old_path_finds_its_modules(old: str) -> None:
    sys.modules.pop(f"capri.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"capri.{old} moved to"):
        module = importlib.import_module(f"capri.{old}")
    for home in moved._HOMES[old]:
        found = importlib.import_module(f"capri.{home}")
        name = next(each for each in vars(found) if not each.startswith("_"))
        assert getattr(module, name) is getattr(found, name)
    with pytest.raises(AttributeError, match=f"capri.{old}"):
        _ = module.something_that_never_was


@pytest.mark.parametrize(("old", "name"), moved._NAMES)
def test_every_old_name_finds_its_new_one(old: str, name: str) -> None:
    sys.modules.pop(f"capri.{old}", None)
    with pytest.warns(DeprecationWarning, match="moved to"):
        module = importlib.import_module(f"capri.{old}")
    assert getattr(module, name).__name__ == moved._NAMES[old, name]


def test_old_paths_cost_nothing_where_they_are_not_used() -> None:
    code = "import sys, capri; print([name for name in sys.modules if 'capri.' in name])"
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "capri.policy" not in seen
    assert "capri.joint" not in seen
