"""What a belief says of ``f`` itself: which effects it has, which columns matter.

Every number here is a mean square of ``d^T theta`` over public rows ``d``, under the belief
``theta ~ N(m, P)``:

    E[(d^T theta)^2] = (d^T m)^2 + d^T P d,

the first part from the estimate, the second from what is not known yet.

From what a learner knows to what a person can read. Post-processing of releases.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import Learner
from capri.errors import ConfigurationError
from capri.family import ArmBasis
from capri.features import Span
from capri.learners.arm_prior import ArmPosterior, ArmPrior
from capri.learners.explanation import (
    ColumnEffect,
    EffectShare,
    Explanation,
    KernelShare,
    SmoothnessShare,
)
from capri.learners.learner import PracticalLearner
from capri.learners.model import Knowledge
from capri.learners.overdispersion import SIZES
from capri.learners.priors import EvidencePrior
from capri.schema import Schema
from capri.schema.columns import Numeric
from capri.spaces import Actions, Contexts
from capri.streams import EXPLANATION

EFFECTS = ("constant", "action", "context", "interaction")

# Public contexts and actions on a grid for the effects, and draws of pairs for the columns.
_CONTEXTS, _ACTIONS, _PAIRS = 128, 64, 1024
# A derivative is a difference over this share of a column's deviation.
_STEP = 0.05


@dataclass(frozen=True)
class Size:
    """A mean square: of the estimate, and of what is unknown about it."""

    known: float
    unknown: float

    @property
    def expected(self) -> float:
        """Of ``f``, under the belief."""
        return self.known + self.unknown

    @classmethod
    def of(
        cls, rows: FloatArray, weights: FloatArray, mean: FloatArray, root: FloatArray
    ) -> "Size":
        """Over weighted rows ``d``, under ``N(mean, root root^T)``."""
        return cls(
            float(weights @ (rows @ mean) ** 2), float(weights @ ((rows @ root) ** 2).sum(axis=1))
        )


@dataclass(frozen=True)
class ColumnSize:
    """What the exchange of one column between public rows does to ``f``.

    ``lengthscale`` is in the column's own units; None where it has no more than two values.
    """

    name: str
    change: Size
    lengthscale: float | None


@dataclass(frozen=True, eq=False)
class PublicPairs:
    """Contexts with weights and rows of actions, apart from each other, all of them public."""

    own: FloatArray
    weights: FloatArray
    choices: FloatArray

    @classmethod
    def draw(
        cls, contexts: Contexts, actions: Actions, generator: np.random.Generator
    ) -> "PublicPairs":
        """Some contexts and some actions; all of them where they are few."""
        rows, weights = few_contexts(contexts, generator, _PAIRS, _CONTEXTS)
        own, brought = actions.parts(rows)
        same = bool((brought == brought[:1]).all())
        choices = brought[0] if same else brought.reshape(-1, brought.shape[-1])
        if len(choices) > _ACTIONS:
            choices = choices[generator.choice(len(choices), size=_ACTIONS, replace=False)]
        return cls(own, weights, choices)

    def features(self, basis: Span) -> FloatArray:
        """``v(c, x)`` on the whole grid, ``(contexts, actions, rank)``."""
        count = len(self.choices)
        grid = [np.repeat(self.own, count, axis=0), np.tile(self.choices, (len(self.own), 1))]
        pairs = np.concatenate(grid, axis=1).reshape(len(self.own), count, -1)
        return basis.coordinates(pairs)


def few_contexts(
    contexts: Contexts, generator: np.random.Generator, known: int, few: int
) -> tuple[FloatArray, FloatArray]:
    """Public contexts with weights: of a support of so many all of them, or a few drawn ones."""
    rows, weights = contexts.support(generator, known)
    if len(rows) <= few:
        return rows, weights
    chosen = generator.choice(len(rows), size=few, p=weights)
    return rows[chosen], np.full(few, 1 / few)


def effect_rows(
    features: FloatArray, weights: FloatArray
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Rows and weights of every effect: ``f`` is their sum, and they are uncorrelated.

        v(c, x) = v + (v(x) - v) + (v(c) - v) + rest

    with ``v(x)`` the mean over contexts, ``v(c)`` over actions and ``v`` over both.
    """
    _, actions, rank = features.shape
    each = np.full(actions, 1 / actions)
    by_action = np.einsum("c,car->ar", weights, features)
    by_context = features.mean(axis=1)
    mean = by_action.mean(axis=0)
    rest = features - by_action[None] - by_context[:, None] + mean
    rows = (mean[None], by_action - mean, by_context - mean, rest.reshape(-1, rank))
    masses = (np.ones(1), each, weights, np.repeat(weights, actions) / actions)
    return dict(zip(EFFECTS, zip(rows, masses, strict=True), strict=True))


