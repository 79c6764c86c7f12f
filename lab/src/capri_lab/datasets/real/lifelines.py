"""A randomised trial that lifelines ships: ACTG 175, four treatments of HIV infection."""

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri_lab.datasets.real.packages import package_table
from capri_lab.datasets.real.problem import Problem, Rows

_PACKAGE = "lifelines"
# As the trial numbered them.
_ARMS = ("zidovudine", "zidovudine + didanosine", "zidovudine + zalcitabine", "didanosine")
# What was known of a patient when the arm was drawn.
_CONTEXT = ("age", "wtkg", "hemo", "homo", "drugs", "karnof", "oprior", "z30", "preanti", "race",
            "gender", "strat", "symptom", "cd40", "cd80")  # fmt: skip
# A change of so many CD4 cells per cubic millimetre is the reward 1.
_CELLS = 200.0
# Pseudo-patients that pull every coefficient to 0; a tenth of an arm.
_PENALTY = 50.0


def _read() -> Rows:
    """Rewards of all four arms: the one that was given is measured, three are imputed."""
    frame = package_table(_PACKAGE, "lifelines/datasets/ACTG175.csv")
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
    package=_PACKAGE,
    licence="S. Hammer et al., 1996, public in the R package speff2trial; the copy in lifelines "
    "is MIT, no other licence is stated",
    pays="the change of CD4 cells per mm^3 after 20 weeks over 200, cut at -1 and 1",
    read=_read,
    bound=1.0,
    invented="three of four rewards of a patient: each patient got one arm, by lot. The others "
    "are imputed by one ridge regression an arm, with the patient's own residual",
)
