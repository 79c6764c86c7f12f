"""What a fit released, as something that a policy may be told before its first user."""

import numpy as np

from capri.errors import ConfigurationError
from capri.files import digest_of
from capri.learners.start import Observed, Prior, observed
from capri.privacy.ledger import Ledger
from capri.privacy.prior_event import PriorEvent
from capri.regression.decode import Model
from capri.regression.digests import fit_digests
from capri.regression.engine import Engine


def fit_prior(model: Model, ledger: Ledger | None, engine: Engine) -> Prior:
    """The estimate less its own prior ``S``: ``J = P^-1 - S^-1``, ``h = P^-1 m``.

    What an average over plausible priors adds to ``P`` may leave less than nothing in directions
    that nothing is known of: there ``J`` is 0.
    ``ledger``: None where nobody was promised anything.
    """
    if len(model.estimates) != 1:
        raise ConfigurationError(
            f"a policy learns one reward: this fit has {len(model.estimates)} outputs"
        )
    estimate, basis = model.estimates[0], model.basis
    inverse = np.linalg.inv(estimate.covariance)
    prior = estimate.prior * np.eye(basis.rank)
    if model.prior is not None and estimate.weights is not None:
        prior = model.prior.covariance(estimate.weights)
    values, vectors = np.linalg.eigh(inverse - np.linalg.inv(prior))
    generator = np.random.default_rng(0)  # public pairs, the same whenever they are asked for
    inside = generator.uniform(*model.box, size=(4 * basis.rank, len(model.box[0])))
    pairs = np.concatenate([np.clip(basis.pivots, *model.box), inside])
    matrix, targets = observed(
        basis,
        pairs,
        (vectors * np.maximum(values, 0.0)) @ vectors.T,
        inverse @ estimate.mean,
        middle=float(model.targets.middle[0]),
        half=float(model.targets.half[0]),
    )
    event = PriorEvent(
        kind="fit",
        digest=digest_of(fit_digests(engine), {"targets": targets}),
        count=len(engine.readings),
        epsilon=None if ledger is None else ledger.budget.epsilon,
        delta=None if ledger is None else ledger.budget.delta,
    )
    return Prior.of_observed(Observed(pairs=pairs, targets=targets, matrix=matrix, event=event))