def column_sizes(
    coordinates: Callable[[FloatArray], FloatArray],
    pairs: PublicPairs,
    schema: Schema | None,
    size: Callable[[FloatArray, FloatArray], Size],
    generator: np.random.Generator,
) -> Iterator[ColumnSize]:
    """How much each column matters, as ``E[(f(c, x) - f(c', x))^2] / 2``.

    ``c'`` is ``c`` with the column of another public row: the total effect of the column, alone and
    with all others. Its lengthscale is the root of that over ``E[(df/dc)^2]``: over so much the
    column changes ``f`` by as much as an exchange does, and a Gaussian kernel has its own. ``size``
    is what a belief makes of weighted rows of coordinates.
    """
    first, other = generator.choice(len(pairs.own), size=(2, _PAIRS), p=pairs.weights)
    action = pairs.choices[generator.integers(len(pairs.choices), size=_PAIRS)]
    own = pairs.own[first]
    before = coordinates(np.concatenate([own, action], axis=1))
    weights = np.full(_PAIRS, 1 / _PAIRS)

    def changed(rows: FloatArray, scale: float) -> Size:
        after = coordinates(np.concatenate([rows, action], axis=1))
        return size((after - before) * scale, weights)

    for name, places, unit in _columns(schema, own.shape[1]):
        swapped = own.copy()
        swapped[:, places] = pairs.own[other][:, places]
        change, lengthscale = changed(swapped, sqrt(0.5)), None
        values = own[:, places[0]]
        if len(places) == 1 and len(np.unique(values)) > 2:
            step = _STEP * float(values.std())
            if not step > 0:
                yield ColumnSize(name, change, None)
                continue
            moved = own.copy()
            moved[:, places] += step
            slope = changed(moved, 1 / step)
            if slope.expected > 0:
                lengthscale = unit * sqrt(change.expected / slope.expected)
        yield ColumnSize(name, change, lengthscale)


def _columns(schema: Schema | None, count: int) -> Iterator[tuple[str, list[int], float]]:
    """Name, numbers of a row, and width of a unit of every column of a context itself."""
    if schema is None:
        yield from ((f"column {number}", [number], 1.0) for number in range(count))
        return
    for column in schema.columns:
        places = [*schema.places(column.name)]
        if places[-1] < count:  # the rest are actions that contexts bring along
            unit = column.high - column.low if isinstance(column, Numeric) else 1.0
            yield column.name, places, unit


def explain(learner: Learner) -> Explanation:
    """What the learner of a policy believes now.

    The public pairs are the same in every call: nothing changes but by a release.
    """
    if not isinstance(learner, PracticalLearner):
        raise ConfigurationError(
            "the paper's algorithm keeps no belief that could be explained: only preset "
            "'practical' does"
        )
    known = learner.known
    return explained_arms(known) if isinstance(known.basis, ArmBasis) else explained(known)


