"""Unrelated arms: every arm has coefficients of its own on the same features of contexts.

``v(c, a) = e_a (x) u(c)``: of a pair's coordinates only the block of its arm is not 0. So nothing
here multiplies by whole rows; a block is looked up by the number of the arm, which is the column of
its indicator. Columns of arms that are no longer offered keep their blocks: what was learnt of them
says what is common to all.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.family.factor import Factor
from capri.features import ProjectedFeatures, Span, row_by_row
from capri.spaces import Actions


@dataclass(frozen=True, eq=False)
class ArmBasis(Span):
    """``e_a (x) u(c)``; ``offered`` are the columns of the actions of now, of ``arms`` in all."""

    context: Factor
    offered: IntArray
    arms: int
    _memory: dict[str, tuple[FloatArray, FloatArray]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def columns(self) -> int:
        """Numbers of a pair."""
        return self.context.columns + self.arms

    @property
    def width(self) -> int:
        """Coordinates of one arm."""
        return self.context.width

    @property
    def rank(self) -> int:
        """Coordinates of all arms."""
        return self.arms * self.width

    def split(self, pairs: FloatArray) -> tuple[FloatArray, IntArray]:
        """``u(c)`` and the number of the arm, for each row by itself."""
        columns = self.context.columns
        return self.context(pairs[:, :columns]), pairs[:, columns:].argmax(axis=1)

    def rows(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape, zeros and all."""
        u, arm = self.split(pairs.reshape(-1, pairs.shape[-1]))
        found = np.zeros((len(u), self.arms, self.width))
        found[np.arange(len(u)), arm] = u
        return found.reshape(*pairs.shape[:-1], self.rank)

    def played(
        self, actions: Actions, contexts: FloatArray, row: IntArray, action: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Pairs ``(contexts[row], action)`` and their coordinates."""
        pairs = actions.chosen(contexts[row], action)
        return pairs, self.rows(pairs)

    def values(self, pairs: FloatArray, weights: FloatArray) -> FloatArray:
        """``v(w)^T weights`` of all arms of each context: one product per context."""
        return self._values(pairs[:, 0, : self.context.columns], weights)

    def values_at(
        self, actions: Actions, contexts: FloatArray, coefficients: FloatArray
    ) -> FloatArray:
        """The same from contexts alone: what is offered is known."""
        return self._values(actions.own(contexts), coefficients)

    def _values(self, contexts: FloatArray, weights: FloatArray) -> FloatArray:
        found = row_by_row(self.context(contexts), self._side_by_side(weights))
        return found.reshape(len(contexts), len(self.offered), weights.shape[1])

    def _side_by_side(self, weights: FloatArray) -> FloatArray:
        """The blocks of what is offered, beside each other; those of the last law are kept."""
        found = self._memory.get("blocks")
        if found is None or found[0] is not weights:
            blocks = weights.reshape(self.arms, self.width, weights.shape[1])[self.offered]
            # One assignment: whoever reads at the same time gets what belongs together.
            found = self._memory["blocks"] = weights, np.concatenate(blocks, axis=1)
        return found[1]

    def evaluated(self, pairs: FloatArray, weights: FloatArray) -> FloatArray:
        """``u(c)^T weights_a``."""
        flat, columns = pairs.reshape(-1, pairs.shape[-1]), self.context.columns
        if pairs.ndim == 3:  # all arms of each context: its features are needed once
            u = np.repeat(self.context(pairs[:, 0, :columns]), pairs.shape[1], axis=0)
            arm = flat[:, columns:].argmax(axis=1)
        else:
            u, arm = self.split(flat)
        blocks = weights.reshape(self.arms, self.width)
        return np.asarray(np.einsum("ij,ij->i", u, blocks[arm]).reshape(pairs.shape[:-1]))

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """As JSON values and arrays."""
        context, arrays = self.context.state()
        stored: dict[str, Any] = {f"context.{name}": array for name, array in arrays.items()}
        return {"context": context, "arms": self.arms}, stored | {"offered": self.offered}

    @classmethod
    def from_state(cls, values: dict[str, Any], arrays: dict[str, FloatArray]) -> "ArmBasis":
        """The inverse of :meth:`state`."""
        own = {
            name.removeprefix("context."): array
            for name, array in arrays.items()
            if name.startswith("context.")
        }
        context = Factor.from_state(values["context"], own)
        return cls(context, arrays["offered"].astype(np.int64), int(values["arms"]))


@dataclass(frozen=True, eq=False)
class ArmFeatures(ProjectedFeatures):
    """``psi(c, a) = e_a (x) A_a^T u(c)`` with a shape ``A_a`` for every arm, or one of its cells.

    ``shapes`` are ``(arms, width, most)``, filled up with zeros: every pair takes the same time.
    Those of arm ``a`` are ``sizes[a]`` columns, at ``starts[a]`` of the message.

    ``offsets``: where arms have cells instead. A cell has a public centre, and contexts belong to
    the nearest one: ``psi = e_q`` with ``q = argmax_j (A_a^T u - offset_a)_j``. Beyond an arm's own
    cells offsets are infinite, so that no context ever belongs there.
    """

    basis: ArmBasis
    shapes: FloatArray
    sizes: IntArray
    tau: float
    offsets: FloatArray | None = None

    @cached_property
    def starts(self) -> IntArray:
        """Where the coordinates of every arm begin."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def rank(self) -> int:
        """Coordinates of a message."""
        return int(self.sizes.sum())

    @property
    def points(self) -> FloatArray:
        """There are none."""
        raise ConfigurationError("these features are not made of one kernel")

    @cached_property
    def to_whitened(self) -> FloatArray:
        """All shapes as one matrix, block by block."""
        whole = np.zeros((self.basis.arms, self.basis.width, self.rank))
        for arm, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            whole[arm, :, start : start + size] = self.shapes[arm, :, :size]
        return whole.reshape(self.basis.rank, self.rank)

    def kernel_rows(self, pairs: FloatArray) -> FloatArray:
        """``v(w)``."""
        return self.basis.rows(pairs)

    def whitened(self, pairs: FloatArray) -> FloatArray:
        """``psi(w)``, one small product for each pair."""
        u, arm = self.basis.split(pairs)
        most = self.shapes.shape[2]
        # What stands beyond an arm's own columns is 0, and cut off or written over by no one.
        found = np.zeros((len(pairs), self.rank + most))
        places = self.starts[arm][:, None] + np.arange(most)
        own = np.matmul(u[:, None, :], self.shapes[arm])[:, 0, :]
        if self.offsets is not None:
            own = in_cells(own, self.offsets[arm])
        found[np.arange(len(pairs))[:, None], places] = own
        return found[:, : self.rank]

    def of_arm(self, arm: int, u: FloatArray) -> FloatArray:
        """``psi`` of an arm at contexts, in its own columns, as messages have it."""
        size = self.sizes[arm]
        if self.offsets is not None:
            return in_cells(u @ self.shapes[arm], self.offsets[arm])[:, :size]
        own = u @ self.shapes[arm, :, :size]
        own /= np.maximum(1.0, np.linalg.norm(own, axis=1))[:, None]
        return np.asarray(own)

    def whitened_block(self, pairs: FloatArray) -> FloatArray:
        """The same."""
        return self.whitened(pairs)

    def projected_variance(self, pairs: FloatArray) -> FloatArray:
        """``|psi(w)|^2``: nothing is outside of the span."""
        psi = self.whitened(pairs)
        return np.asarray(np.einsum("ij,ij->i", psi, psi))


def in_cells(scores: FloatArray, offsets: FloatArray) -> FloatArray:
    """A 1 at the cell of the largest score less its offset, for each row by itself.

    A row that is not a number, or whose arm has no cell, is in none.
    """
    away = scores - offsets
    best = away.argmax(axis=-1)
    found = np.zeros(away.shape)
    rows = np.arange(len(away))
    found[rows, best] = np.isfinite(away[rows, best])
    return found
