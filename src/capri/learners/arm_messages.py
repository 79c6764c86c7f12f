"""What an epoch plays and asks of every arm: cells with Laplace, or blocks with Gaussian noise.

A message speaks of one arm alone, so arms do not share its norm, and every arm has a shape of its
own. With ``w_c`` the weights of contexts and ``p(a|c)`` the law of a segment, everything that is
expected of an arm is a sum over contexts of weight ``w_c p(a|c)``.

A message of one cell needs far less noise than one of a whole block: in L1 it has one coordinate.
So an arm of few plays has one cell, all contexts together, and its sums are those of a private
context-free bandit. Where the coming plays rise above their noise it has 2, 4, 8, ... cells.

Cells are those of the nearest centre, in coordinates in which what is unknown of the arm is white:
with ``F F^T`` the covariance of its coefficients and ``T`` the directions of most variance under
the law of play, ``z(c) = T^T F^T u(c)``. Centres are doubled and moved to the means of their cells
(Linde, Buzo & Gray 1980): no draw is needed. Of a number of cells the predicted error is

    tr((I + H^T R^-1 H)^-1 E[z z^T]),   H_q = n E[1_q z^T],   R_q = noise^2 + n v E[1_q]

and the number with the smallest is taken. All of it is made of laws, plans and earlier releases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.play import BehaviourPolicy
from capri.family import ArmBasis, ArmFeatures
from capri.features import Span
from capri.learners.belief import Believed, Block
from capri.learners.context_law import ContextLaw
from capri.learners.draws import coordinate_deviation
from capri.learners.messages import Question, water_filling
from capri.learners.moment_design import Coordinates, layout_for, loudest, projection_for
from capri.learners.segments import BlockPart, Estimated, Stage, keeps
from capri.privacy.histogram import HistogramLayout, histogram_layout
from capri.privacy.layout import Norm
from capri.privacy.products import ProductLayout
from capri.spaces import FixedActions

# Cells of an arm at most, and directions in which they are apart.
_MOST, _DIRECTIONS = 32, 8
# Directions with less than this share of the largest variance are left out.
_NEGLIGIBLE = 1e-6
# Moves of the centres after each doubling.
_MOVES = 3


@dataclass(frozen=True, eq=False)
class ArmShape:
    """A shape and offsets, as in ArmFeatures, and the variance that they are predicted to leave."""

    shape: FloatArray
    offset: FloatArray
    left: float


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What sums of cells will be made of: plays, noise, and variance of a residual."""

    length: float
    noise: float
    variance: float

    def left(self, z: FloatArray, weights: FloatArray, label: IntArray, count: int) -> float:
        """What the sums of these cells leave of ``E[z z^T]``, by its trace.

        With ``K = R + H H^T`` the trace is that of before less ``tr(K^-1 H E[z z^T] H^T)``.
        """
        mass, means = _sums(z, weights, label, count)
        design = self.length * means
        seen = design @ design.T
        seen[np.diag_indices(count)] += self.noise**2 + self.length * self.variance * mass
        second = (z * weights[:, None]).T @ z
        gain = np.linalg.solve(seen, design @ second) * design
        return float(np.trace(second) - gain.sum())


def cells_of(u: FloatArray, weights: FloatArray, factor: FloatArray, sums: Sums) -> ArmShape:
    """The cells of an arm: at contexts ``u`` it is played with these weights.

    More cells are tried as long as they help.
    """
    white = u @ factor
    spread, vectors = np.linalg.eigh((white * weights[:, None]).T @ white)
    kept = np.flatnonzero(spread > _NEGLIGIBLE * spread[-1])[::-1][:_DIRECTIONS]
    project = factor @ vectors[:, kept]
    z = u @ project
    centres = (weights @ z / weights.sum())[None]
    label = np.zeros(len(z), dtype=np.int64)
    best = ArmShape(project @ centres.T, _offset(centres), sums.left(z, weights, label, 1))
    while 2 * len(centres) <= min(_MOST, len(z)):
        centres, label = _doubled(z, weights, centres, label)
        found = sums.left(z, weights, label, len(centres))
        if found >= best.left:
            break
        best = ArmShape(project @ centres.T, _offset(centres), found)
    return best


def _offset(centres: FloatArray) -> FloatArray:
    """``|c|^2 / 2``: the nearest centre has the largest ``z^T c`` less this."""
    return np.asarray(0.5 * np.einsum("ij,ij->i", centres, centres))


