"""The guarantee of a deployment on devices, on one page."""

from importlib.metadata import version
from typing import Any

from capri.epoch.problem import Problem, Randomizer
from capri.privacy.budget import Budget
from capri.privacy.calibration import noise_multiplier
from capri.privacy.certificate import Certificate

_STATEMENT = (
    "Each person's report is made private on their own device: whoever reads it, the aggregator "
    "included, could almost as likely have read it had the person's data been different. Nobody "
    "has to be trusted with the data."
)
_MECHANISMS = {
    Randomizer.SPHERE: (
        "a seed drawn by the operating system names public random directions; the report is the "
        "seed and the number of one of them, chosen with exact integer probabilities whose ratio "
        "between any two data is at most e^epsilon"
    ),
    Randomizer.GAUSSIAN: (
        "the contribution, clipped in norm and rounded to an integer grid, plus discrete Gaussian "
        "noise from OpenDP's cryptographic generator, seeded by the operating system"
    ),
}
_CALIBRATION = {
    Randomizer.SPHERE: "pure epsilon, delta = 0, checked by every device in exact fractions",
    Randomizer.GAUSSIAN: (
        "exact Gaussian mechanism (Balle and Wang 2018) at the replace-one sensitivity, with the "
        "step from continuous to integer noise paid for; checked by every device"
    ),
}


# The integer noise of so many coordinates; the number hardly matters.
_COORDINATES = 2


def certify_local(
    problem: Problem,
    budget: Budget,
    releases: tuple[dict[str, Any], ...],
    *,
    reported: bool,
) -> Certificate:
    """State what every user of a :class:`LocalClient` is promised.

    ``reported``: whether any report came in. A report spends when it is made, not when its epoch
    closes.
    """
    pure = problem.randomizer is Randomizer.SPHERE
    delta = 0.0 if pure else budget.delta
    return Certificate(
        model="local",
        statement=_STATEMENT,
        privacy_unit="one report of one user: context, action and reward",
        neighbouring_relation="replace one: any two data of the user",
        epsilon=budget.epsilon,
        delta=delta,
        protects="contexts, actions and rewards of the unit, and whether there was a reward",
        assumptions=(
            "the device runs capri.LocalClient unchanged and gives it the person's own budget",
            "a person reports from one device, once; the client enforces it while it runs, and "
            "across restarts where it keeps a receipt",
            "the operating system's random numbers are unpredictable",
            "that somebody takes part, and when, is not hidden by the report itself; how long the "
            "device computed is out of an attacker's sight",
            "the context pool or sampler, the kernel and all settings are public and were chosen "
            "without looking at the data protected here",
        ),
        mechanism=_MECHANISMS[problem.randomizer],
        calibration=_CALIBRATION[problem.randomizer],
        noise_multiplier=None if pure else noise_multiplier(budget, _COORDINATES) / 2,
        composition="none needed: a user reports once, and all else is post-processing of reports",
        releases=releases,
        spent={"epsilon": budget.epsilon, "delta": delta}
        if reported
        else {"epsilon": 0.0, "delta": 0.0},
        versions={
            name: version(name)
            for name in ("capri-bandits", "numpy", *(() if pure else ("opendp", "scipy")))
        },
    )
