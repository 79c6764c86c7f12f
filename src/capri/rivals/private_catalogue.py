"""The private rivals, grouped by what they promise."""

from capri.rivals.base import Rival
from capri.rivals.dubey import DubeyJoint, DubeyLocal
from capri.rivals.shariff_sheffet import ShariffSheffet

PRIVATE_RIVALS: tuple[type[Rival], ...] = (
    ShariffSheffet,
    DubeyJoint,
    DubeyLocal,
)
