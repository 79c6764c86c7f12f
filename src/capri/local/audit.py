"""Attack the bytes that a device uploads, and see how much privacy loss can be proved.

The worst datum is reported many times in two worlds that differ in the reward alone. Whoever reads
the bytes knows the bundle, hence what either world would make likely. Three attacks: *report* reads
the payload with that knowledge, *bits* looks at every single bit, *tokens* looks for a seed that
comes twice. And two checks of what the proof and the aggregator assume: *law* compares how often
each number comes with its exact probability, *bias* the mean report with the contribution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import ClassVar

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.errors import ConfigurationError
from capri.local import wire
from capri.local.bundle import Bundle
from capri.local.client import LocalClient
from capri.local.device import Device, report_mechanism
from capri.privacy.attack import EXCESS, check_trials, clopper_pearson_upper
from capri.privacy.budget import Budget
from capri.privacy.directions import DIRECTION_UNITS, directions
from capri.privacy.sphere import Sphere
from capri.spaces import as_contexts

# Smallest probability of chance alone at which numbers still count as following their law.
_CHANCE = 1e-6
# Reports that a cell of the chi-square test expects at least.
_CELL = 20.0
# Standard errors by which the mean report may miss the contribution: chance does so with 1e-6.
_BIAS = 5.0


@dataclass(frozen=True, kw_only=True)
class DeviceAudit:
    """Claimed against proven privacy loss of one report."""

    delta: ClassVar[float] = 0.0  # reports of the sphere are pure
    claimed_epsilon: float
    trials: int
    confidence: float
    proven: dict[str, float]
    law: float
    bias: float

    @property
    def proven_epsilon(self) -> float:
        """The largest loss that some attack proves."""
        return max(self.proven.values())

    @property
    def passed(self) -> bool:
        """No attack proves more loss than was claimed, and reports follow their law."""
        lawful = self.law >= _CHANCE and self.bias <= _BIAS
        return self.proven_epsilon <= self.claimed_epsilon and lawful


def audit_device(
    bundle: bytes,
    budget: Budget,
    contexts: object,
    *,
    trials: int = 20_000,
    confidence: float = 0.999,
    client: type[LocalClient] = LocalClient,
    progress: Callable[[int, int], None] | None = None,
) -> DeviceAudit:
    """Attack fresh devices of one bundle; ``contexts`` are those to look for the worst datum in.

    ``trials`` reports are made in each of the two worlds, with real randomness. The confidence
    holds for all attacks together.
    """
    check_trials(trials, confidence)
    target = _Target(client(bundle, budget), contexts)
    if not target.client.private:
        raise ConfigurationError("only a real device can be audited: leave simulation at None")
    made = []
    for number, sign in enumerate(np.repeat([-1.0, 1.0], trials), start=1):
        made.append(target.report(float(sign)))
        if progress is not None:
            progress(number, 2 * trials)
    rows = np.frombuffer(b"".join(made), dtype=np.uint8).reshape(2 * trials, -1)
    low, high = rows[:trials], rows[trials:]
    error = (1 - confidence) / 2  # shared by the attacks that can err by chance
    return DeviceAudit(
        claimed_epsilon=budget.epsilon,
        trials=trials,
        confidence=confidence,
        proven={
            "report": target.payload_attack(low, high, error),
            "bits": _bit_attack(low, high, error),
            "tokens": _token_attack(rows),
        },
        law=min(target.law(low, -1.0), target.law(high, 1.0)),
        bias=max(target.bias(low, -1.0), target.bias(high, 1.0)),
    )


class _Target:
    """A device with the worst datum, and what its bytes mean."""

    def __init__(self, client: LocalClient, contexts: object) -> None:
        self.client = client
        self.bundle: Bundle = client.opened_bundle
        self.sphere: Sphere = report_mechanism(self.bundle.plan).sphere
        rows = as_contexts(contexts, self.bundle.context_dimension)
        actions = self.bundle.actions.count
        everyone, action = np.repeat(rows, actions, axis=0), np.tile(np.arange(actions), len(rows))
        low, high = (self._encoded(everyone, action, sign) for sign in (-1.0, 1.0))
        worst = int(np.linalg.norm(high - low, axis=1).argmax())
        self._context, self._action = everyone[worst : worst + 1], action[worst : worst + 1]
        self._units = {-1.0: low[worst], 1.0: high[worst]}

    def _encoded(self, contexts: FloatArray, actions: IntArray, sign: float) -> IntArray:
        rewards = np.full(len(contexts), self._reward(sign))
        return Device(self.bundle).encode(contexts, actions, rewards)

    def _reward(self, sign: float) -> float:
        return float(self.bundle.scale.at(sign * EXCESS))

    def report(self, sign: float) -> bytes:
        """One device's upload in one of the worlds."""
        # The worst action, whatever would be drawn.
        device = self.client.twin(self._context, self._action)
        return device.report(self._reward(sign))

    def payload_attack(self, low: wire.Messages, high: wire.Messages, error: float) -> float:
        """Is the number near in the high world and not near in the low one, or the reverse?"""
        return max(
            _ratio(self._points_at(high, sign), self._points_at(low, sign), error / 2)
            if sign > 0
            else _ratio(self._points_at(low, sign), self._points_at(high, sign), error / 2)
            for sign in (-1.0, 1.0)
        )

    def _points_at(self, rows: wire.Messages, sign: float) -> IntArray:
        """Whether each report names a direction near this world's vector and not the other's."""
        number = wire.numbers_of(rows)[:, None]
        tokens = wire.tokens_of(rows)
        near = {
            world: (self.sphere.nearest(tokens, self._unit(world, len(rows))) == number).any(axis=1)
            for world in (sign, -sign)
        }
        return np.asarray(near[sign] & ~near[-sign]).astype(np.int64)

    def _unit(self, sign: float, count: int) -> IntArray:
        return np.tile(self._units[sign], (count, 1))

    def law(self, rows: wire.Messages, sign: float) -> float:
        """Probability that chance alone takes numbers as far from their law (chi-square).

        Ranked by their product with the vector: each of the ``k`` nearest, each of their opposites,
        and the rest by sign. Rounding to the sphere turns the vector round with probability
        ``1 - q = (1 - |z|) / 2``, which swaps the first two kinds.
        """
        from scipy.special import chdtrc

        number = wire.numbers_of(rows)[:, None]
        nearest = self.sphere.nearest(wire.tokens_of(rows), self._unit(sign, len(rows)))
        forward, back = nearest == number, (nearest ^ 1) == number
        rest = ~(forward | back).any(axis=1)
        odd = number[:, 0] % 2 == 1
        counts = [*forward.sum(axis=0), *back.sum(axis=0)]
        counts += [int((rest & odd).sum()), int((rest & ~odd).sum())]
        near, far = (float(each) for each in self.sphere.probabilities)
        norm = float(np.linalg.norm(self._units[sign] / self.bundle.plan.grid.norm_limit))
        q, k = (1 + norm) / 2, self.sphere.near
        others = (self.sphere.candidates - 2 * k) / 2 * far
        chances = [q * near + (1 - q) * far] * k + [q * far + (1 - q) * near] * k + [others] * 2
        expected = len(rows) * np.array(chances)
        observed = np.array(counts, dtype=np.float64)
        # The chi-square law needs cells of some size: small ones count as one.
        small = expected < _CELL
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], max(expected[small].sum(), 1e-9))
        if expected[-1] < _CELL:
            observed, expected = observed[:-1], expected[:-1]
        statistic = float(((observed - expected) ** 2 / expected).sum())
        return float(chdtrc(max(1, len(expected) - 1), statistic))

    def bias(self, rows: wire.Messages, sign: float) -> float:
        """Standard errors between the mean report and the contribution, along the contribution."""
        truth = self._units[sign] / self.bundle.plan.grid.norm_limit
        number = wire.numbers_of(rows)
        vectors = directions(wire.tokens_of(rows), number // 2, self.sphere.dimension)
        signs = (1 - 2 * (number % 2))[:, None]
        decoded = signs * vectors / (DIRECTION_UNITS * self.sphere.shrinkage)
        along = decoded @ truth / np.linalg.norm(truth)
        off = along.mean() - np.linalg.norm(truth)
        return float(abs(off) / (along.std(ddof=1) / sqrt(len(along))))


def _ratio(here: IntArray, there: IntArray, error: float) -> float:
    """``ln(P(event here) / P(event there))`` at least, by Clopper-Pearson."""
    misses = clopper_pearson_upper(int((here == 0).sum()), len(here), error / 2)
    above = clopper_pearson_upper(int(there.sum()), len(there), error / 2)
    return log((1 - misses) / above) if misses < 1 else 0.0


def _bit_attack(low: wire.Messages, high: wire.Messages, error: float) -> float:
    """The most telling of all bits of a report, either way round."""
    bits = 8 * low.shape[1]
    ones = [np.unpackbits(rows, axis=1).sum(axis=0, dtype=np.int64) for rows in (low, high)]
    best = 0.0
    for here, there in ((ones[0], ones[1]), (ones[1], ones[0])):
        for hits, others in ((here, there), (len(low) - here, len(low) - there)):
            # The widest gaps first: testing all bits costs one factor in the error.
            for bit in np.argsort(others - hits)[:4]:
                misses = clopper_pearson_upper(
                    len(low) - int(hits[bit]), len(low), error / (8 * bits)
                )
                above = clopper_pearson_upper(int(others[bit]), len(low), error / (8 * bits))
                if misses < 1:
                    best = max(best, log((1 - misses) / above))
    return best


def _token_attack(rows: wire.Messages) -> float:
    """A token that comes twice did not come from 128 fresh random bits: infinite loss."""
    tokens = {row.tobytes() for row in rows[:, wire.TOKEN]}
    return inf if len(tokens) < len(rows) else 0.0
