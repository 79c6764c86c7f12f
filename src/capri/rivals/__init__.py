"""Other ways to play, one file each, driven by :func:`capri.simulate` like CAPRI itself."""

from capri.rivals.uniform import UniformPlay

__all__ = ["UniformPlay"]
