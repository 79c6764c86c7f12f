"""The choices of the practical preset, each with a name. None of them touches the guarantee."""

from dataclasses import dataclass
from math import inf, sqrt

from capri.checks import between, one_of, positive, truth, whole
from capri.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class PracticalOptions:
    """Options of preset "practical"; docs/explanation/practical.md has an ablation of most.

    ``thompson_scale`` and ``draws``: spread and number of the Thompson draws of an epoch.
    ``failure_probability``: that of active sets (``policy.active``), over all epochs.
    ``first_epoch``, ``growth``: length of the first epoch (None: from the noise) and the growth,
    at most 1.3 in blocks.
    ``residual``: encode ``y`` minus the last estimate; ``clip_scale``: residuals are clipped at so
    many predicted standard deviations, in the local model at two thirds of that.
    ``moment_share``, ``tail_share``: shares of a message's norm that measure the size of the
    residuals and what clipping them cuts off; rewards with heavy tails are then not clipped.
    ``loudness``: messages so many times as loud as fits the loudest pair, whose messages are then
    clipped to norm 1; what is read takes the clipped ones into account. Twice that in the local
    model.
    ``smoothness``: prior variance of a coefficient is its kernel eigenvalue to this power.
    ``norm_bound``: bound on the RKHS norm of ``f``; None for the reward bound.
    ``rank_tolerance``, ``max_rank``: the basis may leave out this share of the mean of ``k(w,w)``.
    ``memory``: after so many decisions what was learnt counts for 1/e, for users who know how fast
    their world changes. None: how much still counts is decided by the evidence of every release.
    Infinite: nothing changes, and nothing is ever forgotten.
    ``blocks``: one block of coordinates for each of many unrelated actions, so that nothing is left
    out; None means wherever kernel="auto" allows it and there are at least nine actions.
    ``learn_crowd``: where nothing is public but ranges, the first visits tell of their contexts
    alone, and a pool like them takes the place of the ranges; False plays by the ranges.
    ``noise``: "gaussian" or "laplace" in every epoch of the joint model, for audits and comparison;
    None: each plan takes the one from which it expects to learn more.
    """

    thompson_scale: float = 0.7
    draws: int = 64
    failure_probability: float = 0.05
    first_epoch: int | None = None
    growth: float = 1.5
    residual: bool = True
    clip_scale: float = 1.5
    moment_share: float = 0.2
    tail_share: float = 0.1
    loudness: float = 2.5
    smoothness: float = 0.5
    norm_bound: float | None = None
    rank_tolerance: float = 1e-3
    max_rank: int = 150
    memory: float | None = None
    blocks: bool | None = None
    noise: str | None = None
    learn_crowd: bool = True

    def __post_init__(self) -> None:
        for name in ("thompson_scale", "clip_scale", "rank_tolerance", "loudness"):
            positive(name, getattr(self, name))
        if self.norm_bound is not None:
            positive("norm_bound", self.norm_bound)
            between("norm_bound", self.norm_bound, 1e-50, 1e50)
        if self.memory is not None and self.memory != inf:
            positive("memory", self.memory)
        between("smoothness", self.smoothness, 0, 4)
        between("failure_probability", self.failure_probability, 0, 1, open_ends=True)
        for name in ("moment_share", "tail_share"):
            positive(name, getattr(self, name))
            between(name, getattr(self, name), 0, 0.5)
        between("rank_tolerance", self.rank_tolerance, 0, 1, open_ends=True)
        positive("growth", self.growth)
        if not self.growth > 1:
            raise ConfigurationError(f"growth must be above 1, got {self.growth}")
        for name in ("draws", "max_rank", "first_epoch"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value)
        truth("residual", self.residual)
        truth("learn_crowd", self.learn_crowd)
        if self.blocks is not None:
            truth("blocks", self.blocks)
        if self.noise is not None:
            one_of("noise", self.noise, ("gaussian", "laplace"))

    def main_share(self, *, tail: bool, products: bool) -> float:
        """Share of a message's norm that carries ``t psi``, beside the coordinates that are there.

        Messages of products measure the size of residuals for nothing.
        """
        moment = 0.0 if products else self.moment_share**2
        return sqrt(1 - moment - tail * self.tail_share**2)
