"""The part of a policy that knows of its store: opening, closing, and what lives there alone."""

import os
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from threading import Thread, current_thread
from typing import Any, Self

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.epoch.available import Sets
from capri.epoch.course import Course
from capri.epoch.decide import Decisions
from capri.epoch.ids import DecisionIds
from capri.epoch.modes import Logged
from capri.epoch.plan import Epochs
from capri.epoch.storage import problem_arguments
from capri.errors import BudgetError, ConfigurationError, StorageError
from capri.joint.backing import DEFAULT_RETENTION, Backing, StoredParticipation
from capri.joint.keys import KeyBook, checked_keys
from capri.joint.saved import Saved
from capri.learners.start import stored_prior
from capri.privacy.certificate import Certificate, Declaration
from capri.privacy.ledger import Ledger
from capri.privacy.users import Participation, UserId, UserLimit
from capri.spaces import Contexts
from capri.store.address import open_database
from capri.store.lineage import Seen
from capri.store.sql import SqlRepository
from capri.store.transaction import empty_store


def participation_of(limit: UserLimit, store: str | None) -> Participation:
    """Who counts the users: this process, or the store."""
    return Participation(limit) if store is None else StoredParticipation(limit)


def checked_retention(retention: object, wait: int | timedelta) -> float:
    """Seconds for which the decision of a key is kept."""
    if retention is None:
        longest = wait if isinstance(wait, timedelta) else timedelta(0)
        return (DEFAULT_RETENTION + longest).total_seconds()
    if not isinstance(retention, timedelta) or retention <= timedelta(0):
        raise ConfigurationError(
            f"key_retention must be a positive datetime.timedelta or None, got {retention!r}"
        )
    return retention.total_seconds()