def explained(known: Knowledge) -> Explanation:
    """The explanation of a belief ``N(m, P)``."""
    generator = np.random.default_rng(EXPLANATION)
    problem, state, belief = known.problem, known.posterior, known.belief
    pairs = PublicPairs.draw(problem.contexts, problem.actions, generator)
    root = known.prior.root(state)
    rows = effect_rows(pairs.features(known.basis), pairs.weights)
    now = {name: Size.of(*rows[name], state.mean, state.factor) for name in EFFECTS}
    before = {name: Size.of(*rows[name], np.zeros(len(root)), root) for name in EFFECTS}
    unknown = sum(size.unknown for size in now.values())
    prior = sum(size.unknown for size in before.values())
    kernels = _kernels(known)

    def size(rows: FloatArray, weights: FloatArray) -> Size:
        return Size.of(rows, weights, state.mean, state.factor)

    columns = column_sizes(known.basis.coordinates, pairs, problem.contexts.schema, size, generator)
    return Explanation(
        kernel="a family, weighed by evidence" if kernels else _in_short(repr(problem.kernel)),
        releases=belief.epochs,
        rank=known.basis.rank,
        effective_dimension=float(
            np.einsum("ij,ij->", belief.information @ state.factor, state.factor)
        ),
        resolved=max(0.0, 1 - unknown / prior) if prior > 0 else 0.0,
        noise=sqrt(belief.noise_variance(problem.reward_bound)),
        noise_measured=belief.moment_precision > 0,
        crowd=SIZES[known.overdispersion.likeliest] if belief.epochs else inf,
        changes=known.drift.changes,
        forgot=known.drift.forgot,
        effects=_effects(kernels, before, now),
        kernels=kernels,
        smoothness=_smoothness(kernels),
        columns=_column_effects(columns),
    )


def explained_arms(known: Knowledge) -> Explanation:
    """The same for unrelated arms ``theta_a = s + d_a``.

    Features have mean square 1 and the constant comes first, so effects are squares of
    coefficients: of the mean of all arms, and of what is left of each.
    """
    generator = np.random.default_rng(EXPLANATION)
    problem, basis, state, prior = known.problem, known.basis, known.posterior, known.prior
    assert isinstance(basis, ArmBasis)
    assert isinstance(state, ArmPosterior)
    assert isinstance(prior, ArmPrior)
    offered = basis.offered
    mean, factor = state.mean[offered], state.factor[offered]
    pairs = PublicPairs.draw(problem.contexts, problem.actions, generator)

    def coordinates(rows: FloatArray) -> FloatArray:
        return basis.split(rows)[0]

    def size(rows: FloatArray, weights: FloatArray) -> Size:
        known_part = float(weights @ ((rows @ mean.T) ** 2).mean(axis=1))
        unknown = np.einsum("ni,aij->naj", rows, factor) ** 2
        return Size(known_part, float(weights @ unknown.sum(axis=2).mean(axis=1)))

    kernels = _arm_kernels(prior, state.weights)
    common, own = mean.mean(axis=0), mean - mean.mean(axis=0)
    squares = np.array(
        [
            common[0] ** 2,
            (own[:, 0] ** 2).mean(),
            (common[1:] ** 2).sum(),
            (own[:, 1:] ** 2).sum(axis=1).mean(),
        ]
    )
    now = {name: Size(float(each), 0.0) for name, each in zip(EFFECTS, squares, strict=True)}
    unknown = float(np.trace(state.covariance[offered], axis1=1, axis2=2).mean())
    before = sum(float(np.trace(each)) for each in prior.covariances(state.weights))
    information = known.belief.information
    return Explanation(
        kernel="a family, weighed by evidence",
        releases=known.belief.epochs,
        rank=known.basis.rank,
        effective_dimension=float(np.einsum("aij,aji->", information, state.covariance)),
        resolved=max(0.0, 1 - unknown / before),
        noise=sqrt(known.belief.noise_variance(problem.reward_bound)),
        noise_measured=known.belief.moment_precision > 0,
        crowd=SIZES[known.overdispersion.likeliest] if known.belief.epochs else inf,
        changes=known.drift.changes,
        forgot=known.drift.forgot,
        effects=_effects(kernels, now, now),
        kernels=kernels,
        smoothness=_smoothness(kernels),
        columns=_column_effects(
            column_sizes(coordinates, pairs, problem.contexts.schema, size, generator)
        ),
    )


def _column_effects(columns: Iterable[ColumnSize]) -> tuple[ColumnEffect, ...]:
    return tuple(
        ColumnEffect(
            name=each.name,
            effect=sqrt(each.change.known),
            standard_error=sqrt(each.change.unknown),
            lengthscale=each.lengthscale,
        )
        for each in columns
    )


