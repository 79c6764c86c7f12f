"""Presets by name: which schedule and which learner a policy is built from."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from capri.checks import whole
from capri.epoch.learner import Learner
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.plan import Schedule
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError
from capri.files import digest_of
from capri.kernels import Auto
from capri.learners.crowd import Crowd
from capri.learners.dense_model import DenseModel
from capri.learners.learner import PracticalLearner
from capri.learners.messages import first_epoch_length
from capri.learners.options import PracticalOptions
from capri.learners.paper import PaperLearner, PaperOptions
from capri.learners.prior import Observed, Prior, observed, sampled_pairs
from capri.privacy.budget import Budget, PrivacyModel
from capri.privacy.ledger import PriorEvent
from capri.spaces import FixedActions

Options = PracticalOptions | PaperOptions
# Fewer unrelated arms fit into one dense basis.
_LEAST_ARMS = 9
_OPTIONS: dict[str, type[Options]] = {"practical": PracticalOptions, "paper": PaperOptions}


def checked_options(preset: str, options: dict[str, Any]) -> Options:
    """The options of a preset, or an error that lists what it takes."""
    if preset not in _OPTIONS:
        raise ConfigurationError(
            f"preset must be {' or '.join(map(repr, _OPTIONS))}, got {preset!r}"
        )
    kind = _OPTIONS[preset]
    allowed = [field.name for field in fields(kind)]
    unknown = ", ".join(sorted(set(options) - set(allowed)))
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown}; preset {preset!r} takes {', '.join(allowed)}"
        )
    return kind(**options)


def checked_horizon(horizon: int | None) -> int | None:
    """A whole number of at least 2, or None for a run without end."""
    return None if horizon is None else whole("horizon", horizon, least=2)


def build(
    problem: Problem,
    options: Options,
    horizon: int | None,
    generator: np.random.Generator,
    observed: Observed | None = None,
) -> tuple[Schedule, Learner]:
    """The schedule and the learner of a preset; ``observed``: what is known beforehand."""
    if isinstance(options, PaperOptions):
        if horizon is None:
            raise ConfigurationError("preset 'paper' needs a horizon: its constants depend on it")
        if isinstance(problem.kernel, Auto):
            raise ConfigurationError(
                "preset 'paper' needs a known kernel, as in "
                "kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3)"
            )
        if observed is not None:
            raise ConfigurationError(
                "prior needs preset='practical': the paper's algorithm keeps no belief"
            )
        if problem.limits is not None:
            raise ConfigurationError(
                "limits need preset='practical': the paper's algorithm plays every active action "
                "alike"
            )
        if problem.rewards.measured:
            raise ConfigurationError(
                "missing_reward='as-estimated' needs preset='practical': the paper's message has "
                "no place for it. Give a number"
            )
        return Schedule.paper(horizon), PaperLearner(problem, horizon, options)
    if problem.model is PrivacyModel.LOCAL and not problem.on_devices:
        raise ConfigurationError(
            "model='local' in one process is the paper's, so it needs preset='paper'. Where nobody "
            "is trusted, devices make their reports themselves: build a capri.LocalCapri, whose "
            "bundle a capri.LocalClient on each device decides and reports by"
        )
    blocks = options.blocks or (options.blocks is None and suits_arms(problem, options))
    crowd = Crowd.of(problem, horizon, asked=options.learn_crowd, first=options.first_epoch)
    learner = PracticalLearner(problem, options, generator, blocks=blocks, crowd=crowd)
    if observed is not None:
        learner.begin(observed, generator)
    first = first_length(problem, options, observed)
    return Schedule(first, learner.growth, horizon), learner


def suits_arms(problem: Problem, options: PracticalOptions) -> bool:
    """Whether this learner takes the problem: many unrelated arms and nothing out of the ordinary.

    Arms are counted by their indicators, those that are no longer offered among them.
    """
    actions = problem.actions
    return (
        isinstance(problem.kernel, Auto)
        and isinstance(actions, FixedActions)
        and actions.dimension >= _LEAST_ARMS
        and actions.unrelated
        and problem.model is PrivacyModel.JOINT
    )


def first_length(problem: Problem, options: PracticalOptions, observed: Observed | None) -> int:
    """Length of the first epoch: a short one to see whether what is known beforehand is true."""
    if options.first_epoch is not None:
        return options.first_epoch
    length = first_epoch_length(problem)
    return length if observed is None else max(50, length // 3)


def settled(problem: Problem, options: Options) -> Options:
    """With the learner decided: it stays the same when actions are replaced, and in a file."""
    if isinstance(options, PaperOptions):
        return options
    suits = suits_arms(problem, options)
    if options.blocks and not suits:
        raise ConfigurationError(
            "blocks=True needs kernel='auto', model='joint', and actions that are names or "
            "a number of at least nine: leave blocks at None"
        )
    return replace(options, blocks=suits) if options.blocks is None else options


def releases_prior(learning: LearningLoop, budget: Budget | None, configuration: str) -> Prior:
    """All that a learning loop has learnt so far; ``budget``: what its users were promised."""
    learner = learning.learner
    if not isinstance(learner, PracticalLearner) or not isinstance(learner.known.model, DenseModel):
        raise ConfigurationError(
            "only a policy of preset 'practical' that keeps one belief for all actions tells "
            "another one what it learnt: the paper's algorithm keeps none, and one with "
            "blocks=True one for every action"
        )
    known = learner.known
    if known.belief.epochs == 0:
        raise ConfigurationError("this policy has not released anything yet: nothing to tell")
    pairs = sampled_pairs(known.problem, known.basis.rank)
    matrix, targets = observed(
        known.basis,
        pairs,
        known.belief.information,
        known.belief.vector,
        middle=known.problem.scale.centre,
    )
    digest = digest_of(
        {"configuration": configuration, "plans": learning.plans}, {"targets": targets}
    )
    event = PriorEvent(
        kind="policy",
        digest=digest,
        count=learning.learnt,
        epsilon=None if budget is None else budget.epsilon,
        delta=None if budget is None else budget.delta,
    )
    return Prior.of_observed(Observed(pairs=pairs, targets=targets, matrix=matrix, event=event))
