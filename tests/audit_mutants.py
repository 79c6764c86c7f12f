"""Broken pipelines that an audit must catch: each is one bug, in a few lines, and where it shows.

``ABOVE`` the gate: what reaches the noise is more than one user's share, or others notice. They are
caught without chance, by comparing what two worlds hand to the noise. ``BELOW``: the noise itself
is wrong, which takes many runs to see.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import capri
from capri.audit.scenarios import Scenario, scenarios
from capri.epoch import accumulate
from capri.epoch.accumulate import OpenEpoch
from capri.epoch.decide import ACCEPTED, Chooser, RewardStatus
from capri.epoch.encode import Encoder
from capri.epoch.problem import Problem
from capri.epoch.shadow import ShadowSum
from capri.errors import DataError
from capri.joint.desk import Desk
from capri.joint.policy import Capri
from capri.joint.settle import SettledSum
from capri.learners import paper
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.noise import NoiseSource, SecureNoise
from capri.privacy.products import ProductLayout
from capri.privacy.users import Participation
from capri.privacy.vector import VectorLayout, vector_layout
from capri.store.shelf import Shelf

Patch = pytest.MonkeyPatch
Changes = dict[str, Any]
Mutant = Callable[[Patch], None]


@dataclass(frozen=True)
class Above:
    """A bug above the gate, and the scenario that must catch it."""

    mutant: Mutant
    scenario: str
    changes: Changes
    planned: bool

    def prepared(self, patch: Patch, target: Callable[..., Capri]) -> Scenario:
        """The scenario with the bug in place: in its plans too, or in what serves users alone."""
        if self.planned:
            self.mutant(patch)
        found = scenarios(target(**self.changes), [self.scenario])[self.scenario]
        if not self.planned:
            self.mutant(patch)
        return found


ABOVE: dict[str, Above] = {}
BELOW: dict[str, tuple[Mutant, str, int]] = {}


def above(
    scenario: str, *, changes: Changes | None = None, planned: bool = False
) -> Callable[[Mutant], Mutant]:
    """Register a bug above the gate; ``changes`` of the configuration on which it shows."""

    def register(mutant: Mutant) -> Mutant:
        ABOVE[mutant.__name__] = Above(mutant, scenario, changes or {}, planned)
        return mutant

    return register


def below(scenario: str, trials: int) -> Callable[[Mutant], Mutant]:
    """Register a bug below the gate, with the scenario and the runs that must catch it."""

    def register(mutant: Mutant) -> Mutant:
        BELOW[mutant.__name__] = (mutant, scenario, trials)
        return mutant

    return register


# -- who counts, how often and when ---------------------------------------------------------------


@above("users", planned=True)
def user_composition_forgotten(patch: Patch) -> None:
    """The noise covers one contribution of a user who makes three; the ledger believes it."""
    patch.setattr(Problem, "composition", property(lambda problem: 1.0))


@above("users")
def visit_over_the_limit_contributes(patch: Patch) -> None:
    """The book is kept and nobody reads it."""
    honest = Participation.take

    def take(self: Participation, users: Any, epoch: int) -> Any:
        return np.ones_like(honest(self, users, epoch))

    patch.setattr(Participation, "take", take)


@above("reward")
def pool_contexts_counted_ten_times(patch: Patch) -> None:
    """The table of the pool is scaled once too often."""
    honest = Encoder.total

    def total(self: Any, segment: Any, pairs: Any, *arrays: Any) -> Any:
        units = honest(self, segment, pairs, *arrays)
        inside = arrays[0] >= 0
        return units + 9 * honest(self, segment, pairs[inside], *(each[inside] for each in arrays))

    patch.setattr(Encoder, "total", total)


@above("next")
def sum_carried_into_the_next_epoch(patch: Patch) -> None:
    """The accumulator is not emptied when an epoch closes."""
    honest = OpenEpoch.release
    kept: WeakKeyDictionary[Gate, Any] = WeakKeyDictionary()  # an id would serve the next run too
    begin = OpenEpoch.__init__

    def release(self: OpenEpoch) -> Any:
        kept[self._gate] = self._accumulator
        return honest(self)

    def create(self: OpenEpoch, plan: Any, first: int, problem: Any, gate: Gate) -> None:
        begin(self, plan, first, problem, gate)
        past = kept.get(gate, self._accumulator)
        size = min(len(past), len(self._accumulator))
        self._accumulator[:size] += past[:size]

    patch.setattr(OpenEpoch, "release", release)
    patch.setattr(OpenEpoch, "__init__", create)


@above("next")
def late_reward_counted_in_the_next_epoch(patch: Patch) -> None:
    """A reward that comes too late is added to whatever epoch is open."""
    honest, issue, known = OpenEpoch.reward, OpenEpoch.issue, {}

    def issued(self: OpenEpoch, *arrays: Any) -> Any:
        numbers = issue(self, *arrays)
        for number, *each in zip(numbers, *arrays[:3], strict=True):
            known[id(self._gate), number] = [np.array([value]) for value in each]
        return numbers

    def reward(self: OpenEpoch, numbers: Any, rewards: Any, keys: Any = None) -> Any:
        for number, value in zip(numbers, rewards, strict=True):
            if 0 <= number < self.first and (visit := known.get((id(self._gate), number))):
                self._accumulator += self._encoder.total(
                    self.segments[0], *visit, np.array([value])
                )
        return honest(self, numbers, rewards, keys)

    patch.setattr(OpenEpoch, "issue", issued)
    patch.setattr(OpenEpoch, "reward", reward)


@above("restart")
def saved_run_keeps_its_open_sum(patch: Patch) -> None:
    """A copy of a private run goes on with the sum of the first."""
    save, forsake, kept = Capri.save, OpenEpoch.forsake, []

    def saving(self: Capri, path: Any) -> None:
        kept.append(self._open._accumulator.copy())
        save(self, path)

    def restored(self: OpenEpoch, issued: int) -> None:
        forsake(self, issued)
        self._accumulator += kept[-1]

    patch.setattr(Capri, "save", saving)
    patch.setattr(OpenEpoch, "forsake", restored)


@above("reward")
def reward_counted_again(patch: Patch) -> None:
    """A reward sent again is added again."""

    def statuses(numbers: Any, *_: Any) -> Any:
        return np.full(len(numbers), RewardStatus.ACCEPTED)

    patch.setattr(accumulate, "reward_statuses", statuses)


@above("reward")
def reward_counted_again_within_a_batch(patch: Patch) -> None:
    """Only duplicates of earlier calls are noticed, not those within one call."""
    honest = accumulate.reward_statuses

    def statuses(numbers: Any, rewards: Any, *rest: Any) -> Any:
        each = [slice(i, i + 1) for i in range(len(numbers))]
        return np.concatenate([honest(numbers[i], rewards[i], *rest) for i in each])

    patch.setattr(accumulate, "reward_statuses", statuses)


@above("reward")
def update_forgets_what_update_many_counted(patch: Patch) -> None:
    """Rewards of a batch leave no mark, so that single ones are added once more."""
    honest = OpenEpoch.reward
    names = ("_status", "_pairs", "_pool_index", "_action_index")

    def reward(self: OpenEpoch, numbers: Any, rewards: Any, keys: Any = None) -> Any:
        before = {name: getattr(self, name).copy() for name in names}
        statuses = honest(self, numbers, rewards, keys)
        if len(numbers) > 1:
            vars(self).update(before)
        return statuses

    patch.setattr(OpenEpoch, "reward", reward)


# -- what others notice ---------------------------------------------------------------------------


@above("bad reward")
def nan_refuses_its_batch(patch: Patch) -> None:
    """One user's value decides whether others' rewards count."""
    honest = Capri._reward

    def reward(self: Capri, decisions: Any, rewards: Any, keys: Any = None) -> Any:
        if not np.isfinite(np.asarray(rewards, dtype=float)).all():
            raise DataError("rewards must be finite")
        return honest(self, decisions, rewards, keys)

    patch.setattr(Capri, "_reward", reward)


@above("bad context")
def bad_context_takes_no_slot(patch: Patch) -> None:
    """Who is refused is not counted, and everybody after moves up."""
    honest = Capri._decide

    def decide(self: Capri, rows: Any, valid: Any, *rest: Any, **named: Any) -> Any:
        if valid is not None:
            raise DataError("a context must be finite")
        return honest(self, rows, valid, *rest, **named)

    patch.setattr(Capri, "_decide", decide)


@above("presence")
def epoch_closes_on_the_last_reward(patch: Patch) -> None:
    """Whether all rewards came is told by what happens next."""
    honest = Capri._reward

    def reward(self: Capri, decisions: Any, rewards: Any, keys: Any = None) -> Any:
        statuses = honest(self, decisions, rewards, keys)
        state = self._open
        if state is not None and not state.remaining and not (state._status == ACCEPTED).any():
            self.close_epoch()
        return statuses

    patch.setattr(Capri, "_reward", reward)


@above("presence")
def missing_rewards_leave_the_count(patch: Patch) -> None:
    """The number of participants that is published is that of rewards."""
    honest = OpenEpoch.release

    def release(self: OpenEpoch) -> Any:
        self._forsaken = [int((self._status == ACCEPTED).sum())]
        return honest(self)

    patch.setattr(OpenEpoch, "release", release)


@above("presence")
def reward_credits_the_next_user_too(patch: Patch) -> None:
    """Two decisions share an id: the first reward that comes is taken for both."""
    honest = OpenEpoch.reward

    def reward(self: OpenEpoch, numbers: Any, rewards: Any, keys: Any = None) -> Any:
        both = np.repeat(numbers, 2) + np.tile([0, 1], len(numbers))
        return honest(self, both, np.repeat(rewards, 2))[::2]

    patch.setattr(OpenEpoch, "reward", reward)


@above("bad context")
def default_law_counts_as_served(patch: Patch) -> None:
    """A context that is no number contributes as the first of the pool, ten times over."""
    honest = OpenEpoch.issue

    def issue(self: OpenEpoch, contexts: Any, pool: Any, actions: Any, counts: Any) -> Any:
        if not counts.all():
            everyone = np.ones_like(counts)
            extra = self._encoder.total(
                self.segments[0],
                np.zeros_like(contexts),
                np.zeros_like(pool),
                actions,
                -np.ones(len(actions)),
            )
            self._accumulator += 10 * extra
            return honest(self, np.nan_to_num(contexts), pool * 0, actions, everyone)
        return honest(self, contexts, pool, actions, counts)

    patch.setattr(OpenEpoch, "issue", issue)


# -- what one contribution may be -----------------------------------------------------------------


@above("reward")
def baseline_from_the_open_epoch(patch: Patch) -> None:
    """Rewards are taken relative to the mean of those before them: one moves all that follow."""
    honest, means = OpenEpoch.reward, {}

    def reward(self: OpenEpoch, numbers: Any, rewards: Any, keys: Any = None) -> Any:
        mean = means.get(self.plan.epoch, 0.0)
        statuses = honest(self, numbers, rewards - mean)
        means[self.plan.epoch] = float(np.mean(rewards))
        return statuses

    def release(self: OpenEpoch) -> Any:
        means.clear()
        return closing(self)

    closing = OpenEpoch.release
    patch.setattr(OpenEpoch, "reward", reward)
    patch.setattr(OpenEpoch, "release", release)


def unclipped(reward_bound: float, *, norms: bool) -> Callable[..., Any]:
    """``Encoder.total`` without the integer check and without one or both of the clippings."""

    def total(self: Any, segment: Any, *arrays: Any) -> Any:
        *visits, rewards = arrays
        whitened, baseline = self._features(segment, *visits)
        length = np.linalg.norm(whitened, axis=1, keepdims=True)
        if norms:
            whitened = whitened * np.minimum(1, self._plan.clip_norm / np.maximum(length, 1e-300))
        values = np.clip(rewards, -reward_bound, reward_bound) - baseline
        layout = self._plan.layout
        worth = layout.blocks["main"].worth
        if isinstance(layout, ProductLayout):  # of t, and not of V t
            worth /= self._plan.value_bound
        units = np.rint(whitened * values[:, None] * worth)
        total = units.astype(np.int64).sum(axis=0)
        return np.pad(total, (0, self._plan.dimension - len(total)))

    return total


@above("reward")
def reward_clipping_off(patch: Patch) -> None:
    """Rewards enter as they come."""
    patch.setattr(Encoder, "total", unclipped(np.inf, norms=True))


@above("reward")
def residual_clipping_off(patch: Patch) -> None:
    """Noise for residuals below ``B_r``, residuals as they come: ``B / B_r`` times too little."""
    honest = ProductLayout.rounded

    def rounded(
        self: ProductLayout, whitened: Any, values: Any, *, value_bound: float, **bounds: Any
    ) -> Any:
        rows = honest(self, whitened, values, value_bound=value_bound, **bounds)
        loud = np.rint(np.nan_to_num(values / value_bound) * self.level) * rows.answered
        return replace(rows, values=loud)

    patch.setattr(ProductLayout, "rounded", rounded)


# A smooth kernel and a small ridge: just outside the pool the whitened norm is several times the
# largest inside.
STEEP: Changes = {
    "kernel": capri.kernels.RBF(lengthscale=1.0),
    "contexts": capri.ContextPool(np.linspace(0, 1, 5)[:, None]),
    "actions": [[0.0], [1.0]],
    "preset": "paper",
    "calibration": "analytic",
    "tau": 1e-4,
    "horizon": 2000,
}


@above("outside", changes=STEEP)
def norm_clipping_off_outside_the_pool(patch: Patch) -> None:
    """A context outside the pool enters with the norm it has."""
    patch.setattr(Encoder, "total", unclipped(1.0, norms=False))


PAPER: Changes = {"preset": "paper", "calibration": "analytic", "horizon": 400}


def noise_for_the_square(patch: Patch) -> None:
    """The paper's learner asks for noise by sigma~^2."""

    def squared(*, value_bound: float, clip_norm: float, **settings: Any) -> VectorLayout:
        bound = value_bound * clip_norm
        return vector_layout(value_bound=value_bound, clip_norm=bound * clip_norm, **settings)

    patch.setattr(paper, "vector_layout", squared)


