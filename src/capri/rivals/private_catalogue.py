"""The private rivals, grouped by what they promise."""

from capri.rivals.adap_ucb import AdaPUCB
from capri.rivals.base import Rival
from capri.rivals.batched_linear import BatchedLinear
from capri.rivals.dubey import DubeyJoint, DubeyLocal
from capri.rivals.han import HanOLS, HanSGD
from capri.rivals.kharkovskii import Kharkovskii
from capri.rivals.kusner import Kusner
from capri.rivals.ldp_ucb import LDPUCB
from capri.rivals.sajed_sheffet import SajedSheffet
from capri.rivals.shariff_sheffet import ShariffSheffet
from capri.rivals.tenenbaum import Tenenbaum
from capri.rivals.usca import USCA
from capri.rivals.zheng import Zheng
from capri.rivals.zhou_tan import ZhouTan

PRIVATE_RIVALS: tuple[type[Rival], ...] = (
    # joint
    ShariffSheffet,
    BatchedLinear,
    DubeyJoint,
    USCA,
    SajedSheffet,
    AdaPUCB,
    # central: private release of an output
    Kusner,
    Kharkovskii,
    # local
    Zheng,
    HanOLS,
    HanSGD,
    DubeyLocal,
    ZhouTan,
    LDPUCB,
    # shuffle
    Tenenbaum,
)
