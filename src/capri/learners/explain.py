"""From what a learner knows to what a person can read. Post-processing of releases."""

import re
from collections.abc import Iterable
from math import inf, sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import Learner
from capri.errors import ConfigurationError
from capri.family import ArmBasis
from capri.learners.arms.evidence import ArmPrior
from capri.learners.changing import ChangingLearner
from capri.learners.crowds import SIZES
from capri.learners.effects import (
    EFFECTS,
    ColumnSize,
    PublicPairs,
    Size,
    column_sizes,
    effect_rows,
)
from capri.learners.evidence import EvidencePrior
from capri.learners.explanation import (
    ColumnEffect,
    EffectShare,
    Explanation,
    KernelShare,
    SmoothnessShare,
)
from capri.learners.knowledge import Knowledge
from capri.streams import EXPLANATION


def explain(learner: Learner) -> Explanation:
    """What the learner of a policy believes now.

    The public pairs are the same in every call: nothing changes but by a release.
    """
    if not isinstance(learner, ChangingLearner):
        raise ConfigurationError(
            "the paper's algorithm keeps no belief that could be explained: only preset "
            "'practical' does"
        )
    known = learner.knowledge()
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
        crowd=SIZES[known.crowds.likeliest] if belief.epochs else inf,
        changes=known.drift.changes,
        forgot=known.drift.forgot,
        effects=_effects(kernels, before, now),
        kernels=kernels,
        smoothness=_smoothness(kernels),
        columns=_columns(columns),
    )


def explained_arms(known: Knowledge) -> Explanation:
    """The same for unrelated arms ``theta_a = s + d_a``.

    Features have mean square 1 and the constant comes first, so effects are squares of
    coefficients: of the mean of all arms, and of what is left of each.
    """
    generator = np.random.default_rng(EXPLANATION)
    problem, basis, state, prior = known.problem, known.basis, known.posterior, known.prior
    assert isinstance(basis, ArmBasis)
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
        crowd=SIZES[known.crowds.likeliest] if known.belief.epochs else inf,
        changes=known.drift.changes,
        forgot=known.drift.forgot,
        effects=_effects(kernels, now, now),
        kernels=kernels,
        smoothness=_smoothness(kernels),
        columns=_columns(
            column_sizes(coordinates, pairs, problem.contexts.schema, size, generator)
        ),
    )


def _columns(columns: Iterable[ColumnSize]) -> tuple[ColumnEffect, ...]:
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
    """Shares by the weights of the candidates; of a told kernel by projection on public pairs."""
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