def _doubled(
    z: FloatArray, weights: FloatArray, centres: FloatArray, label: IntArray
) -> tuple[FloatArray, IntArray]:
    """Every centre as two, apart in the direction in which its cell is widest; then the moves."""
    mass, squares = _sums(z**2, weights, label, len(centres))
    variance = squares / np.maximum(mass, 1e-300)[:, None] - centres**2
    apart = np.zeros_like(centres)
    widest = variance.argmax(axis=1)
    rows = np.arange(len(centres))
    apart[rows, widest] = np.sqrt(np.maximum(variance[rows, widest], 0.0))
    centres = np.concatenate([centres - apart, centres + apart])
    for move in range(_MOVES + 1):
        label = (z @ centres.T - _offset(centres)).argmax(axis=1)
        if move == _MOVES:
            break
        mass, means = _sums(z, weights, label, len(centres))
        full = mass > 0
        centres = means[full] / mass[full, None]
    return centres, label


def _sums(
    values: FloatArray, weights: FloatArray, label: IntArray, count: int
) -> tuple[FloatArray, FloatArray]:
    """The weight of every cell, and the weighted sum of the values in it."""
    member = (label[:, None] == np.arange(count)) * weights[:, None]
    return np.asarray(member.sum(axis=0)), np.asarray(member.T @ values)


# -- what an epoch plays and asks ------------------------------------------------------------------


# The tail of a message of one cell, as a share of that of a vector.
_CELL_TAIL = 0.5


@dataclass(frozen=True, eq=False)
class ArmSupport:
    """Contexts, their ``u``, and the probability of every arm at each (by column)."""

    rows: FloatArray
    u: FloatArray
    weights: FloatArray

    @cached_property
    def played(self) -> IntArray:
        """Arms of positive probability."""
        return np.flatnonzero(self.weights.any(axis=0))

    def where(self, arm: int) -> tuple[FloatArray, FloatArray]:
        """``u`` and the weights of the contexts in which an arm is played."""
        on = self.weights[:, arm] > 0
        return self.u[on], self.weights[on, arm]

    def blocks(self) -> Iterator[tuple[Block, FloatArray, FloatArray]]:
        """Arms that are played, one after the other: all at once would be large."""
        for arm in self.played:
            yield int(arm), *self.where(arm)

    def estimated(self, state: Believed) -> Estimated:
        """What a belief says of the pairs.

        What is unknown is that of the least known arm, not the mean over arms: a bound made for
        those that are known would cut off what a new one is better by, and play would settle
        without it.
        """
        unknown, variances, estimates, weights = 0.0, [], [], []
        for arm, u, own in self.blocks():
            variances.append(((u @ state.factor[arm]) ** 2).sum(axis=1))
            estimates.append(u @ state.mean[arm])
            weights.append(own)
            unknown = max(unknown, float(own @ variances[-1] / own.sum()))
        flat = (np.concatenate(each) for each in (variances, estimates, weights))
        return Estimated(unknown, *flat)

    def left_out(self, basis: Span) -> float:
        """0: what is left out is part of what rewards do not tell, and measured as noise."""
        return 0.0


