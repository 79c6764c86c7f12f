"""Learning and planning as pure computations on public values: what a step will publish.

A draft is made from a branch of the course and changes nothing. So it may be made in another
process, and thrown away if somebody was faster.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

from capri.epoch.course import Course
from capri.epoch.decide import Chooser
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.epoch.storage import plan_state, segment_state
from capri.store.codec import BytesCodec, Codec


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to compute: learn from a release, turn the newest epoch, plan the next, in this order.

    ``learn`` is the number of an epoch; its ``release`` is None where none of its slots was used.
    ``plan`` is the number of an epoch and the slot it begins at; ``renewed`` the problem with the
    actions that it begins with, where these are new. ``catalogue`` is the version of the actions
    that are known afterwards.
    """

    learn: int | None = None
    release: Release | None = None
    turn: bool = False
    plan: tuple[int, int] | None = None
    renewed: Problem | None = None
    catalogue: int = 0
    codec: Codec = field(default_factory=BytesCodec)


@dataclass(frozen=True, eq=False)
class Draft:
    """The course afterwards, and what is to be published of it, as it is kept."""

    course: Course
    played: int  # releases behind the newest law that is played
    law: Any
    mark: bytes  # digest of the law
    chooser: Chooser | None = None
    segment: Segment | None = None
    kept_segment: Any = None
    plan: EpochPlan | None = None
    kept_plan: Any = None


def drafted(course: Course, task: Task, played: int) -> Draft:
    """Carry a task out on a course that is ours to change."""
    segment = plan = None
    if task.release is not None:
        course.close(task.release)
    elif task.learn is not None:
        course.learner.drop(task.learn)
    if task.turn:
        segment = course.turn()
    if task.renewed is not None:
        course.adopt(task.renewed)
    if task.plan is not None:
        plan = course.plan(*task.plan)
        segment = None if plan is None else plan.opening
    chooser = None
    if task.turn or plan is not None:
        played = len(course.records)
    if segment is not None:
        # Learners replace what they know piece by piece: a copy keeps the law of now.
        learner = copy(course.learner)
        chooser = Chooser(learner.problem, learner.probabilities, learner.pool_law())
    values, arrays = course.state()
    head = {"course": values, "plan_seconds": course.plan_seconds, "played": played}
    if task.catalogue:
        head["catalogue"] = task.catalogue
    codec = task.codec
    law = codec.pack(head, arrays)
    return Draft(
        course,
        played,
        law,
        codec.mark(law),
        chooser,
        segment,
        None if segment is None else codec.pack(*segment_state(segment)),
        plan,
        None if plan is None else codec.pack(*plan_state(plan)),
    )
