"""How far two messages of a layout are apart, in exact arithmetic and in the norm of its noise."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from capri.privacy.layout import Layout, Norm


def squared_distance(layout: Layout, left: Sequence[Any], right: Sequence[Any]) -> Fraction:
    """``sum share^2 |gap|^2`` over the blocks, in fractions; in L1 ``(sum |gap|)^2``."""
    gaps = [int(a) - int(b) for a, b in zip(left, right, strict=True)]
    if layout.norm is Norm.L1:
        assert all(block.share_squared == 1 for block in layout.blocks.values())
        return Fraction(sum(map(abs, gaps)) ** 2)
    return sum(
        (
            block.share_squared * sum(gap * gap for gap in gaps[block.part])
            for block in layout.blocks.values()
        ),
        Fraction(0),
    )
