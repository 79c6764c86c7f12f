"""Data sets that scikit-learn ships, by name: no download, no account."""

from typing import TYPE_CHECKING, Any

from capri.datasets.bandit import DataBandit
from capri.datasets.loader import load
from capri.datasets.rewards import Closeness, LabelRule, Match
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas

# Each with the loader of scikit-learn, the rule that pays, and how many public principal
# directions are kept. Few directions learn faster under noise, more can tell more apart.
_SETS: dict[str, tuple[str, LabelRule, int]] = {
    "digits": ("load_digits", Match(), 8),
    "wine": ("load_wine", Match(), 4),
    "breast-cancer": ("load_breast_cancer", Match(), 4),
    "diabetes": ("load_diabetes", Closeness(), 4),
}

DATASET_NAMES = tuple(_SETS)


def environment_by_name(
    name: str,
    *,
    public_share: float = 0.3,
    seed: int = 0,
    dimensions: int | None = None,
    prototypes: int | None = None,
    features: str = "one-hot",
) -> DataBandit:
    """A data set as a bandit; options are those of :func:`capri.datasets.load`.

    - "digits": 1,797 images of 64 pixels, ten actions, reward 1 for the right digit and -1 else;
    - "wine": 178 wines, 13 measurements, three cultivars, rewarded likewise;
    - "breast-cancer": 569 tumours, 30 measurements, two diagnoses, rewarded likewise;
    - "diabetes": 442 patients, 10 measurements, eleven doses; the right dose is the measure of
      disease progression, the reward falls with the distance from it.

    ``dimensions=None`` is the data set's own choice: 8 for digits, 4 for the others.

    >>> wine = environment_by_name("wine")
    >>> wine.contexts.shape, wine.pool.size, wine.action_names
    ((125, 4), 53, ('0', '1', '2'))
    """
    if name not in _SETS:
        raise ConfigurationError(
            f"data set must be one of {', '.join(DATASET_NAMES)}, got {name!r}"
        )
    loader, rule, kept = _SETS[name]
    frame = _frame(loader)
    return load(
        frame,
        context=[column for column in frame.columns if column != "target"],
        label="target",
        reward=rule,
        public_share=public_share,
        seed=seed,
        dimensions=kept if dimensions is None else dimensions,
        prototypes=prototypes,
        features=features,
        name=name,
    )


def _frame(loader: str) -> "pandas.DataFrame":
    try:
        from sklearn import datasets
    except ImportError:
        raise ConfigurationError(
            "these data sets come with scikit-learn: pip install 'capri-bandits[data]'"
        ) from None
    bunch: Any = getattr(datasets, loader)(as_frame=True)
    frame: pandas.DataFrame = bunch.frame
    return frame