def _arm_kernels(prior: ArmPrior, weights: FloatArray) -> tuple[KernelShare, ...]:
    """Candidates of the common part and of the own parts, the largest first."""
    share, expected = (_normal(np.exp(each)) for each in (weights, prior.expected))
    names = prior.candidates.names
    found = []
    for number in range(len(weights)):
        own, part = divmod(number, len(names) + 1)
        context = None if part == 0 else names[part - 1]
        effect = EFFECTS[2 * (part > 0) + own]
        found.append(
            KernelShare(
                name=effect if context is None else f"{effect}: {context}",
                effect=effect,
                context=context,
                action="unrelated" if own else None,
                share=float(share[number]),
                expected=float(expected[number]),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.share))


def _kernels(known: Knowledge) -> tuple[KernelShare, ...]:
    """Candidates by ``t_k tr(S_k)``, the largest first; none where the kernel was told."""
    prior, weights = known.prior, known.posterior.weights
    if not isinstance(prior, EvidencePrior) or weights is None:
        return ()
    traces = np.einsum("kii->k", prior.covariances)
    share, expected = (_normal(np.exp(each) * traces) for each in (weights, prior.expected))
    contexts, actions = prior.family.contexts.names, prior.family.actions.names
    found = [
        KernelShare(
            name=part.name,
            effect=_effect(part.context, part.action),
            context=None if part.context < 0 else contexts[part.context],
            action=None if part.action < 0 else actions[part.action],
            share=float(share[number]),
            expected=float(expected[number]),
        )
        for number, part in enumerate(prior.family.parts)
    ]
    return tuple(sorted(found, key=lambda each: -each.share))


def _effect(context: int, action: int) -> str:
    """Which kind of effect: neither side, one of them, or both."""
    return EFFECTS[2 * (context >= 0) + (action >= 0)]


def _effects(
    kernels: tuple[KernelShare, ...], before: dict[str, Size], now: dict[str, Size]
) -> tuple[EffectShare, ...]:
    """Shares by the weights of the candidates; of a known kernel by projection on public pairs."""
    sizes = np.array([before[name].unknown for name in EFFECTS])
    shares = expected = dict(zip(EFFECTS, _normal(sizes), strict=True))
    if kernels:
        shares, expected = (
            {
                name: sum(getattr(each, field) for each in kernels if each.effect == name)
                for name in EFFECTS
            }
            for field in ("share", "expected")
        )
    known = np.array([now[name].known for name in EFFECTS])
    estimates = _normal(known).tolist() if known.any() else [None] * len(EFFECTS)
    return tuple(
        EffectShare(
            name=name, expected=float(expected[name]), share=float(shares[name]), estimate=estimate
        )
        for name, estimate in zip(EFFECTS, estimates, strict=True)
    )


def _smoothness(kernels: tuple[KernelShare, ...]) -> tuple[SmoothnessShare, ...]:
    """For each side, how its effects are shared among the shapes, from long to short scales."""
    found = []
    for side in ("context", "action"):
        of_side = [each for each in kernels if getattr(each, side) is not None]
        for name in sorted({getattr(each, side) for each in of_side}, key=_from_smooth):
            mine = [each for each in of_side if getattr(each, side) == name]
            found.append(
                SmoothnessShare(
                    side=side,
                    name=name,
                    expected=_ratio(mine, of_side, "expected"),
                    share=_ratio(mine, of_side, "share"),
                )
            )
    return tuple(found)


def _ratio(some: list[KernelShare], every: list[KernelShare], field: str) -> float:
    return float(
        sum(getattr(each, field) for each in some) / sum(getattr(each, field) for each in every)
    )


def _from_smooth(name: str) -> float:
    """Names without a number first, then from long lengthscales to short ones."""
    numbers = [float(word) for word in name.split() if word[:1].isdigit()]
    return -numbers[0] if numbers else -inf


def _in_short(description: str) -> str:
    """Numbers with three digits: lengthscales by column are many."""
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda found: f"{float(found[0]):.3g}", description)


def _normal(values: FloatArray) -> FloatArray:
    return np.asarray(values / max(float(values.sum()), np.finfo(np.float64).tiny))