class Stored(Saved):
    """The part of :class:`capri.Capri` that outlives its process in a store."""

    _backing: Backing | None
    _keys: KeyBook
    _retention: float
    _ids: DecisionIds
    _process: int | None
    _clock: Callable[[], datetime] | None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        contexts: Contexts | None = None,
        store_key: bytes | None = None,
        key_retention: timedelta | None = None,
        after: Certificate | None = None,
        anchor: str | None = None,
        new_anchor: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> Self:
        """The policy that lives in a store. A sampler and a clock are code: give them again."""
        database = open_database(url, create=False)
        try:
            found = SqlRepository(database, None).configuration()
        finally:
            database.close()
        if found is None:
            raise empty_store(repr(database))
        values, arrays = found
        return cls(
            **problem_arguments(values["problem"], arrays, contexts),
            horizon=values["horizon"],
            preset=values["preset"],
            simulation_seed=0 if values["simulated"] else None,
            store=url,
            store_key=store_key,
            key_retention=key_retention,
            after=after,
            anchor=anchor,
            new_anchor=new_anchor,
            clock=clock,
            prior=stored_prior(values, arrays),
            **values["options"],
        )

    def _attach(
        self,
        url: str,
        store_key: bytes | None,
        after: Certificate | None,
        anchor: str | None,
        new_anchor: bool,
    ) -> None:
        """Open the store, and serve from it."""
        adopt = weakref.WeakMethod(self._adopt)

        def tell(course: Course) -> None:
            policy = adopt()
            if policy is not None:
                policy(course)

        self._backing = Backing(
            url,
            store_key=store_key,
            retention=self._retention,
            after=None if after is None else _seen(after),
            anchor=anchor,
            new_anchor=new_anchor,
            configuration=self._configuration(),
            problem=self._problem,
            course=self._course,
            streams=self._streams,
            gate=self._gate,
            ledger=self._ledger,
            horizon=self._horizon,
            now=_seconds(self._clock),
            adopt=tell,
        )
        self._ids, self._history = self._backing.ids, None
        if isinstance(self._participation, StoredParticipation):
            self._participation.attach(self._backing.repository)
        # A policy that is dropped without close() gives its connections back all the same.
        weakref.finalize(self, _shut, self._backing, os.getpid())

    @abstractmethod
    def _now(self) -> float:
        """Seconds on the public clock."""

    @abstractmethod
    def _check_process(self) -> None:
        """Refuse a forked copy."""

    @abstractmethod
    def _check_users(self, users: Sequence[UserId] | None, count: int) -> None:
        """Refuse user ids of the wrong kind or number."""

    @abstractmethod
    def _decide(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        logged: Logged | None = None,
        wanted: IntArray | None = None,
        available: Sets | None = None,
    ) -> tuple[Decisions, BoolArray]:
        """Decide for some visits."""

    @abstractmethod
    def _no_decisions(self) -> Decisions:
        """Of a call without visits."""

    def _adopt(self, course: Course) -> None:
        """Go on with what was learnt by whoever was first; tell of what is new."""
        with self._lock:
            course.hooks, self._course = self._course.hooks, course
            self._problem = course.learner.problem  # its actions may be new
        if self._backing is None:
            course.hooks.skip(len(course.records))  # of before this process came
        course.hooks.tell(course.records)

    def close(self) -> None:
        """Release the connections to the store and stop planning; without a store, nothing."""
        if self._backing is not None and os.getpid() == self._process:
            self._backing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- serving ----------------------------------------------------------------------------------

    def _serve(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        keys: Sequence[str] | None,
        logged: Logged | None,
        available: Sets | None = None,
    ) -> Decisions:
        """Decide for visits that may have keys, in memory or in the store."""
        keys = checked_keys(keys, len(rows))
        if self._backing is not None:
            return self._serve_stored(rows, valid, users, keys, logged, available=available)[0]
        with self._lock:
            if keys is None or len(rows) == 0:
                return self._decide(rows, valid, users, logged, available=available)[0]
            self._check_users(users, len(rows))
            return self._decide_keyed(rows, valid, users, keys, logged, available)

    def _serve_stored(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        keys: Sequence[str] | None,
        logged: Logged | None,
        wanted: IntArray | None = None,
        available: Sets | None = None,
    ) -> tuple[Decisions, BoolArray]:
        assert self._backing is not None
        self._check_process()
        self._check_users(users, len(rows))
        if len(rows) == 0:
            return self._no_decisions(), np.empty(0, dtype=np.bool_)
        digests = None
        if users is not None and isinstance(self._participation, StoredParticipation):
            digests = self._participation.digests(users)
        return self._backing.decide(rows, valid, digests, keys, logged, wanted, available)

    def _decide_keyed(
        self,
        rows: FloatArray,
        valid: BoolArray | None,
        users: Sequence[UserId] | None,
        keys: Sequence[str],
        logged: Logged | None,
        available: Sets | None,
    ) -> Decisions:
        """Decide where a key is new; else its first decision stands and nothing is learnt."""
        now = self._now()
        digests = self._keys.digests(keys)
        fresh = self._keys.fresh(digests, now)
        if fresh:
            made, _ = self._decide(
                rows[fresh],
                None if valid is None else valid[fresh],
                None if users is None else [users[place] for place in fresh],
                None if logged is None else logged[np.array(fresh)],
                available=None if available is None else available[fresh],
            )
            self._keys.note([digests[place] for place in fresh], made, now)
        return self._keys.recall(digests, self._recalled)

    def _recalled(self, **columns: Any) -> Decisions:
        return Decisions(ids=self._ids, names=self._problem.actions.names, **columns)

    # -- what lives in the store ------------------------------------------------------------------

    @property
    def stored(self) -> bool:
        """Whether every answer is kept in a store before it is given."""
        return self._backing is not None

    @property
    def epochs(self) -> Epochs:
        """One record per closed epoch, shown as a table."""
        if self._backing is not None and not self._backing.closed:
            self._backing.refresh()
        return super().epochs

    @property
    def ledger(self) -> Ledger:
        """What was spent, by whom, under which model; by all processes of the store."""
        if self._backing is not None and not self._backing.closed:
            self._backing.refresh()
        return super().ledger

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to one file; refused where it lives in a store. See :class:`Saved`."""
        if self._backing is not None:
            raise StorageError(
                f"this policy lives in {self._backing.repository.database!r}, and every answer is kept "
                "there: open it with Capri.open, and copy the database to back it up"
            )
        super().save(path)

    def __getstate__(self) -> dict[str, Any]:
        """A policy on a store is opened, not copied."""
        if self._backing is not None:
            raise TypeError("a policy on a store is neither pickled nor copied: use Capri.open")
        return super().__getstate__()

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee with its assumptions, mechanism and noise; of a store also its standing."""
        if self._backing is not None:
            self._backing.refresh()
        return super().certificate(declaration=declaration, audit=audit)

    def _standing(self) -> dict[str, Any] | None:
        """How far the store has come, for the certificate."""
        if self._backing is None:
            return None
        seen, anchored = self._backing.seen, self._backing.anchored
        standing = {"line": seen.line, "generation": seen.generation, "digest": seen.digest}
        return standing | {"anchored": anchored, "missed": self._backing.progress().missed}


def _seen(certificate: Certificate) -> Seen:
    """What a certificate says of its store."""
    if not isinstance(certificate, Certificate):
        raise ConfigurationError(
            f"after must be a certificate of this store, got {type(certificate).__name__}"
        )
    found = certificate.digests.get("store")
    if found is None:
        raise BudgetError(
            "this certificate is of a policy without a store: it cannot tell an older copy"
        )
    return Seen(found["line"], found["generation"], found["digest"])


def _seconds(clock: Callable[[], datetime] | None) -> Callable[[], float]:
    """The public clock in seconds, without a reference to the policy."""
    return time.time if clock is None else lambda: clock().timestamp()


def _shut(backing: Backing, process: int) -> None:
    """Not in a forked child: the connections are its parent's.

    The last one to hold a policy may be its own planner, which can wait neither for itself nor for
    a transaction that it is in: then another thread closes.
    """
    if os.getpid() != process:
        return
    if backing.planned_by(current_thread()):
        Thread(target=backing.close, name="capri-closing", daemon=True).start()
    else:
        backing.close()
