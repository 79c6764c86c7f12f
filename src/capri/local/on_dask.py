"""Tasks of an aggregation on a Dask cluster: one on this machine, or any that shares the files."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from capri.arrays import one_blas_thread
from capri.checks import need
from capri.errors import ConfigurationError, StorageError
from capri.local.summing import TaskRunner
from capri.version import VERSION

# Tasks with the scheduler per worker: one under way, one that hides the way there.
_AHEAD = 2
_CONNECT_SECONDS = 10
# Dask has workers give back memory at once, so that every array is made of fresh pages: that takes
# longer than what is computed with them.
_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@contextmanager
def dask_cluster(workers: int, address: str | None = None) -> Iterator[TaskRunner]:
    """Runs tasks on so many processes here, or on the cluster of a scheduler."""
    need("capri aggregate", "distributed", extra="capri-bandits[aggregate]")
    import dask
    from distributed import Client, LocalCluster

    cluster = None
    if address is None:
        with dask.config.set({"distributed.nanny.pre-spawn-environ": _MEMORY}):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=0,
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,
            )
    elif "://" not in address:
        raise ConfigurationError(
            f"cluster must be the address of a scheduler such as tcp://192.168.0.7:8786, got "
            f"{address!r}"
        )
    try:
        target = cluster if cluster is not None else address
        with Client(target, timeout=_CONNECT_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
            others = set(client.run(_version).values()) - {VERSION}
            if others:
                raise StorageError(
                    f"the workers of {address} have capri {', '.join(sorted(others))}, this is "
                    f"capri {VERSION}: install the same version"
                )
            yield _OnDask(client)
    except (TimeoutError, OSError) as problem:
        raise StorageError(
            f"no Dask workers at {address or 'this machine'} ({type(problem).__name__})"
        ) from None
    finally:
        if cluster is not None:
            cluster.close()


class _OnDask:
    """Outcomes as they come; only a few tasks per worker are with the scheduler at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """The outcome of each task; those of a lost worker are run again elsewhere."""
        from distributed import as_completed

        client, left = self._client, iter(tasks)
        shared = client.scatter(function, broadcast=True)  # with the bundle, once for each worker
        ready, waiting = as_completed(loop=client.loop), 0
        while True:
            room = _AHEAD * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            for task in islice(left, max(0, room - waiting)):
                ready.add(client.submit(_call, shared, task, pure=False))
                waiting += 1
            if not waiting:
                return
            future = next(ready)
            waiting -= 1
            outcome = _outcome(future)
            del future  # or the scheduler would keep every outcome
            yield outcome


def _outcome(future: Any) -> Any:
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker:
        raise StorageError(
            "the workers that had a task died, most often for want of memory: nothing was written"
        ) from None


def _version() -> str:
    """Runs on a worker."""
    return VERSION


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    """Runs on a worker."""
    with one_blas_thread():
        return function(task)
