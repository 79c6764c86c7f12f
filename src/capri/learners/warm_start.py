"""A warm start: what is known before the first user, believed as far as releases bear it out.

Public rows, a fitted model and another policy's releases are linear observations of ``f`` at public
pairs ``Z``,

    targets = matrix f(Z) + noise,

rows with an unknown noise of their own (``matrix`` is the identity), releases whitened, with noise
of variance 1. So they need no basis: whoever is told them looks at ``Z`` in a basis of its own.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cells import as_numbers
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, ShapeError
from capri.features import Span
from capri.learners.belief import Belief, Believed, Block, CoefficientPrior
from capri.privacy.ledger import PriorEvent
from capri.spaces import Actions, FixedActions, VaryingActions, as_contexts

if TYPE_CHECKING:
    from capri.joint.policy import Capri
    from capri.local.aggregator import LocalCapri
    from capri.regression.estimator import PrivateKernelRidge

# Directions of which releases said less than this share of the most are left out.
_NEGLIGIBLE = 1e-9
# Public pairs at which a function is told by its values.
_PAIRS = 800


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Pairs, what was observed of ``f`` there, and what it is: as a policy keeps it."""

    pairs: FloatArray
    targets: FloatArray
    matrix: FloatArray | None
    event: PriorEvent

    def design(self, basis: Span) -> FloatArray:
        """What it observed of the coefficients in a basis."""
        v = basis.coordinates(self.pairs)
        return np.asarray(v if self.matrix is None else self.matrix @ v)

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """JSON values and arrays."""
        arrays = {"prior.pairs": self.pairs, "prior.targets": self.targets}
        if self.matrix is not None:
            arrays["prior.matrix"] = self.matrix
        return self.event.to_dict(), arrays

    @classmethod
    def from_state(cls, values: dict[str, Any], arrays: dict[str, FloatArray]) -> "Observed":
        """The inverse of :meth:`state`."""
        return cls(
            pairs=arrays["prior.pairs"],
            targets=arrays["prior.targets"],
            matrix=arrays.get("prior.matrix"),
            event=PriorEvent(**values),
        )


@dataclass(frozen=True, eq=False)
class Prior:
    """What a policy is told before its first user: see :meth:`from_rows` and its sisters.

    None of it is protected by the policy that is told: rows must be public, or of people who agreed
    to that; releases carry the promise that was made to the people behind them.
    """

    _contexts: Any = field(repr=False)
    _actions: Any = field(repr=False)
    _rewards: Any = field(repr=False)
    _observed: Observed | None = field(repr=False, default=None)

    @classmethod
    def from_rows(cls, contexts: object, actions: object, rewards: object) -> "Prior":
        """Rows that are public, or of people who agreed: context, action and reward of each.

        ``contexts``: rows of numbers, or records of the schema. ``actions``: names or numbers of
        actions, or their feature rows, which need not be among those on offer.
        """
        return cls(contexts, actions, rewards)

    @classmethod
    def from_releases(cls, source: "Capri | LocalCapri | PrivateKernelRidge") -> "Prior":
        """What the releases of another policy, or of a fitted model on pairs, said.

        Post-processing of them: the people behind them keep the promise they were given. Whoever
        is behind them and visits the new policy, too, has both promises to add up.
        """
        if not callable(getattr(source, "as_prior", None)):
            raise ConfigurationError(
                "from_releases takes a capri.Capri, a capri.LocalCapri or a fitted "
                f"capri.PrivateKernelRidge, got {type(source).__name__}"
            )
        return source.as_prior()

    @classmethod
    def of_observed(cls, observed: Observed) -> "Prior":
        """What was observed already."""
        return cls(None, None, None, observed)

    def of(self, problem: Problem) -> Observed:
        """As observations of pairs of this problem, or an error that says what does not fit."""
        width = problem.actions.pair_dimension(problem.contexts.dimension)
        found = self._observed
        if found is None:
            found = self._rows(problem)
        elif found.matrix is not None:  # told in units of rewards, learnt around their middle
            middle = problem.scale.centre * found.matrix.sum(axis=1)
            found = replace(found, targets=found.targets - middle)
        if found.pairs.shape[1] != width:
            raise ShapeError(
                f"a pair of this policy has {width} numbers, context and action together; its "
                f"prior was made of pairs of {found.pairs.shape[1]}"
            )
        return found

    def _rows(self, problem: Problem) -> Observed:
        public = problem.contexts
        contexts = as_contexts(self._contexts, public.dimension, public.schema)
        rewards = as_numbers(self._rewards)
        if rewards.shape != (len(contexts),) or not len(contexts):
            raise ShapeError(
                f"one reward for each of the {len(contexts)} public rows is needed, got "
                f"{rewards.shape}"
            )
        if not np.isfinite(rewards).all():
            raise ConfigurationError("the rewards of public rows must be finite: leave others out")
        pairs = _pairs(problem.actions, contexts, self._actions)
        targets = problem.scale.learnt(rewards)
        digest = sha256(pairs.tobytes() + targets.tobytes()).hexdigest()
        event = PriorEvent(kind="rows", digest=digest, count=len(rewards))
        return Observed(pairs=pairs, targets=targets, matrix=None, event=event)


