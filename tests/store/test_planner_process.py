"""Plans made in a process of their own: the same plans, and none is lost with it."""

import pickle
import sys
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

from capri import Capri, ContextSampler
from capri.arrays import FloatArray
from capri.errors import StorageError
from capri.joint.planner import PlannerProcess, PlanRequest, planned
from capri.streams import Streams
from stored_policies import CONTEXTS, context, learning, policy

DUMPS = pickle.dumps
pytestmark = pytest.mark.usefixtures("unforced")


def planner_of(run: Capri) -> PlannerProcess:
    assert run._engine is not None
    return run._engine.loop.planner


def play(run: Capri, visits: int) -> None:
    world = np.random.default_rng(0)
    for _ in range(visits):
        run.update(run.act(context(world)), 0.5)
    run.close_epoch(early=True)


def test_a_plan_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    """Without draws in it: what an epoch released is read the same in both processes."""
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=10)
    play(run, 10)
    assert run._engine is not None
    state = run._engine.state
    request = PlanRequest(plan=(state.following(), 10))
    here = planned(state.learning.branch(), request, 1)
    planner = PlannerProcess()
    planner.apart = True
    there = planner.make(state.learning.branch(), request, 1, Streams(None))
    assert planner._process is not None
    assert here.plan is not None
    assert there.plan is not None
    assert there.plan.length == here.plan.length
    assert there.plan.value_bound == pytest.approx(here.plan.value_bound, rel=0.2)
    assert learning_of(there) == learning_of(here)
    # What came back belongs to this process.
    assert there.learning.learner.problem is run.problem
    planner.close()
    run.close()


def test_a_planner_that_was_stopped_makes_no_plan_any_more(tmp_path: Path) -> None:
    """Whoever closes a policy stops it perhaps just before its process is there: nobody waits."""
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=10)
    assert run._engine is not None
    planner = PlannerProcess()
    planner.apart = True
    planner.stop()
    with pytest.raises(StorageError, match="was closed while it planned"):
        planner.make(
            run._engine.state.learning.branch(), PlanRequest(plan=(2, 10)), 1, Streams(None)
        )
    assert planner._process is None
    run.close()


def learning_of(plan: object) -> list[object]:
    return [record.to_dict() for record in plan.learning.records]  # type: ignore[attr-defined]


def test_epochs_go_on_in_the_other_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    run = policy(url, first_epoch=10)
    planner_of(run).apart = True
    play(run, 25)
    process = planner_of(run)._process
    assert process is not None
    process.kill()  # the next plan starts another one, or is made here
    play(run, 25)
    assert sum(record.length for record in run.epochs) == 50
    expected = learning(run)
    run.close()
    assert planner_of(run)._process is None
    other = Capri.open(url)
    assert learning(other) == expected
    other.close()


def test_a_sampler_that_cannot_be_sent_stays_here(tmp_path: Path) -> None:
    sampler = ContextSampler(
        lambda generator, count: generator.choice(CONTEXTS, size=(count, 1)), dimension=1
    )
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=10, contexts=sampler)
    planner_of(run).apart = True
    play(run, 12)
    assert planner_of(run)._process is None
    assert len(run.epochs) >= 1
    run.close()


def drawn(generator: np.random.Generator, count: int) -> FloatArray:
    return generator.choice(CONTEXTS, size=(count, 1))


@pytest.mark.parametrize("name", ["drawn", "main", "send"])
def test_a_sampler_of_the_main_program_stays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is pickled by its name, which means nothing elsewhere, and no function of ours either."""
    copy = FunctionType(drawn.__code__, drawn.__globals__, name)
    copy.__module__, copy.__qualname__ = "__main__", name
    monkeypatch.setattr(sys.modules["__main__"], name, copy, raising=False)
    sampler = ContextSampler(copy, dimension=1)
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=10, contexts=sampler)
    planner = planner_of(run)
    planner.apart = True
    play(run, 25)
    assert not planner._portable
    assert planner._process is None
    assert sum(record.length for record in run.epochs) == 25
    run.close()


def test_what_fails_elsewhere_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the same works: the process is blamed for one plan, and asked again for the next."""
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=10)
    play(run, 10)
    assert run._engine is not None
    state = run._engine.state
    planner = PlannerProcess()
    planner.apart = True
    request = PlanRequest(plan=(state.following(), 10))
    with monkeypatch.context() as patched:
        patched.setattr(
            pickle, "dumps", lambda parts, **more: DUMPS((*parts, "one argument too many"), **more)
        )
        assert planner.make(state.learning.branch(), request, 1, Streams(None)).plan is not None
    assert planner._portable
    first = planner._process
    assert first is not None
    assert planner._made_apart(state.learning.branch(), request, 1) is not None
    assert planner._process is first
    planner.close()
    run.close()
