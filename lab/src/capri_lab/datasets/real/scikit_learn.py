"""Tables that scikit-learn ships: digits, wines, tumours, diabetes, iris."""

from functools import partial

from capri.errors import ConfigurationError
from capri_lab.datasets.real.problem import Problem, Rows
from capri_lab.datasets.rewards import Closeness, Match

_PACKAGE = "scikit-learn"
_UCI = "UCI Machine Learning Repository, CC BY 4.0; the copy in scikit-learn is BSD-3-Clause"
_RIGHT = "1 for the right class, -1 for any other"
_TARGET = "target"


def _read(loader: str) -> Rows:
    try:
        from sklearn import datasets
    except ImportError:
        raise ConfigurationError(
            "these data sets come with scikit-learn: pip install 'capri-lab[data]'"
        ) from None
    frame = getattr(datasets, loader)(as_frame=True).frame
    context = tuple(column for column in frame.columns if column != _TARGET)
    return Rows(frame=frame, context=context, label=_TARGET)


DIGITS = Problem(
    name="digits",
    title="1,797 images of 64 pixels; which of ten digits is it?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=partial(_read, "load_digits"),
    reward=Match(),
    dimensions=8,
)
WINE = Problem(
    name="wine",
    title="178 wines, 13 measurements; which of three cultivars is it?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=partial(_read, "load_wine"),
    reward=Match(),
)
BREAST_CANCER = Problem(
    name="breast-cancer",
    title="569 tumours, 30 measurements; malignant or benign?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=partial(_read, "load_breast_cancer"),
    reward=Match(),
)
DIABETES = Problem(
    name="diabetes",
    title="442 patients, 10 measurements; eleven doses, the right one being the progression of "
    "the disease after a year",
    package=_PACKAGE,
    licence="B. Efron et al., Least Angle Regression, 2004; the copy in scikit-learn is "
    "BSD-3-Clause, no other licence is stated",
    pays="1 - 2 abs(dose - progression), both on [0, 1], no less than -1",
    read=partial(_read, "load_diabetes"),
    reward=Closeness(),
)
IRIS = Problem(
    name="iris",
    title="150 flowers, 4 measurements; which of three species is it?",
    package=_PACKAGE,
    licence=_UCI,
    pays=_RIGHT,
    read=partial(_read, "load_iris"),
    reward=Match(),
)
