"""The map in docs is the country: tree, rooms and paths are those of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

import draw_tree
from builders import CONTEXTS, small_policy
from draw_tree import LABORATORY, PACKAGE, PAGE, ROOT


def test_tree_and_layers_are_drawn_as_they_are() -> None:
    assert draw_tree.drawn(PAGE.read_text()) == PAGE.read_text(), "run make tree"


def test_tool_sees_what_is_missing_and_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new module, a new room and a module that went each change the drawing."""
    room = tmp_path / "house" / "kitchen"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text('"""Where food is made.\n\nMore."""')
    (room / "oven.py").write_text('"""Hot."""')
    (room / "menu.toml").touch()
    (tmp_path / "house" / "empty" / "__pycache__").mkdir(parents=True)
    lines = [" ".join(line.split()) for line in draw_tree.tree(tmp_path / "house")]
    assert lines == ["house/", "kitchen/ Where food is made", "oven.py Hot", "menu.toml"]
    (room / "oven.py").unlink()
    assert not any("oven.py" in line for line in draw_tree.tree(tmp_path / "house"))
    monkeypatch.setattr(draw_tree, "PAGE", tmp_path / "page.md")
    with pytest.raises(SystemExit, match=r"page\.md needs <!-- tree -->"):
        draw_tree.drawn("no marks")


def test_every_module_and_room_says_what_lives_there() -> None:
    for package in (PACKAGE, LABORATORY):
        for module in package.rglob("*.py"):
            assert draw_tree.described(module), module


def test_table_of_rooms_names_every_room_once() -> None:
    table = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    named = re.findall(r"`(\w+)/`", " ".join(table))
    rooms = [path.name for path in draw_tree.contents(PACKAGE) if path.is_dir()]
    assert sorted(named) == sorted(rooms)


@pytest.mark.parametrize("page", ["design.md", "notation.md"])
def test_paths_in_prose_exist(page: str) -> None:
    named = re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", (ROOT / "docs" / page).read_text())
    assert named
    for path in named:
        assert (PACKAGE / path).exists(), path


def test_way_of_a_datum_is_short() -> None:
    """From ``update`` to the accumulator: at most 12 functions in 5 files to review."""
    policy = small_policy(simulation_seed=None)
    policy.update(policy.act(CONTEXTS[0]), 0.1)
    decision, way = policy.act(CONTEXTS[1]), []

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            way.append((str(path), frame.f_code.co_name))

    sys.setprofile(watch)
    try:
        policy.update(decision, 0.3)
    finally:
        sys.setprofile(None)
    assert way[0][1] == "update"
    assert way[-1][1] == "within_norm"
    assert len(way) <= 12
    assert len({path for path, _ in way}) <= 5


def test_noise_source_and_laboratory_are_out_of_reach(tmp_path: Path) -> None:
    """The contracts bite: planted imports of the noise source and of the laboratory break them."""
    copy = tmp_path / "src"
    shutil.copytree(
        PACKAGE.parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = copy / "capri" / "joint" / "policy.py"
    imports = "\nfrom capri.privacy.noise import SecureNoise\nimport capri_lab\n"
    planted.write_text(planted.read_text() + imports)
    found = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "may import the noise source BROKEN" in found.stdout
    assert "The product never imports its laboratory BROKEN" in found.stdout
