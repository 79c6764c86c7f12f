"""Guard rails of the practical learner: what they look at, and notices in words.

A notice says what was seen, what it means and what to do. Everything here is a function of options,
public rows, plans and releases: post-processing. Nothing that is planned, played or released
depends on it, and it takes no draw from anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.plan import Notice
from capri.epoch.problem import Problem
from capri.features import Basis, Span
from capri.kernels import sharing_one_scale
from capri.learners.belief import PRIOR_SCALES, Belief, Believed, Told
from capri.learners.boundary import public_pairs
from capri.learners.fit import (
    FALSE_ALARMS,
    Candidate,
    Fit,
    Innovation,
    PoolTest,
    Rates,
    candidates,
)
from capri.learners.options import PracticalOptions
from capri.learners.overdispersion import SIZES, Overdispersion
from capri.spaces import FixedActions

# Spreads that differ by more than this cannot both suit one lengthscale.
TOO_DIFFERENT = 10.0


@dataclass(frozen=True)
class Unequal:
    """The widest and the narrowest column of a group that shares one scale."""

    widest: str
    narrowest: str
    wide: float
    narrow: float

    @property
    def ratio(self) -> float:
        """How often the narrow spread goes into the wide one."""
        return self.wide / self.narrow


def most_unequal(problem: Problem, pairs: FloatArray) -> Unequal | None:
    """The group whose spreads differ most, of public pairs; None where all are alike enough.

    A column that never changes says nothing and is left out.
    """
    spreads = np.array([_spread(column) for column in pairs.T])
    names = column_names(problem, pairs.shape[1])
    found: list[Unequal] = []
    for group in sharing_one_scale(problem.kernel, range(pairs.shape[1])):
        moving = [place for place in group if spreads[place] > 0]
        if moving:
            wide = max(moving, key=lambda place: spreads[place])
            narrow = min(moving, key=lambda place: spreads[place])
            found.append(
                Unequal(names[wide], names[narrow], float(spreads[wide]), float(spreads[narrow]))
            )
    worst = max(found, key=lambda each: each.ratio, default=None)
    return worst if worst is not None and worst.ratio > TOO_DIFFERENT else None


def _spread(column: FloatArray) -> float:
    """The standard deviation; of two values half their distance, however rare one of them is."""
    low, high = column.min(), column.max()
    if np.isin(column, (low, high)).all():
        return float(high - low) / 2
    return float(column.std())


def column_names(problem: Problem, width: int) -> tuple[str, ...]:
    """What the columns of a pair are called: by their schema, else by their number."""
    actions, contexts = problem.actions, problem.contexts
    split = width - actions.dimension
    own = [f"context column {place}" for place in range(split)]
    if contexts.schema is not None:
        own = [f"context column {name!r}" for name in contexts.schema.features[:split]]
    other = [f"action column {place}" for place in range(actions.dimension)]
    if isinstance(actions, FixedActions) and actions.schema is not None:
        other = [f"action column {name!r}" for name in actions.schema.features]
    return (*own, *other)


# Another kernel is named when the releases are so many times as likely under it.
_ODDS = 1e6
# Products are said to be too few when they leave out more than this.
_TOO_MUCH = 0.1
# A pool is said to be wrong when so much of its weight would have to move: a sample of a few dozen
# people is as far from the law as a fifth. Users elsewhere are spoken of from so many on.
_FAR_FROM_THE_POOL, _SOME = 0.25, 0.05
# A rise of the rate of answers by less costs little; beyond it, so many deviations count.
_RISE, _DEVIATIONS = 0.03, 4.5


# -- before any user ------------------------------------------------------------------------------


def scales(problem: Problem, pairs: FloatArray) -> Notice | None:
    """Columns that one lengthscale cannot suit."""
    unequal = most_unequal(problem, pairs)
    if unequal is None:
        return None
    return Notice(
        kind="scales",
        text=(
            f"one lengthscale measures {unequal.widest}, with a spread of {unequal.wide:.3g}, and "
            f"{unequal.narrowest}, with {unequal.narrow:.3g}, {unequal.ratio:.0f} times less. To "
            "the kernel, rows that differ in the first are strangers, or rows that differ in the "
            "second are the same. Scale the columns alike, by a capri.Schema or by hand, or give "
            "the kernel one lengthscale per column"
        ),
        numbers={"largest": unequal.wide, "smallest": unequal.narrow, "ratio": unequal.ratio},
    )


def rank(options: PracticalOptions, basis: Basis, pairs: FloatArray) -> Notice | None:
    """The share of the mean of ``k(w, w)`` that ``max_rank`` coordinates leave out."""
    if basis.rank < options.max_rank:
        return None
    diagonal = float(basis.kernel.diagonal(pairs).mean())
    left_out = float(basis.residual(pairs, basis.coordinates(pairs)).mean()) / diagonal
    if not left_out > options.rank_tolerance:
        return None
    return Notice(
        kind="rank",
        text=(
            f"max_rank = {options.max_rank} coordinates leave out {left_out:.2g} of the kernel's "
            f"mean k(w, w), where rank_tolerance allows {options.rank_tolerance:g}. What depends "
            "on the part left out cannot be learnt, however many users come. Raise max_rank if "
            "time allows, or give a smoother kernel: longer lengthscales, fewer columns"
        ),
        numbers={
            "max_rank": options.max_rank,
            "left_out": left_out,
            "rank_tolerance": options.rank_tolerance,
        },
    )


def products(options: PracticalOptions, left_out: float) -> Notice | None:
    """The share of what a family expects of ``f`` that ``max_rank`` products leave out."""
    if not left_out > _TOO_MUCH:
        return None
    return Notice(
        kind="rank",
        text=(
            f"max_rank = {options.max_rank} products of features leave out {left_out:.0%} of what "
            "is expected of f before any user: its finest interactions. They count as noise, and "
            "play cannot learn them. Raise max_rank if time allows, or leave out columns that "
            "hardly matter"
        ),
        numbers={"max_rank": options.max_rank, "left_out": left_out},
    )


# -- after a release ------------------------------------------------------------------------------


_TOO_SMOOTH = (
    "Most often the kernel is too smooth: try half or a quarter of its lengthscale, one per "
    "column, or kernel='auto'. Else contexts are not like the public pool, rewards have changed, "
    "or their long tails are clipped"
)
_NOT_OF_THE_FAMILY = (
    "No kernel of the family explains it: contexts are not like the public pool, rewards have "
    "changed, or their long tails are clipped"
)


def misfit(fit: Fit, newest: Innovation, *, told: bool) -> Notice | None:
    """``fit`` with the newest release in it; ``told``: with a kernel that somebody chose."""
    chance = fit.chance(newest)
    if not chance < FALSE_ALARMS:
        return None
    own = newest.chi_square / newest.degrees
    return Notice(
        kind="misfit",
        text=(
            f"the newest release is {own:.1f} times as far from what was expected as it should be "
            f"(innovation chi-square over its {newest.degrees} degrees of freedom), all "
            f"{fit.releases} together {fit.ratio:.1f} times. A model that is right looks like "
            f"this in fewer than 1 of {1 / FALSE_ALARMS:.0f} runs, so play may settle on wrong "
            f"actions. {_TOO_SMOOTH if told else _NOT_OF_THE_FAMILY}"
        ),
        numbers={
            "ratio": own,
            "degrees": newest.degrees,
            "ratio_of_all": fit.ratio,
            "degrees_of_all": fit.degrees,
            "chance": chance,
            "false_alarms": FALSE_ALARMS,
        },
    )


def prior_scale(scale: float, norm_bound: float) -> Notice | None:
    """The end of the list of prior scales that the evidence chose, if it did."""
    smallest, largest = PRIOR_SCALES[0], PRIOR_SCALES[-1]
    if scale not in (smallest, largest):
        return None
    if scale == largest:
        text = (
            f"the evidence takes the largest prior scale there is, {largest:g}: the function looks "
            f"larger or rougher than a norm of {norm_bound:g} allows with this kernel. Most often "
            "a lengthscale is too long: try half or a quarter of it. Else raise norm_bound"
        )
    else:
        text = (
            f"the evidence takes the smallest prior scale there is, {smallest:g}: rewards hardly "
            "depend on context and action, or are much smaller than reward_bound says. Lower "
            "reward_bound if they are, since the privacy noise goes with it; else ask whether the "
            "columns tell anything, and whether contexts are like the public pool"
        )
    return Notice(kind="prior scale", text=text, numbers={"scale": scale, "norm_bound": norm_bound})


def another_kernel(
    belief: Belief, kernels: tuple[Candidate, ...], norm_bound: float
) -> Notice | None:
    """The candidate of largest evidence, where it beats the known kernel by a wide margin."""
    if not kernels:
        return None
    evidence = [candidate.log_evidence(belief, norm_bound) for candidate in kernels]
    gains = [each - evidence[0] for each in evidence]
    best, level, margin = int(np.argmax(gains)), len(gains) - 1, log(_ODDS)
    if not gains[best] > margin:
        return None
    factor, numbers = kernels[best].factor, {"log_odds": gains[best]}
    if best == level:
        change, remark = "plus a constant", "Rewards have a level that all pairs share"
    elif factor < 1:
        change = f"with its lengthscales times 1/{1 / factor:g}"
        remark = "The basis was made for the known kernel, so a shorter one still may be better"
        numbers["factor"] = factor
    else:
        change = f"with its lengthscales times {factor:g}"
        remark = "Less depends on the columns than it says, or no more was seen so far"
        numbers["factor"] = factor
        # A level that all pairs share looks like a long lengthscale, until more is known.
        if gains[best] - gains[level] < margin:
            change += ", and about as likely plus a constant"
    if "constant" in change:
        numbers["constant"] = kernels[level].constant
    return Notice(
        kind="another kernel",
        text=(
            f"the releases are e^{gains[best]:.0f} times as likely under the known kernel {change}"
            f". {remark}. Forecast a policy with that kernel, and build the next one with it"
        ),
        numbers=numbers,
    )


def people(found: Overdispersion) -> Notice | None:
    """How many people the releases stand for, where that is far from everybody being new."""
    odds = float(found.scores[found.likeliest] - found.scores[0])
    if found.likeliest == 0 or not odds > log(_ODDS):
        return None
    size = SIZES[found.likeliest]
    return Notice(
        kind="people",
        text=(
            f"the releases are e^{odds:.0f} times as likely if only some {size:,.0f} people took "
            "turns as if everybody were new. Either the same people come again, or the public pool "
            "is a small sample of those who come, or the kernel leaves out what they have in "
            "common. Estimates are held to be as rough as that, and longer play will not make them "
            "much better. A larger public pool helps, and so do columns that tell more"
        ),
        numbers={"people": size, "log_odds": odds},
    )


def pool(test: PoolTest, newest: Innovation) -> Notice | None:
    """With the newest moments in the test."""
    fit, mismatch, elsewhere = test.fit, test.mismatch, test.elsewhere
    chance = fit.chance(newest)
    if not (chance < FALSE_ALARMS and mismatch > _FAR_FROM_THE_POOL):
        return None
    missing = ""
    if elsewhere > _SOME:
        missing = (
            f" Some {elsewhere:.0%} are like nobody in it, and rows around it had to be guessed "
            "for them: add public rows from where they are, or declare ranges by "
            "capri.ContextPool.from_ranges."
        )
    return Notice(
        kind="pool",
        text=(
            f"those who come are not whom the public pool says: {mismatch:.0%} of its weight would "
            "have to move. A pool that is right looks like this in fewer than 1 of "
            f"{1 / FALSE_ALARMS:.0f} runs. Plans and estimates go on with the law that was learnt "
            f"from the releases, which is coarser than a right pool.{missing} The weights of a "
            "pool are the law of contexts: renew them, or the rows"
        ),
        numbers={
            "mismatch": mismatch,
            "elsewhere": elsewhere,
            "ratio": newest.chi_square / newest.degrees,
            "degrees": newest.degrees,
            "ratio_of_all": fit.ratio,
            "degrees_of_all": fit.degrees,
            "chance": chance,
            "false_alarms": FALSE_ALARMS,
        },
    )


def wait(rates: Rates) -> Notice | None:
    """Rewards that come after the wait, said beyond doubt."""
    if rates.rise is None:
        return None
    higher, deviation = rates.rise
    if not higher > _RISE + _DEVIATIONS * deviation:
        return None
    short, long = rates.short / rates.short_precision, rates.long / rates.long_precision
    return Notice(
        kind="wait",
        text=(
            f"{long:.0%} of decisions have a reward where the epoch was long and hence the "
            f"wait, {short:.0%} where it was short: rewards still come when reward_wait is "
            "over. If it depends on the outcome how long they take, as with purchases and "
            "bounces, estimates are of the quick ones. Wait longer. (Else people answer more "
            "often since better actions are played, and all is well.)"
        ),
        numbers={"short": short, "long": long, "deviation": deviation},
    )


def drift(nats: float, alarm: float) -> Notice:
    """By how much an empty belief predicted the release better than all that was learnt."""
    return Notice(
        kind="drift",
        text=(
            f"the newest release speaks by {nats:.0f} nats for a function of which nothing is "
            "known, or clipping suddenly cut off much of its rewards. What users want has "
            "changed, or who comes, or how rewards are counted. Everything learnt was dropped, "
            "and learning begins anew with short epochs. Nothing need be done if the change is "
            "real. If it is not, memory=math.inf never forgets"
        ),
        numbers={"nats": nats, "alarm": alarm},
    )


# -- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Watch:
    """Guard rails around one configuration and one basis."""

    problem: Problem
    options: PracticalOptions
    norm_bound: float
    basis: Span
    left_out: float = 0.0  # of what is expected of f, where no kernel was told

    @cached_property
    def _pairs(self) -> FloatArray:
        return public_pairs(self.problem)

    @cached_property
    def _kernels(self) -> tuple[Candidate, ...]:
        """The known kernel and its other lengthscales: made once, when the first release is in."""
        if not isinstance(self.basis, Basis):
            return ()
        return candidates(self.problem.kernel, self.basis, self._pairs, self.options.smoothness)

    @cached_property
    def opening(self) -> tuple[Notice, ...]:
        """What can be said before any user."""
        if not isinstance(self.basis, Basis):  # columns are scaled from the pool
            notice = products(self.options, self.left_out)
            return () if notice is None else (notice,)
        found = (
            scales(self.problem, self._pairs),
            rank(self.options, self.basis, self._pairs),
        )
        return tuple(notice for notice in found if notice is not None)

    def after(
        self,
        fit: Fit,
        told: Sequence[Told],
        *,
        before: Belief,
        expected: Believed,
        belief: Belief,
        state: Believed,
        overdispersion: Overdispersion,
    ) -> tuple[Fit, tuple[Notice, ...]]:
        """What a release says: innovations with it, and notices.

        ``before`` and ``expected`` are what was believed until it came, ``belief`` and ``state``
        what is believed now. The first release is held against the prior alone, whose scale is
        learnt from it: how large ``f`` is nobody has to know in advance. So innovations count from
        the second on. A belief that starts again, as rewards with heavy tails were cut off, was
        wrong for a reason of its own, and innovations start again with it.
        """
        if belief.moment_precision == 0:
            return Fit(), ()
        found = [
            prior_scale(state.scale, self.norm_bound),
            another_kernel(belief, self._kernels, self.norm_bound),
            people(overdispersion),
        ]
        if before.moment_precision > 0:
            known = isinstance(self.basis, Basis)
            if not known:  # what is left of a misfit when the crowd has explained what it can
                told = [(block, overdispersion.seen(each), part) for block, each, part in told]
            newest = Innovation.of(told, expected)
            fit = fit.after(newest)
            if known or overdispersion.likeliest == 0:  # else few people are what explains it
                found.append(misfit(fit, newest, told=known))
        return fit, tuple(notice for notice in found if notice is not None)
