"""LinUCB: optimism for a linear function of features."""

from math import log, sqrt
from typing import final

from capri_lab.rivals.base import Chance, Positive, Width, chosen_width
from capri_lab.rivals.kernel.optimism import PosteriorPlay
from capri_lab.rivals.kernel.posterior import Posterior, WeightPosterior
from capri_lab.rivals.linear.least_squares import feature_table


@final
class LinUCB(PosteriorPlay):
    """LinUCB with one shared parameter (Li et al. 2010; as OFUL, Abbasi-Yadkori et al. 2011).

    Algorithm 1 of arXiv 1003.0146 with features of the pair instead of one model per action: lines
    8-9 are :meth:`_choose`, lines 12-13 :meth:`_learn`. With ``V = sum z z^T + ridge I``,

        x_t = argmax_x z(x)^T V^-1 sum z y + alpha sqrt(z(x)^T V^-1 z(x))

    ``alpha="theory"`` is Theorem 2 of Abbasi-Yadkori et al. (with ``R = noise``),
    ``R sqrt(d ln((1 + T / ridge) / delta)) + sqrt(ridge) S``; "practical" is 0.1, for rewards with
    noise of a tenth of the bound. ``features`` has a row of norm at most 1 for every pair: see
    :func:`capri_lab.rivals.features.feature_rows`.

    Limits: what the features do not span is never learnt, and regret stays linear in it.
    """

    name = "linucb"
    reference = "Li et al. 2010, arXiv 1003.0146; Abbasi-Yadkori et al. 2011"
    needs = "features"
    reach = 1_000_000
    feature_count = 40

    features: object
    alpha: Width = "practical"
    ridge: Positive = 0.0036
    # In units of the reward bound, as is norm_bound.
    noise: Positive = 0.06
    norm_bound: Positive = 1.0
    failure: Chance = 0.1

    def _prior(self) -> Posterior:
        actions = self._actions.count
        table = feature_table(self.features, self.contexts.size, actions)
        rows = table.reshape(-1, table.shape[2])
        confidence = log((1 + self.horizon / self.ridge) / self.failure)
        theory = self.noise * sqrt(rows.shape[1] * confidence)
        theory += sqrt(self.ridge) * self.norm_bound
        alpha = chosen_width(self.alpha, practical=0.1, theory=theory)
        self._multiple = alpha / sqrt(self.ridge)
        return WeightPosterior(rows, actions, self.ridge)
