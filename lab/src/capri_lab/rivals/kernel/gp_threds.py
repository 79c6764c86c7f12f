"""GP-ThreDS: threshold domain shrinking by walks on a tree."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.checks import positive
from capri_lab.rivals.base import Positive
from capri_lab.rivals.kernel.optimism import KernelRival, PosteriorPlay
from capri_lab.rivals.kernel.posterior import Posterior

# An interval of values this narrow, in units of the reward bound, is not halved any more.
_NARROWEST = 1e-6


@dataclass(frozen=True, eq=False)
class Region:
    """A node of the tree: some actions and the two halves they split into."""

    actions: IntArray
    halves: tuple["Region", ...]


def bisect(rows: FloatArray, actions: IntArray) -> Region:
    """Halve along the widest coordinate, down to single actions."""
    if len(actions) == 1:
        return Region(actions, ())
    spread = np.ptp(rows[actions], axis=0)
    order = actions[np.argsort(rows[actions, int(spread.argmax())], kind="stable")]
    middle = len(order) // 2
    return Region(actions, (bisect(rows, order[:middle]), bisect(rows, order[middle:])))


@final
class GPThreDS(KernelRival, PosteriorPlay):
    """Threshold domain shrinking (Salgia, Vakili & Zhao 2021), one search per context.

    arXiv 2010.13997. Algorithm 1 (GP-ThreDS) is :meth:`_search`: it holds an interval ``[a, b]``
    for the largest value and a set of regions that may attain it. Each epoch takes the threshold
    ``tau = (a + b) / 2`` (line 4) and looks in every region for smaller ones whose largest value
    exceeds it (lines 5-6); where some are found, they are the regions to come and ``a = tau``, else
    ``b = tau`` (lines 7-11). Algorithm 2 (the random walk) is :meth:`_walk`: from a node to the
    half that passes a test against the threshold, down to ``depth`` levels. Algorithm 3 (the local
    test) is :meth:`_exceeds`: the action of largest upper bound in the node is played until the
    largest lower bound is above the threshold, the largest upper bound below it, or the width under
    a quarter of ``b - a``, when the mean decides.

    Differences: the paper has no contexts and a continuous domain. Here every context runs a search
    of its own over its finite actions, but all share one posterior, or nothing would be learnt of
    other contexts and each would start anew. With a shared posterior tests do not repeat
    independently, so the walk goes straight down instead of back and forth to gain confidence.
    ``beta`` multiplies the standard deviation; theory's value is that of IGP-UCB (about 15 here).

    Limits: no better than its tests; regions are only refined, so a region lost to a wrong test
    stays lost.
    """

    name = "gp-threds"
    reference = "Salgia, Vakili & Zhao 2021, arXiv 2010.13997"

    beta: Positive = 1.5
    noise: Positive = 0.06  # in units of the reward bound
    depth: int = 2  # how far an epoch refines

    def _prior(self) -> Posterior:
        self.depth = int(positive("depth", self.depth))
        self._searches: dict[int, Generator[int, None, None]] = {}
        return self._ridged(self.noise**2)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        where = int(context[0])
        search = self._searches.setdefault(where, self._search(where))
        return np.array([next(search)]), np.ones(1)

    def _search(self, context: int) -> Generator[int, None, None]:
        """Yields the action to play; the posterior has its reward when the search goes on."""
        rows = self._actions.pairs(self.contexts.rows[context : context + 1])[0]
        regions = [bisect(rows, np.arange(self._actions.count))]
        low, high = -1.0, 1.0
        while True:
            threshold, gap = (low + high) / 2, max(high - low, _NARROWEST)
            found: list[Region] = []
            for region in regions:
                found += yield from self._walk(context, region, threshold, gap, self.depth)
            if found:
                regions, low = found, threshold
            else:
                high = threshold
            if high - low <= _NARROWEST:
                # Nothing is left to decide by threshold: play the best that is known.
                low, high = -1.0, 1.0
                mean, _ = self._posterior.at(context)
                candidates = np.concatenate([region.actions for region in regions])
                yield int(candidates[mean[candidates].argmax()])

    def _walk(
        self, context: int, node: Region, threshold: float, gap: float, depth: int
    ) -> Generator[int, None, list[Region]]:
        """The smaller regions of a node whose largest value exceeds the threshold."""
        passed = yield from self._exceeds(context, node, threshold, gap)
        if not passed:
            return []
        if depth == 0 or not node.halves:
            return [node]
        found: list[Region] = []
        for half in node.halves:
            found += yield from self._walk(context, half, threshold, gap, depth - 1)
        return found or [node]

    def _exceeds(
        self, context: int, node: Region, threshold: float, gap: float
    ) -> Generator[int, None, bool]:
        """Whether the largest value in a node is above the threshold, by playing in it."""
        while True:
            mean, variance = self._posterior.at(context)
            mean, width = mean[node.actions], self.beta * np.sqrt(variance[node.actions])
            best = int((mean + width).argmax())
            if (mean - width).max() > threshold:
                return True
            if mean[best] + width[best] < threshold:
                return False
            if width[best] < gap / 4:
                return bool(mean[best] > threshold)
            yield int(node.actions[best])
