"""Draw the tree and the layers of the product in docs/design.md, the laboratory's in lab/README.md.

    python tools/draw_tree.py

A line of the tree is a file and the first line of its docstring; a room's line is that of its
``__init__.py``. Layers are those that import-linter checks. What stands between the two marks of a
drawing is replaced, nothing else.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, LABORATORY = ROOT / "src" / "capri", ROOT / "lab" / "src" / "capri_lab"
PAGE, LABORATORY_PAGE = ROOT / "docs" / "design.md", ROOT / "lab" / "README.md"
COLUMN = 28  # where descriptions start


def described(module: Path) -> str:
    """What a module says of itself in its first line; nothing if it is not there."""
    text = module.read_text() if module.exists() else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].removesuffix(".")


def contents(room: Path) -> list[Path]:
    """Files and rooms in a room, without caches and rooms in which nothing but a cache is left."""
    inside = [path for path in sorted(room.iterdir()) if path.name != "__pycache__"]
    return [path for path in inside if path.is_file() or contents(path)]


def tree(room: Path = PACKAGE, depth: int = 0) -> Iterator[str]:
    """A room, then its modules, its other files in one line, and the rooms in it."""
    indent = "  " * (depth + 1)
    yield f"{'  ' * depth + room.name + '/':{COLUMN}}{described(room / '__init__.py')}".rstrip()
    inside = contents(room)
    for module in inside:
        if module.suffix == ".py" and module.name != "__init__.py":
            yield f"{indent + module.name:{COLUMN}}{described(module)}".rstrip()
    data = [path.name for path in inside if path.is_file() and path.suffix != ".py"]
    if data:
        yield indent + ", ".join(data)
    for path in inside:
        if path.is_dir():
            yield from tree(path, depth + 1)


def layers() -> Iterator[str]:
    """What may import what: a line may use the lines below it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for layer in project["tool"]["importlinter"]["contracts"][0]["layers"]:
        yield layer.replace("capri.", "")


def drawn(page: str, package: Path = PACKAGE) -> str:
    """The page of a package with its drawings as they should be; layers are the product's."""
    drawings = [("tree", tree(package))]
    if package == PACKAGE:
        drawings.append(("layers", layers()))
    for mark, lines in drawings:
        before, found, rest = page.partition(f"<!-- {mark} -->\n")
        _, closed, after = rest.partition(f"<!-- /{mark} -->")
        if not (found and closed):
            raise SystemExit(f"{PAGE.name} needs <!-- {mark} --> and <!-- /{mark} -->")
        page = "".join([before, found, "```text\n", *(f"{line}\n" for line in lines), "```\n"])
        page += closed + after
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
    LABORATORY_PAGE.write_text(drawn(LABORATORY_PAGE.read_text(), LABORATORY))
