"""An epoch whose messages speak of one cell: which partition, and whether it beats dense messages.

A message ``t e_q(w)`` of one cell needs Laplace noise of deviation ``2.83 / epsilon`` where a dense
one, ``t psi(w)``, needs Gaussian noise of about 7.5 at ``epsilon`` 1 and ``delta`` 1e-5. Cells tell
less of what varies within them. So partitions of many sizes, and the dense shape where there is a
``delta`` for it, are compared by what the belief expects to be left after the epoch,

    E[d^T (P^-1 + H^T R^-1 H)^-1 d],  H_q = n E[1{w in q} v^T],  R_q = noise^2 + n E[1{w in q} z^2]

under the law of play, where ``d(c, x) = v(c, x) - E[v(c, .)]`` is what tells an action from the
others that are played in its context: what all of them have in common decides nothing, and no cell
is spent on it. All of it is public: beliefs, laws and pairs.

Messages of cells carry no second moments: while they are played, who comes is taken to be the law
that earlier epochs of dense messages told, or the pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.learners.belief import Observation
from capri.learners.messages import Question
from capri.learners.segments import Support
from capri.partition import CellFeatures, beginnings, centres_of, nearest, summed
from capri.privacy.histogram import HistogramLayout, histogram_layout
from capri.privacy.layout import Norm

# Numbers of cells that are tried. From the fifth on there are so many public pairs for each.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_FEW, _PAIRS_EACH = 4, 16
# Directions of the belief that a partition is made in, and the share of the first that counts.
_DIRECTIONS, _NEGLIGIBLE = 24, 1e-3
# The tail takes this share of the usual one: its Laplace noise is less as well.
_TAIL = 0.5
# Finer partitions are tried until so many in a row were worse.
_WORSE = 2


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition, the layout of its messages, what they will tell, and the noise on a cell."""

    features: CellFeatures
    layout: HistogramLayout
    observation: Observation
    noise: float


def allowed(problem: Problem) -> bool:
    """Whether messages of one cell are to be had: there is noise to save, and a curator adds it."""
    return problem.budget is not None and Norm.L1 in problem.norms


def partitions(question: Question[Support]) -> Iterator[Partition]:
    """Partitions of every size, in the directions in which actions are least sure to differ."""
    problem, support = question.problem, question.support
    spread, vectors = np.linalg.eigh(question.differences)
    kept = np.flatnonzero(spread > _NEGLIGIBLE * spread[-1])[::-1][:_DIRECTIONS]
    directions = np.ascontiguousarray(question.unsettled @ vectors[:, kept])
    points = support.features @ directions
    generator = np.random.default_rng(question.epoch)  # public draws that move no others
    some, weights, first = beginnings(points, support.weights, _SIZES[-1], generator)
    for size in _SIZES:
        if size > len(first) or not _filled(problem, size):
            return
        centres = centres_of(some, weights, some[first[:size]])
        layout = histogram_layout(
            cells=len(centres),
            length=4 * question.length,
            budget=problem.budget,
            tail_share=_TAIL * question.tail_share,
            missing=problem.rewards.measured,
            contributions=problem.contributions,
        )
        features = CellFeatures(question.basis, directions, centres, question.tau)
        noise = layout.noise_scale(question.value_bound)
        yield Partition(features, layout, _observation(question, points, centres, noise), noise)


def _filled(problem: Problem, size: int) -> bool:
    """Whether there are enough public pairs for so many cells."""
    return size <= _FEW or problem.pairs is None or _PAIRS_EACH * size <= problem.pairs


def _observation(
    question: Question[Support], points: FloatArray, centres: FloatArray, noise: float
) -> Observation:
    """``H`` and ``R`` of a partition."""
    weights, length, count = question.support.weights, question.answers, len(centres)
    cells = nearest(points, centres)
    sampling = length * np.bincount(cells, weights * question.total, minlength=count)
    rows = question.support.features * weights[:, None]
    return Observation(
        design=length * summed(rows, cells, count),
        covariance=np.diag(noise**2 + sampling),
        baseline=question.baseline,
        sampling=np.diag(sampling),
        participants=length,
    )


def best_of(
    candidates: Iterator[Partition], question: Question[Support], least: float
) -> Partition | None:
    """The partition that leaves less than ``least``, and the least; None where none does.

    Partitions come from coarse to fine: where finer ones leave more, still finer ones do, too.
    """
    found, best, worse = None, inf, 0
    for cells in candidates:
        left = left_over(question, cells.observation)
        if left < best:
            best, worse = left, 0
            found = cells if left < least else found
        else:
            worse += 1
        if worse == _WORSE:
            break
    return found


def left_over(question: Question[Support], observation: Observation) -> float:
    """What is expected to be left of the error of differences after an epoch, as a variance.

    With ``U`` the error of before and ``A = H F``: ``tr(U) - tr((R + A A^T)^-1 A U A^T)``.
    """
    seen, unknown = question.overdispersion.seen(observation), question.differences
    image = seen.design @ question.unsettled
    gain = np.linalg.solve(seen.covariance + image @ image.T, image @ unknown) * image
    return float(np.trace(unknown) - gain.sum())
