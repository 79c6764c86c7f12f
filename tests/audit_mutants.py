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
from capri.audit.plays import Scenario
from capri.audit.scenarios import scenarios
from capri.epoch.decide import Chooser
from capri.epoch.encode import Encoder
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardStatus
from capri.epoch.shadow import ShadowSum
from capri.errors import DataError
from capri.joint import release
from capri.joint.pace import Synchronous
from capri.joint.policy import Capri
from capri.joint.release import Releases, SettledSum
from capri.joint.rewards import Rewards
from capri.learners import paper
from capri.privacy import gate
from capri.privacy.gate import Gate
from capri.privacy.histogram import HistogramLayout
from capri.privacy.layout import MECHANISMS, Layout, Norm
from capri.privacy.ledger import Ledger
from capri.privacy.noise import NoiseSource, SecureNoise
from capri.privacy.pairs import CountLayout, PairLayout
from capri.privacy.products import ProductLayout
from capri.privacy.vector import VectorLayout, vector_layout
from capri.store.memory import MemoryRepository
from capri.store.memory_rows import MemoryRows
from capri.store.repository import EpochPart
from capri.store.sql_rows import SqlRows

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
    faint: bool

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
    scenario: str, *, changes: Changes | None = None, planned: bool = False, faint: bool = False
) -> Callable[[Mutant], Mutant]:
    """Register a bug above the gate; ``changes`` of the configuration on which it shows.

    ``faint``: a few thousand runs with real noise do not prove it, two with the oracle do.
    """

    def register(mutant: Mutant) -> Mutant:
        ABOVE[mutant.__name__] = Above(mutant, scenario, changes or {}, planned, faint)
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
    patch.setattr(Problem, "contributions", property(lambda problem: 1))


@above("users")
def visit_over_the_limit_contributes(patch: Patch) -> None:
    """The book is kept and nobody reads it."""
    honest = MemoryRows.reserve

    def reserve(self: MemoryRows, *given: Any) -> Any:
        return np.ones_like(honest(self, *given))

    patch.setattr(MemoryRows, "reserve", reserve)


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
    """The sum is not emptied when an epoch closes."""
    honest = Releases.settle
    kept: WeakKeyDictionary[Releases, Any] = WeakKeyDictionary()  # an id would serve others

    def settle(self: Releases, number: int) -> None:
        honest(self, number)
        settled, ready = self._sums[number]
        total, past = settled.total.copy(), kept.get(self)
        if past is not None:
            size = min(len(past), len(total))
            total[:size] += past[:size]
        kept[self] = settled.total
        self._sums[number] = replace(settled, total=total), ready

    patch.setattr(Releases, "settle", settle)


