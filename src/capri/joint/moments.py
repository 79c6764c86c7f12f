"""When a release becomes public: a moment that is fixed before any of its data are read.

How long it takes to add up an epoch may depend on what its users did. So nobody is to see when that
was done. An epoch is due at a public time: a slot is handed out, or a clock runs out. Its release,
and all that follows from it, becomes public at

    m_0 = the first multiple of the grid at or after  due + margin,
    margin = 1/4 second + 1/10 millisecond for each of its slots,

several times as long as adding up takes. A sum that is not ready then has missed ``m_0`` and waits
for the next of ``m_1, m_2, ...``, each twice as far from the one before as that was, and at most
16 seconds. A miss can be seen, so each one is counted; a sum that is late by seconds tells no more
than a few bits.
"""

from math import ceil

# All in seconds.
GRID = 0.25
_WIDEST = 16.0
_LEAST, _EACH = 0.25, 100e-6


def margin(slots: int) -> float:
    """How long after it is due an epoch of so many slots becomes public, the grid aside."""
    return _LEAST + _EACH * slots


def first_moment(due: float, slots: int) -> float:
    """When an epoch becomes public if its sum is ready by then.

    >>> first_moment(10.0, 2_500), first_moment(10.1, 100)
    (10.5, 10.5)
    """
    return ceil((due + margin(slots)) / GRID) * GRID


def moment_of(first: float, ready: float) -> tuple[float, int]:
    """When a sum that was ready at some time becomes public, and how many moments it has missed.

    >>> moment_of(10.0, 9.8), moment_of(10.0, 10.1), moment_of(10.0, 10.6)
    ((10.0, 0), (10.25, 1), (10.75, 2))
    """
    moment, missed, step = first, 0, GRID
    while moment < ready and step < _WIDEST:
        moment, missed, step = moment + step, missed + 1, 2 * step
    further = max(0, ceil((ready - moment) / _WIDEST))
    return moment + further * _WIDEST, missed + further
