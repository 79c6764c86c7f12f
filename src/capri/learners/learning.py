"""What is believed after a release: the one step from what was known to what is known.

A release is taken for what it is: learnt from, or put aside as stale, biased by clipping, or of a
function that has changed. Public throughout: a function of releases and of what was known.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from capri.epoch import play
from capri.epoch.plan import Notice, Release
from capri.learners import words
from capri.learners.belief import Belief, Believed, Squares
from capri.learners.boundary import sized
from capri.learners.change_of_basis import ChangeOfBasis
from capri.learners.drift import (
    ALARM,
    Drift,
    Kind,
    News,
    Nothing,
    Outcome,
    enough,
    faded,
    noise_kept,
    renewed,
)
from capri.learners.fit import Fit, Innovation, PoolTest
from capri.learners.model import Knowledge, Reading
from capri.learners.overdispersion import Overdispersion
from capri.learners.priors import KnownKernelPrior
from capri.learners.residuals import (
    cuts_off_too_much,
    measured_square,
    noise_of,
    pooled,
    restored_square,
    too_heavy,
)
from capri.learners.warm_start import inferred
from capri.learners.words import Watch
from capri.privacy.budget import PrivacyModel


def opening_law(known: Knowledge, first: int, generator: np.random.Generator) -> play.Law:
    """The law before any release, for a first epoch of this length."""
    model = known.model
    if model.draws_at_once or known.belief.epochs or known.warm_start is not None:
        return model.law(known, first, generator)
    return play.UniformLaw()


def law_after(
    heir: Knowledge, change: ChangeOfBasis, first: int, generator: np.random.Generator
) -> tuple[play.Law, bool]:
    """The law of the first epoch with other actions; whether nothing is known of some."""
    if heir.belief.epochs == 0:
        return opening_law(heir, first, generator), False
    model, waiting = heir.model, heir.under_way()
    awaited = heir.awaited(waiting)
    law = model.law(heir, first, generator, awaited=awaited, waiting=len(waiting))
    model.pass_over(generator)
    return model.curious(heir, law, change)


def taken_in(
    known: Knowledge, watch: Watch, release: Release, read: Reading, *, first: int, growth: float
) -> tuple[Knowledge, tuple[Notice, ...]]:
    """What is known with a release, but for the law; and what there is to say.

    ``first`` and ``growth``: of epochs.
    """
    news = _news(known, release, read)
    belief, overdispersion, squares, drift = _sums(known, news, release, read)
    if not known.pending[release.plan.epoch][0].moved:
        belief = replace(belief, curious=False)
    # What was known before the first user is about the function of then, too.
    start = None if news.kind is Kind.CHANGE else known.warm_start
    near = known.posterior
    infer = partial(inferred, start, known.prior)
    if isinstance(known.prior, KnownKernelPrior):
        state = infer(belief, near)
    else:
        overdispersion, belief, state = overdispersion.settle(belief, lambda own: infer(own, near))
    belief = belief.with_noise(_noise_of(known, squares, state))
    belief = sized(belief, squares, state.mean, known.problem.reward_bound)
    if belief.ends and not known.belief.ends:
        state = infer(belief, state)
    learnt = replace(
        known,
        belief=belief,
        posterior=state,
        warm_start=start,
        overdispersion=overdispersion,
        squares=squares,
        response=read.response,
        rates=known.rates.after(release),
        context_law=read.law,
    )
    fit, notices = _fitting(learnt, known, news, watch, read)
    pool_test, strangers = _who_came(known.pool_test, read)
    found = (words.wait(learnt.rates), strangers)
    notices += tuple(each for each in found if each is not None)
    if news.kind is Kind.LEARNT:
        drift = replace(drift, enough=_enough(learnt, drift, read, first, growth))
    return replace(learnt, fit=fit, drift=drift, pool_test=pool_test), notices


def _news(known: Knowledge, release: Release, read: Reading) -> News:
    """What a release is good for, by what was believed before it."""
    design, problem, state = read.design, known.problem, known.posterior
    if known.drift.stale(known.pending[release.plan.epoch], release.counts):
        return News(Kind.STALE)
    if problem.model is PrivacyModel.LOCAL:
        heavy = too_heavy(pooled(known.squares, release, design, problem.reward_bound))
    else:
        heavy = cuts_off_too_much(release, design, problem.reward_bound)
    if known.options.memory == np.inf:
        return News(Kind.HEAVY if heavy else Kind.LEARNT)
    return known.drift.news(
        [(block, known.overdispersion.seen(seen), part) for block, seen, part in read.told],
        expected=state,
        fade=lambda keep: known.prior.again(faded(known.belief, keep), state.weights),
        empty=Nothing(np.zeros_like(state.mean), known.prior.root(state)),
        heavy=heavy,
        whole=read.whole,
    )


def _sums(
    known: Knowledge, news: News, release: Release, read: Reading
) -> tuple[Belief, Overdispersion, Squares, Drift]:
    """What all releases add up to with this one, before anything is made of it."""
    before, bound, squares = known.belief, known.problem.reward_bound, known.squares
    design, told, found = read.design, read.told, known.overdispersion
    if news.kind is Kind.STALE:
        return replace(before, epochs=before.epochs + 1), found, squares, known.drift
    size = before.vector.shape
    drift = known.drift.after(news, before.epochs + 1)
    if news.kind is Kind.CHANGE:
        kept = noise_kept(squares, before, bound)
        return renewed(before), Overdispersion.empty(*size), kept, drift
    if news.kind is Kind.HEAVY:
        return before.start_again(), Overdispersion.empty(*size), Squares.empty(*size), drift
    drift, kept_share = drift.remembered(release.participants, known.options.memory)
    keep = news.keep * kept_share
    squares = faded(squares, keep)
    if known.problem.model is PrivacyModel.LOCAL:
        squares = pooled(squares, release, design, bound)
        square = restored_square(squares, release, design, bound)
    else:
        square = measured_square(release, design, bound)
    squares = squares.measured(*square, design.squares)
    return faded(before, keep).observe(told), faded(found, keep).observe(told), squares, drift


def _noise_of(known: Knowledge, squares: Squares, state: Believed) -> tuple[float, float] | None:
    """The variance of the reward noise as measured, and the precision of it."""
    problem = known.problem
    if problem.budget is None or problem.model is not PrivacyModel.LOCAL:
        return squares.noise(state)
    return noise_of(squares, state, problem.reward_bound)


def _fitting(
    learnt: Knowledge, known: Knowledge, news: News, watch: Watch, read: Reading
) -> tuple[Fit, tuple[Notice, ...]]:
    """How releases fit by now, and what there is to say."""
    if news.kind is Kind.STALE:
        return known.fit, ()
    if news.kind is Kind.CHANGE:
        return Fit(), (words.drift(news.nats, ALARM),)
    return watch.after(
        known.fit,
        read.told,
        before=known.belief,
        expected=known.posterior,
        belief=learnt.belief,
        state=learnt.posterior,
        overdispersion=learnt.overdispersion,
    )


def _who_came(test: PoolTest, read: Reading) -> tuple[PoolTest, Notice | None]:
    """With what moments say of who came, where a release carries some."""
    if read.moments is None:
        return test, None
    newest = Innovation(read.moments.chi_square, read.moments.degrees)
    test = test.after(newest, *read.law.mismatch)
    return test, words.pool(test, newest)


def _enough(learnt: Knowledge, drift: Drift, read: Reading, first: int, growth: float) -> float:
    """How long epochs must be to tell nearly as much as by the schedule.

    Where every decision has noise of its own, all lengths tell the same; where reports are mixed,
    many of them need less noise each, and epochs are as long as scheduled.
    """
    problem, state = learnt.problem, learnt.posterior
    least, most = drift.least(first), first + (growth - 1) * drift.begun
    if problem.shuffle is not None:
        return max(least, most)
    if problem.budget is None or problem.model is PrivacyModel.LOCAL:
        return least
    outcomes = [
        Outcome(seen, state.factor[block], read.design.spread[block])
        for block, seen, _ in read.told
    ]
    stakes = learnt.model.stakes(state)
    return enough(outcomes, stakes, noise=read.design.noise, least=least, most=most)
