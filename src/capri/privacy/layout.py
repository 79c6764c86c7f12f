"""Which numbers a user's message holds, and how loud each may be: one layout for every question.

With ``|psi| <= 1``, ``|t| <= 1`` and ``e`` in ``[0, 1]`` a user sends one of three forms,

    answered   [m t psi,  0,      m psi psi^T / sqrt 2,  s (2 t^2 - 1),  q (2 e - 1),  0    ]
    missing    [0,        m psi,  m psi psi^T / sqrt 2,  0,              0,            kappa]
    bad        0

and any two of them are at most 2 apart: how large residuals are, who did not answer and where, and
the second moments of the features cost nothing beside ``t psi``. Only the tail does, by
``m^2 = 1 - q^2``. docs/privacy.md has the proof.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, nextafter, sqrt

from capri.checks import not_negative, truth, whole
from capri.errors import ConfigurationError
from capri.privacy.projection import IntegerProjection

# Anything quieter drowns in its own noise, and that noise would need more than 64 bits.
_SMALLEST_SHARE = 1e-6


@dataclass(frozen=True)
class Block:
    """Neighbouring coordinates of a message that share one noise.

    The integer sums of a block carry noise of standard deviation ``sigma / share``, which is the
    same as sending ``share`` times the block under noise ``sigma``. ``largest``: no entry of one
    message exceeds this many times ``L^2``.
    """

    start: int
    size: int
    share_squared: Fraction
    largest: int = 1

    @property
    def part(self) -> slice:
        """Where the block stands in a message."""
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True, kw_only=True)
class MessageLayout:
    """The blocks of a message and their shares, which are checked in exact fractions.

    ``rank``: length of ``psi``. ``missing``: those without a reward send ``psi`` in a block of
    their own. ``second_moments``: everybody sends ``psi psi^T``, or an orthonormal ``projection``
    of it. ``moment_share`` is ``s``, ``tail_share`` ``q`` and ``count_share`` ``kappa``; a share of
    0 leaves its coordinate out. With ``[.]`` 1 for a block that is there and 0 for one that is not,

        m^2 = 1 - q^2,
        s^2 <= m^2 / 2                           with second moments,
        s^2 <= m^2 (11 + 5 sqrt 5) / 32          without: s <= .8325 m,
        kappa^2 <= 4 - q^2 - s^2 - m^2 (1 + [missing] + [second moments]),

    the last being ``1 + 2 q^2 - s^2`` with all blocks.
    """

    rank: int
    missing: bool = False
    second_moments: bool = False
    projection: IntegerProjection | None = None
    moment_share: float = 0.0
    tail_share: float = 0.0
    count_share: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", whole("rank", self.rank))
        truth("missing", self.missing)
        truth("second_moments", self.second_moments)
        for name in ("moment_share", "tail_share", "count_share"):
            share = not_negative(name, getattr(self, name))
            if 0 < share < _SMALLEST_SHARE:
                raise ConfigurationError(
                    f"{name} must be 0, which leaves its coordinate out, or at least "
                    f"{_SMALLEST_SHARE}, got {share}"
                )
            object.__setattr__(self, name, share)
        if self.projection is not None:
            if not self.second_moments:
                raise ConfigurationError(
                    "a projection needs second_moments=True: there is nothing to project"
                )
            if self.projection.rank != self.rank:
                raise ConfigurationError(
                    f"the projection is of moments of rank {self.projection.rank}, the layout of "
                    f"rank {self.rank}: they must be equal"
                )
        if self.tail_share >= 1:
            raise ConfigurationError(
                f"tail_share must be below 1, got {self.tail_share}: it is taken from the main "
                "block"
            )
        if not self._moment_fits(self.moment_share):
            raise ConfigurationError(
                f"moment_share must be at most {self.largest_moment_share:.9g} beside these "
                f"blocks, got {self.moment_share}: lower it, or use largest_moment_share"
            )
        if not self._count_fits(self.count_share):
            raise ConfigurationError(
                f"count_share must be at most {self.largest_count_share:.9g} beside these blocks, "
                f"got {self.count_share}: lower it, or use largest_count_share"
            )

    @property
    def main_share_squared(self) -> Fraction:
        """``m^2 = 1 - q^2``."""
        return 1 - Fraction(self.tail_share) ** 2

    def _moment_fits(self, share: float) -> bool:
        """``s^2 <= m^2/2``, or without second moments ``32 s^2 - 11 m^2 <= 5 sqrt(5) m^2``."""
        squared, main = Fraction(share) ** 2, self.main_share_squared
        if self.second_moments:
            return 2 * squared <= main
        excess = 32 * squared - 11 * main
        return excess <= 0 or excess**2 <= 125 * main**2

    def _count_fits(self, share: float) -> bool:
        """``kappa^2 <= 4 - q^2 - s^2 - m^2 (1 + [missing] + [second moments])``."""
        return Fraction(share) ** 2 <= self._count_limit

    @property
    def _count_limit(self) -> Fraction:
        taken = Fraction(self.tail_share) ** 2 + Fraction(self.moment_share) ** 2
        return 4 - taken - self.main_share_squared * (1 + self.missing + self.second_moments)

    @property
    def largest_moment_share(self) -> float:
        """The largest number that may be ``moment_share`` beside this tail and these blocks."""
        limit = 0.5 if self.second_moments else (11 + 5 * sqrt(5)) / 32
        share = nextafter(sqrt(limit * self.main_share_squared), inf)
        while not self._moment_fits(share):
            share = nextafter(share, 0.0)
        return share

    @property
    def largest_count_share(self) -> float:
        """The largest number that may be ``count_share`` beside these shares and blocks."""
        share = nextafter(sqrt(self._count_limit), inf)
        while not self._count_fits(share):
            share = nextafter(share, 0.0)
        return share

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """The blocks that are there, in their order.

        ``|psi psi^T|_F^2 = sum_i (psi_i^2)^2 + 2 sum_{i<j} (psi_i psi_j)^2``: with the coefficient
        ``m / sqrt 2`` the diagonal has share ``m / sqrt 2`` and each product above it, which stands
        for two entries, has share ``m``.
        """
        main, rank = self.main_share_squared, self.rank
        sizes: dict[str, tuple[int, Fraction, int]] = {"main": (rank, main, 1)}
        if self.missing:
            sizes["missing"] = (rank, main, 1)
        if self.projection is not None:
            loss = self.projection.norm_squared
            sizes["projected"] = (self.projection.size, main / (2 * loss), self.projection.norm)
        elif self.second_moments:
            sizes["diagonal"] = (rank, main / 2, 1)
            if rank > 1:
                sizes["products"] = (rank * (rank - 1) // 2, main, 1)
        for name in ("moment", "tail", "count"):
            if share := getattr(self, f"{name}_share"):
                sizes[name] = (1, Fraction(share) ** 2, 1)
        blocks, start = {}, 0
        for name, (size, share_squared, largest) in sizes.items():
            blocks[name] = Block(start, size, share_squared, largest)
            start += size
        return blocks

    @property
    def coordinates(self) -> int:
        """How many numbers a message has."""
        return sum(block.size for block in self.blocks.values())
