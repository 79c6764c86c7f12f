"""The map in docs is the country: tree, rooms and paths are those of the package."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Set
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import capri
import draw_tree
from builders import CONTEXTS
from draw_tree import LABORATORY, LABORATORY_PAGE, PACKAGE, PAGE, ROOT

# Of the product: a capability may raise lines and files, and says so here.
LINES, FILES, DEPTH = 58_000, 226, 20


def test_tree_and_layers_are_drawn_as_they_are() -> None:
    for page, package in ((PAGE, PACKAGE), (LABORATORY_PAGE, LABORATORY)):
        text = page.read_text()
        assert draw_tree.drawn(text, package) == text, "run make tree"


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


@pytest.mark.parametrize("page", ["design.md", "reference/glossary.md"])
def test_paths_in_prose_exist(page: str) -> None:
    named = re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", (ROOT / "docs" / page).read_text())
    assert named
    for path in named:
        assert (PACKAGE / path).exists(), path


def _loaded(path: Path, known: Set[str]) -> set[str]:
    """Modules of the package that this one loads when it is imported: not types, not later."""
    found, look = set(), list(ast.parse(path.read_text()).body)
    while look:
        node = look.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= names & known or {str(node.module)} & known
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names} & known
        look.extend(ast.iter_child_nodes(node))
    return found


def test_product_is_small_and_flat() -> None:
    """Lines, files, and the longest chain of modules of which each loads the next."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }
    loads = {name: _loaded(path, paths.keys()) - {"capri"} for name, path in paths.items()}

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(each) for each in loads[name]), key=len, default=()))

    longest = max((chain(name) for name in loads), key=len)
    assert len(longest) <= DEPTH, "import for types alone, or merge: " + " > ".join(longest)
    assert len(paths) <= FILES
    lines = {name: len(path.read_text().splitlines()) for name, path in paths.items()}
    assert max(lines.values()) <= 450, max(lines, key=lines.__getitem__)
    assert sum(lines.values()) <= LINES


# Functions and files that a datum passes, at most: by step, in memory and on SQLite.
WAYS = {
    "memory": {
        "act": (32, 12),
        "act outside the pool": (45, 14),
        "update": (16, 7),
        "close and learn": (365, 61),
    },
    "sqlite": {
        "act": (54, 16),
        "act outside the pool": (67, 18),
        "update": (35, 10),
        "close and learn": (412, 65),
    },
}


@pytest.mark.parametrize("kind", WAYS)
def test_way_of_a_datum_is_short(kind: str, tmp_path: Path) -> None:
    """What a reviewer reads who follows one visit of the README's policy."""
    pool = capri.ContextPool(CONTEXTS)
    policy = capri.Capri(
        actions=np.linspace(0, 1, 5)[:, None],
        contexts=pool,
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        store=None if kind == "memory" else f"sqlite:///{tmp_path}/store.db",
    )
    found = {}
    for step, context in (("act", CONTEXTS[0]), ("act outside the pool", [0.123])):
        policy.update(policy.act(context), 0.1)
        found[step], decision = _way(partial(policy.act, context))
        found["update"], _ = _way(partial(policy.update, decision, 0.3))
    found["close and learn"], _ = _way(partial(policy.close_epoch, early=True))
    policy.close()
    for step, (functions, files) in WAYS[kind].items():
        assert len(found[step]) <= functions, step
        assert len({path for path, _ in found[step]}) <= files, step


def _way(call: Callable[[], Any]) -> tuple[set[tuple[str, str]], Any]:
    """The functions of the package that a call passes, in this thread; and its result."""
    way: set[tuple[str, str]] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and PACKAGE in path.parents and "<" not in name.rpartition(".")[2]:
            way.add((str(path), name))

    sys.setprofile(watch)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return way, result


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
