"""Attack a policy as its users could, and see how much privacy loss can be proved.

An audit plays private runs through the public interface, in two worlds that differ in one user:
``act``, ``update``, ``save`` and ``load`` in a late epoch of a rehearsed policy. From how well the
two worlds can be told apart it derives a lower bound on the privacy loss that holds with the stated
confidence. A bound above the claim proves a bug; a bound close below it shows that the test has
teeth and that little noise is wasted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from capri.epoch.limits import Limits
from capri.epoch.notice import unsaid
from capri.epoch.rewards import AS_ESTIMATED
from capri.errors import ConfigurationError
from capri.joint.attacker import Visit
from capri.joint.policy import Capri
from capri.joint.scenarios import (
    RARE,
    Difference,
    Fork,
    Next,
    Restart,
    Scenario,
    Sets,
    Shadow,
    Stored,
    Users,
)
from capri.joint.stage import Stage
from capri.privacy.attack import (
    FORKS,
    AttackResult,
    AuditResult,
    check_trials,
    chosen_attacks,
    clopper_pearson_upper,
    prove,
    proven_mu,
    share_of,
)
from capri.spaces import FixedActions

__all__ = ["AttackResult", "AuditResult", "audit_policy", "clopper_pearson_upper", "proven_mu"]

# What differs between the two worlds, and for how many runs of the first one each is run: those
# that plan epochs within a run, read files or fork processes take their time.
SCENARIOS = {
    "reward": 1,
    "outside": 10,
    "presence": 10,
    "bad reward": 10,
    "bad context": 10,
    "users": 20,
    "next": 20,
    "overlap": 20,
    "as-estimated": 10,
    "sets": 10,
    "shadow": 10,
    "store": 20,
    "restart": 100,
    "difference": 100,
    "fork": 100,
}
_ALSO = 4
# Decisions for which an epoch waits where the policy has no wait of its own.
_WAIT = 20
# Without a curator nothing is kept that could come late, be carried on or be saved.
_LOCAL = ("reward", "outside", "users", "difference", "fork")


def audit_policy(
    policy: Capri,
    *,
    trials: int = 10_000,
    confidence: float = 0.999,
    attacks: Sequence[str] | None = None,
    also: Mapping[str, Capri] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Attack the configuration of a private policy; ``trials`` runs in each of the two worlds.

    The target's two lives, by the name of the attack:

    - *reward*: a reward far below its bound, or far above it; a context of the pool;
    - *outside*: the same with a context that no pool holds;
    - *presence*: a reward that never comes, or one that does;
    - *bad reward*: NaN, or a reward;
    - *bad context*: NaN, or a context;
    - *users*: all contributions of a user who comes back, and one more;
    - *next*: the reward again, in the epoch after its own;
    - *overlap*: the same where epochs wait for rewards while the next one plays;
    - *as-estimated*: a reward that never comes and is counted as missing, or one that does;
    - *sets*: one action that is available, or another, and a reward far below or above its bound;
    - *shadow*: the same two rewards while another system decides, with the largest weight;
    - *store*: on a store, with a key that comes again and a process that ends in between;
    - *restart*: saved and loaded in between, with both copies going on;
    - *difference* and *fork*: releases subtracted from those of another epoch or process, in case
      noise repeats.

    ``also``: further policies by name, attacked by *reward*. The confidence holds for everything
    together. ``progress`` is told how many runs are done, and how many there are.
    """
    if not policy.private:
        raise ConfigurationError(
            "only a private run can be audited: give the policy a budget and no simulation_seed"
        )
    check_trials(trials, confidence)
    known = [name for name in SCENARIOS if _applies(name, policy)]
    chosen = chosen_attacks(tuple(known) if attacks is None else attacks, tuple(known))
    played = scenarios(policy, chosen)
    counts = {name: share_of(trials, SCENARIOS[name]) for name in chosen}
    counts["fork"] = min(share_of(trials, SCENARIOS["fork"]), FORKS)
    for name, other in (also or {}).items():
        played[name] = scenarios(other, ["reward"])["reward"]
        counts[name] = share_of(trials, _ALSO)
    with unsaid():
        return prove(
            played,
            model=str(policy.model),
            budget=policy.ledger.budget,
            trials=trials,
            confidence=confidence,
            counts=counts,
            progress=progress,
        )