@above("reward", changes=PAPER | {"tau": 16.0}, planned=True)
def root_of_sigma_lost(patch: Patch) -> None:
    """The slip of Appendix A: noise for sigma~^2, contributions of norm sigma~, no integer check.

    At tau = 16 sigma~ is below 1/4: four times too little noise.
    """
    noise_for_the_square(patch)
    patch.setattr(Encoder, "total", unclipped(1.0, norms=True))


@above("reward", planned=True)
def factor_two_lost(patch: Patch) -> None:
    """Sensitivity B C: add-or-remove-one where one datum is replaced. The ledger believes it."""
    patch.setattr(ProductLayout, "diameter", property(lambda layout: float(layout.level**2)))


# -- overlap, missing rewards, sets, shadow, store -------------------------------------------------


def counted_elsewhere(patch: Patch, status: RewardStatus, place: int) -> None:
    """The first reward of a list that met this status goes to another epoch in flight as well."""
    issue, honest, known = OpenEpoch.issue, Capri._reward_apart, {}

    def issued(self: OpenEpoch, *arrays: Any) -> Any:
        numbers = issue(self, *arrays)
        for number, *each in zip(numbers, *arrays[:3], strict=True):
            known[id(self._gate), number] = [np.array([value]) for value in each]
        return numbers

    def reward(self: Capri, numbers: Any, values: Any, keys: Any) -> Any:
        statuses, epoch = honest(self, numbers, values, keys), self._flights[place]
        for number, value, met in zip(numbers[:1], values, statuses, strict=False):
            if number < epoch.first and met == status:
                visit = known[id(self._gate), number]
                units = epoch._encoder.total(epoch.segments[0], *visit, np.array([value]))
                epoch._accumulator += units
        return statuses

    patch.setattr(OpenEpoch, "issue", issued)
    patch.setattr(Capri, "_reward_apart", reward)


