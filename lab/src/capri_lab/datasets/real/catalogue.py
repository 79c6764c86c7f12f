"""The real problems by name."""

from capri_lab.datasets.real.lifelines import ACTG175
from capri_lab.datasets.real.open_bandit import OPEN_BANDIT
from capri_lab.datasets.real.problem import Problem
from capri_lab.datasets.real.river import BANANAS, PHISHING, SEGMENT, SHUTTLE
from capri_lab.datasets.real.scikit_learn import BREAST_CANCER, DIABETES, DIGITS, IRIS, WINE
from capri_lab.datasets.real.statsmodels import ENGEL, FAIR, PARTY, RAND, TRAVEL

# What defaults were chosen on, and what they were only checked on.
_LISTED = (DIGITS, WINE, BREAST_CANCER, DIABETES, PHISHING, SEGMENT, RAND, FAIR, ACTG175,
           OPEN_BANDIT)  # fmt: skip
_CHECK = (IRIS, BANANAS, SHUTTLE, PARTY, TRAVEL, ENGEL)

PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in (*_LISTED, *_CHECK)}
LISTED_NAMES = tuple(problem.name for problem in _LISTED)
CHECK_NAMES = tuple(problem.name for problem in _CHECK)
