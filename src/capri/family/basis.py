"""Products of features of contexts and of actions, as a basis like any other."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.family.factor import Factor
from capri.features import Settle, Span, as_they_are, row_by_row
from capri.spaces import Actions, FixedActions


@dataclass(frozen=True, eq=False)
class ProductBasis(Span):
    """``v(c, x) = u_i(c) z_j(x)`` for chosen ``(i, j)``.

    ``table`` holds ``z`` of every action where all contexts have the same ones: what a law needs
    of a context is then one product of ``u(c)``.
    """

    context: Factor
    action: Factor
    left: IntArray
    right: IntArray
    table: FloatArray | None
    settle: Settle = as_they_are
    _memory: dict[str, tuple[FloatArray, FloatArray]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def rank(self) -> int:
        """Number of chosen products."""
        return len(self.left)

    @property
    def columns(self) -> int:
        """Those of a context and of an action."""
        return self.context.columns + self.action.columns

    def rows(self, pairs: FloatArray) -> FloatArray:
        """``v(w)`` for pairs of any leading shape, each pair by itself."""
        flat = pairs.reshape(-1, pairs.shape[-1])
        columns = self.context.columns
        if pairs.ndim == 3:  # all actions of each context: its features are needed once
            u = np.repeat(self.context(pairs[:, 0, :columns]), pairs.shape[1], axis=0)
        else:
            u = self.context(flat[:, :columns])
        found = self._products(u, self.action(flat[:, columns:]))
        return found.reshape(*pairs.shape[:-1], self.rank)

    def played(
        self, actions: Actions, contexts: FloatArray, row: IntArray, action: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Pairs ``(contexts[row], action)`` and their coordinates, the context's computed once."""
        pairs = actions.chosen(contexts[row], action)
        columns = self.context.columns
        if isinstance(actions, FixedActions):
            # Not those of the table: an epoch may be read after its actions were replaced.
            z = self.action(actions.rows)[action]
        else:
            z = self.action(pairs[:, columns:])
        return pairs, self._products(self._of_contexts(contexts[:, :columns])[row], z)

    def values(self, pairs: FloatArray, weights: FloatArray) -> FloatArray:
        """``v(w)^T weights`` for ``(contexts, actions, d)`` pairs and several columns of weights.

        With the same actions for all, ``u(c)^T [sum_j weights_ij z_j(x)]`` with the brackets
        computed once.
        """
        if self.table is None:
            return np.asarray(self.rows(pairs) @ weights)
        return self._values(pairs[:, 0, : self.context.columns], weights)

    def values_at(
        self, actions: Actions, contexts: FloatArray, coefficients: FloatArray
    ) -> FloatArray:
        """The same from contexts alone, where all have the same actions."""
        if self.table is None:
            return super().values_at(actions, contexts, coefficients)
        return self._values(actions.own(contexts), coefficients)

    def _values(self, contexts: FloatArray, weights: FloatArray) -> FloatArray:
        assert self.table is not None
        found = row_by_row(self.context(contexts), self._brackets(weights))
        return found.reshape(len(contexts), len(self.table), weights.shape[1])

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """As JSON values and arrays."""
        context, of_context = self.context.state()
        action, of_action = self.action.state()
        arrays: dict[str, Any] = {"left": self.left, "right": self.right}
        arrays |= {f"context.{name}": array for name, array in of_context.items()}
        arrays |= {f"action.{name}": array for name, array in of_action.items()}
        if self.table is not None:
            arrays["table"] = self.table
        return {"context": context, "action": action}, arrays

    @classmethod
    def from_state(cls, values: dict[str, Any], arrays: dict[str, FloatArray]) -> "ProductBasis":
        """The inverse of :meth:`state`."""
        context, action = (
            Factor.from_state(
                values[side],
                {
                    name.removeprefix(f"{side}."): array
                    for name, array in arrays.items()
                    if name.startswith(f"{side}.")
                },
            )
            for side in ("context", "action")
        )
        left, right = (arrays[name].astype(np.int64) for name in ("left", "right"))
        return cls(context, action, left, right, arrays.get("table"))

    def _products(self, u: FloatArray, z: FloatArray) -> FloatArray:
        # In rows: NumPy adds up the columns of other layouts in an order that depends on how many
        # rows there are.
        return self.settle(np.ascontiguousarray(u[:, self.left] * z[:, self.right]))

    def _of_contexts(self, contexts: FloatArray) -> FloatArray:
        """``u`` of public contexts; those of the last call are remembered, a pool comes again."""
        found = self._memory.get("contexts")
        if found is None or not np.array_equal(found[0], contexts):
            # One assignment: whoever reads at the same time gets what belongs together.
            found = self._memory["contexts"] = contexts, self.context(contexts)
        return found[1]

    def _brackets(self, weights: FloatArray) -> FloatArray:
        """Those of the last law are remembered: a device computes them when it opens a bundle."""
        found = self._memory.get("brackets")
        if found is None or found[0] is not weights:
            found = self._memory["brackets"] = weights, self._added_up(weights)
        return found[1]

    def _added_up(self, weights: FloatArray) -> FloatArray:
        """``sum_j weights_ij z_j(x)``, a row for each ``i``."""
        assert self.table is not None
        full = np.zeros((self.context.width, self.action.width, weights.shape[1]))
        full[self.left, self.right] = weights
        return self.settle(np.asarray(np.matmul(self.table, full).reshape(len(full), -1)))
