"""A head start for unrelated arms: public rows, each of which speaks of one arm."""

from dataclasses import replace

import numpy as np

from capri.errors import ConfigurationError
from capri.family import ArmBasis
from capri.learners.arms.evidence import ArmPrior
from capri.learners.arms.posterior import ArmPosterior
from capri.learners.belief import Belief
from capri.learners.start.head import LEAST, ROUNDS, HeadStart, discounted
from capri.learners.start.prior import Observed


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
