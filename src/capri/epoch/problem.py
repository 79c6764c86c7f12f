"""What is known before the first round, checked once."""

from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from capri.arrays import FloatArray
from capri.checks import one_of
from capri.choices import as_actions
from capri.epoch.bounds import Bounds
from capri.epoch.limits import Limits
from capri.epoch.plan import ScheduleTerms
from capri.epoch.rewards import RewardScale, RewardTerms
from capri.errors import ConfigurationError
from capri.kernels import Auto, Kernel, check_bounded, check_own
from capri.privacy.budget import Budget, PrivacyModel, UserLimit, warn_of_large_delta
from capri.privacy.calibration import laplace_scale, noise_multiplier
from capri.privacy.layout import MECHANISMS, Norm
from capri.privacy.shuffle import Shuffle
from capri.privacy.sphere import Sphere, sphere
from capri.spaces import (
    LARGEST_CONTEXT,
    Actions,
    ContextPool,
    Contexts,
    context_chunks,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Spaces, bounds and the promise to users."""

    kernel: Kernel
    actions: Actions
    contexts: Contexts
    scale: RewardScale
    budget: Budget | None
    model: PrivacyModel
    limit: UserLimit | None = None
    on_devices: bool = False  # reports are made on the sphere, each on the device of its user
    rewards: RewardTerms = field(default_factory=RewardTerms)
    limits: Limits | None = None
    bounds: Bounds | None = None  # the limits of the actions of now
    shuffle: Shuffle | None = None  # how reports are mixed, where the budget is that of a batch
    tickets: bool = False  # seeds of reports cannot be searched for
    schedule: ScheduleTerms | None = None  # lengths of epochs and horizon, where they were changed
    norm: Norm | None = None  # of every epoch, where that was told: else plans choose

    @property
    def reward_bound(self) -> float:
        """``B``: what is learnt of a reward lies within ``[-B, B]``."""
        return self.scale.bound

    @property
    def sends_products(self) -> bool:
        """Whether messages are products of integers (:mod:`capri.privacy.products`).

        They measure the size of residuals, who did not answer, and the law of contexts, for
        nothing. A report that is made private by itself has no such room, and the paper's message
        is one vector.
        """
        return self.model is PrivacyModel.JOINT

    @property
    def composition(self) -> float:
        """Factor on the noise for users who contribute more than once (1 without user ids)."""
        if self.limit is None:
            return 1.0
        return self.limit.composition(local=self.model is PrivacyModel.LOCAL)

    @property
    def contributions(self) -> int:
        """How often one user may contribute: the factor on Laplace noise (1 without user ids)."""
        return 1 if self.limit is None else self.limit.total

    @property
    def norms(self) -> tuple[Norm, ...]:
        """In which norms messages of this problem may be compared, and hence which noise they get.

        A pure budget never gets Gaussian noise. With a delta, epochs of both kinds mix where a user
        contributes once; else all are of the kind whose noise is less for so many contributions.
        """
        if self.norm is not None:
            return (self.norm,)
        if self.model is not PrivacyModel.JOINT:
            return (Norm.L2,)
        if self.budget is None:
            return (Norm.L2, Norm.L1)
        if self.budget.delta == 0:
            return (Norm.L1,)
        if self.contributions == 1:
            return (Norm.L2, Norm.L1)
        return (min((Norm.L2, Norm.L1), key=lambda norm: self.noise_per_bound(2, norm=norm)),)

    def least_noise(self, dimension: int, length: int | None = None) -> float:
        """:meth:`noise_per_bound` of the norm that has the least of it."""
        return min(self.noise_per_bound(dimension, length, norm=norm) for norm in self.norms)

    @property
    def pairs(self) -> int | None:
        """``|W|``, the number of pairs, or None when contexts cannot be counted."""
        contexts = self.contexts.size
        return None if contexts is None else contexts * self.actions.count

    def reports(self, length: int) -> int:
        """Noise vectors in the sum of an epoch: one (joint), or one per decision (local)."""
        return length if self.model is PrivacyModel.LOCAL else 1

    @property
    def trust(self) -> str:
        """The model in a word: "joint", "local", or "shuffle" where reports are mixed."""
        return str(self.model) if self.shuffle is None else "shuffle"

    def noise_per_bound(
        self, dimension: int, length: int | None = None, *, norm: Norm = Norm.L2
    ) -> float:
        """Deviation of the noise on a coordinate, per unit of the bound on a contribution.

        On the sum (joint) or on each report (local). Needs a budget. ``length``: of the epoch, on
        which it depends where reports are mixed; None for an epoch without end. ``norm``: L1 for
        messages of one cell, whatever the ``dimension``.
        """
        if self.budget is None:
            raise ConfigurationError("without a budget there is no noise")
        if norm is Norm.L1:
            return sqrt(2) * laplace_scale(self.budget.epsilon, 2.0, self.contributions)
        if self.shuffle is not None:
            most = self.shuffle.most
            spent = most if length is None else self.shuffle.local_epsilon(self.budget, length)
            return sphere(spent, dimension).deviation
        if self.on_devices:
            return sphere(self.budget.epsilon, dimension, ticketed=self.tickets).deviation
        return noise_multiplier(self.budget, dimension, self.composition)

    def sphere_of(self, dimension: int, length: int) -> Sphere | None:
        """How reports of an epoch of this length are made; None where not on devices."""
        if self.budget is None or not self.on_devices:
            return None
        if self.shuffle is not None:
            return self.shuffle.randomizer(self.budget, length, dimension)
        return sphere(self.budget.epsilon, dimension, ticketed=self.tickets)

    def check_kernel(self, contexts: FloatArray) -> None:
        """Refuse contexts at which ``k(w, w)`` exceeds 1 for some action."""
        for part in context_chunks(len(contexts), self.actions.count):
            pairs = self.actions.pairs(contexts[part])
            check_bounded(self.kernel, pairs.reshape(-1, pairs.shape[-1]))


def checked_problem(
    *,
    kernel: Kernel | str,
    actions: object,
    contexts: Contexts,
    scale: RewardScale,
    budget: Budget | None,
    model: str,
    limit: UserLimit | None = None,
    on_devices: bool = False,
    rewards: RewardTerms | None = None,
    limits: Limits | None = None,
    shuffle: Shuffle | None = None,
    tickets: bool = False,
    noise: str | None = None,
) -> Problem:
    """Build a :class:`Problem`, or say what is wrong with it."""
    if isinstance(kernel, str) and kernel == "auto":
        kernel = Auto()
    if not isinstance(kernel, Kernel):
        raise ConfigurationError(
            f"kernel must be 'auto' or a capri kernel, got {type(kernel).__name__}"
        )
    if not isinstance(contexts, Contexts):
        raise ConfigurationError(
            "contexts must be a ContextPool or a ContextSampler, "
            f"got {type(contexts).__name__}: wrap rows as capri.ContextPool(rows)"
        )
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigurationError(
            f"budget must be a capri.Budget, or None for no privacy, got {type(budget).__name__}"
        )
    one_of("model", model, tuple(PrivacyModel))
    if kernel.constant_diagonal is not None and kernel.constant_diagonal > 1 + 1e-9:
        raise ConfigurationError(
            f"k(w, w) must be at most 1, got {kernel.constant_diagonal}: lower the variance"
        )
    if not isinstance(tickets, bool):
        raise ConfigurationError(f"tickets must be True or False, got {type(tickets).__name__}")
    if limits is not None and not isinstance(limits, Limits):
        raise ConfigurationError(f"limits must be capri.Limits, got {type(limits).__name__}")
    offered = as_actions(actions)
    problem = Problem(
        kernel=kernel,
        actions=offered,
        contexts=contexts,
        scale=scale,
        budget=budget,
        model=PrivacyModel(model),
        limit=limit,
        on_devices=on_devices,
        rewards=rewards or RewardTerms(),
        limits=None if limits is None else limits.declared_for(offered.names),
        bounds=None if limits is None else limits.of(offered, contexts),
        shuffle=shuffle,
        tickets=tickets,
    )
    problem = replace(problem, norm=_norm_of(problem, noise))
    if shuffle is not None:
        _check_mixing(problem)
    if problem.rewards.measured and problem.model is not PrivacyModel.JOINT:
        raise ConfigurationError(
            "missing_reward='as-estimated' needs model='joint': a report made private by itself "
            "has no room for a second form. Give a number"
        )
    _check_reach(problem)
    if budget is not None:
        problem.least_noise(2)  # refuses a budget that cannot be kept
        warn_of_large_delta(budget, stacklevel=3)  # whoever builds the policy
    return problem


def _norm_of(problem: Problem, noise: str | None) -> Norm | None:
    """The norm of all epochs by the name of their noise; None leaves the choice to plans."""
    if noise is None:
        return None
    norms = {mechanism.name: norm for norm, mechanism in MECHANISMS.items()}
    one_of("noise", noise, tuple(norms))
    if problem.model is not PrivacyModel.JOINT:
        raise ConfigurationError(
            "noise is chosen for the sums of a curator, model='joint': reports have their own"
        )
    return norms[noise]


def _check_mixing(problem: Problem) -> None:
    """Refuse terms of mixing that are none, or do not fit the budget."""
    if not isinstance(problem.shuffle, Shuffle):
        raise ConfigurationError(
            f"shuffle must be a capri.Shuffle, got {type(problem.shuffle).__name__}"
        )
    if problem.tickets:
        raise ConfigurationError(
            "tickets undo the mixing of reports: their issuer could tell whose report is whose. "
            "Leave out one of tickets and shuffle"
        )
    assert problem.budget is not None  # an aggregator has one
    problem.shuffle.check(problem.budget)


def _check_reach(problem: Problem) -> None:
    """Refuse now what the kernel would refuse to a user."""
    kernel, contexts = problem.kernel, problem.contexts
    if isinstance(kernel, Auto):  # its features are bounded by construction
        problem.actions.parts(np.zeros((1, contexts.dimension)))
        return
    # The farthest contexts that are served.
    farthest = problem.actions.pairs(np.full((1, contexts.dimension), LARGEST_CONTEXT))[0]
    check_own(kernel, farthest.shape[1])
    with np.errstate(all="ignore"):
        kernel(farthest, -farthest)
    if isinstance(contexts, ContextPool) and kernel.constant_diagonal is None:
        problem.check_kernel(contexts.rows)


def with_actions(problem: Problem, actions: Actions) -> Problem:
    """The same problem with other actions, checked like the first. Limits stay with names."""
    limits = problem.limits
    if limits is not None and (limits.declared is None) != (actions.names is None):
        raise ConfigurationError(
            "limits of this policy go by the numbers of its actions: give actions without names"
            if limits.declared is None
            else "limits of this policy go by the names of its actions: give actions with names"
        )
    bounds = None if limits is None else limits.of(actions, problem.contexts)
    renewed = replace(problem, actions=actions, bounds=bounds)
    _check_reach(renewed)
    return renewed
