"""Attack the bytes that a device uploads, and see how much privacy loss can be proved.

The worst datum is reported many times in two worlds that differ in the reward alone. Whoever reads
the bytes knows the bundle, hence what either world would make likely. Three attacks: *report* reads
the payload with that knowledge, *bits* looks at every single bit, *tokens* looks for a seed that
comes twice. And two checks of what the proof and the aggregator assume: *law* compares how often
each number comes with its exact probability, *bias* the mean report with the contribution.
"""

from math import inf, log, sqrt

import numpy as np
from scipy.special import chdtrc

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.audit.proof import (
    EXCESS,
    AttackResult,
    AuditResult,
    Progress,
    check_trials,
    clopper_pearson_upper,
)
from capri.errors import ConfigurationError
from capri.local import wire
from capri.local.client import LocalClient
from capri.local.device import Device
from capri.privacy.budget import Budget
from capri.privacy.sphere import DIRECTION_UNITS, directions
from capri.spaces import as_contexts

# Smallest probability of chance alone at which numbers still count as following their law.
_CHANCE = 1e-6
# Reports that a cell of the chi-square test expects at least.
_CELL = 20.0
# Standard errors by which the mean report may miss the contribution: chance does so with 1e-6.
_BIAS = 5.0
# The most telling bits, of which each is judged.
_BITS = 4


def audit_device(
    bundle: bytes,
    budget: Budget,
    contexts: object,
    *,
    trials: int = 20_000,
    confidence: float = 0.999,
    client: type[LocalClient] = LocalClient,
    progress: Progress | None = None,
) -> AuditResult:
    """Attack fresh devices of one bundle; ``contexts`` are those to look for the worst datum in.

    ``trials`` reports are made in each of the two worlds, with real randomness. The confidence
    holds for all attacks together.
    """
    check_trials(trials, confidence)
    device = client(bundle, budget)
    if not device.private:
        raise ConfigurationError("only a real device can be audited: leave simulation at None")
    target = _DeviceTarget(device, contexts)
    made = []
    for number, sign in enumerate(np.repeat([-1.0, 1.0], trials), start=1):
        made.append(target.report(float(sign)))
        if progress is not None:
            progress(number, 2 * trials)
    rows = np.frombuffer(b"".join(made), dtype=np.uint8).reshape(2 * trials, -1)
    low, high = rows[:trials], rows[trials:]
    error = (1 - confidence) / 2  # shared by the attacks that can err by chance
    proven = {
        "report": target.payload_attack(low, high, error),
        "bits": _bit_attack(low, high, error),
        "tokens": _token_attack(rows),
    }
    law = min(target.law(low, -1.0), target.law(high, 1.0))
    bias = max(target.bias(low, -1.0), target.bias(high, 1.0))
    return AuditResult(
        model="device",
        epsilon=budget.epsilon,
        delta=0.0,
        confidence=confidence,
        attacks=tuple(AttackResult(name=n, trials=trials, proven=p) for n, p in proven.items()),
        checks={"law": (law, law >= _CHANCE), "bias": (bias, bias <= _BIAS)},
    )