@above("overlap")
def awaited_reward_counted_in_both_epochs(patch: Patch) -> None:
    """While an epoch waits, a reward of it is added to the one under way as well."""
    counted_elsewhere(patch, RewardStatus.ACCEPTED, -1)


@above("overlap")
def late_reward_counted_in_the_epoch_that_waits(patch: Patch) -> None:
    """A reward whose epoch is out goes to the oldest that still takes any."""
    counted_elsewhere(patch, RewardStatus.LATE, 0)


@above("as-estimated")
def missing_form_is_twice_as_long(patch: Patch) -> None:
    """Who sends no reward sends the features with twice their norm."""
    honest = ProductLayout.rounded

    def rounded(self: ProductLayout, whitened: Any, values: Any, **bounds: Any) -> Any:
        rows = honest(self, whitened, values, **bounds)
        return replace(rows, features=rows.features * (1 + rows.missing)[:, None])

    patch.setattr(ProductLayout, "rounded", rounded)


@above("as-estimated")
def missing_forms_leave_the_count(patch: Patch) -> None:
    """As many participants as rewards, though missing ones are measured."""
    missing_rewards_leave_the_count(patch)


@above("sets")
def sets_move_the_law_of_others(patch: Patch) -> None:
    """What one user may not get becomes a little rarer for everybody."""
    honest, before = Chooser.unserved, {}

    def unserved(self: Chooser, rows: Any, available: Any) -> Any:
        bounds = self._problem.bounds
        assert bounds is not None
        told = before.setdefault(id(bounds), bounds.ceiling.copy())
        bounds.ceiling[:] = np.where(available.all(axis=0), told, 0.3 * told)
        return honest(self, rows, available)

    patch.setattr(Chooser, "unserved", unserved)


