"""What an organisation's ledger is told of an aggregator: bundles before, readings after."""

from typing import Any

from capri.epoch.plan import EpochPlan
from capri.epoch.problem import Problem
from capri.privacy.ledger import ReleaseEvent
from capri.store.reservation import Reservation


def note_bundle(
    reservation: Reservation,
    problem: Problem,
    plan: EpochPlan | None,
    readings: list[dict[str, Any]],
) -> None:
    """Tell of a bundle before it is handed out, and of all readings so far, once an epoch."""
    epochs = {entry["epoch"]: entry for entry in readings}  # late reports are read once more
    released = [
        _event(problem, epoch, entry["reports"], entry["coordinates"])
        for epoch, entry in epochs.items()
    ]
    if plan is None:
        reservation.release(released)
    else:
        reservation.plan(_event(problem, plan.epoch, plan.length, plan.dimension), released)


def _event(problem: Problem, epoch: int, reports: int, rank: int) -> ReleaseEvent:
    """What one report to a bundle costs; behind a shuffler at most its local epsilon."""
    assert problem.budget is not None
    shuffle = problem.shuffle
    return ReleaseEvent(
        epoch=epoch,
        model="local",
        calibration="exact",
        participants=reports,
        rank=rank,
        sensitivity=0.0,
        noise_scale=0.0,
        mechanism="sphere",
        epsilon=problem.budget.epsilon if shuffle is None else shuffle.most,
    )
