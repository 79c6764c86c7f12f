"""What a certificate states of mixed reports: two promises, and whom each is against."""

from math import exp
from typing import Any

from capri.privacy.budget import Budget
from capri.privacy.certificate.beliefs import PRIORS, USUAL, belief_after, stated
from capri.privacy.certificate.wording import NO_COMMON_STORE, OPERATOR, own_budget
from capri.privacy.mixing import Shuffle

SHUFFLER = "shuffler"
_STATEMENT = (
    "Each person's report is made private on their own device, whoever reads it. A shuffler that "
    "the aggregator does not control mixes it with those of many others before anybody else sees "
    "them: what anyone reads in the mixed batch would be {likely} if the data of any one person "
    "had been different. {moved}"
)


def behind_shuffler(budget: Budget, shuffle: Shuffle, *, reported: bool) -> dict[str, Any]:
    """The entries in which the certificate of mixed reports differs from that of single ones."""
    nobody = {"epsilon": 0.0, "delta": 0.0}
    return {
        "model": "shuffle",
        **stated(_STATEMENT, mixed_beliefs(budget)),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "protects_from": (
            "everybody who sees mixed batches and what is made of them, the aggregator and its "
            "operator included, even with every other person's data in hand and unlimited "
            "computers; not from the shuffler, nor from whoever watches it or the way to it"
        ),
        "calibration": (
            "the largest local epsilon of each epoch whose batch of mixed reports keeps the "
            "central promise by the randomizer's own privacy blanket (Balle, Bell, Gascon and "
            "Nissim 2019), rounded to the private side; the local epsilon is checked by every "
            "device in exact fractions"
        ),
        "composition": (
            "none needed: a user reports once, in one batch, and all else is post-processing of "
            "batches"
        ),
        "spent": {"epsilon": budget.epsilon, "delta": budget.delta} if reported else nobody,
        "spent_means": (
            f"{own_budget(budget)} Whoever made a report has spent it, once; whoever made none has "
            f"spent nothing. {NO_COMMON_STORE}"
            if reported
            else f"No report came in, so nobody has spent anything. {own_budget(budget)}"
        ),
        "locally": {
            "epsilon": shuffle.most,
            "delta": 0.0,
            "protects_from": "everybody, the shuffler and whoever reads single reports included",
        },
    }


def mixing_assumptions(shuffle: Shuffle) -> tuple[tuple[str, str], ...]:
    """What the central promise rests on beside the devices."""
    share = f"{100 * shuffle.honest:g} % of the reports of a batch are"
    return (
        (
            "the shuffler does not collude with the aggregator: it waits until a batch has all of "
            "its reports to one bundle, passes them on at once in an order that has nothing to do "
            "with when and whence they came, and passes on nothing else",
            SHUFFLER,
        ),
        (
            f"{share} made by people other than the attacker's friends: the promise is accounted "
            "for so many, which is the number needed in the list of releases",
            OPERATOR,
        ),
    )


def mixed_beliefs(budget: Budget) -> tuple[dict[str, Any], ...]:
    """The table of beliefs of any mechanism that keeps ``(epsilon, delta)``.

    The event ``E`` that odds rise by more than ``r`` has ``P0(E) <= P1(E) / r``, so ``P1(E) <=
    e^epsilon P1(E) / r + delta``, and ``r = e^epsilon / (1 - delta / c)`` is exceeded with
    probability at most ``c``.
    """
    chances = [chance for chance in (USUAL, 2 * budget.delta) if budget.delta < chance <= USUAL]
    return tuple(
        {
            "before": before,
            "after_at_most": belief_after(
                before, exp(min(budget.epsilon, 700.0)) / (1 - budget.delta / chance)
            ),
            "exceeded_with_chance_at_most": chance,
        }
        for before in PRIORS
        for chance in chances or [min(1.0, 2 * budget.delta)]
    )
