"""The messages of an epoch of unrelated arms: cells with Laplace, or blocks with Gaussian noise."""

from dataclasses import dataclass

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.learners.arms.cells import Sums
from capri.learners.arms.draws import coordinate_deviation
from capri.learners.arms.messages import ArmLeg, Shapes, blocks_of_arms, cells_of_arms
from capri.learners.moment_design import layout_for
from capri.learners.options import PracticalOptions
from capri.privacy.histogram import HistogramLayout, histogram_layout
from capri.privacy.mechanism import Norm
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout, vector_layout

# The tail of a message of one cell, as a share of that of a vector.
_CELL_TAIL = 0.5


@dataclass(frozen=True)
class MessageKind:
    """How messages are compared, the noise on a coordinate, and the share that it is left of 1."""

    norm: Norm
    noise: float
    main_share: float


@dataclass(frozen=True)
class MessageChoice:
    """The messages of an epoch with a bound on values; ``tail``: excesses are measured."""

    problem: Problem
    options: PracticalOptions
    bound: float
    tail: bool

    def best(
        self, leg: ArmLeg, factor: FloatArray, length: int, residual_variance: float
    ) -> tuple[Shapes, MessageKind]:
        """The messages that are predicted to leave least unknown: all arms in cells, or none."""
        found = []
        for norm in self._norms:
            kind = self._kind(norm, length)
            sums = Sums(length=length, noise=kind.noise, variance=residual_variance)
            if norm is Norm.L1:
                found.append((cells_of_arms(leg, factor, sums), kind))
            else:
                found.append((blocks_of_arms(leg, factor, sums, self.options.loudness), kind))
        return min(found, key=lambda each: each[0].left)

    def layout(
        self, norm: Norm, rank: int, length: int
    ) -> VectorLayout | ProductLayout | HistogramLayout:
        """One cell, or one vector, or the message of products where missing rewards count."""
        problem, tail_share = self.problem, self.options.tail_share * self.tail
        if norm is Norm.L1:
            return histogram_layout(
                cells=rank,
                length=4 * length,  # an epoch may go on beyond its plan
                budget=problem.budget,
                value_bound=self.bound,
                tail_share=self._cell_tail_share,
                missing=problem.rewards.measured,
                contributions=problem.contributions,
            )
        if problem.rewards.measured:
            return layout_for(problem, rank, length, tail_share, None)
        return vector_layout(
            value_bound=self.bound,
            rank=rank,
            moment_share=self.options.moment_share,
            tail_share=tail_share,
            length=length,
            budget=problem.budget,
            composition=problem.composition,
        )

    def _kind(self, norm: Norm, length: int) -> MessageKind:
        """Noise and share of what messages in a norm say of an arm."""
        noise = coordinate_deviation(self.problem, self.bound, norm, length)
        if norm is Norm.L1:
            return MessageKind(norm, noise * (1 + self._cell_tail_share), 1.0)
        products = self.problem.rewards.measured
        share = self.options.main_share(tail=self.tail, products=products)
        return MessageKind(norm, noise / share, share)

    @property
    def _cell_tail_share(self) -> float:
        """In L1 the tail is added to the diameter of a cell's message."""
        return _CELL_TAIL * self.options.tail_share * self.tail

    @property
    def _norms(self) -> tuple[Norm, ...]:
        """Without noise there is nothing that cells would save."""
        return self.problem.norms if self.problem.budget is not None else (Norm.L2,)
