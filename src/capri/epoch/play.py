"""How to play in an epoch: a public law on the actions.

The law, and the behaviour policy that keeps it within limits: all a device needs to know in order
to decide, and a function of earlier releases alone. Any such law keeps the guarantee, as long as
the plan's covariance is taken under the same law. The law of one context does not depend on the
others, to the last bit: they are other people's.

**Prices.** A limit on an action's share of all decisions is a public price on playing it.
The law looks at scores. With a price taken off the scores of an action it is played where it is
worth more than its price, so contexts in which it is worth most keep it. The price is the smallest
at which the expected share under the public law of contexts is at most the limit: the same law is
played, planned with and read with. Where users come from another law, their share differs by as
much as the laws do; a ceiling holds whoever comes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capri.arrays import BoolArray, FloatArray, rounded16
from capri.epoch.bounds import Bounds, numbers_of
from capri.errors import ConfigurationError
from capri.features import Span
from capri.spaces import CHUNK_PAIRS, Actions, context_chunks

# What is taken off the estimate of an action that is not active: more than any estimate.
_RULED_OUT = 1e300
_DEAREST = 1e15
# Expectations over sets of available actions: numbers looked at for some contexts, and sets for
# each of them at least.
_SET_NUMBERS, _LEAST_SETS = 1 << 25, 8


class Law(ABC):
    """A public sampling law: scores of all pairs, and what is made of those that are active."""

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

    def rounded(self) -> "ThompsonLaw":
        """With draws as bundles carry them: devices and their aggregator play one law."""
        return ThompsonLaw(self.basis, rounded16(self.draws))

    @staticmethod
    def _frequencies(scores: FloatArray) -> FloatArray:
        contexts, actions, count = scores.shape
        best = scores.argmax(axis=1)
        best += (np.arange(contexts) * actions)[:, None]
        frequency = np.bincount(best.ravel(), minlength=contexts * actions) / count
        return np.asarray(frequency.reshape(contexts, actions))


@dataclass(frozen=True, eq=False)
class BehaviourPolicy:
    """A law within limits: None for none.

    ``prices`` are taken off the scores of actions whose share of all decisions is limited.
    """

    actions: Actions
    law: Law
    bounds: Bounds | None = None
    prices: FloatArray | None = None

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The law at each context.

        ``available``: sets that the law is to keep to, one row each.
        """
        limited = self.bounds is not None or available is not None
        if isinstance(self.law, ThompsonLaw) and not limited and self._fits(contexts):
            return self.law.everywhere(self.actions, contexts)
        law = np.empty((len(contexts), self.actions.count))
        for part in context_chunks(len(contexts), self.actions.count):
            rows = contexts[part]
            scores = self._scores(self.actions.pairs(rows))
            if limited:
                own = None if available is None else available[part]
                law[part] = self._limited(scores, rows, own)
            else:
                every = np.ones((len(rows), self.actions.count), dtype=np.bool_)
                law[part] = self.law.of_scores(scores, every)
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
            scores = self._scores(self.actions.pairs(rows))
            # Of many sets a few for every context, other ones for the next.
            few = max(_LEAST_SETS, _SET_NUMBERS // scores.size)
            step = max(1, len(masks) // few)
            chosen = masks[(part.start // max(1, len(rows))) % step :: step]
            shares: dict[bytes, FloatArray] = {}  # of few actions many sets are the same
            for mask in chosen:
                if (key := mask.tobytes()) not in shares:
                    available = np.broadcast_to(mask, (len(rows), self.actions.count))
                    served = bounds.served(rows, available)
                    found = self._limited(scores.copy(), rows, available)
                    shares[key] = found * served[:, None] / len(chosen)
                law[part] += shares[key]
        return law

    def _fits(self, contexts: FloatArray) -> bool:
        """Whether they are one chunk."""
        return 0 < len(contexts) * self.actions.count <= CHUNK_PAIRS

    def _scores(self, pairs: FloatArray) -> FloatArray:
        scores = self.law.scores(pairs)
        if self.prices is None:
            return scores
        return scores - self.prices.reshape(-1, *([1] * (scores.ndim - 2)))

    def _limited(
        self, scores: FloatArray, rows: FloatArray, available: BoolArray | None
    ) -> FloatArray:
        """The law within limits and sets."""
        bounds = self.bounds or Bounds.none(self.actions.count)
        offered = bounds.offered(rows, available)
        return bounds.kept(offered, lambda some: self.law.of_scores(scores, some))

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """The law as JSON values and arrays; the basis is stored by whoever owns it."""
        values: dict[str, Any] = {"law": {"kind": "uniform"}}
        arrays: dict[str, FloatArray] = {}
        if isinstance(self.law, ThompsonLaw):
            values["law"] = {"kind": "thompson"}
            arrays["law.draws"] = self.law.draws
        if self.bounds is not None:
            values["limits"] = self.bounds.state()
            if self.prices is not None:
                values["limits"]["prices"] = self.prices.tolist()
        return values, arrays

    def within(self, bounds: Bounds | None) -> "BehaviourPolicy":
        """With what is not stored of limits: which sets are expected, and which shares allowed."""
        if self.bounds is None or bounds is None:
            return self
        known = replace(self.bounds, masks=bounds.masks, shares=bounds.shares)
        return replace(self, bounds=known)

    @classmethod
    def from_state(
        cls, values: dict[str, Any], arrays: dict[str, FloatArray], basis: Span, actions: Actions
    ) -> "BehaviourPolicy":
        """The inverse of :meth:`state`."""
        law, stored = _law(values["law"], arrays, basis), values.get("limits")
        if stored is None:
            return cls(actions, law)
        bounds = Bounds.from_state(stored, actions.count)
        prices = stored.get("prices")
        if prices is None:
            return cls(actions, law, bounds)
        found = numbers_of(prices, actions.count)
        if not (np.abs(found) <= _DEAREST).all():
            raise ConfigurationError("prices are one finite number an action")
        return cls(actions, law, bounds, found)


def _law(values: dict[str, Any], arrays: dict[str, FloatArray], basis: Span) -> Law:
    if values["kind"] == "thompson":
        return ThompsonLaw(basis, arrays["law.draws"])
    return UniformLaw()


_SWEEPS, _HALVINGS = 4, 24


def priced(
    behaviour: BehaviourPolicy, contexts: FloatArray, weights: FloatArray
) -> BehaviourPolicy:
    """The behaviour with prices at which all shares are kept; with ceilings where none does."""
    bounds = behaviour.bounds
    if bounds is None or bounds.shares is None:
        return behaviour
    limits = bounds.shares

    def shares(prices: FloatArray) -> FloatArray:
        return np.asarray(weights @ replace(behaviour, prices=prices).expected(contexts))

    prices = np.zeros(len(limits))
    dearest = _range(behaviour, contexts)
    for _ in range(_SWEEPS):
        over = np.flatnonzero(shares(prices) > limits)
        if not len(over):
            return replace(behaviour, prices=prices)
        for action in over:
            low, high = prices[action], dearest
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                prices[action] = middle
                if shares(prices)[action] > limits[action]:
                    low = middle
                else:
                    high = middle
            prices[action] = high
    if (shares(prices) <= limits).all():
        return replace(behaviour, prices=prices)
    # A law without scores, or limits that push each other: every decision keeps to the share.
    return replace(behaviour, bounds=replace(bounds, ceiling=bounds.strict), prices=None)


def _range(behaviour: BehaviourPolicy, contexts: FloatArray) -> float:
    """More than any difference of scores that the law may see."""
    scores = behaviour.law.scores(behaviour.actions.pairs(contexts[:256]))
    return 4 * float(np.abs(scores).max()) + 1e-9
