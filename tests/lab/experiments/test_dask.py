"""The same study on Dask workers in separate processes; one of them is lost midway."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capri import __version__
from capri_lab.experiments import Here, Watcher, run_study
from capri_lab.experiments.backends import Event, Finished, WorkerError
from capri_lab.experiments.cells import code_digest
from capri_lab.experiments.on_dask import OnDask, _play
from small_studies import cells_of, results_of, small
from waiting import PATIENCE


def test_an_address_where_nobody_answers_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capri_lab.experiments.on_dask._CONNECT_SECONDS", 0.2)
    with pytest.raises(WorkerError, match=r"no Dask scheduler at tcp://127\.0\.0\.1:9"):
        run_study(small(), tmp_path, backend=OnDask("tcp://127.0.0.1:9"))


def test_a_scheduler_without_workers_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster:
        monkeypatch.setattr("capri_lab.experiments.on_dask._CONNECT_SECONDS", 1)
        with pytest.raises(WorkerError, match="has no worker, and none came within 1 seconds"):
            run_study(small(), tmp_path, backend=OnDask(cluster.scheduler_address))


def test_a_worker_with_other_code_plays_nothing() -> None:
    cell = next(small().cells())
    with pytest.raises(WorkerError, match=r"a worker has capri .*, this is capri 9\.9\.9"):
        _play(cell.to_dict(), "9.9.9")
    with pytest.raises(WorkerError, match="other source code"):
        _play(replace(cell, code="0" * 16).to_dict(), __version__)
    same = _play(replace(cell, code=code_digest()).to_dict(), __version__)
    assert same["status"] == "done"


@pytest.mark.slow
def test_two_dask_workers_give_the_same_records(tmp_path: Path) -> None:
    run_study(small(), tmp_path / "here", backend=Here())
    summary = run_study(small(), tmp_path / "dask", backend=OnDask("local", workers=2))
    assert summary.played == 16
    assert results_of(tmp_path / "dask/small") == results_of(tmp_path / "here/small")


@pytest.mark.slow
def test_losing_a_worker_midway_loses_nothing(tmp_path: Path) -> None:
    """A cluster with an address and two workers; nobody starts the lost one again."""
    from distributed import LocalCluster

    from capri_lab.experiments import study_from_text

    # Cells of about a tenth of a second.
    study = study_from_text(
        'name = "lost"\nrounds = 1_000\nseeds = 15\nepsilons = 1.0\n'
        '[[environments]]\nname = "branin"\ncontexts = 10\nactions = 10\n'
        '[[policies]]\nname = "capri"\n[[policies]]\nname = "gp-ucb"\n'
    )
    run_study(study, tmp_path / "here", backend=Here())

    class Kill(Watcher):
        finished = 0

        def tell(self, event: Event) -> None:
            self.finished += isinstance(event, Finished)
            if self.finished == 5 and isinstance(event, Finished):
                workers[0].kill()

    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        command += ["--no-nanny", "--nthreads", "1", "--no-dashboard"]
        workers = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        try:
            cluster.wait_for_workers(2, timeout=PATIENCE)
            summary = run_study(
                study, tmp_path / "dask", backend=OnDask(cluster.scheduler_address), watcher=Kill()
            )
            assert [worker.poll() for worker in workers] == [-signal.SIGKILL, None]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert (summary.played, summary.failed) == (30, 0)
    assert results_of(tmp_path / "dask/lost") == results_of(tmp_path / "here/lost")
    cells = cells_of(tmp_path / "dask/lost")
    assert len(cells) == len(set(cells)) == 30
