"""A warm start: what was known before the first user, believed as far as releases bear it out.

What was observed elsewhere may be of another function, ``f + g`` with ``g ~ N(0, d^2 S)`` and ``S``
the prior covariance: last year's users, another country. With ``J`` and ``h`` the information of
what was observed, that of ``f`` is

    J_d = J - d^2 J L (I + d^2 L^T J L)^-1 L^T J,     h_d = h - d^2 J L (I + d^2 L^T J L)^-1 L^T h

for ``L L^T = S``: everything at ``d = 0``, nothing at infinity. How far to trust it, releases tell:

    log p(releases | observed, d) = log evidence(J_d + releases) - log evidence(J_d)

beside the log odds before any release. What is believed is the mixture over doubts by its first two
moments: where they disagree is what an epoch asks about first, so rows of another function are
found out in a few epochs. Public throughout: post-processing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from capri.arrays import FloatArray
from capri.learners.belief import Belief, Believed, Block, CoefficientPrior

# How far what was observed may be from f, in deviations of f itself; the last: all of it.
DOUBTS = (0.05, 0.15, 0.4, 1.0, np.inf)
# Log odds of each before any release.
_ODDS = np.array([0.0, 0.0, -1.0, -2.0, -1.0])
# Rounds in which the noise of rows is found, and its least variance as a share of theirs.
_ROUNDS, _LEAST = 5, 1e-4


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Information and vector under every doubt, and the log evidence of each by itself."""

    informations: FloatArray
    vectors: FloatArray
    evidences: FloatArray

    def added(self, belief: Belief, doubt: int) -> Belief:
        """A belief with what was observed before, under a doubt."""
        return replace(
            belief,
            information=belief.information + self.informations[doubt],
            vector=belief.vector + self.vectors[doubt],
            epochs=max(1, belief.epochs),
        )

    def infer(self, prior: CoefficientPrior, belief: Belief, near: "Believed | None") -> Believed:
        """The mixture of posteriors over the likeliest doubt, its neighbours and full doubt."""
        last = len(DOUBTS) - 1
        now = 0 if near is None else near.doubt
        tried = sorted({max(now - 1, 0), now, min(now + 1, last), last})
        found: dict[int, Believed] = {}
        scores: dict[int, float] = {}
        while tried:
            doubt = tried.pop(0)
            state = prior.infer(self.added(belief, doubt), near)
            scores[doubt] = state.evidence - float(self.evidences[doubt]) + float(_ODDS[doubt])
            found[doubt] = state
            best = max(scores, key=lambda each: scores[each])
            if not tried:
                tried = [each for each in (best - 1, best + 1) if 0 <= each <= last]
                tried = [each for each in tried if each not in scores][:1]
        likely = {each: exp(score - scores[best]) for each, score in scores.items()}
        total = sum(likely.values())
        mean = sum((p / total * found[each].mean for each, p in likely.items()), np.zeros(()))
        apart = [np.sqrt(p / total) * (found[each].mean - mean) for each, p in likely.items()]
        mixed = found[best].mixed(np.asarray(mean), np.stack(apart, axis=-1))
        return replace(mixed, evidence=scores[best], doubt=best)


def inferred(
    start: WarmStart | None, prior: CoefficientPrior, belief: Belief, near: "Believed | None"
) -> Believed:
    """What releases make of the prior, and of what was known before them, if anything was."""
    return prior.infer(belief, near) if start is None else start.infer(prior, belief, near)


def warm_start(
    rows: Mapping[Block, tuple[FloatArray, FloatArray]],
    shape: tuple[int, ...],
    prior: CoefficientPrior,
    *,
    variance: float | None = None,
) -> WarmStart:
    """From rows of coordinates and what was observed of each block of coefficients there.

    ``variance``: that of the noise; None for the one of largest evidence: squared residuals over
    what is left to them, ``n - tr(J P)``, a few times.
    """
    gram, image = np.zeros((*shape, shape[-1])), np.zeros(shape)
    for block, (design, targets) in rows.items():
        gram[block], image[block] = design.T @ design, design.T @ targets
    empty = replace(Belief.empty(*shape), epochs=1)
    count = sum(len(targets) for _, targets in rows.values())
    whole = sum(float(targets @ targets) for _, targets in rows.values()) / count + 1e-300
    used, state = 0.25 * whole if variance is None else variance, None
    for _ in range(_ROUNDS if variance is None else 0):
        own = replace(empty, information=gram / used, vector=image / used)
        state = prior.infer(own, state)
        spread = state.factor @ np.swapaxes(state.factor, -1, -2)
        left = max(count - float((own.information * spread).sum()), 1.0)
        used = max(_residual_square(rows, state) / left, _LEAST * whole)
    own = replace(empty, information=gram / used, vector=image / used)
    state = prior.infer(own, state)
    return discounted(own.information, own.vector, prior, prior.root(state), state)


def _residual_square(rows: Mapping[Block, tuple[FloatArray, FloatArray]], state: Believed) -> float:
    """Of what a posterior leaves of targets."""
    residuals = [targets - design @ state.mean[block] for block, (design, targets) in rows.items()]
    return sum(float(each @ each) for each in residuals)


def discounted(
    information: FloatArray,
    vector: FloatArray,
    prior: CoefficientPrior,
    root: FloatArray,
    state: Believed,
) -> WarmStart:
    """Under every doubt, whole or in blocks; ``root``: of the prior."""
    eye = np.eye(root.shape[-1])
    informations, vectors = [], []
    for doubt in DOUBTS:
        if np.isinf(doubt):
            informations.append(np.zeros_like(information))
            vectors.append(np.zeros_like(vector))
            continue
        image = information @ (doubt * root)
        inner = eye + doubt * np.swapaxes(root, -1, -2) @ image
        gain = np.swapaxes(np.linalg.solve(inner, np.swapaxes(image, -1, -2)), -1, -2)
        told = information - gain @ np.swapaxes(image, -1, -2)
        informations.append((told + np.swapaxes(told, -1, -2)) / 2)
        vectors.append(vector - np.einsum("...ij,...j->...i", gain, _along(doubt * root, vector)))
    start = WarmStart(np.array(informations), np.array(vectors), np.zeros(len(DOUBTS)))
    nothing = Belief.empty(*vector.shape)
    evidences = [
        prior.infer(start.added(nothing, number), state).evidence for number in range(len(DOUBTS))
    ]
    return replace(start, evidences=np.array(evidences))


def _along(root: FloatArray, vector: FloatArray) -> FloatArray:
    """``L^T h``."""
    return np.asarray(np.einsum("...ij,...i->...j", root, vector))
