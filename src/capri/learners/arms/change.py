"""Arms that come and go: what is kept by arm gets longer, segments of before stay readable."""

from dataclasses import replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch import play
from capri.learners.reading import Leg
from capri.spaces import FixedActions


def longer(blocks: Any, more: int, *, axis: int = 0) -> FloatArray:
    """Blocks of zeros for arms that were added."""
    shape = list(blocks.shape)
    shape[axis] = more
    return np.concatenate([blocks, np.zeros(shape)], axis=axis)


def moved(leg: Leg, more: int) -> Leg:
    """A segment that was played before arms were added, with its law as numbers."""
    law, actions = leg.stage.law, leg.conduct.actions
    if law is None:
        law = leg.conduct.expected(leg.stage.contexts)
    assert isinstance(actions, FixedActions)
    widened = FixedActions(np.pad(actions.rows, ((0, 0), (0, more))), actions.names)
    return replace(
        leg,
        conduct=play.Conduct(widened, play.UniformLaw()),
        stage=replace(leg.stage, law=law),
        baseline=longer(leg.baseline, more),
        moved=True,
    )
