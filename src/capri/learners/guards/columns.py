"""Columns of very different spread that one lengthscale has to measure."""

from dataclasses import dataclass

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.kernels.lengthscales import sharing_one_scale
from capri.spaces import FixedActions

# Spreads that differ by more than this cannot both suit one lengthscale.
TOO_DIFFERENT = 10.0


@dataclass(frozen=True)
class Unequal:
    """The widest and the narrowest column of a group that shares one scale."""

    widest: str
    narrowest: str
    wide: float
    narrow: float

    @property
    def ratio(self) -> float:
        """How often the narrow spread goes into the wide one."""
        return self.wide / self.narrow


def most_unequal(problem: Problem, pairs: FloatArray) -> Unequal | None:
    """The group whose spreads differ most, of public pairs; None where all are alike enough.

    A column that never changes says nothing and is left out.
    """
    spreads = np.array([_spread(column) for column in pairs.T])
    names = column_names(problem, pairs.shape[1])
    found: list[Unequal] = []
    for group in sharing_one_scale(problem.kernel, range(pairs.shape[1])):
        moving = [place for place in group if spreads[place] > 0]
        if moving:
            wide = max(moving, key=lambda place: spreads[place])
            narrow = min(moving, key=lambda place: spreads[place])
            found.append(
                Unequal(names[wide], names[narrow], float(spreads[wide]), float(spreads[narrow]))
            )
    worst = max(found, key=lambda each: each.ratio, default=None)
    return worst if worst is not None and worst.ratio > TOO_DIFFERENT else None


def _spread(column: FloatArray) -> float:
    """The standard deviation; of two values half their distance, however rare one of them is."""
    low, high = column.min(), column.max()
    if np.isin(column, (low, high)).all():
        return float(high - low) / 2
    return float(column.std())


def column_names(problem: Problem, width: int) -> tuple[str, ...]:
    """What the columns of a pair are called: by their schema, else by their number."""
    actions, contexts = problem.actions, problem.contexts
    split = width - actions.dimension
    own = [f"context column {place}" for place in range(split)]
    if contexts.schema is not None:
        own = [f"context column {name!r}" for name in contexts.schema.features[:split]]
    other = [f"action column {place}" for place in range(actions.dimension)]
    if isinstance(actions, FixedActions) and actions.schema is not None:
        other = [f"action column {name!r}" for name in actions.schema.features]
    return (*own, *other)
