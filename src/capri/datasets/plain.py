"""A table of one's own, described in plain values: what a study file speaks."""

from collections.abc import Sequence

from capri.datasets.bandit import DataBandit
from capri.datasets.loader import load
from capri.datasets.rewards import Closeness, LabelRule, Match
from capri.errors import ConfigurationError

REWARD_NAMES = ("match", "closeness")


def table_environment(
    *,
    path: str,
    context: Sequence[str],
    label: str | None = None,
    actions: Sequence[str] | None = None,
    reward: str = "match",
    right: float = 1.0,
    wrong: float = -1.0,
    doses: int = 11,
    tolerance: float = 0.5,
    reward_bound: float | None = None,
    public_share: float | None = None,
    public: str | None = None,
    dimensions: int | None = None,
    prototypes: int | None = None,
    features: str = "one-hot",
    missing: str = "error",
    seed: int = 0,
) -> DataBandit:
    """The bandit of a CSV or Parquet file; options are those of :func:`capri.datasets.load`.

    ``reward`` names the rule for a label: "match" with ``right`` and ``wrong``, or "closeness" with
    ``doses`` and ``tolerance``. ``public`` is a column.
    """
    if reward not in REWARD_NAMES:
        raise ConfigurationError(f"reward must be 'match' or 'closeness', got {reward!r}")
    rule: LabelRule | None = None
    if label is not None:
        rule = (
            Match(right=right, wrong=wrong)
            if reward == "match"
            else Closeness(doses=doses, tolerance=tolerance)
        )
    if public is not None and not isinstance(public, str):
        raise ConfigurationError(f"public must name a column, got {public!r}")
    return load(
        path,
        context=context,
        label=label,
        actions=actions,
        reward=rule,
        reward_bound=reward_bound,
        public_share=public_share,
        public=public,
        seed=seed,
        dimensions=dimensions,
        prototypes=prototypes,
        features=features,
        missing=missing,
    )
