"""A family of kernels on one public basis: what is used where nobody knows the kernel.

Devices load this, with NumPy alone: :mod:`capri.family.evidence`, which needs SciPy, is asked for
by its own name.
"""

from capri.family.arms import ArmBasis, ArmFeatures
from capri.family.basis import ProductBasis
from capri.family.factor import Candidates, Factor
from capri.family.family import Family, Part, arms_of, family_of

__all__ = [
    "ArmBasis",
    "ArmFeatures",
    "Candidates",
    "Factor",
    "Family",
    "Part",
    "ProductBasis",
    "arms_of",
    "family_of",
]
