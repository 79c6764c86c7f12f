"""Private kernel ridge regression: the paper's estimator for any table of sensitive rows."""

from capri.regression.estimator import PrivateKernelRidge
from capri.regression.width import ErrorWidth

__all__ = ["ErrorWidth", "PrivateKernelRidge"]
