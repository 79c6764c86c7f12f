"""What an epoch asks about every arm, and what it will tell.

A message speaks of one arm alone, so arms do not share its norm, and every arm has a shape of its
own. With ``w_c`` the weights of contexts, ``p(a|c)`` the law of a segment, ``V`` the bound that the
epoch opened with and ``B_s`` that of the segment, everything is a sum over contexts:

    H_a = sum_s n_s V/B_s  E[p(a|c) psi_a u^T]
    R_a = noise^2 I + sum_s n_s (V/B_s)^2 E[p(a|c) z_a^2 psi_a psi_a^T]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.family import ArmBasis, ArmFeatures
from capri.learners.arms.cells import Cells, Sums, cells_of
from capri.learners.arms.prior import ArmPosterior
from capri.learners.belief import Expected, Observation, Posterior, Told
from capri.learners.change_of_basis import Lengthened
from capri.learners.messages import water_filling
from capri.learners.response import Response, Silence


@dataclass(frozen=True, eq=False)
class ArmLeg:
    """A segment: contexts, the share of every arm at each (by column), baseline and bound."""

    u: FloatArray
    weights: FloatArray
    baseline: FloatArray
    value_bound: float
    decisions: int

    @classmethod
    def of(
        cls,
        basis: ArmBasis,
        contexts: FloatArray,
        weights: FloatArray,
        law: FloatArray,
        offered: IntArray,
        *,
        baseline: FloatArray,
        value_bound: float,
        decisions: int,
    ) -> "ArmLeg":
        """With the law of the actions that were offered."""
        by_column = np.zeros((len(law), basis.arms))
        by_column[:, offered] = weights[:, None] * law
        return cls(basis.context(contexts), by_column, baseline, value_bound, decisions)

    @property
    def played(self) -> IntArray:
        """Arms of positive probability."""
        return np.flatnonzero(self.weights.any(axis=0))

    def where(self, arm: int) -> tuple[FloatArray, FloatArray]:
        """``u`` and the weights of the contexts in which an arm is played."""
        on = self.weights[:, arm] > 0
        return self.u[on], self.weights[on, arm]

    def variance(self, state: ArmPosterior) -> float:
        """What is unknown of the least known arm that is played, as a mean square.

        Not the mean over arms: a bound made for those that are known would cut off what a new one
        is better by, and play would settle without it.
        """
        found = 0.0
        for arm in self.played:
            u, weights = self.where(arm)
            squares = ((u @ state.factor[arm]) ** 2).sum(axis=1)
            found = max(found, float(weights @ squares / weights.sum()))
        return found

    def estimates(self, state: ArmPosterior) -> tuple[FloatArray, FloatArray]:
        """What is estimated of ``f`` at all pairs that are played, and their weights."""
        parts = [(u @ state.mean[arm], w) for arm in self.played for u, w in (self.where(arm),)]
        return np.concatenate([e for e, _ in parts]), np.concatenate([w for _, w in parts])

    def answering(self, response: Response) -> float:
        """How many of its decisions are expected to have a reward."""
        share = 0.0
        for arm in self.played:
            u, weights = self.where(arm)
            share += float(weights @ response.rates(u, int(arm)))
        return self.decisions * share

    def signal(self, state: ArmPosterior, arm: int, u: FloatArray) -> FloatArray:
        """Expected squares of residuals without their noise."""
        known = u @ (state.mean[arm] - self.baseline[arm])
        return np.asarray(((u @ state.factor[arm]) ** 2).sum(axis=1) + known**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmDesign:
    """How a release is read: ``release_a = H_a (theta_a - base_a) + shift_a + error``."""

    matrices: tuple[FloatArray, ...]
    samplings: tuple[FloatArray, ...]
    shifts: tuple[FloatArray, ...]
    spread: FloatArray
    squares: Expected
    baseline: FloatArray
    main_share: float
    noise: float
    value_bound: float
    residual: bool
    residual_variance: float
    answers: float
    moment_bound: float
    # Covariances from an error of the measured rate of answers, where that is measured.
    doubts: tuple[FloatArray, ...] | None = None

    def observation(self, arm: int, participants: int) -> Observation:
        """What the epoch says of an arm."""
        matrix, sampling = self.matrices[arm], self.samplings[arm]
        covariance = sampling + self.noise**2 * np.eye(len(matrix))
        return Observation(
            design=matrix,
            covariance=covariance if self.doubts is None else covariance + self.doubts[arm],
            baseline=self.baseline[arm],
            sampling=sampling,
            participants=participants,
        )

    def told(self, features: ArmFeatures, vector: FloatArray, participants: int) -> list[Told]:
        """What a release ``sum t psi`` says of every arm it speaks of, less what is known."""
        found: list[Told] = []
        for arm in np.flatnonzero(features.sizes):
            if not self.matrices[arm].any():  # nobody played it
                continue
            start, size = features.starts[arm], features.sizes[arm]
            part = vector[start : start + size] - self.shifts[arm]
            found.append((int(arm), self.observation(int(arm), participants), part))
        return found

    @property
    def information(self) -> FloatArray:
        """``H_a^T R_a^-1 H_a`` of every arm."""
        observed = [self.observation(arm, 0) for arm in range(len(self.matrices))]
        return np.array(
            [each.design.T @ np.linalg.solve(each.covariance, each.design) for each in observed]
        )

    @property
    def noise_share(self) -> float:
        """Privacy noise as a share of the variance of the released vector."""
        noise = self.noise**2 * sum(len(matrix) for matrix in self.matrices)
        sampling = sum(float(np.trace(each)) for each in self.samplings)
        return noise / max(noise + sampling, 1e-300)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shapes:
    """What messages say of every arm, as in ArmFeatures, and what is predicted to be left open.

    ``left``: the predicted variance of the estimate under the law of play, after the epoch.
    """

    shapes: FloatArray
    sizes: IntArray
    offsets: FloatArray | None
    left: float

    @classmethod
    def of(cls, found: Sequence[Cells], *, cells: bool) -> "Shapes":
        """Arm by arm, filled up to one size."""
        sizes = np.array([each.shape.shape[1] for each in found], dtype=np.int64)
        most = int(sizes.max(initial=1))
        shapes = np.zeros((len(found), len(found[0].shape), most))
        offsets = np.full((len(found), most), np.inf)
        for arm, each in enumerate(found):
            shapes[arm, :, : sizes[arm]], offsets[arm, : sizes[arm]] = each.shape, each.offset
        left = sum(each.left for each in found)
        return cls(shapes=shapes, sizes=sizes, offsets=offsets if cells else None, left=left)


def cells_of_arms(leg: ArmLeg, factor: FloatArray, sums: Sums) -> Shapes:
    """The cells of every arm.

    ``factor``: a root of what will be unknown of each when the epoch is read. An arm that the law
    of the plan does not play has one cell: a later segment may play it, and a cell costs nothing.
    """
    one = Cells(np.zeros((factor.shape[1], 1)), np.zeros(1), 0.0)
    found = []
    for arm in range(len(factor)):
        u, weights = leg.where(arm)
        found.append(cells_of(u, weights, factor[arm], sums) if len(u) else one)
    return Shapes.of(found, cells=True)


def blocks_of_arms(leg: ArmLeg, factor: FloatArray, sums: Sums, loudness: float) -> Shapes:
    """The shape of every arm by water-filling, none for an arm that is not played."""
    nothing = Cells(np.zeros((factor.shape[1], 0)), np.zeros(0), 0.0)
    found = []
    for arm in range(len(factor)):
        u, weights = leg.where(arm)
        found.append(_block(u, weights, factor[arm], sums, loudness) if len(u) else nothing)
    return Shapes.of(found, cells=False)


def _block(
    u: FloatArray, weights: FloatArray, factor: FloatArray, sums: Sums, loudness: float
) -> Cells:
    """The shape of an arm, and what it leaves as it will be clipped to norm 1."""
    posterior = Posterior(mean=np.zeros(len(factor)), factor=factor, scale=1.0)
    shape = loudness * water_filling(
        u,
        weights,
        posterior,
        length=int(sums.length),
        noise=sums.noise,
        residual_variance=sums.variance,
    )
    psi = u @ shape
    psi /= np.maximum(1.0, np.linalg.norm(psi, axis=1))[:, None]
    white = u @ factor
    weighted = psi * weights[:, None]
    design = sums.length * weighted.T @ white
    seen = sums.length * sums.variance * weighted.T @ psi + design @ design.T
    seen[np.diag_indices(len(seen))] += sums.noise**2
    second = (white * weights[:, None]).T @ white
    gain = (np.linalg.solve(seen, design @ second) * design).sum()
    return Cells(shape, np.zeros(shape.shape[1]), float(np.trace(second) - gain))


def design_of(
    features: ArmFeatures,
    legs: Sequence[ArmLeg],
    state: ArmPosterior,
    *,
    noise_variance: float,
    value_bound: float,
    reward_bound: float,
    main_share: float,
    noise: float,
    response: Response | None = None,
) -> ArmDesign:
    """What is expected of an epoch of these segments, with the counts that were really made.

    ``response``: who answers, where that is measured. An error of the rate puts everything that is
    expected off by a common factor; how arms go together in it is left out.
    """
    arms, width = state.mean.shape
    baseline = legs[0].baseline
    sizes = features.sizes
    matrices = [np.zeros((size, width)) for size in sizes]
    samplings = [np.zeros((size, size)) for size in sizes]
    shifts = [np.zeros(size) for size in sizes]
    spread, moments = np.zeros((arms, width, width)), np.zeros((arms, width, width))
    image, constant = np.zeros((arms, width)), 0.0
    participants = sum(leg.decisions for leg in legs)
    answers: float = 0.0
    away = precision = variance = 0.0
    for leg in legs:
        scale = value_bound / leg.value_bound
        number: float = leg.decisions if response is None else leg.answering(response)
        answers += number
        away += number * leg.value_bound
        precision += number / leg.value_bound**2
        for arm in leg.played:
            u, weights = leg.where(arm)
            weights = leg.decisions * weights
            gram = (u * weights[:, None]).T @ u
            spread[arm] += gram
            if response is not None:
                weights = weights * response.rates(u, int(arm))
                gram = (u * weights[:, None]).T @ u
            part = gram / leg.value_bound**2
            moments[arm] += part
            image[arm] += part @ leg.baseline[arm]
            constant += float(leg.baseline[arm] @ part @ leg.baseline[arm])
            psi = features.of_arm(int(arm), u)
            piece = scale * (psi * weights[:, None]).T @ u
            matrices[arm] += piece
            shifts[arm] += piece @ (baseline[arm] - leg.baseline[arm])
            total = weights * (leg.signal(state, arm, u) + noise_variance)
            variance += float(total.sum())
            samplings[arm] += scale**2 * (psi * total[:, None]).T @ psi
    doubts = None
    if response is not None:
        doubt = response.variance / response.rate**2
        roots = [matrix @ factor for matrix, factor in zip(matrices, state.factor, strict=True)]
        off = [
            matrix @ (mean - base) + shift
            for matrix, mean, base, shift in zip(
                matrices, state.mean, baseline, shifts, strict=True
            )
        ]
        doubts = tuple(
            doubt * (root @ root.T + np.outer(each, each))
            for root, each in zip(roots, off, strict=True)
        )
    return ArmDesign(
        doubts=doubts,
        matrices=tuple(matrices),
        samplings=tuple(samplings),
        shifts=tuple(shifts),
        spread=spread / participants,
        squares=Expected(
            spread=moments / precision, image=image / precision, constant=constant / precision
        ),
        baseline=baseline,
        main_share=main_share,
        noise=noise,
        value_bound=away / answers,
        residual=any(leg.value_bound < reward_bound for leg in legs),
        residual_variance=variance / answers,
        answers=float(answers),
        moment_bound=sqrt(answers / precision),
    )


def silences(
    features: ArmFeatures, legs: Sequence[ArmLeg], silent: FloatArray, deviation: float
) -> list[Silence]:
    """What the silent block of a release says of every arm it speaks of."""
    found = []
    for arm in np.flatnonzero(features.sizes):
        start, size = features.starts[arm], features.sizes[arm]
        design, expected = np.zeros((size, features.basis.width)), np.zeros(size)
        second_moment = np.zeros((size, size))
        for leg in legs:
            u, weights = leg.where(int(arm))
            psi = features.of_arm(int(arm), u)
            weighted = psi * (leg.decisions * weights)[:, None]
            design += weighted.T @ u
            expected += weighted.sum(axis=0)
            second_moment += weighted.T @ psi
        part = silent[start : start + size]
        found.append(Silence(int(arm), part, deviation, design, expected, second_moment))
    return found


def lengthened(features: ArmFeatures, more: int) -> ArmFeatures:
    """With so many arms that were added since: messages say nothing of them."""
    blocks, sizes = Lengthened(more).blocks, features.sizes.astype(np.float64)
    offsets = features.offsets
    if offsets is not None:
        offsets = np.concatenate([offsets, np.full((more, offsets.shape[1]), np.inf)])
    shapes = blocks(features.shapes)
    return replace(features, shapes=shapes, sizes=blocks(sizes).astype(np.int64), offsets=offsets)


def sigma_max(leg: ArmLeg, length: int, tau: float) -> float:
    """``sigma~_max`` under ``n E[v v^T] + tau I`` over what is played."""
    largest = 0.0
    for arm in leg.played:
        u, weights = leg.where(arm)
        gram = length * (u * weights[:, None]).T @ u + tau * np.eye(u.shape[1])
        largest = max(largest, float((u * np.linalg.solve(gram, u.T).T).sum(axis=1).max()))
    return sqrt(largest)
