"""What a curator's policy was built from: its promise in words, and how it is built again."""

from dataclasses import asdict, dataclass
from typing import Any

from capri.epoch.problem import Problem
from capri.epoch.storage import problem_state
from capri.learners.presets import Options
from capri.learners.start import Observed
from capri.privacy.promise import NOTHING, PrivacyModel, Promise

Described = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Configuration:
    """All that is settled before the first user, the actions aside, which may be replaced."""

    horizon: int | None
    preset: str
    options: Options
    blocks: bool | None  # as it was asked for
    observed: Observed | None  # what is known beforehand

    def described(self, problem: Problem) -> Described:
        """Values and arrays, as a file and a store say it."""
        values, arrays = problem_state(problem)
        configuration: dict[str, Any] = {
            "problem": values,
            "horizon": self.horizon,
            "preset": self.preset,
            "options": asdict(self.options),
        }
        if self.observed is not None:
            configuration["prior"], told = self.observed.state()
            arrays |= told
        return configuration, arrays

    def settings(self, problem: Problem) -> dict[str, Any]:
        """The arguments that build such a policy again."""
        limit = problem.limit
        settings: dict[str, Any] = {
            "kernel": problem.kernel,
            "actions": problem.actions,
            "contexts": problem.contexts,
            "budget": problem.budget,
            "horizon": self.horizon,
            **problem.scale.arguments(),
            "model": str(problem.model),
            "preset": self.preset,
            "contributions_per_user": None if limit is None else limit.total,
            "contributions_per_epoch": None if limit is None else limit.per_epoch,
            "limits": problem.limits,
            "prior": self.observed,
            **problem.rewards.arguments(),
            **asdict(self.options),
        }
        if "blocks" in settings:  # as it was asked for: other actions may need the other learner
            settings["blocks"] = self.blocks
        return settings


def guarantee(problem: Problem, *, simulated: bool) -> str:
    """In one line, what a policy promises to its users."""
    budget = problem.budget
    if budget is None:
        return "no privacy: runs without noise"
    promise = f"({budget.epsilon:g}, {budget.delta:g})-{problem.model} privacy"
    if problem.model is PrivacyModel.LOCAL:
        promise += " of reports"
    return f"simulation of {promise}: seeded noise, no privacy claim" if simulated else promise


def promise(problem: Problem) -> Promise:
    """What a user is promised, to be compared; nothing for a run without budget."""
    if problem.budget is None:
        return NOTHING
    unit = "one round" if problem.limit is None else "one user"
    return Promise(model=problem.model.value, kind="approximate", unit=unit)
