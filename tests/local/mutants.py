"""Bundles with one or two things wrong: in their bytes, their header or their arrays."""

import copy
import random
from collections.abc import Iterator
from math import inf, nan
from typing import Any

import numpy as np
from devices import put_together, signed, take_apart

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.5, 1e-300, 1e300, -1e300, nan, inf, -inf,
    2**31, 2**63, 2**64, -(2**63), 10**400, "", "x", "inf", "NaN", "sphere", "thompson", "int16",
    [], {},
    [1], [[1]], [None], [nan, nan], {"type": "RBF"}, {"kind": "thompson"}, [1, 2, 3, 4, 5], 1 << 24,
    {"type": "Linear"}, {"type": "Matern", "nu": 0.7}, {"type": "Matern", "nu": 1e300},
    {"type": "RBF", "lengthscale": 1e-300}, {"type": "RBF", "variance": 1e300},
    {"type": "RBF", "lengthscale": [0.1, 0.2]}, {"type": "RationalQuadratic", "alpha": 1e-300},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a header can be changed."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))
        else:
            yield (*path, key)


def mutate_header(header: dict[str, Any], chooser: random.Random) -> None:
    """One or two changes of structure or value."""
    for _ in range(chooser.choice((1, 1, 1, 2))):
        path = chooser.choice(list(places(header)))
        parent = header
        for key in path[:-1]:
            parent = parent[key]
        key = path[-1]
        present = parent[key]
        kind = chooser.randrange(8)
        number = isinstance(present, int | float) and not isinstance(present, bool)
        if kind == 0:
            del parent[key]
            return  # other paths may be gone
        if kind == 1 and isinstance(parent, dict):
            parent[f"{key}x"] = parent.pop(key)
            return
        if kind == 2 and isinstance(parent, list):
            parent.insert(
                chooser.randrange(len(parent) + 1), copy.deepcopy(chooser.choice(STRANGE))
            )
            return
        if kind in (3, 4) and number:
            factor = chooser.choice((0.0, -1.0, 0.5, 2.0, 0.999, 1.001, 1e9, 1e-9, 1 + 1e-12))
            value = present * factor if abs(present) < 1e300 else present
            parent[key] = int(value) if isinstance(present, int) else value
        elif kind == 5 and number:
            parent[key] = present + chooser.choice((-1, 1, 2, -2))
        elif kind == 6:
            for _ in range(chooser.choice((1, 3, 40))):
                present = [present]
            parent[key] = present
            return
        else:
            parent[key] = copy.deepcopy(chooser.choice(STRANGE))
            return


def mutate_arrays(arrays: dict[str, np.ndarray], chooser: random.Random) -> None:
    """Values that are not numbers, or enormous, or another shape."""
    name = chooser.choice(list(arrays))
    array = arrays[name]
    kind = chooser.randrange(7)
    if kind == 0:
        flat = array.reshape(-1)
        flat[chooser.randrange(flat.size)] = chooser.choice((nan, inf, -inf, 1e308, 5e-324))
    elif kind == 1:
        array *= chooser.choice((0.0, -1.0, 1e14, 1e-300, 1e6))
    elif kind == 2:
        arrays[name] = array[: len(array) // 2] if chooser.random() < 0.5 else array[:0]
    elif kind == 3:
        arrays[name] = np.ascontiguousarray(array.T)
    elif kind == 4:
        arrays[name] = array.reshape(-1) if array.ndim == 2 else array[None]
    elif kind == 5:
        other = chooser.choice(list(arrays))
        arrays[name], arrays[other] = arrays[other], arrays[name]
    else:
        del arrays[name]


def mutate_bytes(data: bytes, chooser: random.Random) -> bytes:
    """Flips, cuts and insertions, mostly with a digest that is right again."""
    body = bytearray(data[:-32])
    kind = chooser.randrange(4)
    if kind == 0:
        for _ in range(chooser.choice((1, 1, 4))):
            body[chooser.randrange(len(body))] ^= 1 << chooser.randrange(8)
    elif kind == 1:
        del body[chooser.randrange(len(body)) :]
    elif kind == 2:
        place = chooser.randrange(len(body))
        body[place:place] = chooser.randbytes(chooser.randrange(1, 17))
    else:
        place = chooser.randrange(len(body))
        del body[place : place + chooser.randrange(1, 17)]
    if chooser.random() < 0.2:
        return bytes(body) + data[-32:]
    return signed(bytes(body))


def mutants(originals: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    chooser = random.Random(seed)
    apart = [take_apart(data) for data in originals]
    for _ in range(count):
        number = chooser.randrange(len(originals))
        kind = chooser.random()
        if kind < 0.3:
            yield mutate_bytes(originals[number], chooser)
            continue
        header, arrays = copy.deepcopy(apart[number])
        listed = True
        if kind < 0.85:
            mutate_header(header, chooser)
            listed = chooser.random() < 0.3 and isinstance(header, dict)
        if kind >= 0.75:
            mutate_arrays(arrays, chooser)
        yield put_together(header, arrays, listed=listed)
