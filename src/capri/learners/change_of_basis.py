"""What was learnt of some actions, in a basis that knows others too.

Beliefs are about coefficients in a basis of functions on pairs, so other actions need another
basis. With ``e_j`` the old functions and ``e'_l`` the new ones, both orthonormal in the RKHS,

    theta = M theta',     M_jl = <e_j, e'_l> = (T^T K(pivots, pivots') T')_jl

for every ``f`` in the span of the new ones. Every release observed ``H theta``, hence ``H M
theta'``: information ``J`` becomes ``M^T J M`` and its vector ``M^T b``, whatever the releases
were.

The new basis is built on the new pairs **and** on the old pivots, which span all that was observed.
On the new pairs alone, what ``f`` does on the old ones and not on the new would pass for something
known of the new: an action half like an old one would be believed to be known as well as it is. So
a new direction keeps its prior, and an old one what was learnt of it.

Public throughout: bases are made of public rows and beliefs of releases.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.play import BehaviourPolicy, UniformLaw
from capri.features import Basis, Span, spectral_basis
from capri.learners.belief import Belief, Squares
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Overdispersion
from capri.learners.response import ResponseRate
from capri.learners.segments import Pending, PlannedSegment
from capri.learners.warm_start import WarmStart
from capri.spaces import Actions, FixedActions


class ChangeOfBasis(ABC):
    """From old coefficients to new ones: what all releases said, of the new ones.

    ``more``: blocks of which nothing can be known. ``same_prior``: that of other blocks stays.
    """

    more: int = 0
    same_prior: bool = False

    @abstractmethod
    def information(self, information: FloatArray) -> FloatArray:
        """``J`` of the new coefficients; axes before those of ``J`` stay."""

    @abstractmethod
    def vector(self, vector: FloatArray) -> FloatArray:
        """``h`` of the new coefficients; axes before that of ``h`` stay."""

    def belief(self, belief: Belief) -> Belief:
        """What all releases said."""
        information, vector = self.information(belief.information), self.vector(belief.vector)
        return replace(belief, information=information, vector=vector)

    def overdispersion(self, found: Overdispersion) -> Overdispersion:
        """The same under every number of people."""
        informations, vectors = self.information(found.informations), self.vector(found.vectors)
        return replace(found, informations=informations, vectors=vectors)

    def warm_start(self, start: WarmStart | None) -> WarmStart | None:
        """What was known before the first user."""
        if start is None:
            return None
        informations, vectors = self.information(start.informations), self.vector(start.vectors)
        return replace(start, informations=informations, vectors=vectors)

    def squares(self, squares: Squares) -> Squares:
        """What measured squares are compared with."""
        spread, image = self.information(squares.spread), self.vector(squares.image)
        return replace(squares, spread=spread, image=image)

    def response(self, response: ResponseRate) -> ResponseRate:
        """Who answers."""
        deviating = response.deviating
        return replace(
            response,
            silence=self.belief(response.silence),
            deviating=None if deviating is None else self.vector(deviating),
        )

    def pending(self, pending: Pending, width: int) -> Pending:
        """Segments that were played with the old actions and are not read yet.

        Their law is computed once and for all; what was subtracted has new coefficients.
        """
        return {
            epoch: tuple(self._segment(each, width) for each in segments)
            for epoch, segments in pending.items()
        }

    def _segment(self, segment: PlannedSegment, width: int) -> PlannedSegment:
        promised = segment.promised
        return replace(
            frozen(segment, width),
            baseline=self.vector(segment.baseline),
            design=None,
            promised=None if promised is None else self.information(promised),
            played=None,
        )


@dataclass(frozen=True, eq=False)
class Passage(ChangeOfBasis):
    """From an old basis to a new one: ``M^T J M`` and ``M^T h``."""

    basis: Span
    matrix: FloatArray  # M, (old rank, new rank)

    def information(self, information: FloatArray) -> FloatArray:
        """``M^T J M``, symmetric but for no rounding."""
        found = self.matrix.T @ information @ self.matrix
        return np.ascontiguousarray((found + np.swapaxes(found, -1, -2)) / 2)

    def vector(self, vector: FloatArray) -> FloatArray:
        """``M^T h``."""
        return np.asarray(vector @ self.matrix)


@dataclass(frozen=True)
class Lengthened(ChangeOfBasis):
    """From blocks of some arms to blocks of these and more: of the new ones nothing is known."""

    more: int
    same_prior: bool = True

    def information(self, information: FloatArray) -> FloatArray:
        """With zeros for arms that were added."""
        return self._grown(information, -3)

    def vector(self, vector: FloatArray) -> FloatArray:
        """With zeros for arms that were added."""
        return self._grown(vector, -2)

    def _grown(self, blocks: FloatArray, axis: int) -> FloatArray:
        shape = list(blocks.shape)
        shape[axis] = self.more
        return np.concatenate([blocks, np.zeros(shape)], axis=axis)


def frozen(segment: PlannedSegment, width: int) -> PlannedSegment:
    """A segment of before the actions were replaced: its law is computed once and for all."""
    law = segment.stage.law_of(segment.behaviour)
    behaviour = BehaviourPolicy(_widened_actions(segment.behaviour.actions, width), UniformLaw())
    return replace(segment, behaviour=behaviour, stage=replace(segment.stage, law=law), moved=True)


def between(
    old: Basis, sample: FloatArray, options: PracticalOptions
) -> tuple[Passage, FloatArray]:
    """From a basis to one that covers this sample of new pairs too, and the spectrum of that one.

    Old pivots are repeated to weigh as much as the sample: the basis is cut where little is left of
    the average.
    """
    pivots = widened(old.pivots, sample.shape[1])
    repeated = np.tile(pivots, (max(1, len(sample) // len(pivots)), 1))
    basis, spectrum = spectral_basis(
        old.kernel,
        np.concatenate([sample, repeated]),
        tolerance=options.rank_tolerance,
        max_rank=options.max_rank,
    )
    matrix = old.transform.T @ old.kernel(pivots, basis.pivots) @ basis.transform
    return Passage(basis, matrix), spectrum


def across(old: Span, new: Span, sample: FloatArray, columns: int) -> Passage:
    """Between bases that are not of one kernel: ``M = E[v v^T]^-1 E[v v'^T]`` over old pairs.

    That is the best old coefficients for each new function, where the old ones were observed.
    """
    v, w = old.coordinates(sample), new.coordinates(widened(sample, columns))
    return Passage(new, least_squares(v, w))


def least_squares(old: FloatArray, new: FloatArray) -> FloatArray:
    """The best old coefficients for each new function, given both at the same rows."""
    return np.asarray(np.linalg.lstsq(old, new, rcond=1e-8)[0], dtype=np.float64)


def widened(rows: FloatArray, columns: int) -> FloatArray:
    """Rows with zeros in columns that were added: indicators of actions that were not there."""
    return np.pad(rows, ((0, 0), (0, columns - rows.shape[1])))


def _widened_actions(actions: Actions, width: int) -> Actions:
    assert isinstance(actions, FixedActions)
    if actions.dimension == width:
        return actions
    return FixedActions(widened(actions.rows, width), actions.names)
