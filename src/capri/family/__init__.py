"""A family of kernels on one public basis: what is used where nobody knows the kernel."""

from capri.family.arms import ArmBasis, ArmFeatures, ArmFunction
from capri.family.basis import ProductBasis, ProductFunction
from capri.family.build import arms_of, family_of
from capri.family.evidence import best_weights, log_evidence
from capri.family.factor import Candidates, Factor
from capri.family.family import Family, Part
from capri.family.table import TableFamily, table_family

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
    "TableFamily",
    "arms_of",
    "best_weights",
    "family_of",
    "log_evidence",
    "table_family",
]
