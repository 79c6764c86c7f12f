"""A family of kernels on one public basis: what is used where nobody knows the kernel."""

from capri.family.arms import ArmBasis, ArmFeatures, ArmFunction
from capri.family.basis import ProductBasis, ProductFunction
from capri.family.build import arms_of, family_of
from capri.family.factor import Candidates, Factor
from capri.family.family import Family, Part

__all__ = [
    "ArmBasis",
    "ArmFeatures",
    "ArmFunction",
    "Candidates",
    "Factor",
    "Family",
    "Part",
    "ProductBasis",
    "ProductFunction",
    "arms_of",
    "family_of",
]
