"""Clicks on 80 items of a fashion shop, shown at random: the sample that obp ships.

The sample has 38 clicks in 10,000 rounds: enough to say that items and users differ, not by how
much. So the world is a model of the clicks, and its strength is partly invented.
"""

from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from capri.arrays import FloatArray, IntArray
from capri_lab.datasets.real.packages import package_table
from capri_lab.datasets.real.problem import Problem, Rows

_PACKAGE = "obp"
_ITEMS = 80
_FEATURES = tuple(f"user_feature_{number}" for number in range(4))
# Standard deviations of the logits, a priori: of a user feature, an item, and one on the other.
# With these the best fixed item leaves about 0.6 of the regret of uniform play.
_USER, _ITEM, _BOTH = 1.0, 1.0, 1.3
_CLICK_RATE = 0.02


@cache
def _clicks() -> tuple[FloatArray, tuple[str, ...], FloatArray]:
    """Indicators of user features, their names, and the probability of a click on every item."""
    import pandas

    frame = package_table(_PACKAGE, "obp/dataset/obd/random/all/all.csv")
    levels = pandas.get_dummies(frame[list(_FEATURES)], dtype=float)
    # Levels are hashes: call them by the number of their feature and their rank.
    names = []
    for feature in _FEATURES:
        own = [column for column in levels.columns if column.startswith(feature)]
        names += [f"{feature} level {rank}" for rank in range(len(own))]
    users = levels.to_numpy()
    logits = fitted_logits(
        users, frame["item_id"].to_numpy(dtype=np.int64), frame["click"].to_numpy(dtype=np.float64)
    )
    return users, tuple(names), at_rate(logits, _CLICK_RATE)


def _read() -> Rows:
    import pandas

    users, names, clicks = _clicks()
    items = tuple(f"item {number}" for number in range(_ITEMS))
    frame = pandas.DataFrame(np.hstack([users, clicks]), columns=[*names, *items])
    return Rows(frame=frame, context=names, actions=items)


def fitted_logits(users: FloatArray, item: IntArray, click: FloatArray) -> FloatArray:
    """``logit P(click | x, i) = b + <u, x> + v_i + <W_i, x>`` for every user and item.

    The mode of the posterior under normal priors on ``u``, ``v`` and ``W``; the constant is free.
    Items were drawn uniformly, so no weight is needed for how often one was shown.
    """
    width = users.shape[1]
    sizes = (1, width, _ITEMS, _ITEMS * width)
    precision = np.repeat([0.0, _USER**-2, _ITEM**-2, _BOTH**-2], sizes)

    def parts(given: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        constant, user, arm, both = np.split(given, np.cumsum(sizes)[:-1])
        return constant, user, arm, both.reshape(_ITEMS, width)

    def loss(given: FloatArray) -> tuple[float, FloatArray]:
        constant, user, arm, both = parts(given)
        logit = constant + users @ user + arm[item] + (users * both[item]).sum(axis=1)
        surplus = expit(logit) - click
        slope = np.zeros((_ITEMS, width))
        np.add.at(slope, item, users * surplus[:, None])
        gradient = np.concatenate(
            [
                [surplus.sum()],
                users.T @ surplus,
                np.bincount(item, surplus, minlength=_ITEMS),
                slope.ravel(),
            ]
        )
        value = np.sum(np.logaddexp(0.0, logit) - click * logit)
        return float(value + 0.5 * precision @ given**2), gradient + precision * given

    found = minimize(loss, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B")
    constant, user, arm, both = parts(found.x)
    return np.asarray(constant + (users @ user)[:, None] + arm + users @ both.T)


def at_rate(logits: FloatArray, rate: float) -> FloatArray:
    """``expit(logits + s)`` with the shift ``s`` at which their mean is ``rate``.

    >>> bool(abs(at_rate(np.array([[0.0, 3.0]]), 0.02).mean() - 0.02) < 1e-9)
    True
    """
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (low, middle) if expit(logits + middle).mean() > rate else (middle, high)
    return np.asarray(expit(logits + low))


OPEN_BANDIT = Problem(
    name="open-bandit",
    title="10,000 visits to a fashion shop, 4 hashed features of the user in 24 indicators; which "
    "of 80 items to show?",
    package=_PACKAGE,
    licence="Open Bandit Dataset, ZOZO Inc., CC BY 4.0; the copy in obp is Apache-2.0",
    pays="1 for a click, 0 else; clicks are drawn with the probability of a model",
    read=_read,
    bound=1.0,
    bernoulli=True,
    invented="partly the clicks: a logistic model of the sample's 38 clicks, by user feature, by "
    "item and by both, shifted to a mean rate of 2 % (0.4 % in the sample); how strongly users "
    "and items differ is a choice that so few clicks cannot settle",
    dimensions=8,
)
