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