class _DeviceTarget:
    """A device with the worst datum, and what its bytes mean."""

    def __init__(self, client: LocalClient, contexts: object) -> None:
        self.client, self.bundle = client, client.opened_bundle
        sphere = self.bundle.plan.sphere
        assert sphere is not None
        self.sphere = sphere
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
        found = []
        for sign, here, there in ((-1.0, low, high), (1.0, high, low)):
            hits, others = (int(self._points_at(rows, sign).sum()) for rows in (here, there))
            found.append(_ratio(hits, others, len(low), error / 2))
        return max(found)

    def _points_at(self, rows: wire.Messages, sign: float) -> BoolArray:
        """Whether each report names a direction near this world's vector and not the other's."""
        number = self._numbers(rows)
        near = {
            world: (self._nearest(rows, world) == number).any(axis=1) for world in (sign, -sign)
        }
        return np.asarray(near[sign] & ~near[-sign])

    def _numbers(self, rows: wire.Messages) -> IntArray:
        return wire.numbers_of(rows)[:, None]

    def _nearest(self, rows: wire.Messages, sign: float) -> IntArray:
        """The directions of each report's seed that lie nearest to a world's vector."""
        units = np.tile(self._units[sign], (len(rows), 1))
        return self.sphere.nearest(wire.tokens_of(rows), units)

    def law(self, rows: wire.Messages, sign: float) -> float:
        """Probability that chance alone takes numbers as far from their law (chi-square).

        Ranked by their product with the vector: each of the ``k`` nearest, each of their opposites,
        and the rest by sign. Rounding to the sphere turns the vector round with probability
        ``1 - q = (1 - |z|) / 2``, which swaps the first two kinds.
        """
        number, nearest = self._numbers(rows), self._nearest(rows, sign)
        forward, back = nearest == number, (nearest ^ 1) == number
        rest = ~(forward | back).any(axis=1)
        odd = number[:, 0] % 2 == 1
        counts = [*forward.sum(axis=0), *back.sum(axis=0), (rest & odd).sum(), (rest & ~odd).sum()]
        near, far = (float(each) for each in self.sphere.probabilities)
        q, k = (1 + float(np.linalg.norm(self._vector(sign)))) / 2, self.sphere.near
        others = (self.sphere.candidates - 2 * k) / 2 * far
        chances = [q * near + (1 - q) * far] * k + [q * far + (1 - q) * near] * k + [others] * 2
        return _chance(np.array(counts, dtype=np.float64), len(rows) * np.array(chances))

    def _vector(self, sign: float) -> FloatArray:
        """The contribution in the unit ball."""
        return np.asarray(self._units[sign] / self.bundle.plan.vector.norm_limit)

    def bias(self, rows: wire.Messages, sign: float) -> float:
        """Standard errors between the mean report and the contribution, along the contribution."""
        truth, number = self._vector(sign), self._numbers(rows)[:, 0]
        vectors = directions(wire.tokens_of(rows), number // 2, self.sphere.dimension)
        signs = (1 - 2 * (number % 2))[:, None]
        decoded = signs * vectors / (DIRECTION_UNITS * self.sphere.shrinkage)
        along = decoded @ truth / np.linalg.norm(truth)
        off = along.mean() - np.linalg.norm(truth)
        return float(abs(off) / (along.std(ddof=1) / sqrt(len(along))))


def _chance(observed: FloatArray, expected: FloatArray) -> float:
    """The probability of counts as unexpected as these; cells that expect few count as one."""
    small = expected < _CELL
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], max(expected[small].sum(), 1e-9))
    if expected[-1] < _CELL:
        observed, expected = observed[:-1], expected[:-1]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chdtrc(max(1, len(expected) - 1), statistic))


def _ratio(here: int, there: int, trials: int, error: float) -> float:
    """``ln(P(event here) / P(event there))`` at least, by Clopper-Pearson from two counts."""
    misses = float(clopper_pearson_upper(trials - here, trials, error / 2))
    above = float(clopper_pearson_upper(there, trials, error / 2))
    return log((1 - misses) / above) if misses < 1 else 0.0


def _bit_attack(low: wire.Messages, high: wire.Messages, error: float) -> float:
    """The most telling of all bits of a report, either way round.

    The widest gaps are judged; that they were chosen among all bits costs a factor in the error.
    """
    trials, bits = len(low), 8 * low.shape[1]
    below, above = (np.unpackbits(rows, axis=1).sum(axis=0, dtype=np.int64) for rows in (low, high))
    best = 0.0
    for here, there in ((below, above), (above, below)):
        for hits, others in ((here, there), (trials - here, trials - there)):
            for bit in np.argsort(others - hits)[:_BITS]:
                proven = _ratio(int(hits[bit]), int(others[bit]), trials, error / (4 * bits))
                best = max(best, proven)
    return best


def _token_attack(rows: wire.Messages) -> float:
    """A token that comes twice did not come from 128 fresh random bits: infinite loss."""
    tokens = {row.tobytes() for row in rows[:, wire.TOKEN]}
    return inf if len(tokens) < len(rows) else 0.0
