"""Small policies and problems that several tests share."""

from pathlib import Path
from typing import Any

import numpy as np

import capri
from capri.epoch.storage import read_policy_file
from capri.privacy.layout import Norm
from capri.privacy.ledger import ReleaseEvent
from epochs_inside import epochs_inside

CONTEXTS = np.array([[0.0], [0.3], [0.6], [1.0]])
ACTIONS = np.array([[0.0], [0.5], [1.0]])
BUDGET = capri.Budget(epsilon=1.0, delta=1e-5)
PURE = capri.Budget(epsilon=1.0)


def small_policy(**changes: Any) -> capri.Capri:
    """Four contexts, three actions, epochs of 8, 16, 32 and 4 decisions; seeded."""
    settings: dict[str, Any] = {
        "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.4),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "reward_bound": 1.0,
        "budget": BUDGET,
        "horizon": 60,
        "preset": "paper",
        "simulation_seed": 11,
    }
    return capri.Capri(**(settings | changes))


def draw_contexts(seed: int, count: int) -> np.ndarray:
    """Contexts of the small pool."""
    return CONTEXTS[np.random.default_rng(seed).integers(len(CONTEXTS), size=count)]


def play_epoch(policy: capri.Capri, seed: int = 0) -> capri.Decisions:
    """Play all that is left of the epoch and close it; rewards in [-1, 1] by the seed only."""
    count = policy.remaining
    decisions = policy.act_many(draw_contexts(seed, count))
    policy.update_many(decisions, np.random.default_rng(seed + 1).uniform(-1, 1, count))
    policy.close_epoch()
    return decisions


def records(policy: capri.Capri) -> list[dict[str, Any]]:
    """Epoch records without the clock."""
    return [
        {key: value for key, value in record.to_dict().items() if key != "seconds"}
        for record in policy.epochs
    ]


def snapshot(policy: capri.Capri, folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """All that a save holds, without clock and history: equal snapshots are equal states.

    Of a simulation, what users did counts by the sums that it makes.
    """
    path = folder / "snapshot.capri"
    path.unlink(missing_ok=True)  # one policy does not write over another's file
    policy.save(path)
    values, arrays = read_policy_file(path)
    values.pop("history", None)
    for row in values["repository"]["tables"]["laws"]:
        del row["state"]["plan_seconds"]
        for record in row["state"]["course"]["epochs"]:
            del record["seconds"]
    # Of what users did all that can ever come out: the sums of the epochs under way.
    sums = {
        f"sum.{inside.row.number}": np.append(inside.settled.total, inside.counts)
        for inside in ([] if policy.private else epochs_inside(policy))
    }
    public = {name: array for name, array in arrays.items() if not name.startswith("rows.")}
    return values, {
        name: str((array.dtype, array.shape)).encode() + array.tobytes()
        for name, array in (public | sums).items()
    }


def dp_event(event: ReleaseEvent) -> Any:
    """An event as dp-accounting knows it, for an independent account."""
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent

    kind = LaplaceDpEvent if event.norm is Norm.L1 else GaussianDpEvent
    return kind(noise_multiplier=1 / event.mu)
