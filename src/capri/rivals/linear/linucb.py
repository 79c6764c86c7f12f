"""LinUCB: optimism for a linear function of features."""

from math import log, sqrt
from typing import final

from capri.checks import between, positive
from capri.rivals.base import Width, chosen_width
from capri.rivals.kernel.optimism import PosteriorPlay
from capri.rivals.kernel.posterior import Posterior, WeightPosterior
from capri.rivals.linear.least_squares import feature_table


@final
class LinUCB(PosteriorPlay):
    """LinUCB with one shared parameter (Li et al. 2010; as OFUL, Abbasi-Yadkori et al. 2011).

    Algorithm 1 of arXiv 1003.0146 with features of the pair instead of one model per action: lines
    8-9 are :meth:`_choose`, lines 12-13 :meth:`_learn`. With ``V = sum z z^T + ridge I``,

        x_t = argmax_x z(x)^T V^-1 sum z y + alpha sqrt(z(x)^T V^-1 z(x))

    ``alpha="theory"`` is Theorem 2 of Abbasi-Yadkori et al. (with ``R = noise``),
    ``R sqrt(d ln((1 + T / ridge) / delta)) + sqrt(ridge) S``; "practical" is 0.1, for rewards with
    noise of a tenth of the bound. ``features`` has a row of norm at most 1 for every pair: see
    :func:`capri.rivals.features.feature_rows`.

    Limits: what the features do not span is never learnt, and regret stays linear in it.
    """

    name = "linucb"
    reference = "Li et al. 2010, arXiv 1003.0146; Abbasi-Yadkori et al. 2011"
    needs = "features"
    reach = 1_000_000
    feature_count = 40

    features: object
    alpha: Width = "practical"
    ridge: float = 0.0036
    # In units of the reward bound, as is norm_bound.
    noise: float = 0.06
    norm_bound: float = 1.0
    failure: float = 0.1

    def _prior(self) -> Posterior:
        actions = self._actions.count
        table = feature_table(self.features, self.contexts.size, actions)
        rows = table.reshape(-1, table.shape[2])
        ridge = positive("ridge", self.ridge)
        failure = between("failure", self.failure, 0, 1, open_ends=True)
        confidence = log((1 + self.horizon / ridge) / failure)
        theory = positive("noise", self.noise) * sqrt(rows.shape[1] * confidence)
        theory += sqrt(ridge) * positive("norm_bound", self.norm_bound)
        alpha = chosen_width("alpha", self.alpha, practical=0.1, theory=theory)
        self._multiple = alpha / sqrt(ridge)
        return WeightPosterior(rows, actions, ridge)

    def _width(self) -> float:
        return self._multiple
