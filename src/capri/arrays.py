"""Array types, and one BLAS thread where arrays are small.

The matrices of a learner have a few hundred rows. OpenBLAS splits even those over all cores and
waits at hundreds of barriers: on a busy machine a factorisation of microseconds takes a hundred
milliseconds. Limits set from outside (``OPENBLAS_NUM_THREADS`` and the like) still hold.
"""

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@cache
def _controller() -> "ThreadpoolController":
    """Found once: looking for loaded libraries takes milliseconds."""
    # Imported here: a device needs NumPy alone.
    import scipy.linalg  # noqa: F401 - brings its BLAS in before the search
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Run a block with one BLAS thread; the former number comes back after it."""
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


def to_columns16(values: FloatArray) -> tuple[IntArray, IntArray]:
    """Columns in 16 bits: exponents ``e``, one a column, and whole numbers ``n`` of ``n 2^e``.

    ``e = k - 15`` where the largest number of the column lies in ``[2^(k-1), 2^k)``: rounding moves
    no number by more than ``2^-15`` of it, and what was rounded before by nothing.

    >>> exponents, numbers = to_columns16(np.array([[1.0, 0.0], [1 / 3, 0.0]]))
    >>> exponents.tolist(), numbers.tolist()
    ([-14, -15], [[16384, 0], [5461, 0]])
    """
    exponents = np.frexp(np.abs(values).max(axis=0, initial=0.0))[1].astype(np.int64) - 15
    numbers = np.rint(np.ldexp(values, -exponents)).clip(-32767, 32767)
    return exponents, numbers.astype(np.int64)


def from_columns16(exponents: IntArray, numbers: IntArray) -> FloatArray:
    """The inverse, exact: ``n 2^e``."""
    return np.ldexp(numbers.astype(np.float64), exponents)


def rounded16(values: FloatArray) -> FloatArray:
    """What 16 bits make of columns."""
    return from_columns16(*to_columns16(values))
