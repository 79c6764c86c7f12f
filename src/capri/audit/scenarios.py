"""What two worlds may differ in: the scenarios that an audit of a policy plays.

One target comes among bystanders, in one of two worlds that differ in nothing but the target; then
the attacker looks for it in everything public. Runs go through the public interface alone: ``act``,
``update``, ``save`` and ``load`` in a late epoch of a rehearsed policy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from capri.audit.attacker import Visit
from capri.audit.plays import (
    Difference,
    Fork,
    Next,
    Offered,
    Restart,
    Scenario,
    Shadow,
    Stored,
    Users,
)
from capri.audit.proof import (
    AuditResult,
    Progress,
    check_trials,
    chosen_attacks,
    prove,
    share_of,
)
from capri.audit.run import RehearsedStage
from capri.epoch.limits import Limits
from capri.epoch.plan import unsaid
from capri.epoch.rewards import AS_ESTIMATED
from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.privacy.layout import MECHANISMS, Norm
from capri.spaces import ContextPool, FixedActions

# Runs of the main attack for one of a further policy's.
_ALSO = 4
# Between the name of a scenario and that of the noise it is played in.
_WITH = ", "
# Decisions for which an epoch waits where the policy has no wait of its own.
_WAIT = 20
# What is said of a target in shadow mode whose weight is the largest there is.
_RARE = {"chosen": 0, "chosen_propensity": 1e-9}


def audit_policy(
    policy: Capri,
    *,
    trials: int = 10_000,
    confidence: float = 0.999,
    attacks: Sequence[str] | None = None,
    also: Mapping[str, Capri] | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Attack the configuration of a private policy; ``trials`` runs in each of the two worlds.

    ``attacks`` are names of :data:`SCENARIOS`, all that apply where none are given. ``also``:
    further policies by name, attacked by *reward*. The confidence holds for everything together.
    ``progress`` is told how many runs are done, and how many there are.
    """
    if not policy.private:
        raise ConfigurationError(
            "only a private run can be audited: give the policy a budget and no simulation_seed"
        )
    check_trials(trials, confidence)
    known = {name: kind.share for name, kind in SCENARIOS.items() if kind.applies(policy)}
    chosen = chosen_attacks(attacks, known, trials)
    played, runs = _in_each_noise(policy, list(chosen)), {}
    for name in played:
        runs[name] = chosen[name.partition(_WITH)[0]]
    for name, other in (also or {}).items():
        for each, scenario in _in_each_noise(other, ["reward"]).items():
            label = each.replace("reward", name)
            played[label], runs[label] = scenario, share_of(trials, _ALSO)
    with unsaid():
        return prove(
            played,
            runs,
            model=str(policy.model),
            budget=policy.ledger.budget,
            confidence=confidence,
            progress=progress,
        )


def _in_each_noise(policy: Capri, names: Sequence[str]) -> "dict[str, Scenario]":
    """The attacks of these names; those of full power once for each noise that plans may take.

    Which noise a plan takes is not for the attacker to choose. So noise that is a little too
    narrow, of the kind that a rehearsed plan happens not to take, would never be looked at.
    """
    noises = _noises(policy)
    found: dict[str, Scenario] = {}
    for name in names:
        if len(noises) == 1 or not SCENARIOS[name].full:
            found |= scenarios(policy, [name])
            continue
        for noise in noises:
            told = scenarios(policy.again(noise=noise), [name])
            found[name + _WITH + noise] = told[name]
    return found


def _noises(policy: Capri) -> list[str]:
    """Names of the noises that plans of a policy may take."""
    if policy.preset == "paper":
        return [MECHANISMS[Norm.L2].name]
    return [MECHANISMS[norm].name for norm in policy.problem.norms]


def scenarios(policy: Capri, names: Sequence[str]) -> "dict[str, Scenario]":
    """The attacks of these names on a policy's configuration, ready to be played."""
    stages: dict[Any, RehearsedStage] = {}
    found = {}
    for name in names:
        kind = SCENARIOS[name]
        if kind.changes not in stages:
            stages[kind.changes] = RehearsedStage(policy, **kind.changes(policy))
        stage = stages[kind.changes]
        found[name] = kind.play(stage, *kind.worlds(stage))
    return found


# Users who come once: only one who comes back can use up the larger noise for such users.
_ALONE: dict[str, Any] = {"contributions_per_user": None, "contributions_per_epoch": None}
Worlds = tuple[Visit, Visit]


def _remembering(policy: Capri) -> dict[str, Any]:
    """A policy that never forgets: others take bystanders, who are not the users of the rehearsal,
    for a change of the world, and plan the epoch after in another basis or end it early."""
    return _ALONE if policy.preset == "paper" else _ALONE | {"memory": inf}


def _waiting(policy: Capri) -> dict[str, Any]:
    """Epochs wait for their rewards, by a number of decisions."""
    wait = policy.problem.rewards.wait
    waits = wait if isinstance(wait, int) and wait else _WAIT
    return _remembering(policy) | {"reward_wait": waits}


def _offering(policy: Capri) -> dict[str, Any]:
    """Two actions at least; a policy with one gets a second."""
    actions = policy.problem.actions
    changes = _ALONE | {"limits": policy.problem.limits or Limits()}
    if actions.count == 1 and isinstance(actions, FixedActions):
        changes["actions"] = np.concatenate([actions.rows, actions.rows + 1.0])
    return changes


