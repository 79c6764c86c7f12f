"""Other ways to play, one file each, driven by :func:`capri.simulate` like CAPRI itself.

``rival(name, environment, ...)`` builds any of them; ``RIVAL_NAMES`` lists them, and what each
promises to its users is a field of its class (:class:`Promise`).
"""

from capri.rivals.base import Promise, Rival
from capri.rivals.catalogue import BY_NAME, RIVAL_NAMES, promise_of, reach_of, rival
from capri.rivals.uniform import UniformPlay

__all__ = [
    "BY_NAME",
    "RIVAL_NAMES",
    "Promise",
    "Rival",
    "UniformPlay",
    "promise_of",
    "reach_of",
    "rival",
]
