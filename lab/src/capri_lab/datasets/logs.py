"""Logged bandit data: who came, what was done with which probability, and what it earned.

A log is recorded in simulation or read from a table, and replayed to a policy as if it were live.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import as_number_rows, as_numbers
from capri.checks import whole
from capri.environments import Environment
from capri.epoch.decisions import Decisions
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.schema import Schema
from capri.simulation import Policy, play
from capri.spaces import as_contexts
from capri_lab.datasets.loader import schema_rows
from capri_lab.datasets.rewards import label_name
from capri_lab.datasets.tables import (
    Source,
    column_names,
    complete_rows,
    label_cells,
    numeric_cells,
    read_frame,
)
from capri_lab.streams import LOG, LOG_REPLAY


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BanditLog:
    """Rounds ``(c_t, x_t, y_t)`` with the probability ``p_t`` that ``x_t`` had when it was drawn.

    ``actions`` is the number of actions there were to choose from. A log of real users holds their
    data in the clear: nothing that is computed from it here is private.

    >>> BanditLog(contexts=[[0.0], [1.0]], action_index=[0, 1], rewards=[1.0, 0.0],
    ...     propensities=[0.5, 0.5], actions=2)
    BanditLog(2 rounds, 2 actions)
    """

    contexts: FloatArray = field(repr=False)
    action_index: IntArray = field(repr=False)
    rewards: FloatArray = field(repr=False)
    propensities: FloatArray = field(repr=False)
    actions: int

    def __post_init__(self) -> None:
        rows = as_number_rows(self.contexts)
        rows = as_contexts(rows, rows.shape[1] if rows.ndim == 2 else 1)
        count = len(rows)
        if count == 0:
            raise ShapeError("a log needs at least one round, got none")
        whole("actions", self.actions)
        chosen = as_numbers(self.action_index)
        rewards = as_numbers(self.rewards)
        chances = as_numbers(self.propensities)
        columns = {"action_index": chosen, "rewards": rewards, "propensities": chances}
        for name, array in columns.items():
            if array.shape != (count,):
                raise ShapeError(f"{name} must have shape ({count},), got {array.shape}")
        if not ((chosen >= 0) & (chosen < self.actions) & (chosen == np.floor(chosen))).all():
            raise DataError(f"action_index must be whole numbers from 0 to {self.actions - 1}")
        if not np.isfinite(rewards).all():
            raise DataError("rewards must be finite numbers, got NaN or infinity")
        if not ((chances > 0.0) & (chances <= 1.0)).all():
            raise DataError(
                "propensities must lie above 0 and up to 1: each is the probability that its "
                "action had when it was drawn"
            )
        whole_numbers = chosen.astype(np.int64)
        for name, column in (columns | {"contexts": rows, "action_index": whole_numbers}).items():
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        return f"BanditLog({len(self)} rounds, {self.actions} actions)"

    def __getitem__(self, rounds: slice) -> "BanditLog":
        columns = ("contexts", "action_index", "rewards", "propensities")
        return replace(self, **{name: getattr(self, name)[rounds] for name in columns})


def record(policy: Policy, environment: Environment, rounds: int, *, seed: int = 0) -> BanditLog:
    """Play a policy in simulation and keep the log, with the propensities its decisions carry."""
    batches = play(policy, environment, whole("rounds", rounds), seed=seed, salt=LOG)
    who, decisions, rewards = zip(*batches, strict=True)
    return BanditLog(
        contexts=environment.contexts[np.concatenate(who)],
        action_index=np.concatenate([each.action_index for each in decisions]),
        rewards=np.concatenate(rewards),
        propensities=np.concatenate([each.propensity for each in decisions]),
        actions=len(environment.actions),
    )


def load_log(
    source: Source,
    *,
    context: Sequence[str] | Schema,
    action: str,
    reward: str,
    propensity: str,
    actions: Sequence[object],
    missing: str = "error",
) -> BanditLog:
    """Read a log from a CSV, a Parquet file or a data frame.

    ``actions`` lists the actions in the order a policy numbers them; the column ``action`` holds
    one of them in every row. Columns of contexts hold numbers, taken as they stand: they must be
    what the policy is to see. A :class:`~capri.Schema` as ``context`` reads texts, too, as a policy
    with this schema does. All rows count as private, so errors tell nothing of single rows; of a
    column without a single number they tell the name.
    """
    if isinstance(actions, str) or len(actions) == 0:
        raise ConfigurationError(f"actions must list the actions of the log, got {actions!r}")
    names = [label_name(each) for each in actions]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"actions must be different from each other, got {names}")
    schema = context if isinstance(context, Schema) else None
    columns = [*schema.names] if schema else column_names("context", context, least=1)
    figures = [reward, propensity]
    frame = read_frame(source, [*columns, *figures, action])
    if schema is None:
        rows, gaps, text = numeric_cells(frame, columns)
        _check_numbers(columns, gaps, text)
    else:
        rows, gaps = schema_rows(frame, schema)
        text = np.zeros_like(gaps)
    values, absent, wrong = numeric_cells(frame, figures)
    labels, unlabelled = label_cells(frame[action])
    nobody = np.zeros(len(frame), dtype=np.bool_)
    # Two rows at least on the public side are needed for a bandit, not for a log.
    keep = complete_rows(
        [*columns, *figures, action],
        np.column_stack([gaps, absent, unlabelled]),
        np.column_stack([text, wrong, nobody]),
        nobody,
        missing,
        least_public=0,
    )
    number = {name: place for place, name in enumerate(names)}
    index = [number.get(each, -1) for each in labels[keep]]
    if -1 in index:
        raise DataError(
            f"column {action!r} holds an action that is not among the {len(names)} listed: "
            "list all of them in actions"
        )
    return BanditLog(
        contexts=rows[keep],
        action_index=np.array(index),
        rewards=values[keep, 0],
        propensities=values[keep, 1],
        actions=len(names),
    )


def _check_numbers(columns: Sequence[str], gaps: BoolArray, text: BoolArray) -> None:
    """Refuse a column that has texts and not a single number: it was not meant as numbers."""
    for name, empty, wrong in zip(columns, gaps.T, text.T, strict=True):
        if wrong.any() and (empty | wrong).all():
            raise DataError(
                f"column {name!r} holds text: give context as a capri.Schema that declares it, or "
                "encode it as numbers"
            )


class Replayable(Policy, Protocol):
    """What :func:`replay` needs of a policy: all of CAPRI and of the rivals have it."""

    def match_many(self, contexts: object, action_index: object) -> tuple[Decisions, BoolArray]:
        """Decide, and keep only the decisions for these actions."""


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Replay:
    """What a policy earned on the rounds it would have played as logged.

    ``used`` rounds of the log were looked at, ``len(rewards)`` accepted.
    """

    rewards: FloatArray
    propensities: FloatArray
    used: int

    def __repr__(self) -> str:
        return (
            f"Replay({self.accepted:,} of {self.used:,} rounds accepted, "
            f"mean reward {self.mean_reward:.3g})"
        )

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
