"""Rejection replay: play a policy on logged data as if it had been live."""

from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import whole
from capri.datasets.logs import BanditLog
from capri.epoch.decide import Decisions
from capri.errors import ConfigurationError
from capri.streams import LOG_REPLAY


class Replayable(Protocol):
    """What :func:`replay` needs of a policy: all of CAPRI and of the rivals have it."""

    @property
    def remaining(self) -> int:
        """Decisions that may be asked for at once; 0 when the policy is done."""
        ...

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions."""
        ...

    def update_many(self, decisions: Decisions, rewards: object) -> object:
        """Take in the rewards of these decisions."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a policy earned on the rounds it would have played as logged.

    ``used`` rounds of the log were looked at, ``len(rewards)`` accepted.
    """

    rewards: FloatArray = field(repr=False)
    propensities: FloatArray = field(repr=False)
    used: int

    @property
    def accepted(self) -> int:
        """Rounds that the policy played."""
        return len(self.rewards)

    @property
    def mean_reward(self) -> float:
        """Mean reward per accepted round; NaN when there was none."""
        return float(self.rewards.mean()) if len(self.rewards) else float("nan")


def replay(
    policy: Replayable,
    log: BanditLog,
    *,
    rounds: int | None = None,
    smallest_propensity: float | None = None,
    seed: int = 0,
) -> Replay:
    """Feed a policy with the logged rounds it would have played the same way, and no others.

    A round with logged propensity ``p_t`` is offered with probability ``q / p_t`` and accepted when
    the policy draws the logged action (Li, Chu, Langford and Wang 2011, arXiv 1003.5956, where the
    log is uniform and every round is offered). Whatever the log's law, a round is then accepted
    with probability

        p(x_t | c_t) * q / p(x_t | c_t) * pi(x_t | c_t) = q pi(x_t | c_t),

    so accepted rounds follow the law of contexts and of the policy, as live ones would. This needs
    a ``q`` that is no larger than any propensity the logging law gives to any action:
    ``smallest_propensity``, by default the smallest one in the log (exact for a uniform log; a
    plug-in otherwise). Actions that the log never plays cannot be replayed.

    Stops after ``rounds`` accepted rounds, at the policy's horizon or at the end of the log. A
    simulation: a private policy refuses, since who is accepted depends on other users.
    """
    if rounds is not None:
        whole("rounds", rounds)
    smallest = float(log.propensities.min())
    q = smallest if smallest_propensity is None else smallest_propensity
    if not 0.0 < q <= smallest:
        raise ConfigurationError(
            f"smallest_propensity must be positive and no larger than any in the log ({smallest}), "
            f"got {q!r}"
        )
    generator = np.random.default_rng([seed, LOG_REPLAY])
    offered = np.flatnonzero(generator.random(len(log)) < q / log.propensities)
    earned, chances, place, accepted = [np.empty(0)], [np.empty(0)], 0, 0
    while place < len(offered):
        room = policy.remaining
        if rounds is not None:
            room = min(room, rounds - accepted)
        if room == 0:
            break
        # At most as many as there is room for, so that all of them may match.
        which = offered[place : place + room]
        decisions, kept = policy.match_many(log.contexts[which], log.action_index[which])
        rewards = log.rewards[which[kept]]
        if len(rewards):
            policy.update_many(decisions, rewards)
        earned.append(rewards)
        chances.append(decisions.propensity)
        accepted += len(rewards)
        place += len(which)
    used = len(log) if place == len(offered) else int(offered[place])
    return Replay(rewards=np.concatenate(earned), propensities=np.concatenate(chances), used=used)
