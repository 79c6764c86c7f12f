"""Real problems: data that ship inside installable packages, read from disk, never downloaded.

One file per source. Each problem says where its rows come from, under which licence, what an action
earns, and which part of its rewards, if any, is invented.

>>> PROBLEMS["phishing"].package
'river'
"""

from capri_lab.datasets.real.catalogue import CHECK_NAMES, LISTED_NAMES, PROBLEMS
from capri_lab.datasets.real.problem import Problem, Rows

__all__ = ["CHECK_NAMES", "LISTED_NAMES", "PROBLEMS", "Problem", "Rows"]
