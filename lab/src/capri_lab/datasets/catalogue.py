"""Data in plain values, as the shell and study files speak: sets by name, tables by path, kernels.

The named sets lie inside packages that pip installs: no download at run time, no account.
"""

from collections.abc import Sequence

import numpy as np

from capri.arrays import FloatArray
from capri.checks import one_of
from capri.errors import ConfigurationError
from capri.kernels import RBF, ContextAction, Kernel, Linear, Matern
from capri_lab.datasets.bandit import DataBandit
from capri_lab.datasets.loader import load
from capri_lab.datasets.real import PROBLEMS
from capri_lab.datasets.rewards import Closeness, LabelRule, Match

DATASET_NAMES = tuple(PROBLEMS)
# These had contexts in the unit ball before there were raw ones, and keep them by default.
_ENCODED = ("digits", "wine", "breast-cancer", "diabetes")
REWARD_NAMES = ("match", "closeness")

# Rows that the median distance is taken over: enough for a length scale.
_SAMPLE = 500


def environment_by_name(
    name: str,
    *,
    public_share: float = 0.3,
    seed: int = 0,
    dimensions: int | None = None,
    prototypes: int | None = None,
    features: str = "one-hot",
    raw: bool | None = None,
) -> DataBandit:
    """A data set as a bandit; options are those of :func:`capri_lab.datasets.load`.

    The names are those of :data:`capri_lab.datasets.real.PROBLEMS`, which tells of each where it
    comes from, its licence, and what is paid. Some of them:

    - "digits": 1,797 images of 64 pixels, ten actions, reward 1 for the right digit and -1 else;
    - "wine": 178 wines, 13 measurements, three cultivars, rewarded likewise;
    - "breast-cancer": 569 tumours, 30 measurements, two diagnoses, rewarded likewise;
    - "diabetes": 442 patients, 10 measurements, eleven doses; the right dose is the measure of
      disease progression, the reward falls with the distance from it.

    ``raw=True`` leaves columns as they are. Else they are brought into the unit ball; then
    ``dimensions=None`` is the data set's own choice: 8 for digits, 4 for most others. ``raw=None``
    is True, but for the four sets above and where ``dimensions`` or ``prototypes`` are given.

    >>> wine = environment_by_name("wine")
    >>> wine.contexts.shape, wine.pool.size, wine.action_names
    ((125, 4), 53, ('0', '1', '2'))
    >>> environment_by_name("wine", raw=True).contexts.shape
    (125, 13)
    """
    problem = PROBLEMS[one_of("data set", name, DATASET_NAMES)]
    raw = comes_raw(name, raw=raw, dimensions=dimensions, prototypes=prototypes)
    if dimensions is None and not raw:
        dimensions = problem.dimensions
    rows = problem.read()
    return load(
        rows.frame,
        context=list(rows.context),
        label=rows.label,
        actions=None if rows.actions is None else list(rows.actions),
        reward=problem.reward,
        reward_bound=problem.bound,
        public_share=public_share,
        seed=seed,
        dimensions=dimensions,
        prototypes=prototypes,
        features=features,
        raw=raw,
        bernoulli=problem.bernoulli,
        name=name,
    )


def comes_raw(
    name: str, *, raw: bool | None, dimensions: int | None, prototypes: int | None
) -> bool:
    """Whether contexts are columns as they are; says what None means."""
    if raw is not None:
        return raw
    return name not in _ENCODED and dimensions is None and prototypes is None


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
    """The bandit of a CSV or Parquet file; options are those of :func:`capri_lab.datasets.load`.

    ``reward`` names the rule for a label: "match" with ``right`` and ``wrong``, or "closeness" with
    ``doses`` and ``tolerance``. ``public`` is a column.
    """
    rule: LabelRule | None = None
    if one_of("reward", reward, REWARD_NAMES) == "match" and label is not None:
        rule = Match(right=right, wrong=wrong)
    elif label is not None:
        rule = Closeness(doses=doses, tolerance=tolerance)
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


def suggested_kernel(bandit: DataBandit) -> Kernel:
    """A context kernel times an action kernel; looks at the public pool and the actions only.

    ``k((c, x), (c', x')) = k_C(c, c') k_X(x, x')`` with ``k_C = a RBF + b <c, c'> + const`` on the
    unit ball, the length scale being the median distance of public contexts, and ``k_X`` by kind of
    action: equality for one-hot classes, Matern 5/2 for doses, RBF at the median distance for
    embedded classes. ``k(w, w) <= 1`` for every user because contexts stay in the unit ball.
    """
    scale = median_distance(bandit.pool.rows)
    context = RBF(lengthscale=scale, variance=0.4) + Linear(variance=0.5, bias=0.1)
    action: Kernel = Linear()  # on one-hot rows: 1 for the same action, 0 for another
    if bandit.features == "dose":
        action = Matern(nu=2.5, lengthscale=0.5)
    elif bandit.features == "embedding":
        action = RBF(lengthscale=median_distance(bandit.actions))
    return ContextAction(context=context, action=action, context_dimension=bandit.pool.dimension)


def median_distance(rows: FloatArray) -> float:
    """Median Euclidean distance of different rows; 1 where there are none.

    >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
    2.0
    """
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    squares = ((sample[:, None, :] - sample[None, :, :]) ** 2).sum(axis=2)
    distances = np.sqrt(squares[np.triu_indices(len(sample), 1)])
    distances = distances[distances > 0]
    return float(np.median(distances)) if len(distances) else 1.0
