"""Other ways to play, driven by :func:`capri.simulate` like CAPRI itself.

``rival(name, environment, ...)`` builds any of them; ``RIVAL_NAMES`` lists them. What each promises
to its users is a field of its class (:class:`Promise`), what it was given is in its ``params``.
They are grouped by what they see of a pair: its kernel, a row of features, or an arm's number.
"""

from capri.privacy.budget import Promise
from capri_lab.rivals.base import Rival
from capri_lab.rivals.catalogue import BY_NAME, RIVAL_NAMES, kind_of, promise_of, reach_of, rival
from capri_lab.rivals.linear.moments import BatchedLinear, ShariffSheffet

__all__ = [
    "BY_NAME",
    "RIVAL_NAMES",
    "BatchedLinear",
    "Promise",
    "Rival",
    "ShariffSheffet",
    "kind_of",
    "promise_of",
    "reach_of",
    "rival",
]
