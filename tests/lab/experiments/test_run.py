"""Running a study: the same records from every backend, resumed, changed, killed or failing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capri_lab.experiments import (
    Here,
    Pool,
    Study,
    Watcher,
    read_results,
    run_study,
    study_from_text,
)
from capri_lab.experiments.backends import Event, Finished, Started
from small_studies import SMALL, cells_of, results_of, small

CAPRI_RUN = [sys.executable, "-m", "capri_lab", "run"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The small study, run through in this process."""
    folder = tmp_path_factory.mktemp("reference")
    summary = run_study(small(), folder, backend=Here())
    assert (summary.played, summary.failed, summary.stopped) == (16, 0, False)
    return results_of(folder / "small")


class _Environments(Watcher):
    """What the operating system gave to the workers before they loaded anything."""

    def __init__(self) -> None:
        self.seen: list[list[bytes]] = []
        self._before = set(_children(os.getpid()))  # a database server of other tests

    def tell(self, event: Event) -> None:
        if isinstance(event, Finished):
            workers = set(_children(os.getpid())) - self._before
            files = [Path(f"/proc/{process}/environ") for process in workers]
            self.seen = self.seen or [file.read_bytes().split(b"\0") for file in files]


def test_worker_processes_give_the_same_records_with_one_blas_thread_each(
    tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    environments = _Environments() if sys.platform == "linux" else None
    run_study(small(), tmp_path, backend=Pool(2), watcher=environments)
    assert results_of(tmp_path / "small") == reference
    if environments is not None:
        assert len(environments.seen) == 2
        for environment in environments.seen:
            assert {b"OPENBLAS_NUM_THREADS=1", b"OMP_NUM_THREADS=1"} <= set(environment)


def test_records_hold_what_the_simulation_measured(reference: list[dict[str, Any]]) -> None:
    from capri import Budget, Capri, ContextPool, simulate
    from capri.kernels import Matern
    from capri_lab.surfaces import branin

    found = reference[4]
    assert (found["policy"], found["epsilon"], found["rounds"]) == ("capri-joint", 1.0, 60)
    world = branin(contexts=6, actions=5, seed=0)
    policy = Capri(
        kernel=Matern(nu=2.5, lengthscale=0.3),
        actions=world.actions,
        contexts=ContextPool(world.contexts, weights=world.weights),
        budget=Budget(epsilon=1.0, delta=1e-5),
        horizon=60,
        first_epoch=10,
        simulation_seed=0,
    )
    result = simulate(policy, world, 60, seed=0)
    assert found["regret_per_round"] == result.regret_per_round
    assert found["ratio"] == result.ratio
    assert found["curve"]["round"][-1] == 60
    rounds = [number - 1 for number in found["curve"]["round"]]
    assert found["curve"]["regret"] == result.regret[rounds].tolist()
    assert [epoch["length"] for epoch in found["epochs"]] == [e.length for e in result.epochs]
    assert found["promise"]["model"] == "joint"
    assert found["simulated"] is True
    assert found["certificate"]["simulated"] is True
    assert found["certificate"]["claim"] == "none: seeded noise, nobody was protected"
    terms = found["certificate"]["would_certify"]
    assert terms["epsilon"] == 1.0
    assert not {"spent", "releases"} & set(terms)
    maps = found["active"]["epochs"]
    assert [each["epoch"] for each in maps] == [e.epoch for e in result.epochs]
    # After the last epoch, from the policy itself: contexts and actions in increasing order.
    playable = policy.probabilities(world.contexts) > 0
    playable = playable[world.contexts[:, 0].argsort()][:, world.actions[:, 0].argsort()]
    assert maps[-1]["rows"] == ["".join("9" if p else "0" for p in row) for row in playable]


def test_simulations_without_noise_carry_no_certificate(reference: list[dict[str, Any]]) -> None:
    for record in reference:
        assert (record["certificate"] is None) == (record["epsilon"] is None)
        assert record["active"] is None or record["seed"] == 0


def test_published_set_ups_give_the_numbers_of_the_arena(tmp_path: Path) -> None:
    from capri_lab.experiments.arena import play_arena, published_study

    study = study_from_text(
        'name = "usca"\nrounds = 50\nepsilons = 5.0\nseeds = [3]\n'
        '[[environments]]\nname = "usca-2025"\n'
        '[[policies]]\nname = "capri"\n[[policies]]\nname = "usca"\n'
    )
    run_study(study, tmp_path, backend=Here())
    records = results_of(tmp_path / "usca")
    arena = {
        (each.policy, each.epsilon): each.regret_per_round
        for each in play_arena(published_study("usca-2025", [3]))
    }
    for record, policy in zip(records, ("capri-joint", "usca"), strict=True):
        assert record["simple_regret"] == arena[policy, 5.0]


def test_a_second_run_plays_nothing_and_changes_nothing(tmp_path: Path) -> None:
    run_study(small(), tmp_path, backend=Here())
    before = {file.name: file.read_bytes() for file in (tmp_path / "small").iterdir()}
    summary = run_study(small(), tmp_path, backend=Here())
    assert (summary.played, summary.kept) == (0, 16)
    assert {file.name: file.read_bytes() for file in (tmp_path / "small").iterdir()} == before


def test_a_changed_study_plays_only_what_changed(tmp_path: Path) -> None:
    run_study(small(), tmp_path, backend=Here())
    summary = run_study(small(seeds="3"), tmp_path, backend=Here())
    assert (summary.played, summary.kept) == (8, 16)
    # Fewer cells: what is there stays on disk and comes back without playing.
    assert run_study(small(rounds="20"), tmp_path, backend=Here()).played == 0
    assert len(results_of(tmp_path / "small")) == 8
    summary = run_study(small(epsilons="[2.0, inf]"), tmp_path, backend=Here())
    assert summary.played == 4  # CAPRI with the new epsilon: two horizons, two seeds
    assert run_study(small(), tmp_path, backend=Here()).played == 0


def test_a_new_label_plays_nothing_and_shows_at_once(tmp_path: Path) -> None:
    run_study(small(), tmp_path, backend=Here())
    renamed = study_from_text(SMALL.replace('name = "gp-ucb"', 'name = "gp-ucb"\nlabel = "GP"'))
    assert run_study(renamed, tmp_path, backend=Here()).played == 0
    labels = {record["policy"] for record in read_results(tmp_path / "small").records}
    assert labels == {"capri-joint", "GP", "uniform"}


# A law that is off by more than the contexts allow is found out only when the policy is built.
FAILING = SMALL + '\n[[policies]]\nname = "capri"\nlabel = "fails"\nlaw_error = 0.49\n'
FAILING = FAILING.replace("contexts = 6", "contexts = 1")


def test_failures_are_recorded_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    study = study_from_text(FAILING)
    summary = run_study(study, tmp_path, backend=Here())
    assert (summary.played, summary.failed) == (24, 8)
    for record in read_results(tmp_path / "small").records:
        if record["policy"] == "fails":
            assert record["status"] == "failed"
            assert record["error"].startswith("ConfigurationError: law_error must be below")
            assert record["ratio"] is None
        else:
            assert record["status"] == "done"
    again = run_study(study, tmp_path, backend=Here())
    assert (again.played, again.kept, again.kept_failed) == (0, 24, 8)
    retried = run_study(study, tmp_path, backend=Here(), retry=True)
    assert (retried.played, retried.failed, retried.kept) == (8, 8, 16)


class _Killer(Watcher):
    """Kills all workers as soon as a cell of a policy has begun."""

    def __init__(self, policy: str, times: int) -> None:
        self.policy, self.times = policy, times
        self.finished: list[str] = []
        self.others = set(_children(os.getpid()))  # such as the Postgres of other tests

    def tell(self, event: Event) -> None:
        if isinstance(event, Started) and event.cell.policy == self.policy and self.times:
            self.times -= 1
            for process in set(_children(os.getpid())) - self.others:
                os.kill(process, signal.SIGKILL)
        if isinstance(event, Finished):
            self.finished.append(event.record["status"])


def _children(parent: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


LONG = """\
name = "long"
rounds = 2_000
seeds = 1
[[environments]]
name = "branin"
contexts = 20
actions = 20
[[policies]]
name = "uniform"
[[policies]]
name = "igp-ucb"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc")
@pytest.mark.parametrize(
    ("kills", "statuses"), [(1, ["done"]), pytest.param(2, ["failed"], marks=pytest.mark.slow)]
)
def test_a_lost_worker_loses_nothing_and_a_deadly_cell_is_given_up(
    tmp_path: Path, kills: int, statuses: list[str]
) -> None:
    study = study_from_text(LONG.replace("2_000", "20_000" if kills == 2 else "6_000"))
    killer = _Killer("igp-ucb", kills)
    summary = run_study(study, tmp_path, backend=Pool(1), watcher=killer)
    assert killer.times == 0
    assert summary.played == 2
    assert killer.finished[1:] == statuses
    if kills == 2:
        error = list(read_results(tmp_path / "long").records)[1]["error"]
        assert error == "the worker process died 2 times (exit code -9)"


# Three kinds of cells, all quick, 200 in all.
MANY = """\
name = "many"
rounds = [10, 20]
epsilons = [1.0, inf]
seeds = 25
[[environments]]
name = "branin"
contexts = 4
actions = 3
[[policies]]
name = "capri"
[[policies]]
name = "uniform"
[[policies]]
name = "linucb"
"""


def many(seeds: int) -> Study:
    return study_from_text(MANY.replace("seeds = 25", f"seeds = {seeds}"))


def _kill_at_random(
    command: list[str], file: Path, kills: int, total: int, random: Random
) -> Iterator[int]:
    """Kill the run as soon as a random number of records is there; yields the number found."""
    # Far from the end: whoever looks may be kept from the processor for a while.
    for target in sorted(random.sample(range(1, total // 2), kills)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if file.exists() and file.read_bytes().count(b"\n") >= target:
                process.kill()
                break
            time.sleep(random.random() * 0.005)
        process.wait()
        yield file.read_bytes().count(b"\n")


def _check_kills(tmp_path: Path, *, seeds: int, kills: int, workers: int) -> None:
    study = tmp_path / "many.toml"
    study.write_text(many(seeds).text)
    total = len(list(many(seeds).cells()))
    run_study(many(seeds), tmp_path / "through", backend=Here())
    command = [*CAPRI_RUN, str(study), "--output", str(tmp_path / "killed")]
    command += ["--workers", str(workers)]
    file = tmp_path / "killed/many/records.jsonl"
    counts = list(_kill_at_random(command, file, kills, total, Random(1)))
    assert 0 < counts[0] <= counts[-1] < total  # every kill came before the end
    with file.open("ab") as cut:
        cut.write(b'{"cell":"half')  # what a power cut leaves
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert results_of(tmp_path / "killed/many") == results_of(tmp_path / "through/many")
    cells = cells_of(tmp_path / "killed/many")
    assert len(cells) == len(set(cells)) == total  # nothing was computed twice


def test_a_study_that_is_killed_ends_with_the_same_records(tmp_path: Path) -> None:
    _check_kills(tmp_path, seeds=5, kills=1, workers=1)


@pytest.mark.slow
def test_two_hundred_cells_killed_five_times_end_with_the_same_records(tmp_path: Path) -> None:
    assert len(list(many(25).cells())) == 200
    _check_kills(tmp_path, seeds=25, kills=5, workers=2)


def test_memory_does_not_grow_with_the_number_of_cells(tmp_path: Path) -> None:
    """The run holds a few words per cell, not its record: a record has thousands of bytes."""
    import tracemalloc

    class Quick:
        """Cells that cost nothing: what is measured is the run around them."""

        workers = 1

        def play(self, cells: Any, stop: Any) -> Any:
            for cell in cells:
                record = {"cell": cell.hash, "status": "done", "text": "x" * 20_000}
                yield Finished(cell, record)

    peaks = []
    for seeds in (10, 60):
        tracemalloc.start()
        run_study(many(seeds), tmp_path / str(seeds), backend=Quick())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    cells = 8 * (60 - 10)
    assert (peaks[1] - peaks[0]) / cells < 1_000, peaks


def test_records_are_one_line_of_plain_json(tmp_path: Path) -> None:
    run_study(small(rounds="20", seeds="1"), tmp_path, backend=Here())
    for line in (tmp_path / "small/records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
