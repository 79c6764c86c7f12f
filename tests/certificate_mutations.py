"""Files with one byte changed."""

import numpy as np

MUTATIONS = 1_000


def mutations(raw: bytes, seed: int) -> list[bytes]:
    """One byte replaced, dropped, doubled, or swapped with its neighbour."""
    generator = np.random.default_rng(seed)
    found = []
    while len(found) < MUTATIONS:
        place, kind = int(generator.integers(len(raw) - 1)), int(generator.integers(6))
        byte = raw[place : place + 1]
        other = bytes([int(generator.integers(256))])
        if kind <= 1:
            other = bytes([int(generator.integers(32, 127))])
        if kind <= 2:
            middle, after = other, place + 1
        elif kind == 3:
            middle, after = b"", place + 1
        elif kind == 4:
            middle, after = byte + byte, place + 1
        else:
            middle, after = raw[place + 1 : place + 2] + byte, place + 2
        changed = raw[:place] + middle + raw[after:]
        if changed != raw:
            found.append(changed)
    return found
