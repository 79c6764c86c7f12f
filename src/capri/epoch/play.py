"""How to play in an epoch: a public law on the actions that no test has ruled out.

Laws, tests, and the conduct that joins them: all a device needs to know in order to decide, and a
function of earlier releases alone. Any such law keeps the guarantee, as long as the plan's
covariance is taken under the same law; widths of tests change regret, never privacy. The law of one
context does not depend on the others, to the last bit: they are other people's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.features import Function, Span
from capri.spaces import Actions, context_chunks

# What is taken off the estimate of an action that is not active: more than any estimate.
_RULED_OUT = 1e300


class Law(ABC):
    """A public sampling law."""

    @abstractmethod
    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Probability of each action, 0 where it is not active."""


@dataclass(frozen=True)
class UniformLaw(Law):
    """Uniform on the active set, as in the paper (Alg. 1, line 12)."""

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """``1 / |X_r(c)|`` on the active set."""
        return np.asarray(active / active.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class ThompsonLaw(Law):
    """The law of the best action under the public belief, as frequencies over ``J`` draws.

    ``draws`` holds ``J`` functions as columns of basis coefficients. An action in the support has
    probability at least ``1/J``, which bounds its leverage, and the support shrinks by itself.
    """

    basis: Span
    draws: FloatArray

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Share of the draws under which each active action is the best."""
        contexts, actions, _ = pairs.shape
        values = self.basis.values(pairs, self.draws)
        values[~active] = -np.inf
        best = values.argmax(axis=1)
        count = self.draws.shape[1]
        rows = np.repeat(np.arange(contexts), count) * actions + best.ravel()
        frequency = np.bincount(rows, minlength=contexts * actions) / count
        return np.asarray(frequency.reshape(contexts, actions))


@dataclass(frozen=True, eq=False)
class InverseGapLaw(Law):
    """``p(x|c) = 1 / (K + gamma (mu(c,best) - mu(c,x)))``, the rest on the best (SquareCB).

    ``K`` counts the active actions of the context.
    """

    predictor: Function
    gamma: float

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Inverse-gap weights on the active set.

        By products with ``active`` rather than ``np.where``, whose time depends on the pattern.
        """
        values = self.predictor(pairs)
        best = (values - _RULED_OUT * ~active).argmax(axis=1)
        rows = np.arange(len(values))
        count = active.sum(axis=1, keepdims=True)
        gap = (values[rows, best][:, None] - values) * active
        law = np.asarray(active / (count + self.gamma * gap))
        law[rows, best] = 0.0
        law[rows, best] = 1.0 - law.sum(axis=1)
        return law


class EliminationTest(ABC):
    """One public test. ``width`` is its typical width, for the record."""

    width: float

    @abstractmethod
    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For pairs ``(n, actions, d)``: how far each action's estimate trails the best, and the
        width of that difference."""

    def active(self, pairs: FloatArray) -> BoolArray:
        """Which actions of each context may still be the best."""
        gap, width = self.compare(pairs)
        return np.asarray(gap <= width)


@dataclass(frozen=True, eq=False)
class CommonWidth(EliminationTest):
    """The paper's rule: one width for all pairs, elimination at ``4 Delta``."""

    predictor: Function
    width: float

    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``mu(c, x) >= max mu(c, .) - 4 Delta`` keeps an action (Eqn prunning_sets)."""
        values = self.predictor(pairs)
        gap = values.max(axis=1, keepdims=True) - values
        return gap, np.full_like(gap, 4 * self.width)


@dataclass(frozen=True, eq=False)
class DifferenceTest(EliminationTest):
    """Widths of differences, as a sum of norms ``|difference^T M_i|``, plus terms per action.

    The estimate of a pair is ``v(w)^T coefficients``.
    """

    basis: Span
    coefficients: FloatArray
    roots: tuple[FloatArray, ...]  # each already multiplied by its quantile or bound
    outside: float  # factor on the square root of what the basis leaves out of each pair
    width: float

    def compare(self, pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``mu(c, best) - mu(c, x)`` and the width of that difference."""
        v = self.basis.coordinates(pairs)  # products below are one per context as well
        values = np.einsum("caj,j->ca", v, self.coefficients)
        rows, best = np.arange(len(pairs)), values.argmax(axis=1)
        width = np.zeros_like(values)
        for root in self.roots:
            image = v @ root
            width += np.linalg.norm(image - image[rows, best][:, None], axis=2)
        if self.outside:
            left_out = np.sqrt(self.basis.residual(pairs, v))
            width += self.outside * (left_out + left_out[rows, best][:, None])
        return values[rows, best][:, None] - values, width


@dataclass(frozen=True, eq=False)
class Conduct:
    """A law and the tests in force."""

    actions: Actions
    law: Law
    tests: tuple[EliminationTest, ...] = ()

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that no test has ruled out, ``(n, actions)``."""
        active = np.ones((len(contexts), self.actions.count), dtype=np.bool_)
        for part in context_chunks(len(contexts), self.actions.count):
            pairs = self.actions.pairs(contexts[part])
            for test in self.tests:
                active[part] &= test.active(pairs)
            # Tests of different epochs may contradict each other; then nothing is ruled out.
            active[part][~active[part].any(axis=1)] = True
        return active

    def probabilities(self, contexts: FloatArray) -> FloatArray:
        """The law at each context. Thompson play needs no test: its support shrinks by itself."""
        law = np.empty((len(contexts), self.actions.count))
        for part in context_chunks(len(contexts), self.actions.count):
            rows = contexts[part]
            if isinstance(self.law, ThompsonLaw):
                active = np.ones((len(rows), self.actions.count), dtype=np.bool_)
            else:
                active = self.active(rows)
            law[part] = self.law.probabilities(self.actions.pairs(rows), active)
        return law

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Law and tests as JSON values and arrays; the basis is stored by whoever owns it."""
        values: dict[str, Any] = {"law": {"kind": "uniform"}, "tests": []}
        arrays: dict[str, FloatArray] = {}
        if isinstance(self.law, ThompsonLaw):
            values["law"] = {"kind": "thompson"}
            arrays["law.draws"] = self.law.draws
        elif isinstance(self.law, InverseGapLaw):
            values["law"] = {"kind": "inverse-gap", "gamma": self.law.gamma}
            arrays["law.weights"] = self.law.predictor.weights
        for number, test in enumerate(self.tests):
            name = f"test.{number}"
            if isinstance(test, CommonWidth):
                values["tests"].append({"kind": "common", "width": test.width})
                arrays[f"{name}.weights"] = test.predictor.weights
            elif isinstance(test, DifferenceTest):
                values["tests"].append(
                    {
                        "kind": "difference",
                        "width": test.width,
                        "outside": test.outside,
                        "roots": len(test.roots),
                    }
                )
                arrays[f"{name}.coefficients"] = test.coefficients
                arrays |= {f"{name}.root.{i}": root for i, root in enumerate(test.roots)}
        return values, arrays

    @classmethod
    def from_state(
        cls, values: dict[str, Any], arrays: dict[str, FloatArray], basis: Span, actions: Actions
    ) -> "Conduct":
        """The inverse of :meth:`state`."""
        tests = tuple(
            _test(test, f"test.{number}", arrays, basis)
            for number, test in enumerate(values["tests"])
        )
        return cls(actions, _law(values["law"], arrays, basis), tests)


def _law(values: dict[str, Any], arrays: dict[str, FloatArray], basis: Span) -> Law:
    if values["kind"] == "thompson":
        return ThompsonLaw(basis, arrays["law.draws"])
    if values["kind"] == "inverse-gap":
        return InverseGapLaw(basis.weighted(arrays["law.weights"]), float(values["gamma"]))
    return UniformLaw()


def _test(
    values: dict[str, Any], name: str, arrays: dict[str, FloatArray], basis: Span
) -> EliminationTest:
    if values["kind"] == "common":
        return CommonWidth(basis.weighted(arrays[f"{name}.weights"]), float(values["width"]))
    return DifferenceTest(
        basis,
        arrays[f"{name}.coefficients"],
        tuple(arrays[f"{name}.root.{i}"] for i in range(values["roots"])),
        float(values["outside"]),
        float(values["width"]),
    )
