"""Cells on a Dask cluster: one on this machine, or any whose workers have this package.

A cell is played by the same function as everywhere, with one BLAS thread, so the records are the
same to the last bit on machines with the same libraries. Dask moves the cells of a lost worker to
others. Workers should have one thread each; one with more plays a cell at a time all the same.
"""

import signal
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from threading import Lock
from typing import Any, final

from capri.checks import need
from capri.errors import ConfigurationError
from capri.version import VERSION
from capri_lab.experiments.backends import (
    Event,
    Finished,
    Started,
    Stop,
    WorkerError,
    signals,
    usable_cores,
)
from capri_lab.experiments.cells import Cell, code_digest
from capri_lab.experiments.play import failure, play

# Cells with the scheduler per worker: one under way, one that hides the way there.
_AHEAD = 2
_CONNECT_SECONDS = 10

# BLAS limits belong to a process, so two cells at once in one would take them from each other.
_one_at_a_time = Lock()


@final
class OnDask:
    """The backend for ``tcp://host:port`` of a scheduler, or ``local`` for a cluster right here."""

    def __init__(self, address: str, *, workers: int | None = None) -> None:
        if address != "local" and "://" not in address:
            raise ConfigurationError(
                f"cluster must be 'local' or the address of a scheduler such as "
                f"tcp://192.168.0.7:8786, got {address!r}"
            )
        if address != "local" and workers is not None:
            raise ConfigurationError(
                "workers is for clusters on this machine: one with an address has its own"
            )
        need("--cluster", "distributed", extra="capri-lab[studies]")
        self._address = address
        self._wanted = workers
        self._client: Any = None
        self._cluster: Any = None

    @property
    def workers(self) -> int:
        """Workers that are connected now."""
        return max(1, len(self._connected().scheduler_info(n_workers=-1)["workers"]))

    def play(self, cells: Iterator[Cell], stop: Stop) -> Generator[Event]:
        """Play all cells; at most two per worker are with the scheduler at a time."""
        from distributed import as_completed

        try:
            client = self._connected()
            waiting: dict[Any, Cell] = {}
            ready = as_completed(loop=client.loop)

            def submit() -> Iterator[Event]:
                room = _AHEAD * self.workers
                while not stop.asked and len(waiting) < room:
                    cell = next(cells, None)
                    if cell is None:
                        return
                    future = client.submit(_play, cell.to_dict(), VERSION, pure=False)
                    waiting[future.key] = cell
                    ready.add(future)
                    yield Started(cell)

            yield from submit()
            while waiting:
                future = next(ready)
                cell = waiting.pop(future.key)
                record = _record(cell, future)
                del future  # or the scheduler would keep every result
                yield from submit()
                yield Finished(cell, record)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        joined, self._client, self._cluster = (self._client, self._cluster), None, None
        for each in filter(None, joined):
            each.close()

    def _connected(self) -> Any:
        if self._client is not None:
            return self._client
        import logging

        from distributed import Client, LocalCluster

        if self._address == "local":
            with signals(signal.SIG_IGN, signal.SIGINT):  # Ctrl-C is for the run alone
                self._cluster = LocalCluster(
                    n_workers=self._wanted or usable_cores(),
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,
                    dashboard_address=":0",
                    silence_logs=logging.CRITICAL,
                )
        try:
            target = self._address if self._cluster is None else self._cluster
            self._client = Client(target, timeout=_CONNECT_SECONDS, set_as_default=False)
            self._check_workers()
        except (OSError, TimeoutError, ValueError) as problem:
            self.close()
            raise WorkerError(f"no Dask scheduler at {self._address}: {problem}") from None
        except WorkerError:
            self.close()
            raise
        return self._client

    def _check_workers(self) -> None:
        """Refuse to wait for workers, and those with another version of this package or none."""
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
            versions = set(self._client.run(_version).values())
        except TimeoutError:
            raise WorkerError(
                f"the Dask scheduler at {self._address} has no worker, and none came within "
                f"{_CONNECT_SECONDS} seconds: start some with dask worker {self._address} "
                "--nthreads 1"
            ) from None
        except ModuleNotFoundError:
            raise WorkerError(
                f"the workers of {self._address} do not have capri {VERSION}: install it there"
            ) from None
        others = sorted(versions - {VERSION})
        if others:
            raise WorkerError(
                f"the workers of {self._address} have capri {', '.join(others)}, this is capri "
                f"{VERSION}: install the same version"
            )


def _play(cell: dict[str, Any], version: str) -> dict[str, Any]:
    """Runs on a worker, which may have joined after the others were asked for their version."""
    if version != VERSION:
        raise WorkerError(
            f"a worker has capri {VERSION}, this is capri {version}: install the same version"
        )
    if cell["code"] is not None and cell["code"] != code_digest():
        raise WorkerError(
            f"a worker has capri {version} with other source code, and the study has code_version "
            "= true: install the same source there and start the worker again"
        )
    with _one_at_a_time:
        return play(Cell(**cell))


def _version() -> str:
    """Runs on a worker."""
    return VERSION


def _record(cell: Cell, future: Any) -> dict[str, Any]:
    """The record of a future that is done; a cell that kills its workers has failed."""
    from distributed import KilledWorker

    try:
        record: dict[str, Any] = future.result()
    except KilledWorker as problem:
        return failure(cell, f"the workers that played it died: {problem}")
    except CancelledError:
        raise WorkerError(
            "the cluster is gone: all cells that were finished are recorded; run the same command "
            "again when it is back"
        ) from None
    return record
