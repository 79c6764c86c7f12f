"""Real problems: data that ship inside installable packages, read from disk, never downloaded.

Each problem says where its rows come from, under which licence, what an action earns, and which
part of its rewards, if any, is invented.

>>> PROBLEMS["phishing"].package
'river'
"""

from capri_lab.datasets.real.modelled import ACTG175, OPEN_BANDIT
from capri_lab.datasets.real.problem import Problem
from capri_lab.datasets.real.tables import (
    BANANAS,
    BREAST_CANCER,
    DIABETES,
    DIGITS,
    ENGEL,
    FAIR,
    IRIS,
    PARTY,
    PHISHING,
    RAND,
    SEGMENT,
    SHUTTLE,
    TRAVEL,
    WINE,
)

# What defaults were chosen on, and what they were only checked on.
_LISTED = (DIGITS, WINE, BREAST_CANCER, DIABETES, PHISHING, SEGMENT, RAND, FAIR, ACTG175,
           OPEN_BANDIT)  # fmt: skip
_CHECK = (IRIS, BANANAS, SHUTTLE, PARTY, TRAVEL, ENGEL)

PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in (*_LISTED, *_CHECK)}
LISTED_NAMES = tuple(problem.name for problem in _LISTED)
CHECK_NAMES = tuple(problem.name for problem in _CHECK)