def _applies(name: str, policy: Capri) -> bool:
    """Whether a policy can be attacked so: the paper has neither missing rewards nor sets."""
    if policy.model != "joint":
        return name in _LOCAL
    return name not in ("as-estimated", "sets") or policy.preset != "paper"


def scenarios(policy: Capri, names: Sequence[str]) -> dict[str, Scenario]:
    """The attacks of these names on a policy's configuration, ready to be played."""
    # The noise for users who come back is larger: only such a user can use it up.
    alone = _alone(policy)
    low, high = alone.extremes()
    served = alone.absence(None)[1]
    nowhere = Visit(np.full_like(served.context, np.nan), served.reward)
    worlds: dict[str, tuple[type[Scenario], Visit, Visit]] = {
        "outside": (Scenario, *alone.extremes(in_pool=False)),
        "presence": (Scenario, *alone.absence(None)),
        "bad reward": (Scenario, *alone.absence(float("nan"))),
        "bad context": (Scenario, nowhere, served),
        "next": (Next, low, high),
        "restart": (Restart, low, high),
        "difference": (Difference, low, high),
        "fork": (Fork, low, high),
    }
    found: dict[str, Scenario] = {}
    for name in names:
        if name in _STAGED:
            found[name] = _STAGED[name](policy)
        else:
            kind, below, above = worlds.get(name, (Scenario, low, high))
            found[name] = kind(alone, below, above)
    return found


def _alone(policy: Capri, **changes: Any) -> Stage:
    """A stage of users who come once, in a changed configuration."""
    return Stage(policy, contributions_per_user=None, contributions_per_epoch=None, **changes)


def _overlap(policy: Capri) -> Scenario:
    """Epochs wait for their rewards, by a number of decisions."""
    wait = policy.problem.rewards.wait
    stage = _alone(policy, reward_wait=wait if isinstance(wait, int) and wait else _WAIT)
    return Next(stage, *stage.extremes())


def _as_estimated(policy: Capri) -> Scenario:
    stage = _alone(policy, missing_reward=AS_ESTIMATED)
    return Scenario(stage, *stage.absence(None))


def _sets(policy: Capri) -> Scenario:
    """The first two actions; a policy with one gets a second."""
    actions = policy.problem.actions
    changes: dict[str, Any] = {"limits": policy.problem.limits or Limits()}
    if actions.count == 1 and isinstance(actions, FixedActions):
        changes["actions"] = np.concatenate([actions.rows, actions.rows + 1.0])
    stage = _alone(policy, **changes)
    low, high = stage.extremes()
    return Sets(
        stage, replace(low, given={"available": [0]}), replace(high, given={"available": [1]})
    )


def _shadow(policy: Capri) -> Scenario:
    stage = _alone(policy)
    return Shadow(stage, *(replace(visit, given=RARE) for visit in stage.extremes()))


def _store(policy: Capri) -> Scenario:
    stage = _alone(policy, rehearsed=False)
    return Stored(stage, *stage.extremes())


def _users(policy: Capri) -> Scenario:
    """A user of the policy's own limit; three contributions, two in an epoch, where it has none."""
    limit = policy.problem.limit
    total, most = (3, 2) if limit is None else (limit.total, limit.per_epoch)
    if policy.model == "local":
        total = most  # reports of one epoch: filling epochs with noisy reports takes long
    stage = Stage(policy, contributions_per_user=total, contributions_per_epoch=most)
    return Users(stage, *stage.extremes())


_STAGED: dict[str, Callable[[Capri], Scenario]] = {
    "users": _users,
    "overlap": _overlap,
    "as-estimated": _as_estimated,
    "sets": _sets,
    "shadow": _shadow,
    "store": _store,
}