def _limited(policy: Capri) -> dict[str, Any]:
    """The policy's own limit of a user; three contributions, two in an epoch, where it has none."""
    limit = policy.problem.limit
    total, most = (3, 2) if limit is None else (limit.total, limit.per_epoch)
    if policy.model == "local":
        total = most  # reports of one epoch: filling epochs with noisy reports takes long
    return {"contributions_per_user": total, "contributions_per_epoch": most}


def _unknown(policy: Capri, rehearsed: int) -> dict[str, Any]:
    """Nothing is public but ranges: the policy's own, or two columns where rows are public."""
    changes = _ALONE | {"rehearsed": rehearsed}
    if not policy.crowd().columns:
        pool = ContextPool.from_ranges([(0.0, 1.0)] * 2)
        changes |= {"contexts": pool, "actions": [[0.0]], "kernel": "auto", "learn_crowd": True}
        changes |= {"limits": None, "prior": None, "horizon": None}
    return changes


def _marginals(policy: Capri) -> dict[str, Any]:
    return _unknown(policy, 0)


def _dependence(policy: Capri) -> dict[str, Any]:
    """Made-up users are spread evenly: no column is looked at more closely in between."""
    return _unknown(policy, 1)


def _nowhere(stage: RehearsedStage) -> Worlds:
    served = stage.absence(None)[1]
    return Visit(np.full_like(served.context, np.nan), served.reward), served


def _told(low: dict[str, Any], high: dict[str, Any]) -> Callable[[RehearsedStage], Worlds]:
    """Extreme rewards, and what ``act`` is told in either world."""

    def worlds(stage: RehearsedStage) -> Worlds:
        below, above = stage.extremes()
        return replace(below, given=low), replace(above, given=high)

    return worlds


@dataclass(frozen=True)
class Setup:
    """A scenario as data: how it is played, on which stage, and in which worlds.

    ``share``: for how many runs of the first scenario it is run once; those that plan epochs within
    a run, read files or fork processes take their time. ``full``: messages or limits of its own,
    and runs enough to see noise that is a fifth too narrow, of each kind that plans may take.
    ``local``: whether there is such a thing without a curator, who alone keeps what could come late
    or be saved. ``paper``: or in the paper's algorithm, which has neither missing rewards nor sets.
    """

    share: int
    play: type[Scenario] = Scenario
    changes: Callable[[Capri], dict[str, Any]] = lambda _: _ALONE
    worlds: Callable[[RehearsedStage], Worlds] = RehearsedStage.extremes
    full: bool = False
    local: bool = False
    paper: bool = True

    def applies(self, policy: Capri) -> bool:
        """Whether a policy can be attacked so."""
        if policy.model != "joint":
            return self.local
        return self.paper or policy.preset != "paper"


# The target's two lives, by the name of the attack:
SCENARIOS = {
    # a reward far below its bound, or far above it; a context of the pool
    "reward": Setup(1, full=True, local=True),
    # the same with a context that no pool holds
    "outside": Setup(10, worlds=lambda stage: stage.extremes(in_pool=False), local=True),
    # a reward that never comes, or one that does
    "presence": Setup(10, worlds=lambda stage: stage.absence(None)),
    # NaN, or a reward
    "bad reward": Setup(10, worlds=lambda stage: stage.absence(float("nan"))),
    # NaN, or a context
    "bad context": Setup(10, worlds=_nowhere),
    # all contributions of a user who comes back, and one more
    "users": Setup(2, Users, _limited, full=True, local=True),
    # the reward again, in the epoch after its own
    "next": Setup(20, Next, _remembering),
    # the same where epochs wait for rewards while the next one plays
    "overlap": Setup(20, Next, _waiting),
    # a reward that never comes and is counted as missing, or one that does
    "as-estimated": Setup(
        1,
        changes=lambda policy: _ALONE | {"missing_reward": AS_ESTIMATED},
        worlds=lambda stage: stage.absence(None),
        full=True,
        paper=False,
    ),
    # one action that is available, or another, and a reward far below or above its bound
    "sets": Setup(
        10, Offered, _offering, _told({"available": [0]}, {"available": [1]}), paper=False
    ),
    # two rewards while another system decides, with the largest weight
    "shadow": Setup(1, Shadow, worlds=_told(_RARE, _RARE), full=True),
    # contexts alone, at either end of every column; and then as it is told how these go together
    "marginals": Setup(1, changes=_marginals, worlds=RehearsedStage.apart, full=True, paper=False),
    "dependence": Setup(
        1, changes=_dependence, worlds=RehearsedStage.apart, full=True, paper=False
    ),
    # the last of them, and a reward that comes again when the first epoch plays that learns of any
    "twice": Setup(20, Next, _dependence, RehearsedStage.apart, paper=False),
    # on a store, with a key that comes again and a process that ends in between
    "store": Setup(20, Stored, lambda policy: _ALONE | {"rehearsed": 0}),
    # saved and loaded in between, with both copies going on
    "restart": Setup(100, Restart),
    # releases subtracted from those of another epoch or process, in case noise repeats
    "difference": Setup(100, Difference, local=True),
    "fork": Setup(100, Fork, local=True),
}
