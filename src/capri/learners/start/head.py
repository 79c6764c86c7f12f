"""A head start: what was known before the first user, believed as far as releases bear it out.

What was observed elsewhere may be of another function, ``f + g`` with ``g ~ N(0, d^2 S)`` and ``S``
the prior covariance: last year's users, another country. With ``J`` and ``h`` the information of
what was observed, that of ``f`` is

    J_d = J - d^2 J L (I + d^2 L^T J L)^-1 L^T J,     h_d = h - d^2 J L (I + d^2 L^T J L)^-1 L^T h

for ``L L^T = S``: everything at ``d = 0``, nothing at infinity. How far to trust it, releases tell:

    log p(releases | observed, d) = log evidence(J_d + releases) - log evidence(J_d)

beside the log odds before any release. What is believed is the mixture over doubts by its first two
moments: where they disagree is what an epoch asks about first, so rows of another function are
found out in a few epochs. Public throughout: post-processing.

A head start for unrelated arms: public rows, each of which speaks of one arm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.family import ArmBasis
from capri.learners.arms.prior import ArmPosterior, ArmPrior
from capri.learners.belief import Belief
from capri.learners.start.prior import Observed

# How far what was observed may be from f, in deviations of f itself; the last: all of it.
DOUBTS = (0.05, 0.15, 0.4, 1.0, np.inf)
# Log odds of each before any release.
_ODDS = np.array([0.0, 0.0, -1.0, -2.0, -1.0])
# Rounds in which the noise of rows is found, and its least variance as a share of theirs.
ROUNDS, LEAST = 5, 1e-4


class Believed(Protocol):
    """A posterior."""

    @property
    def mean(self) -> FloatArray: ...  # noqa: D102

    @property
    def evidence(self) -> float: ...  # noqa: D102

    @property
    def weights(self) -> FloatArray | None: ...  # noqa: D102

    @property
    def doubt(self) -> int: ...  # noqa: D102

    def mixed(self, mean: FloatArray, apart: FloatArray) -> Any: ...  # noqa: D102


State = TypeVar("State", bound=Believed)


class Infers(Protocol[State]):
    """A prior that makes posteriors, dense or in blocks."""

    def infer(self, belief: Belief, near: State | None = None) -> State: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class HeadStart(Generic[State]):
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

    def infer(self, prior: Infers[State], belief: Belief, near: State | None) -> State:
        """The mixture of posteriors over the likeliest doubt, its neighbours and full doubt."""
        last = len(DOUBTS) - 1
        now = 0 if near is None else near.doubt
        tried = sorted({max(now - 1, 0), now, min(now + 1, last), last})
        found: dict[int, State] = {}
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
        mixed: State = found[best].mixed(np.asarray(mean), np.stack(apart, axis=-1))
        return replace(mixed, evidence=scores[best], doubt=best)  # type: ignore[type-var]


def inferred(
    head: HeadStart[State] | None, prior: Infers[State], belief: Belief, near: State | None
) -> State:
    """What releases make of the prior, and of what was known before them, if anything was."""
    return prior.infer(belief, near) if head is None else head.infer(prior, belief, near)


def head_start(
    observed: Observed,
    design: FloatArray,
    prior: Infers[State],
    root: Callable[[State], FloatArray],
) -> HeadStart[State]:
    """From what was observed of coefficients; ``root`` gives ``L`` under a posterior."""
    targets, rank = observed.targets, design.shape[1]
    gram, image = design.T @ design, design.T @ targets
    empty = replace(Belief.empty(rank), epochs=1)
    variance, state = 1.0, None
    if observed.matrix is None:
        whole = float(targets @ targets) / len(targets) + 1e-300
        variance = 0.25 * whole
        for _ in range(ROUNDS):
            own = replace(empty, information=gram / variance, vector=image / variance)
            state = prior.infer(own, state)
            variance = max(_noise(design, targets, gram, variance, root, state), LEAST * whole)
    own = replace(empty, information=gram / variance, vector=image / variance)
    state = prior.infer(own, state)
    return discounted(own.information[None], own.vector[None], prior, root(state), state)


def discounted(
    information: FloatArray,
    vector: FloatArray,
    prior: Infers[State],
    root: FloatArray,
    state: State,
) -> HeadStart[State]:
    """Under every doubt; in blocks ``(blocks, r, r)``, of which a dense belief has one."""
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
    head: HeadStart[State] = HeadStart(
        np.array(informations), np.array(vectors), np.zeros(len(DOUBTS))
    )
    if len(information) == 1:
        head = replace(head, informations=head.informations[:, 0], vectors=head.vectors[:, 0])
    nothing = replace(
        Belief.empty(1),
        information=np.zeros_like(head.informations[0]),
        vector=np.zeros_like(head.vectors[0]),
    )
    evidences = [
        prior.infer(head.added(nothing, number), state).evidence for number in range(len(DOUBTS))
    ]
    return replace(head, evidences=np.array(evidences))


def _along(root: FloatArray, vector: FloatArray) -> FloatArray:
    """``L^T h``."""
    return np.asarray(np.einsum("ij,...i->...j", root, vector))


def _noise(
    design: FloatArray,
    targets: FloatArray,
    gram: FloatArray,
    variance: float,
    root: Callable[[State], FloatArray],
    state: State,
) -> float:
    """The variance of largest evidence, one step: squared residuals over what is left to them."""
    lower = root(state)
    inner = np.eye(lower.shape[1]) + lower.T @ gram @ lower / variance
    taken = lower.shape[1] - float(np.trace(np.linalg.inv(inner)))
    residual: FloatArray = targets - design @ state.mean
    return float(residual @ residual) / float(max(len(targets) - taken, 1.0))


def arms_head(observed: Observed, basis: ArmBasis, prior: ArmPrior) -> HeadStart[ArmPosterior]:
    """From rows, with the noise of largest evidence."""
    if observed.matrix is not None:
        raise ConfigurationError(
            "a policy with one block for every action takes public rows beforehand, not releases: "
            "give blocks=False, or capri.Prior.from_rows"
        )
    u, arm = basis.split(observed.pairs)
    targets = observed.targets
    gram, image = (
        np.zeros((basis.arms, basis.width, basis.width)),
        np.zeros((basis.arms, basis.width)),
    )
    for number in np.unique(arm):
        own = u[arm == number]
        gram[number], image[number] = own.T @ own, own.T @ targets[arm == number]
    empty = replace(Belief.empty(basis.arms, basis.width), epochs=1)
    whole = float(targets @ targets) / len(targets) + 1e-300
    variance, state = 0.25 * whole, None
    for _ in range(ROUNDS):
        told = replace(empty, information=gram / variance, vector=image / variance)
        state = prior.infer(told, state)
        taken = float(np.einsum("aij,aij->", gram / variance, state.covariance))
        residual = targets - np.einsum("ij,ij->i", u, state.mean[arm])
        left = max(len(targets) - taken, 1.0)
        variance = max(float(residual @ residual) / left, LEAST * whole)
    told = replace(empty, information=gram / variance, vector=image / variance)
    state = prior.infer(told, state)
    common, own = prior.covariances(state.weights)
    root = np.linalg.cholesky(common + own)
    return discounted(told.information, told.vector, prior, np.asarray(root), state)