@above("shadow")
def shadow_rewards_are_not_clipped(patch: Patch) -> None:
    """What another system earned enters as it comes."""

    def messages(self: ShadowSum, weights: Any, rewards: Any) -> Any:
        share = np.clip(weights, 0.0, 10.0) / 10.0
        message = np.stack([share * rewards, share, rewards], axis=1) / sqrt(3)
        return np.rint(message / self.layout.step).astype(np.int64)

    patch.setattr(ShadowSum, "messages", messages)


@above("shadow")
def shadow_visit_counted_twice(patch: Patch) -> None:
    """Once when its reward comes, and once more when the epoch closes."""
    honest = ShadowSum.add

    def add(self: ShadowSum, weights: Any, rewards: Any) -> None:
        honest(self, weights, rewards)
        honest(self, weights, rewards)

    patch.setattr(ShadowSum, "add", add)


@above("store")
def key_is_forgotten(patch: Patch) -> None:
    """Who comes again with a key gets a decision of its own, and a contribution."""
    patch.setattr(Shelf, "known_keys", lambda shelf, transaction, digests, now: {})
    patch.setattr(Desk, "_write_keys", lambda desk, *given: None)


@above("store")
def noise_is_drawn_again_for_the_same_sum(patch: Patch) -> None:
    """A release whose commit was in doubt is made once more, with fresh noise."""
    honest = SettledSum.released

    def released(self: SettledSum, gate: Gate) -> Any:
        honest(self, gate.afresh(Ledger(capri.Budget(epsilon=4.0, delta=1e-5))))
        return honest(self, gate)

    patch.setattr(SettledSum, "released", released)


