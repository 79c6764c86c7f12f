"""What may change while a policy runs, and what cannot.

A change is a new version of the problem, as public as the first. It takes effect with the next
epoch that is not planned yet: every epoch keeps the version it was planned with, so nothing that a
user met before is read by other rules. What the noise was calibrated for never changes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capri.choices import successor
from capri.epoch.limits import Limits
from capri.epoch.plan import ScheduleTerms
from capri.epoch.problem import Problem, with_actions
from capri.epoch.rewards import RewardTerms, checked_terms
from capri.errors import ConfigurationError
from capri.learners.options import PracticalOptions
from capri.learners.presets import Options, checked_horizon

_SCHEDULE = ("horizon", "first_epoch", "growth")
_REWARDS = ("reward_wait", "missing_reward", "epoch_time")
CHANGEABLE = ("actions", "limits", *_REWARDS, *_SCHEDULE)

_PROMISE = (
    "it is what users were promised, and what was released has the noise of that promise. A larger "
    "one breaks it, and a smaller one cannot be kept by what is public already: begin a new store"
)
_UNITS = "what was released is in these units, and the noise goes with them: begin a new store"
_WORLD = "all that was learnt is about these contexts: begin a new store, perhaps with a prior"
FIXED = {
    "budget": _PROMISE,
    "contributions_per_user": _PROMISE,
    "contributions_per_epoch": _PROMISE,
    "model": _PROMISE,
    "reward_range": _UNITS,
    "reward_rule": _UNITS,
    "contexts": _WORLD,
    "kernel": "it is the prior of all that was learnt: begin a new store",
}
_OTHER = "it is fixed when the first user comes: begin a new store"


def reason(name: str) -> str:
    """Why a setting cannot be changed."""
    return FIXED.get(name, _OTHER)


def schedule_terms(problem: Problem, horizon: int | None, options: Options) -> ScheduleTerms:
    """What is asked of the schedule now; ``horizon`` and ``options``: at first."""
    if problem.schedule is not None:
        return problem.schedule
    if not isinstance(options, PracticalOptions):
        return ScheduleTerms(first_epoch=None, growth=2.0, horizon=horizon)
    return ScheduleTerms(first_epoch=options.first_epoch, growth=options.growth, horizon=horizon)


def changed(
    latest: Problem, terms: ScheduleTerms, given: Mapping[str, Any], planned: int
) -> Problem:
    """The next version of a problem; ``planned``: the slot up to which epochs are planned."""
    for name in given:
        if name not in CHANGEABLE:
            raise ConfigurationError(
                f"{name} cannot be changed while a policy runs: {reason(name)}. What can: "
                f"{', '.join(CHANGEABLE)}"
            )
    actions = successor(latest.actions, given["actions"]) if "actions" in given else latest.actions
    schedule = latest.schedule
    if not given.keys().isdisjoint(_SCHEDULE):
        schedule = _schedule(terms, given, planned)
    renewed = replace(
        latest,
        rewards=_rewards(latest, given),
        limits=_limits(given["limits"], actions.names) if "limits" in given else latest.limits,
        schedule=schedule,
    )
    return with_actions(renewed, actions)


def _rewards(latest: Problem, given: Mapping[str, Any]) -> RewardTerms:
    arguments = latest.rewards.arguments()
    arguments |= {name: given[name] for name in _REWARDS if name in given}
    terms = checked_terms(**arguments, scale=latest.scale)
    if terms.measured != latest.rewards.measured:
        raise ConfigurationError(
            "missing_reward cannot change from a number to 'as-estimated', or back: messages under "
            "way have room for one of the two. Begin a new store"
        )
    return terms


def _limits(given: object, names: tuple[str, ...] | None) -> Limits | None:
    if given is None:
        return None
    if not isinstance(given, Limits):
        raise ConfigurationError(f"limits must be capri.Limits, got {type(given).__name__}")
    return given.declared_for(names)


def _schedule(terms: ScheduleTerms, given: Mapping[str, Any], planned: int) -> ScheduleTerms:
    found = replace(terms, **{name: given[name] for name in _SCHEDULE if name in given})
    PracticalOptions(first_epoch=found.first_epoch, growth=found.growth)  # refuses what is none
    horizon = checked_horizon(found.horizon)
    if horizon is not None and horizon < planned:
        raise ConfigurationError(
            f"horizon must be {planned} or more, since epochs are planned up to there, got "
            f"{horizon}"
        )
    return found


def plain(name: str, value: Any) -> Any:
    """A setting as an operation notes it: what anybody may read."""
    if name == "actions":
        return "others"
    if isinstance(value, Limits):
        return value.to_dict()
    return value if isinstance(value, int | float | None) else str(value)


def noted(by: str, why: str) -> dict[str, str]:
    """By whom and why, where that was said."""
    return {name: each for name, each in (("by", by), ("why", why)) if each}