@dataclass(frozen=True, eq=False)
class PlayedArms:
    """Rows of contexts, their ``u``, and the chance of every arm (by column) at each.

    The first rows have the pool's ``weights``, the others are those elsewhere.
    """

    weights: FloatArray
    rows: FloatArray
    u: FloatArray
    chance: FloatArray
    sampled: bool

    @classmethod
    def of(
        cls, basis: ArmBasis, stage: Stage, behaviour: BehaviourPolicy, elsewhere: FloatArray
    ) -> "PlayedArms":
        """With the law of the actions that were offered."""
        actions, law, rows = behaviour.actions, stage.law_of(behaviour), stage.contexts
        assert isinstance(actions, FixedActions)
        if len(elsewhere):
            rows = np.concatenate([rows, elsewhere])
            law = np.concatenate([law, behaviour.expected(elsewhere)])
        chance = np.zeros((len(law), basis.arms))
        chance[:, actions.rows.argmax(axis=1)] = law
        return cls(stage.weights, rows, basis.context(rows), chance, not stage.is_pool)

    @property
    def contexts(self) -> FloatArray:
        """Those that stand for the pool."""
        return self.rows[: len(self.weights)]

    @property
    def kept(self) -> bool:
        """The same would be found again: whether it is small enough to keep."""
        return keeps(self.u.size + self.chance.size)

    def support(self, law: ContextLaw) -> ArmSupport:
        """With the probabilities of contexts under a law."""
        weights = np.concatenate(law.weights(self.contexts, self.weights))
        return ArmSupport(self.rows, self.u, weights[: len(self.u), None] * self.chance)

    def sizes(self, features: ArmFeatures) -> FloatArray:
        """``E[psi^2]`` of every coordinate of a message, under the pool."""
        found = np.zeros(features.rank)
        pool, u = self.weights[:, None] * self.chance[: len(self.weights)], self.u
        for arm in np.flatnonzero(features.sizes):
            on, start = pool[:, arm] > 0, features.starts[arm]
            psi = features.of_arm(int(arm), u[: len(pool)][on])
            found[start : start + features.sizes[arm]] = pool[on, arm] @ psi**2
        return found

    def coordinates(self, features: ArmFeatures, chosen: IntArray) -> Coordinates:
        """Some coordinates of messages at all pairs that may have any of them."""
        owner = np.searchsorted(features.starts, chosen, side="right") - 1
        psi, row, chance = [], [], []
        for arm in np.unique(owner):
            on, own = np.flatnonzero(self.chance[:, arm]), owner == arm
            found = np.zeros((len(on), len(chosen)))
            local = chosen[own] - features.starts[arm]
            found[:, own] = features.of_arm(int(arm), self.u[on])[:, local]
            psi.append(found)
            row.append(on)
            chance.append(self.chance[on, arm])
        order = np.argsort(np.concatenate(row), kind="stable")
        flat = (np.concatenate(each)[order] for each in (psi, row, chance))
        return Coordinates(*flat)


@dataclass(frozen=True, eq=False)
class ArmParts:
    """What a segment is expected to send of every arm: computed whenever it is walked through."""

    features: ArmFeatures
    support: ArmSupport
    moved: bool

    def __iter__(self) -> Iterator[BlockPart]:
        support, features = self.support, self.features
        # Once the features of contexts were made anew, shapes are those of the old ones.
        old = features.basis.context(support.rows) if self.moved else support.u
        for arm in support.played:
            on, (u, weights) = support.weights[:, arm] > 0, support.where(arm)
            yield BlockPart(int(arm), u, features.of_arm(int(arm), old[on]), weights, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shapes:
    """What messages say of every arm, as in ArmFeatures, and what is predicted to be left open.

    ``left``: the predicted variance of the estimate under the law of play, after the epoch.
    """

    shapes: FloatArray
    sizes: IntArray
    offsets: FloatArray | None
    left: float

    @classmethod
    def of(cls, found: Sequence[ArmShape], *, cells: bool) -> "Shapes":
        """Arm by arm, filled up to one size."""
        sizes = np.array([each.shape.shape[1] for each in found], dtype=np.int64)
        most = int(sizes.max(initial=1))
        shapes = np.zeros((len(found), len(found[0].shape), most))
        offsets = np.full((len(found), most), np.inf)
        for arm, each in enumerate(found):
            shapes[arm, :, : sizes[arm]], offsets[arm, : sizes[arm]] = each.shape, each.offset
        left = sum(each.left for each in found)
        return cls(shapes=shapes, sizes=sizes, offsets=offsets if cells else None, left=left)


def cells_of_arms(support: ArmSupport, factor: FloatArray, sums: Sums) -> Shapes:
    """The cells of every arm.

    ``factor``: a root of what will be unknown of each when the epoch is read. An arm that the law
    of the plan does not play has one cell: a later segment may play it, and a cell costs nothing.
    """
    one = ArmShape(np.zeros((factor.shape[1], 1)), np.zeros(1), 0.0)
    found = []
    for arm in range(len(factor)):
        u, weights = support.where(arm)
        found.append(cells_of(u, weights, factor[arm], sums) if len(u) else one)
    return Shapes.of(found, cells=True)


def blocks_of_arms(support: ArmSupport, factor: FloatArray, sums: Sums, loudness: float) -> Shapes:
    """The shape of every arm by water-filling, none for an arm that is not played."""
    nothing = ArmShape(np.zeros((factor.shape[1], 0)), np.zeros(0), 0.0)
    found = []
    for arm in range(len(factor)):
        u, weights = support.where(arm)
        found.append(_block(u, weights, factor[arm], sums, loudness) if len(u) else nothing)
    return Shapes.of(found, cells=False)


def _block(
    u: FloatArray, weights: FloatArray, factor: FloatArray, sums: Sums, loudness: float
) -> ArmShape:
    """The shape of an arm, and what it leaves as it will be clipped to norm 1."""
    shape = loudness * water_filling(
        u,
        weights,
        factor,
        length=int(sums.length),
        noise=sums.noise,
        residual_variance=sums.variance,
    )
    psi = u @ shape
    psi /= np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None]
    white = u @ factor
    weighted = psi * weights[:, None]
    design = sums.length * weighted.T @ white
    seen = sums.length * sums.variance * weighted.T @ psi + design @ design.T
    seen[np.diag_indices(len(seen))] += sums.noise**2
    second = (white * weights[:, None]).T @ white
    gain = (np.linalg.solve(seen, design @ second) * design).sum()
    return ArmShape(shape, np.zeros(shape.shape[1]), float(np.trace(second) - gain))


