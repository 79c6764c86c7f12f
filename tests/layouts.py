"""How far two messages of a layout are apart, in exact arithmetic and in the norm of its noise."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from capri.privacy.layout import Layout


def squared_distance(layout: Layout, left: Sequence[Any], right: Sequence[Any]) -> Fraction:
    """``sum share^2 |gap|^2`` over the blocks, in fractions."""
    gaps = [int(a) - int(b) for a, b in zip(left, right, strict=True)]
    return sum(
        (
            block.share_squared * sum(gap * gap for gap in gaps[block.part])
            for block in layout.blocks.values()
        ),
        Fraction(0),
    )
