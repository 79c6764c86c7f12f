"""Group commit: threads that write at the same time share one transaction.

The first thread becomes the leader of all jobs that wait, and commits them together; the others
find their job done. A commit waits for the disk, so under load the number of jobs per commit grows
by itself, and alone a thread waits for nobody.

A job waits while the database is held or hangs, and whoever asked for it may have gone by then. So
a caller may say what is asked when the transaction has begun: :func:`beginning`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from capri.errors import InDoubtError

if TYPE_CHECKING:
    from capri.store.transaction import Transaction

Result = TypeVar("Result")


_begin: ContextVar[Callable[[], bool] | None] = ContextVar("_begin", default=None)


class GivenUpError(Exception):
    """Nobody waits for a job any more: it was not begun."""


@contextmanager
def beginning(begin: Callable[[], bool]) -> Iterator[None]:
    """Have ``begin`` asked in every transaction of this thread before anything is done in it.

    Where it says False nothing is done, and :class:`GivenUpError` is raised.
    """
    before = _begin.set(begin)
    try:
        yield
    finally:
        _begin.reset(before)


class Job:
    """One function to be run in a transaction, and what came of it."""

    def __init__(self, function: Callable[["Transaction"], Any]) -> None:
        self.function, self._begin = function, _begin.get()
        self.result: Any = None
        self.problem: BaseException | None = None
        self.done = False

    def run(self, transaction: "Transaction") -> None:
        """Note the result; a failure is noted and raised."""
        self.problem = None
        try:
            if self._begin is not None and not self._begin():
                raise GivenUpError
            self.result = self.function(transaction)
        except BaseException as problem:
            self.problem = problem
            raise


class GroupCommit:
    """Collects jobs of many threads for ``commit``, which runs some of them in one transaction.

    ``commit`` raises if none of them has happened; a job with a problem of its own has not.
    """

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._waiting: list[Job] = []
        self._queue, self._leading = Lock(), Lock()

    def run(self, function: Callable[["Transaction"], Result]) -> Result:
        """Have a function committed, by this thread or by another."""
        job = Job(function)
        with self._queue:
            self._waiting.append(job)
        with self._leading:
            if not job.done:
                self._lead(job)
        if job.problem is not None:
            raise job.problem
        result: Result = job.result
        return result

    def alone(self, function: Callable[[], Result]) -> Result:
        """Run a function while no transaction is under way."""
        with self._leading:
            return function()

    def _lead(self, own: Job) -> None:
        """Commit all jobs that wait. What interrupts this thread is not for the others."""
        jobs: list[Job] = []
        try:
            with self._queue:
                jobs, self._waiting = self._waiting, []
            self._commit(jobs)
        except BaseException as problem:
            for job in jobs:
                job.problem = job.problem or problem
                if job is not own and not isinstance(job.problem, Exception):
                    job.problem = InDoubtError(
                        "the thread that stored this together with its own was interrupted: make "
                        "the call again, with the same key where it has one"
                    )
            if own not in jobs:
                raise
        finally:
            for job in jobs:
                job.done = True


def run_jobs(jobs: list[Job], transaction: "Transaction") -> None:
    """All jobs in one transaction: one that fails undoes itself alone.

    A failure between the jobs is one of the database, and fails them all.
    """
    if len(jobs) == 1:
        jobs[0].run(transaction)
        return
    for job in jobs:
        try:
            transaction.nested(job.run)
        except Exception as problem:
            if job.problem is not problem or transaction.lost(problem):
                raise
