"""Private kernel ridge regression: the paper's estimator for any table of sensitive rows."""

from capri.regression.classifier import PrivateKernelClassifier
from capri.regression.decode import ErrorWidth
from capri.regression.estimator import PrivateKernelRidge
from capri.regression.quantiles import PrivateKernelQuantiles
from capri.regression.scikit_learn import PublicScaler

__all__ = [
    "ErrorWidth",
    "PrivateKernelClassifier",
    "PrivateKernelQuantiles",
    "PrivateKernelRidge",
    "PublicScaler",
]
