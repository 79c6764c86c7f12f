"""LinUCB: optimism for a linear function of features."""

from math import log, sqrt
from typing import Any, ClassVar, Literal, final

from capri.arrays import FloatArray, IntArray
from capri.errors import ShapeError
from capri.rivals.base import (
    NOTHING,
    Promise,
    Rival,
    Width,
    checked_width,
    in_unit_interval,
    positive,
)
from capri.rivals.posterior import WeightPosterior, optimistic
from capri.spaces import as_rows


@final
class LinUCB(Rival):
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

    name: ClassVar[str] = "linucb"
    promise: ClassVar[Promise] = NOTHING
    reference: ClassVar[str] = "Li et al. 2010, arXiv 1003.0146; Abbasi-Yadkori et al. 2011"
    needs: ClassVar[Literal["kernel", "features", "arms"]] = "features"
    reach: ClassVar[int] = 1_000_000
    feature_count: ClassVar[int] = 40

    def __init__(
        self,
        *,
        features: object,
        alpha: Width = "practical",
        ridge: float = 0.0036,
        noise: float = 0.06,
        norm_bound: float = 1.0,
        failure: float = 0.1,
        **setting: Any,
    ) -> None:
        """``noise`` and ``norm_bound`` are in units of the reward bound."""
        super().__init__(**setting)
        chosen = checked_width("alpha", alpha)
        rows = checked_features(features, self._pool.size * self._actions.count)
        ridge = positive("ridge", ridge)
        confidence = log((1 + self._horizon / ridge) / in_unit_interval("failure", failure))
        theory = positive("noise", noise) * sqrt(rows.shape[1] * confidence)
        theory += sqrt(ridge) * positive("norm_bound", norm_bound)
        named = {"theory": theory, "practical": 0.1}.get(str(chosen))
        self._width = (named or float(chosen)) / sqrt(ridge)
        self._posterior = WeightPosterior(rows, self._actions.count, ridge)

    def _choose(self, context: IntArray) -> tuple[IntArray, FloatArray]:
        return optimistic(self._posterior, context, self._width)

    def _learn(self, context: IntArray, action: IntArray, reward: FloatArray) -> int:
        self._posterior.observe(int(context[0]), int(action[0]), float(reward[0]) / self._bound)
        return 1


def checked_features(features: object, pairs: int) -> FloatArray:
    """A feature row of norm at most 1 for every pair, or what is wrong."""
    rows = as_rows(features, "features")
    if len(rows) != pairs:
        raise ShapeError(f"features must have one row for each of {pairs} pairs, got {len(rows)}")
    longest = float((rows**2).sum(axis=1).max())
    if longest > 1 + 1e-9:
        raise ShapeError(
            f"a feature row must have norm at most 1, got {sqrt(longest):g}: "
            "scale them with capri.rivals.features.bounded"
        )
    return rows
