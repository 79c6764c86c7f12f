"""How to play in an epoch: a public law on the actions that no test has ruled out.

Laws, tests, and the conduct that joins them: all a device needs to know in order to decide, and a
function of earlier releases alone. Any such law keeps the guarantee, as long as the plan's
covariance is taken under the same law; widths of tests change regret, never privacy. The law of one
context does not depend on the others, to the last bit: they are other people's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch.bounds import Bounds, numbers_of
from capri.errors import ConfigurationError
from capri.features import Function, Span
from capri.spaces import CHUNK_PAIRS, Actions, context_chunks

# What is taken off the estimate of an action that is not active: more than any estimate.
_RULED_OUT = 1e300
_DEAREST = 1e15
# Expectations over sets of available actions: numbers looked at for some contexts, and sets for
# each of them at least.
_SET_NUMBERS, _LEAST_SETS = 1 << 25, 8


class Law(ABC):
    """A public sampling law: scores of all pairs, and what is made of those that are active."""

    def probabilities(self, pairs: FloatArray, active: BoolArray) -> FloatArray:
        """Probability of each action, 0 where it is not active."""
        return self.of_scores(self.scores(pairs), active)

    @abstractmethod
    def scores(self, pairs: FloatArray) -> FloatArray:
        """What the law looks at: ``(n, actions)``, or more numbers a pair."""

    @abstractmethod
    def of_scores(self, scores: FloatArray, active: BoolArray) -> FloatArray:
        """Probabilities on the active set. Scores of others may be written over."""


@dataclass(frozen=True)
class UniformLaw(Law):
    """Uniform on the active set, as in the paper (Alg. 1, line 12)."""

    def scores(self, pairs: FloatArray) -> FloatArray:
        """None better than another."""
        return np.zeros(pairs.shape[:2])

    def of_scores(self, scores: FloatArray, active: BoolArray) -> FloatArray:
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

    def scores(self, pairs: FloatArray) -> FloatArray:
        """The value of every pair under every draw, ``(n, actions, J)``."""
        return self.basis.values(pairs, self.draws)

    def everywhere(self, actions: Actions, contexts: FloatArray) -> FloatArray:
        """The law where every action is active."""
        return self._frequencies(self.basis.values_at(actions, contexts, self.draws))

    def of_scores(self, scores: FloatArray, active: BoolArray) -> FloatArray:
        """Share of the draws under which each active action is the best.

        By arithmetic rather than by choosing, whose time depends on the pattern of what is active.
        Where no score is a number nothing is left, and the default law is played.
        """
        scores -= (_RULED_OUT * ~active)[:, :, None]
        return np.asarray(self._frequencies(scores) * active)

    @staticmethod
    def _frequencies(scores: FloatArray) -> FloatArray:
        contexts, actions, count = scores.shape
        best = scores.argmax(axis=1)
        best += (np.arange(contexts) * actions)[:, None]
        frequency = np.bincount(best.ravel(), minlength=contexts * actions) / count
        return np.asarray(frequency.reshape(contexts, actions))


@dataclass(frozen=True, eq=False)
class InverseGapLaw(Law):
    """``p(x|c) = 1 / (K + gamma (mu(c,best) - mu(c,x)))``, the rest on the best (SquareCB).

    ``K`` counts the active actions of the context.
    """

    predictor: Function
    gamma: float

    def scores(self, pairs: FloatArray) -> FloatArray:
        """The estimate."""
        return np.asarray(self.predictor(pairs))

    def of_scores(self, scores: FloatArray, active: BoolArray) -> FloatArray:
        """Inverse-gap weights on the active set.

        By products with ``active`` rather than ``np.where``, whose time depends on the pattern.
        """
        values = scores
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
    """A law and the tests in force, within limits: None for none.

    ``prices`` are taken off the scores of actions whose share of all decisions is limited.
    """

    actions: Actions
    law: Law
    tests: tuple[EliminationTest, ...] = ()
    bounds: Bounds | None = None
    prices: FloatArray | None = None

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

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The law at each context. Thompson play needs no test: its support shrinks by itself.

        ``available``: sets that the law is to keep to, one row each.
        """
        limited = self.bounds is not None or available is not None
        if isinstance(self.law, ThompsonLaw) and not limited and self._fits(contexts):
            return self.law.everywhere(self.actions, contexts)
        law = np.empty((len(contexts), self.actions.count))
        for part in context_chunks(len(contexts), self.actions.count):
            rows = contexts[part]
            active, pairs = self._active(rows), self.actions.pairs(rows)
            if limited:
                own = None if available is None else available[part]
                law[part] = self._limited(self._scores(pairs), rows, active, own)
            else:
                law[part] = self.law.probabilities(pairs, active)
        return law

    def expected(self, contexts: FloatArray) -> FloatArray:
        """The law in the mean over the sets that users are expected to come with.

        Rows add up to the share of users whose set can be kept to: the others count for nothing.
        """
        bounds = self.bounds
        if bounds is None or bounds.masks is None:
            return self.probabilities(contexts)
        masks, law = bounds.masks, np.zeros((len(contexts), self.actions.count))
        for part in context_chunks(len(contexts), self.actions.count):
            rows = contexts[part]
            active, scores = self._active(rows), self._scores(self.actions.pairs(rows))
            # Of many sets a few for every context, other ones for the next.
            few = max(_LEAST_SETS, _SET_NUMBERS // scores.size)
            step = max(1, len(masks) // few)
            chosen = masks[(part.start // max(1, len(rows))) % step :: step]
            shares: dict[bytes, FloatArray] = {}  # of few actions many sets are the same
            for mask in chosen:
                if (key := mask.tobytes()) not in shares:
                    available = np.broadcast_to(mask, active.shape)
                    served = bounds.served(rows, available)
                    found = self._limited(scores.copy(), rows, active, available)
                    shares[key] = found * served[:, None] / len(chosen)
                law[part] += shares[key]
        return law

    def _fits(self, contexts: FloatArray) -> bool:
        """Whether they are one chunk."""
        return 0 < len(contexts) * self.actions.count <= CHUNK_PAIRS

    def _active(self, rows: FloatArray) -> BoolArray:
        if isinstance(self.law, ThompsonLaw):
            return np.ones((len(rows), self.actions.count), dtype=np.bool_)
        return self.active(rows)

    def _scores(self, pairs: FloatArray) -> FloatArray:
        scores = self.law.scores(pairs)
        if self.prices is None:
            return scores
        return scores - self.prices.reshape(-1, *([1] * (scores.ndim - 2)))

    def _limited(
        self, scores: FloatArray, rows: FloatArray, active: BoolArray, available: BoolArray | None
    ) -> FloatArray:
        """The law within limits and sets. Tests that leave nothing of them have to give way."""
        bounds = self.bounds or Bounds.none(self.actions.count)
        offered = bounds.offered(rows, available)
        active = active & offered
        active |= offered & ~active.any(axis=1, keepdims=True)
        return bounds.kept(offered, active, lambda some: self.law.of_scores(scores, some))

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
        if self.bounds is not None:
            values["limits"] = self.bounds.state()
            if self.prices is not None:
                values["limits"]["prices"] = self.prices.tolist()
        return values, arrays

    def within(self, bounds: Bounds | None) -> "Conduct":
        """With what is not stored of limits: which sets are expected, and which shares allowed."""
        if self.bounds is None or bounds is None:
            return self
        known = replace(self.bounds, masks=bounds.masks, shares=bounds.shares)
        return replace(self, bounds=known)

    @classmethod
    def from_state(
        cls, values: dict[str, Any], arrays: dict[str, FloatArray], basis: Span, actions: Actions
    ) -> "Conduct":
        """The inverse of :meth:`state`."""
        tests = tuple(
            _test(test, f"test.{number}", arrays, basis)
            for number, test in enumerate(values["tests"])
        )
        law, stored = _law(values["law"], arrays, basis), values.get("limits")
        if stored is None:
            return cls(actions, law, tests)
        bounds = Bounds.from_state(stored, actions.count)
        prices = stored.get("prices")
        if prices is None:
            return cls(actions, law, tests, bounds)
        found = numbers_of(prices, actions.count)
        if not (np.abs(found) <= _DEAREST).all():
            raise ConfigurationError("prices are one finite number an action")
        return cls(actions, law, tests, bounds, found)


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
