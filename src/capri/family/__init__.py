"""A family of kernels on one public basis: what is used where nobody knows the kernel."""

from capri.family.basis import ProductBasis, ProductFunction
from capri.family.build import family_of
from capri.family.factor import Candidates, Factor
from capri.family.family import Family, Part

__all__ = ["Candidates", "Factor", "Family", "Part", "ProductBasis", "ProductFunction", "family_of"]