@dataclass(frozen=True)
class MessageKind:
    """How messages are compared, the noise on a coordinate, and the share that it is left of 1."""

    norm: Norm
    noise: float
    main_share: float


@dataclass(frozen=True)
class MessageChoice:
    """The messages of an epoch; ``moments``: rather those that tell who comes."""

    question: Question[ArmSupport]
    moments: bool

    def best(self) -> tuple[Shapes, MessageKind]:
        """The messages that are predicted to leave least unknown: all arms in cells, or none."""
        question, found = self.question, []
        support, factor = question.support, question.unsettled
        for norm in self._norms:
            kind = self._kind(norm)
            sums = Sums(length=question.answers, noise=kind.noise, variance=question.mean_total)
            if norm is Norm.L1:
                found.append((cells_of_arms(support, factor, sums), kind))
            else:
                loudness = question.options.loudness
                found.append((blocks_of_arms(support, factor, sums, loudness), kind))
        return min(found, key=lambda each: each[0].left)

    def layout(
        self, norm: Norm, features: ArmFeatures, played: PlayedArms, law: ContextLaw
    ) -> ProductLayout | HistogramLayout:
        """One cell, or products of the coordinates of one arm."""
        question, problem, rank = self.question, self.question.problem, features.rank
        if norm is Norm.L1:
            return histogram_layout(
                cells=rank,
                length=4 * question.length,  # an epoch may go on beyond its plan
                budget=problem.budget,
                value_bound=question.value_bound,
                tail_share=self._cell_tail_share,
                missing=problem.rewards.measured,
                contributions=problem.contributions,
            )
        chosen = loudest(played.sizes(features))
        own = played.coordinates(features, chosen)
        projection = projection_for(played, own, chosen, rank, law)
        return layout_for(problem, rank, question.length, question.tail_share, projection)

    def _kind(self, norm: Norm) -> MessageKind:
        """Noise and share of what messages in a norm say of an arm."""
        question = self.question
        noise = coordinate_deviation(question.problem, question.value_bound, norm, question.answers)
        if norm is Norm.L1:
            return MessageKind(norm, noise * (1 + self._cell_tail_share), 1.0)
        share = question.options.main_share(tail=question.tail, products=True)
        return MessageKind(norm, noise / share, share)

    @property
    def _cell_tail_share(self) -> float:
        """In L1 the tail is added to the diameter of a cell's message."""
        return _CELL_TAIL * self.question.tail_share

    @property
    def _norms(self) -> tuple[Norm, ...]:
        """Without noise there is nothing that cells would save; they carry no moments."""
        norms = self.question.problem.norms
        dense = self.question.problem.budget is None or (self.moments and Norm.L2 in norms)
        return (Norm.L2,) if dense else norms


def lengthened(features: ArmFeatures, more: int) -> ArmFeatures:
    """With so many arms that were added since: messages say nothing of them."""
    offsets = features.offsets
    if offsets is not None:
        offsets = np.concatenate([offsets, np.full((more, offsets.shape[1]), np.inf)])
    shapes = np.concatenate([features.shapes, np.zeros((more, *features.shapes.shape[1:]))])
    return replace(
        features, shapes=shapes, sizes=np.pad(features.sizes, (0, more)), offsets=offsets
    )