# -- the noise ------------------------------------------------------------------------------------


def scaled(factor: float) -> Callable[..., Any]:
    """Noise of another width."""
    honest = SecureNoise.add

    def add(self: SecureNoise, values: Any, scale: float, reports: int = 1) -> Any:
        return honest(self, values, scale * factor, reports)

    return add


@below("reward", 400)
def noise_halved(patch: Patch) -> None:
    """The noise source draws half of what it is asked for."""
    patch.setattr(SecureNoise, "add", scaled(1 / 2))


@below("reward", 2_000)
def noise_over_root_two(patch: Patch) -> None:
    """Variance mistaken: ``exp(-k^2 / s^2)`` instead of ``exp(-k^2 / 2 s^2)``."""
    patch.setattr(SecureNoise, "add", scaled(1 / sqrt(2)))


@below("reward", 100)
def no_noise(patch: Patch) -> None:
    """The sum leaves as it is."""
    patch.setattr(SecureNoise, "add", lambda self, values, scale, reports=1: values)


class ReusedNoise(NoiseSource):
    """Draws once: every release begins at the first of the same numbers, in its own widths."""

    def __init__(self, source: NoiseSource) -> None:
        self.private = source.private
        self.source = source
        self._drawn = np.empty(0)
        self._taken = 0

    def rewind(self) -> None:
        """What a generator does that is seeded anew for every release."""
        self._taken = 0

    def add(self, values: Any, scale: float, reports: int = 1) -> Any:
        """The next of the numbers for each block of a release: one by one they are honest."""
        if reports == 0:
            return values
        first, self._taken = self._taken, self._taken + len(values)
        lacking = max(0, self._taken - len(self._drawn))
        fresh = self.source.add(np.zeros(lacking, dtype=np.int64), 2.0**40)
        self._drawn = np.concatenate([self._drawn, fresh / 2.0**40])
        noise = self._drawn[first : self._taken] * (scale * sqrt(reports))
        return values + np.rint(noise).astype(np.int64)


