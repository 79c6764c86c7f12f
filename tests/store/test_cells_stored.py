"""Messages of one cell on a store: plans, sums and releases survive processes, and stay pure."""

from typing import Any

import numpy as np
import pytest

import capri
from builders import PURE

POOL = np.linspace(0.0, 1.0, 20)[:, None]
KINDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "blocks": {"actions": [f"{number}" for number in range(9)]},
    "late, as estimated": {"reward_wait": 10, "missing_reward": "as-estimated"},
    "users": {"contributions_per_user": 2},
}


def opened(url: str, **changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "actions": ["a", "b", "c"],
        "contexts": capri.ContextPool(POOL),
        "budget": PURE,
        "first_epoch": 40,
        "growth": 1.2,
    }
    return capri.Capri(**(settings | changes), store=url)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unforced")
def test_cells_go_on_in_another_process(url: str, kind: str) -> None:
    """Half an epoch here, half there, with contexts that are none among them; then new actions."""
    changes = KINDS[kind]
    with_users = "contributions_per_user" in changes
    came = 0
    events: tuple[Any, ...] = ()
    for turn in range(6):
        policy = opened(url, **changes)
        assert policy.ledger.events[: len(events)] == events
        for _ in range(2):
            rows = np.append(POOL[(np.arange(9) + came) % 20], [[np.nan]], axis=0)
            users = [f"{(came + place) // 3}" for place in range(10)] if with_users else None
            made = policy.act_many(rows, users=users, keys=[f"{came + n}" for n in range(10)])
            policy.update_many([str(each) for each in made.id[:8]], np.sin(np.arange(8) + turn))
            came += 10
        if turn == 3:
            names = [str(name) for name in policy.actions.names or ()]
            policy.replace_actions([*names[1:], "new"])
        if turn % 2:
            policy.close_epoch(early=True)
        events = policy.ledger.events
        policy.close()
    last = opened(url, **changes)
    assert len(last.ledger.events) >= 3
    assert {event.mechanism for event in last.ledger.events} == {"laplace"}
    assert (last.ledger.spent.delta, last.ledger.spent.epsilon <= PURE.epsilon) == (0.0, True)
    told = last.certificate()
    assert {row["norm"] for row in told.releases} == {"l1"}
    assert told.delta == 0.0
    assert np.isfinite(last.estimate(POOL)).all()
    if with_users:
        spent = [last.ledger.spent_by(f"{user}").epsilon for user in range(came // 3)]
        assert 0 < max(spent) <= PURE.epsilon
    last.close()
