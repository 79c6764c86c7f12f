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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.play import Conduct, UniformLaw
from capri.features import Basis, Span, spectral_basis
from capri.learners.belief import Belief, Posterior, Squares
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import Crowds
from capri.learners.reading import Leg
from capri.learners.response import Response
from capri.learners.start import HeadStart
from capri.spaces import Actions, FixedActions


@dataclass(frozen=True, eq=False)
class Passage:
    """From an old basis to a new one."""

    basis: Span
    matrix: FloatArray  # M, (old rank, new rank)

    def belief(self, belief: Belief) -> Belief:
        """What all releases said, of the new coefficients."""
        information = self.matrix.T @ belief.information @ self.matrix
        return replace(
            belief,
            information=(information + information.T) / 2,
            vector=self.matrix.T @ belief.vector,
        )

    def crowds(self, crowds: Crowds) -> Crowds:
        """The same under every size of the crowd."""
        informations = self.matrix.T @ crowds.informations @ self.matrix
        return replace(
            crowds,
            informations=np.ascontiguousarray((informations + informations.transpose(0, 2, 1)) / 2),
            vectors=crowds.vectors @ self.matrix,
        )

    def head(self, head: HeadStart[Posterior]) -> HeadStart[Posterior]:
        """What was known before the first user, of the new coefficients."""
        informations = self.matrix.T @ head.informations @ self.matrix
        return replace(
            head,
            informations=np.ascontiguousarray((informations + informations.transpose(0, 2, 1)) / 2),
            vectors=head.vectors @ self.matrix,
        )

    def squares(self, squares: Squares) -> Squares:
        """What measured squares are compared with, of the new coefficients."""
        return replace(
            squares,
            spread=self.matrix.T @ squares.spread @ self.matrix,
            image=self.matrix.T @ squares.image,
        )

    def response(self, response: Response) -> Response:
        """Who answers, of the new coefficients."""
        deviating = response.deviating
        return replace(
            response,
            silence=self.belief(response.silence),
            deviating=None if deviating is None else self.matrix.T @ deviating,
        )

    def legs(self, legs: Sequence[Leg], width: int) -> tuple[Leg, ...]:
        """Segments that were played with the old actions and are not read yet.

        Their law is computed once and for all; what was subtracted, ``sum_j theta_j e_j``, has the
        new coefficients ``M^T theta``.
        """
        return tuple(
            replace(
                frozen(leg, width),
                baseline=self.matrix.T @ leg.baseline,
                design=None,
                pairs=None,
            )
            for leg in legs
        )


@dataclass(frozen=True)
class Lengthened:
    """From blocks of some arms to blocks of these and more: of the new ones nothing is known."""

    more: int

    def blocks(self, blocks: FloatArray, *, axis: int = 0) -> FloatArray:
        """With zeros for arms that were added."""
        shape = list(blocks.shape)
        shape[axis] = self.more
        return np.concatenate([blocks, np.zeros(shape)], axis=axis)

    def belief(self, belief: Belief) -> Belief:
        """What all releases said."""
        return replace(
            belief,
            information=self.blocks(belief.information),
            vector=self.blocks(belief.vector),
            curious=self.more > 0 and belief.epochs > 0,
        )

    def crowds(self, crowds: Crowds) -> Crowds:
        """The same under every size of the crowd."""
        return replace(
            crowds,
            informations=self.blocks(crowds.informations, axis=1),
            vectors=self.blocks(crowds.vectors, axis=1),
        )

    def head(self, head: HeadStart[Any]) -> HeadStart[Any]:
        """What was known before the first user."""
        return replace(
            head,
            informations=self.blocks(head.informations, axis=1),
            vectors=self.blocks(head.vectors, axis=1),
        )

    def squares(self, squares: Squares) -> Squares:
        """What measured squares are compared with."""
        return replace(
            squares, spread=self.blocks(squares.spread), image=self.blocks(squares.image)
        )

    def response(self, response: Response) -> Response:
        """Who answers."""
        deviating = response.deviating
        return replace(
            response,
            silence=replace(self.belief(response.silence), curious=False),
            deviating=None if deviating is None else self.blocks(deviating),
        )

    def legs(self, legs: Sequence[Leg], width: int) -> tuple[Leg, ...]:
        """Segments that were played before arms were added, with their law as numbers."""
        return tuple(
            replace(
                frozen(leg, width),
                baseline=self.blocks(leg.baseline),
                promised=None if leg.promised is None else self.blocks(leg.promised),
            )
            for leg in legs
        )


def frozen(leg: Leg, width: int) -> Leg:
    """A segment of before the actions were replaced: its law is computed once and for all."""
    law, actions = leg.stage.law, leg.conduct.actions
    if law is None:
        law = leg.conduct.expected(leg.stage.contexts)
    conduct = Conduct(_widened_actions(actions, width), UniformLaw())
    return replace(leg, conduct=conduct, stage=replace(leg.stage, law=law), moved=True)


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
    matrix, *_ = np.linalg.lstsq(v, w, rcond=1e-8)
    return Passage(new, np.asarray(matrix, dtype=np.float64))


def widened(rows: FloatArray, columns: int) -> FloatArray:
    """Rows with zeros in columns that were added: indicators of actions that were not there."""
    return np.pad(rows, ((0, 0), (0, columns - rows.shape[1])))


def _widened_actions(actions: Actions, width: int) -> Actions:
    assert isinstance(actions, FixedActions)
    if actions.dimension == width:
        return actions
    return FixedActions(widened(actions.rows, width), actions.names)
