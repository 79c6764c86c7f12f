"""Problems whose rewards are partly modelled: a randomised trial, and clicks in a fashion shop.

ACTG 175, which lifelines ships, gave one of four treatments of HIV infection to each patient. The
sample of the Open Bandit Dataset, which obp ships, has 38 clicks in 10,000 rounds on 80 items shown
at random: enough to say that items and users differ, not by how much. So its world is a model of
the clicks, and its strength is partly invented.
"""

from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from capri.arrays import FloatArray, IntArray
from capri_lab.datasets.real.problem import Problem, Rows, package_table

_LIFELINES = "lifelines"
# As the trial numbered them.
_ARMS = ("zidovudine", "zidovudine + didanosine", "zidovudine + zalcitabine", "didanosine")
# What was known of a patient when the arm was drawn.
_CONTEXT = ("age", "wtkg", "hemo", "homo", "drugs", "karnof", "oprior", "z30", "preanti", "race",
            "gender", "strat", "symptom", "cd40", "cd80")  # fmt: skip
# A change of so many CD4 cells per cubic millimetre is the reward 1.
_CELLS = 200.0
# Pseudo-patients that pull every coefficient to 0; a tenth of an arm.
_PENALTY = 50.0


def _actg175() -> Rows:
    """Rewards of all four arms: the one that was given is measured, three are imputed."""
    frame = package_table(_LIFELINES, "lifelines/datasets/ACTG175.csv")
    rows = frame[list(_CONTEXT)].to_numpy(dtype=np.float64)
    change = (frame["cd420"] - frame["cd40"]).to_numpy(dtype=np.float64) / _CELLS
    table = imputed(rows, frame["arms"].to_numpy(dtype=np.int64), change, len(_ARMS))
    for arm, name in enumerate(_ARMS):
        frame[name] = table[:, arm]
    return Rows(frame=frame, context=_CONTEXT, actions=_ARMS)


def imputed(rows: FloatArray, arm: IntArray, outcome: FloatArray, arms: int) -> FloatArray:
    """``Y_i(a) = m_a(x_i) + (y_i - m_{A_i}(x_i))``: what every arm would have done for a patient.

    ``m_a`` is ridge regression on the patients of arm ``a`` alone, ``(1, x)`` with standardised
    columns and a free constant. Arms were drawn by lot, so ``m_a`` estimates the effect of ``a`` on
    anybody. A patient keeps the luck it had, ``y - m``, under every arm: the cell of the arm that
    was given is the measured outcome itself.
    """
    deviation = rows.std(axis=0)
    standard = (rows - rows.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0)
    design = np.hstack([np.ones((len(rows), 1)), standard])
    ridge = _PENALTY * np.eye(design.shape[1])
    ridge[0, 0] = 0.0
    fitted = np.empty((len(rows), arms))
    for each in range(arms):
        own = design[arm == each]
        fitted[:, each] = design @ np.linalg.solve(
            own.T @ own + ridge, own.T @ outcome[arm == each]
        )
    luck = outcome - fitted[np.arange(len(rows)), arm]
    return np.asarray(fitted + luck[:, None])


ACTG175 = Problem(
    name="actg175",
    title="2,139 patients of the trial ACTG 175, 15 columns known before treatment; which of four "
    "treatments to give?",
    package=_LIFELINES,
    licence="S. Hammer et al., 1996, public in the R package speff2trial; the copy in lifelines "
    "is MIT, no other licence is stated",
    pays="the change of CD4 cells per mm^3 after 20 weeks over 200, cut at -1 and 1",
    read=_actg175,
    bound=1.0,
    invented="three of four rewards of a patient: each patient got one arm, by lot. The others "
    "are imputed by one ridge regression an arm, with the patient's own residual",
)


_OBP = "obp"
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

    frame = package_table(_OBP, "obp/dataset/obd/random/all/all.csv")
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


def _open_bandit() -> Rows:
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
    package=_OBP,
    licence="Open Bandit Dataset, ZOZO Inc., CC BY 4.0; the copy in obp is Apache-2.0",
    pays="1 for a click, 0 else; clicks are drawn with the probability of a model",
    read=_open_bandit,
    bound=1.0,
    bernoulli=True,
    invented="partly the clicks: a logistic model of the sample's 38 clicks, by user feature, by "
    "item and by both, shifted to a mean rate of 2 % (0.4 % in the sample); how strongly users "
    "and items differ is a choice that so few clicks cannot settle",
    dimensions=8,
)
