"""A release taken in, arm by arm: what it says of coefficients and of the noise of rewards."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from capri.arrays import FloatArray
from capri.family import ArmFeatures
from capri.learners.arms.messages import ArmDesign
from capri.learners.arms.posterior import ArmPosterior
from capri.learners.belief import Belief, Observation
from capri.learners.squares import TRUSTED, Squares


def nothing_known(arms: int, width: int) -> Belief:
    """A belief in blocks before any release."""
    return Belief(information=np.zeros((arms, width, width)), vector=np.zeros((arms, width)))


def nothing_measured(arms: int, width: int) -> Squares:
    """Squares in blocks before any release."""
    return Squares(spread=np.zeros((arms, width, width)), image=np.zeros((arms, width)))


def told_by(
    design: ArmDesign, features: ArmFeatures, vector: FloatArray, participants: int
) -> list[tuple[int, Observation, FloatArray]]:
    """What a release says of every arm it speaks of: ``release_a - shift_a``."""
    found = []
    for arm in np.flatnonzero(features.sizes):
        start, matrix, sampling = features.starts[arm], design.matrices[arm], design.samplings[arm]
        observation = Observation(
            design=matrix,
            covariance=sampling + design.noise**2 * np.eye(len(matrix)),
            baseline=design.baseline[arm],
            sampling=sampling,
            participants=participants,
        )
        part = vector[start : start + len(matrix)] / design.main_share - design.shifts[arm]
        found.append((int(arm), observation, part))
    return found


def observed(belief: Belief, told: Iterable[tuple[int, Observation, FloatArray]]) -> Belief:
    """Add ``H_a^T R_a^-1 H_a`` and ``H_a^T R_a^-1 (release_a - shift_a + H_a base_a)``."""
    information, vector = belief.information.copy(), belief.vector.copy()
    for arm, observation, part in told:
        matrix = observation.design
        weighted = np.linalg.solve(observation.covariance, matrix)
        information[arm] += matrix.T @ weighted
        vector[arm] += weighted.T @ (part + matrix @ observation.baseline)
    information = (information + information.transpose(0, 2, 1)) / 2
    return replace(belief, information=information, vector=vector, epochs=belief.epochs + 1)


def noise_of(squares: Squares, state: ArmPosterior) -> tuple[float, float] | None:
    """The noise variance under a belief and its precision: :meth:`Squares.noise` in blocks."""
    if squares.weight == 0:
        return None
    mean = state.mean
    unknown = float(np.einsum("aij,aij->", squares.spread, state.covariance))
    known = float(np.einsum("ai,aij,aj->", mean, squares.spread, mean, optimize=True))
    known += squares.constant - 2 * float((squares.image * mean).sum())
    variance = 1 / squares.weight + (TRUSTED * unknown / squares.weight) ** 2
    return (squares.total - unknown - known) / squares.weight, 1 / variance


def noise_share(design: ArmDesign) -> float:
    """Privacy noise as a share of the variance of the released vector."""
    coordinates = sum(len(matrix) for matrix in design.matrices)
    noise = design.noise**2 * coordinates
    sampling = sum(float(np.trace(each)) for each in design.samplings)
    return noise / max(noise + sampling, 1e-300)