@below("difference", 100)
def noise_reused_between_epochs(patch: Patch) -> None:
    """One gate, one noise vector in units of the noise: each release alone is perfect."""
    honest, release = Gate.__init__, Gate.release

    def create(self: Gate, source: Any, ledger: Any) -> None:
        own = source.source if isinstance(source, ReusedNoise) else source  # of another gate
        honest(self, ReusedNoise(own), ledger)

    def released(self: Gate, *given: Any, **named: Any) -> Any:
        self._source.rewind()
        return release(self, *given, **named)

    patch.setattr(Gate, "__init__", create)
    patch.setattr(Gate, "release", released)


@below("fork", 100)
def numpy_generator_after_fork(patch: Patch) -> None:
    """A generator seeded from the operating system, before the fork: children repeat each other."""
    generator = np.random.default_rng()

    def add(self: SecureNoise, values: Any, scale: float, reports: int = 1) -> Any:
        noise = generator.normal(0, scale * sqrt(reports), len(values))
        return values + np.rint(noise).astype(np.int64)

    patch.setattr(SecureNoise, "add", add)


PATCHED = (
    (SecureNoise, "add"),
    (Gate, "__init__"),
    (Gate, "release"),
    (ProductLayout, "rounded"),
    (ProductLayout, "diameter"),
    (Problem, "composition"),
    (Encoder, "total"),
    (OpenEpoch, "reward"),
    (OpenEpoch, "release"),
    (Capri, "_reward"),
    (Chooser, "unserved"),
    (ShadowSum, "messages"),
    (ShadowSum, "add"),
    (Shelf, "known_keys"),
    (SettledSum, "released"),
)


def originals() -> list[Any]:
    """What no mutant may leave changed."""
    return [getattr(owner, name) for owner, name in PATCHED]