def observed(
    basis: Span,
    pairs: FloatArray,
    information: FloatArray,
    vector: FloatArray,
    *,
    middle: float = 0.0,
    half: float = 1.0,
) -> tuple[FloatArray, FloatArray]:
    """Information on coefficients of a basis as observations of values at pairs: matrix, targets.

    With ``V`` the coordinates of the pairs and ``f = middle + half v^T theta``, ``theta = V^+ (f(Z)
    - middle) / half``; with ``J = E D E^T``, known is ``D^1/2 E^T theta`` with noise of variance 1.
    """
    inverse = np.linalg.pinv(basis.coordinates(pairs), rcond=1e-6)
    values, vectors = np.linalg.eigh((information + information.T) / 2)
    kept = values > _NEGLIGIBLE * max(float(values[-1]), 1e-300)
    root = np.sqrt(values[kept])
    matrix = (root[:, None] * vectors[:, kept].T) @ inverse / half
    return matrix, vectors[:, kept].T @ vector / root + middle * matrix.sum(axis=1)


def sampled_pairs(problem: Problem, rank: int) -> FloatArray:
    """Public pairs under uniform play, enough to tell a function of so many coordinates."""
    generator, actions = np.random.default_rng(0), problem.actions
    count = max(_PAIRS, 4 * rank)
    contexts, weights = problem.contexts.support(generator, count)
    rows = generator.choice(len(contexts), size=count, p=weights / weights.sum())
    return actions.chosen(contexts[rows], generator.integers(actions.count, size=count))


def _pairs(actions: Actions, contexts: FloatArray, given: Any) -> FloatArray:
    """The pairs of public rows."""
    if isinstance(actions, VaryingActions):
        return actions.chosen(contexts, _numbers(actions, given, len(contexts)))
    assert isinstance(actions, FixedActions)
    array = np.asarray(given)
    if array.ndim == 2:
        rows = as_numbers(array)
        if rows.shape != (len(contexts), actions.dimension) or not np.isfinite(rows).all():
            raise ShapeError(
                f"feature rows of actions must have shape ({len(contexts)}, {actions.dimension}) "
                f"and be finite, got {rows.shape}"
            )
        return np.concatenate([contexts, rows], axis=1)
    return actions.chosen(contexts, _numbers(actions, given, len(contexts)))


def _numbers(actions: Actions, given: Any, count: int) -> IntArray:
    """Numbers of actions that are given by name or number."""
    listed = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(listed, str) or not isinstance(listed, Sequence) or len(listed) != count:
        raise ShapeError(f"one action for each of the {count} public rows is needed")
    places: dict[Any, int] = {number: number for number in range(actions.count)}
    places |= {name: number for number, name in enumerate(actions.names or ())}
    unknown = next((name for name in listed if isinstance(name, bool) or name not in places), None)
    if unknown is not None:
        raise ConfigurationError(
            f"public rows name an action {unknown!r}, which is not on offer: leave its rows out, "
            "or give feature rows of the actions"
        )
    return np.array([places[name] for name in listed], dtype=np.int64)


def checked_prior(prior: object, problem: Problem) -> Observed | None:
    """What was observed beforehand; None for nothing."""
    if prior is None or isinstance(prior, Observed):
        return prior
    if callable(getattr(prior, "as_prior", None)):  # a policy, or a fitted model
        prior = prior.as_prior()  # type: ignore[attr-defined]
    if not isinstance(prior, Prior):
        raise ConfigurationError(
            "prior must be a capri.Prior, or something with releases, got "
            f"{type(prior).__name__}: see capri.Prior.from_rows"
        )
    return prior.of(problem)


def stored_prior(values: dict[str, Any], arrays: dict[str, FloatArray]) -> Any:
    """What a stored policy had been told; None for nothing."""
    return Observed.from_state(values["prior"], arrays) if "prior" in values else None


# -- how far it is believed ------------------------------------------------------------------------


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
