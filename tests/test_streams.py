"""Random streams that share a seed are kept apart by their salts."""

import ast
from pathlib import Path

import numpy as np

import capri
import capri_lab
from capri import streams
from capri_lab import streams as laboratory

SALTS = {
    name: value
    for module in (streams, laboratory)
    for name, value in vars(module).items()
    if name.isupper()
}


def test_salts_are_distinct() -> None:
    assert len(SALTS) == 17
    assert len(set(SALTS.values())) == len(SALTS)


def test_streams_of_one_seed_differ() -> None:
    draws = {name: np.random.default_rng([7, salt]).random(4) for name, salt in SALTS.items()}
    assert len({tuple(draw) for draw in draws.values()}) == len(SALTS)


def test_no_salt_is_written_down_elsewhere() -> None:
    """A number beside a seed comes from a list, so that two cannot be equal by chance."""
    packages = Path(capri.__file__).parent, Path(capri_lab.__file__).parent
    found = []
    for path in (path for package in packages for path in package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "default_rng" not in text and "SeedSequence" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("default_rng", "SeedSequence")
            ):
                found += [
                    (path.name, ast.unparse(node))
                    for part in ast.walk(node)
                    if isinstance(part, ast.List)
                    for entry in part.elts
                    if isinstance(entry, ast.Constant)
                ]
    assert not found
