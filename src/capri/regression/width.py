"""Error widths that know what they are made of."""

from typing import Any

import numpy as np

from capri.arrays import FloatArray


class ErrorWidth(np.ndarray[Any, np.dtype[np.float64]]):
    """Standard deviations of an error, with the three parts whose squares add up to theirs.

    ``bias`` (what the ridge and the rank leave out), ``sampling`` (noise in y) and ``privacy``
    (noise at the gate) have the shape of the array itself.
    """

    bias: FloatArray
    sampling: FloatArray
    privacy: FloatArray

    def __array_finalize__(self, origin: Any) -> None:
        for name in ("bias", "sampling", "privacy"):
            setattr(self, name, getattr(origin, name, None))

    @classmethod
    def of(cls, *, bias: FloatArray, sampling: FloatArray, privacy: FloatArray) -> "ErrorWidth":
        """From the three parts."""
        width = np.sqrt(bias**2 + sampling**2 + privacy**2).view(cls)
        width.bias, width.sampling, width.privacy = bias, sampling, privacy
        return width
