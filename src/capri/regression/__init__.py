"""Private kernel ridge regression: the paper's estimator for any table of sensitive rows."""

from capri.regression.decode import ErrorWidth
from capri.regression.estimator import PrivateKernelRidge

__all__ = ["ErrorWidth", "PrivateKernelRidge"]
