"""What is known before the first user: public rows, a fitted model, another policy's releases.

All three are linear observations of ``f`` at public pairs ``Z``,

    targets = matrix f(Z) + noise,

rows with an unknown noise of their own (``matrix`` is the identity), releases whitened, with noise
of variance 1. So they need no basis: whoever is told them looks at ``Z`` in a basis of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cells import as_numbers
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, ShapeError
from capri.features import Span
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