@above("twice")
def visits_that_told_of_contexts_learnt_from_too(patch: Patch) -> None:
    """Rows of an epoch about contexts alone are encoded again in the next; nothing reserves it."""
    honest = release.settled_sum
    kept: list[EpochPart] = []

    def settled_sum(
        plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> SettledSum:
        own = list(parts)
        found = honest(plan, segments, starts, problem, own, **how)
        again = honest(plan, [plan.opening], [0], problem, kept, **how)
        kept[:] = own if isinstance(plan.layout, PairLayout) else []
        return replace(found, total=found.total + again.total)

    patch.setattr(release, "settled_sum", settled_sum)


@above("marginals", planned=True)
def cells_calibrated_for_one_column(patch: Patch) -> None:
    """The diameter of one column's cells is taken for that of all."""
    honest = CountLayout.diameter_squared.fget
    assert honest is not None
    patch.setattr(
        CountLayout,
        "diameter_squared",
        property(lambda layout: honest(replace(layout, cells=layout.cells[:1]))),
    )


@above("dependence")
def products_of_scores_not_cut(patch: Patch) -> None:
    """Rows of scores are as long as they are."""
    honest = PairLayout.total

    def total(self: PairLayout, features: Any, values: Any, **how: Any) -> Any:
        one, other = np.triu_indices(self.scores, 1)
        uncut = np.rint(self._units * features / how["clip_norm"]).astype(np.int64)
        return (
            (uncut[:, one] * uncut[:, other]).sum(axis=0)
            if len(features)
            else honest(self, features, values, **how)
        )

    patch.setattr(PairLayout, "total", total)


def noted_rewards(patch: Patch, status: RewardStatus) -> dict[int, list[tuple[int, float]]]:
    """Numbers and values of rewards that met a status, by the engine that took them."""
    honest, noted = Rewards.reward, {}

    def reward(self: Rewards, numbers: Any, values: Any, keys: Any) -> Any:
        statuses = honest(self, numbers, values, keys)
        met = noted.setdefault(id(self._state), [])
        met += [
            (int(number), float(value))
            for number, value, each in zip(numbers, values, statuses, strict=True)
            if each == status
        ]
        return statuses

    patch.setattr(Rewards, "reward", reward)
    return noted


def counted_elsewhere(patch: Patch, status: RewardStatus, epoch_of: Callable[..., int]) -> None:
    """The first reward that met this status goes to another epoch as well.

    ``epoch_of`` gives that epoch from the view, when the reward has come.
    """
    noted, known, added = noted_rewards(patch, status), {}, {}
    write, settle, honest = MemoryRows.write_decisions, Releases.settle, Rewards.reward

    def written(self: MemoryRows, unit: None, numbers: Any, played: Any) -> None:
        write(self, unit, numbers, played)
        for place, number in enumerate(numbers.tolist()):
            one = slice(place, place + 1)
            known[id(self), number] = played.numbers[one], played.place[one], played.action[one]

    def reward(self: Rewards, numbers: Any, values: Any, keys: Any) -> Any:
        statuses = honest(self, numbers, values, keys)
        state, met = self._state, noted.get(id(self._state), [])
        view = state.look()
        if met and view.epochs and id(state) not in added:
            number, value = met[0]
            target = view.epochs[epoch_of(view)]
            if number < target.first:
                added[id(state)] = target.number, number, value
        return statuses

    def settled(self: Releases, number: int) -> None:
        settle(self, number)
        target, decision, value = added.get(id(self._state), (None, 0, 0.0))
        if target == number:
            found, ready = self._sums[number]
            context, place, action = known[id(self.repository.rows), decision]
            pairs = self._state.problem.actions.chosen(context, action)
            encoder = Encoder(found.plan, self._state.problem)
            more = encoder.total(found.plan.opening, pairs, place, action, np.array([value]))
            self._sums[number] = replace(found, total=found.total + more), ready

    patch.setattr(MemoryRows, "write_decisions", written)
    patch.setattr(Rewards, "reward", reward)
    patch.setattr(Releases, "settle", settled)


@above("next")
def late_reward_counted_in_the_next_epoch(patch: Patch) -> None:
    """A reward that comes too late is added to whatever epoch is open."""
    counted_elsewhere(patch, RewardStatus.LATE, lambda view: -1)


@above("restart")
def saved_run_keeps_its_open_rows(patch: Patch) -> None:
    """A copy of a private run goes on with the data of the first."""
    honest = MemoryRepository.snapshot

    def snapshot(self: MemoryRepository, *, secret: bool) -> Any:
        return honest(self, secret=True)

    patch.setattr(MemoryRepository, "snapshot", snapshot)


def counted_again(patch: Patch, times: Callable[[Any], Any]) -> None:
    """Rewards of a call count so many times each, whatever came before."""
    honest, honest_parts, count = Rewards._accept, MemoryRows.parts, {}

    def accept(self: Rewards, unit: None, numbers: Any, values: Any, names: Any) -> Any:
        for number in times(numbers).tolist():
            key = id(self._rows), number
            count[key] = count.get(key, 0) + 1
        return honest(self, unit, numbers, values, names)

    def parts(self: MemoryRows, first: int, last: int) -> Any:
        for part in honest_parts(self, first, last):
            times_each = [count.get((id(self), number), 1) for number in part.numbers.tolist()]
            again = np.repeat(np.arange(len(part.numbers)), np.maximum(times_each, 1))
            yield _repeated(part, again)

    patch.setattr(Rewards, "_accept", accept)
    patch.setattr(MemoryRows, "parts", parts)


def _repeated(part: EpochPart, again: Any) -> EpochPart:
    """Some decisions more than once, each with its reward."""
    each, values = part.played, np.full(len(part.numbers), np.nan)
    values[np.searchsorted(part.numbers, part.rewarded)] = part.rewards
    columns = (each.status, each.place, each.action, each.propensity, each.numbers)
    played = type(each)(*(column[again] for column in columns))
    numbers = np.arange(len(again)) + (part.numbers[0] if len(part.numbers) else 0)
    came = ~np.isnan(values[again])
    return EpochPart(numbers, played, numbers[came], values[again][came])


@above("reward")
def reward_counted_again(patch: Patch) -> None:
    """A reward sent again is added again."""
    counted_again(patch, lambda numbers: numbers)


@above("reward")
def reward_counted_again_within_a_batch(patch: Patch) -> None:
    """Only duplicates of earlier calls are noticed, not those within one call."""
    counted_again(patch, lambda numbers: numbers if len(numbers) > 1 else numbers[:0])


@above("reward")
def update_forgets_what_update_many_counted(patch: Patch) -> None:
    """Rewards of a batch leave no mark, so that single ones are added once more."""
    counted_again(patch, lambda numbers: numbers if len(numbers) == 1 else np.unique(numbers))


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
    honest = Synchronous.decide

    def decide(self: Synchronous, visits: Any) -> Any:
        if visits.valid is not None:
            raise DataError("a context must be finite")
        return honest(self, visits)

    patch.setattr(Synchronous, "decide", decide)


@above("presence")
def epoch_closes_on_the_last_reward(patch: Patch) -> None:
    """Whether all rewards came is told by what happens next."""
    honest = Capri._reward

    def reward(self: Capri, decisions: Any, rewards: Any, keys: Any = None) -> Any:
        statuses = honest(self, decisions, rewards, keys)
        rows, view = self._engine.repository.rows, self._engine.state.look()
        newest = view.newest
        if newest is not None:
            (part,) = rows.parts(newest.first, newest.first + newest.length)
            if len(part.rewarded) == newest.length:
                self.close_epoch()
        return statuses

    patch.setattr(Capri, "_reward", reward)


@above("presence")
def missing_rewards_leave_the_count(patch: Patch) -> None:
    """The number of participants that is published is that of rewards."""
    honest, rewarded = release.settled_sum, [0]

    def settled_sum(
        plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> Any:
        parts = list(parts)
        rewarded[0] = sum(len(part.rewarded) for part in parts)
        found = honest(plan, segments, starts, problem, parts, **how)
        return replace(found, counts=(max(1, rewarded[0]),))

    patch.setattr(release, "settled_sum", settled_sum)


@above("presence")
def reward_credits_the_next_user_too(patch: Patch) -> None:
    """Two decisions share an id: the first reward that comes is taken for both."""
    honest = Rewards.reward

    def reward(self: Rewards, numbers: Any, values: Any, keys: Any = None) -> Any:
        both = np.repeat(numbers, 2) + np.tile([0, 1], len(numbers))
        return honest(self, both, np.repeat(values, 2), keys)[::2]

    patch.setattr(Rewards, "reward", reward)


@above("bad context")
def default_law_counts_as_served(patch: Patch) -> None:
    """A context that is no number contributes as the first of the pool, ten times over."""
    honest = release.settled_sum

    def settled_sum(
        plan: Any, segments: Any, starts: Any, problem: Any, parts: Any, **how: Any
    ) -> Any:
        parts = list(parts)
        found = honest(plan, segments, starts, problem, parts, **how)
        total = found.total
        for part in parts:
            void = part.played.status == 1
            action, count = part.played.action[void], int(void.sum())
            pairs = problem.actions.chosen(np.zeros((count, problem.contexts.dimension)), action)
            place, rewards = np.zeros(count, dtype=int), -np.ones(count)
            total = total + 10 * Encoder(plan, problem).total(
                segments[0], pairs, place, action, rewards
            )
        return replace(found, total=total)

    patch.setattr(release, "settled_sum", settled_sum)


# -- what one contribution may be -----------------------------------------------------------------


@above("reward")
def baseline_from_the_open_epoch(patch: Patch) -> None:
    """Rewards are taken relative to the mean of those before them: one moves all that follow."""
    honest, means, closing = Rewards.reward, {}, Releases.settle

    def reward(self: Rewards, numbers: Any, values: Any, keys: Any = None) -> Any:
        mean = means.get(id(self._state), 0.0)
        statuses = honest(self, numbers, values - mean, keys)
        means[id(self._state)] = float(np.mean(values))
        return statuses

    def settled(self: Releases, number: int) -> None:
        means.pop(id(self._state), None)
        closing(self, number)

    patch.setattr(Rewards, "reward", reward)
    patch.setattr(Releases, "settle", settled)


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


# Never anything but messages of one cell.
PURE: Changes = {"budget": capri.Budget(epsilon=4.0)}
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


@above("overlap")
def awaited_reward_counted_in_both_epochs(patch: Patch) -> None:
    """While an epoch waits, a reward of it is added to the one under way as well."""
    counted_elsewhere(patch, RewardStatus.ACCEPTED, lambda view: -1)


@above("overlap")
def late_reward_counted_in_the_epoch_that_waits(patch: Patch) -> None:
    """A reward whose epoch is out goes to the oldest that still takes any."""
    counted_elsewhere(patch, RewardStatus.LATE, lambda view: 0)


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
        share, up = np.clip(weights, 0.0, 10.0) / 10.0, (1 + rewards) / 2
        if isinstance(self.layout, VectorLayout):
            message = np.stack([share * rewards, share - 0.5, rewards], axis=1) * 2 / 3
            return np.rint(message / self.layout.step).astype(np.int64)
        parts = [share * up, share * (1 - up), (1 - share) * up, (1 - share) * (1 - up)]
        return np.rint(self.layout.level * np.stack(parts, axis=1)).astype(np.int64)

    patch.setattr(ShadowSum, "messages", messages)


@above("shadow")
def shadow_visit_counted_twice(patch: Patch) -> None:
    """Once when its reward comes, and once more when the epoch closes."""
    honest = ShadowSum.add

    def add(self: ShadowSum, weights: Any, rewards: Any) -> None:
        honest(self, weights, rewards)
        honest(self, weights, rewards)

    patch.setattr(ShadowSum, "add", add)


@above("reward", changes=PURE, planned=True)
def cells_are_one_value_apart(patch: Patch) -> None:
    """From -L to L it is twice L."""
    patch.setattr(HistogramLayout, "diameter_squared", property(lambda layout: layout.level**2))


@above("reward", changes=PURE, faint=True)
def value_is_sent_in_two_cells(patch: Patch) -> None:
    """A neighbour's cell hears of it as well, and the diameter is that of one.

    The attacker of an audit looks where the plan puts a message, and learns little of elsewhere.
    """
    honest = HistogramLayout.total

    def total(self: HistogramLayout, cells: Any, values: Any, **bounds: float) -> Any:
        units = honest(self, cells, values, **bounds)
        units[: self.cells] += np.roll(units[: self.cells], 1)
        return units

    patch.setattr(HistogramLayout, "total", total)


def cells_moved(patch: Patch, steps: Callable[[Any, Any], int]) -> None:
    """Cells change their places by so many ``steps``, which pairs and rewards of the epoch tell."""
    honest = Encoder.total

    def total(self: Any, segment: Any, pairs: Any, places: Any, actions: Any, rewards: Any) -> Any:
        plan, moved = self._plan, steps(pairs, rewards) % self._plan.layout.cells
        vars(self).pop("_table", None)
        centres = np.roll(plan.features.centres, moved, axis=0)
        self._plan = replace(plan, features=replace(plan.features, centres=centres))
        try:
            return honest(self, segment, pairs, places, actions, rewards)
        finally:
            self._plan = plan

    patch.setattr(Encoder, "total", total)


@above("bad context", changes=PURE)
def partition_is_fitted_to_those_who_came(patch: Patch) -> None:
    """Cells move with the contexts of the open epoch: one of them moves what others say."""
    cells_moved(patch, lambda pairs, rewards: len(pairs))


@above("reward", changes=PURE)
def partition_is_changed_after_the_first_decision(patch: Patch) -> None:
    """The first decision of an epoch is rewarded, and cells are others for all that follow."""
    cells_moved(patch, lambda pairs, rewards: int(rewards[0] > 0))


@above("next", changes=PURE, faint=True)
def both_noises_in_one_epoch(patch: Patch) -> None:
    """A sum of cells leaves with Gaussian noise as well: either release alone keeps the budget."""
    honest, gaussian = Gate.release, MECHANISMS[Norm.L2]

    def release(self: Gate, total: Any, layout: Any, **how: Any) -> Any:
        budget = replace(PURE["budget"], delta=1e-5)
        scale = gaussian.scale(layout.diameter, budget, layout.coordinates, 1.0)
        self._left(layout.numbers(self._source.add(total, scale, 1, Norm.L2)))
        return honest(self, total, layout, **how)

    patch.setattr(Gate, "release", release)


@above("store")
def key_is_forgotten(patch: Patch) -> None:
    """Who comes again with a key gets a decision of its own, and a contribution."""
    patch.setattr(SqlRows, "known_keys", lambda rows, unit, digests, now: {})
    patch.setattr(SqlRows, "write_keys", lambda rows, *given: True)


@above("store")
def noise_is_drawn_again_for_the_same_sum(patch: Patch) -> None:
    """A release whose commit was in doubt is made once more, with fresh noise."""
    honest = SettledSum.released

    def released(self: SettledSum, gate: Gate) -> Any:
        again = Ledger(capri.Budget(epsilon=4.0, delta=1e-5))
        honest(self, gate.afresh(again, gate._held))  # type: ignore[arg-type]
        return honest(self, gate)

    patch.setattr(SettledSum, "released", released)


# -- the noise ------------------------------------------------------------------------------------


def scaled(factor: float) -> Callable[..., Any]:
    """Noise of another width."""
    honest = SecureNoise.add

    def add(
        self: SecureNoise, values: Any, scale: float, reports: int = 1, norm: Any = Norm.L2
    ) -> Any:
        return honest(self, values, scale * factor, reports, norm)

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
    patch.setattr(SecureNoise, "add", lambda self, values, *law: values)


def noiseless(patch: Patch, kind: type[Layout]) -> None:
    """What has messages of this kind leaves as it is."""
    honest = gate.noised

    def noised(total: Any, layout: Layout, *how: Any) -> Any:
        return total if isinstance(layout, kind) else honest(total, layout, *how)

    patch.setattr(gate, "noised", noised)


@below("marginals", 100)
def marginals_without_noise(patch: Patch) -> None:
    """Counts of cells are thought to be harmless."""
    noiseless(patch, CountLayout)


@below("dependence", 100)
def dependence_without_noise(patch: Patch) -> None:
    """Correlations are thought to be harmless."""
    noiseless(patch, PairLayout)


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

    def add(self, values: Any, scale: float, reports: int = 1, norm: Any = Norm.L2) -> Any:
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
        reused = source if isinstance(source, ReusedNoise) else ReusedNoise(source)
        honest(self, reused, ledger)

    def released(self: Gate, *given: Any, **named: Any) -> Any:
        self._source.rewind()
        return release(self, *given, **named)

    patch.setattr(Gate, "__init__", create)
    patch.setattr(Gate, "release", released)


@below("fork", 100)
def numpy_generator_after_fork(patch: Patch) -> None:
    """A generator seeded from the operating system, before the fork: children repeat each other."""
    generator = np.random.default_rng()

    def add(
        self: SecureNoise, values: Any, scale: float, reports: int = 1, norm: Any = Norm.L2
    ) -> Any:
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
    (Rewards, "reward"),
    (Releases, "settle"),
    (MemoryRows, "parts"),
    (Capri, "_reward"),
    (Chooser, "unserved"),
    (ShadowSum, "messages"),
    (ShadowSum, "add"),
    (SqlRows, "known_keys"),
    (SettledSum, "released"),
)


def originals() -> list[Any]:
    """What no mutant may leave changed."""
    return [getattr(owner, name) for owner, name in PATCHED]
