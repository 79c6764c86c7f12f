"""What an aggregator keeps, in one file, and what it promises: on the device, or behind a shuffler.

Reports of open epochs are in the file: they are private already.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from threading import RLock
from typing import Any, Self

import numpy as np

from capri.epoch.course import Course
from capri.epoch.plan import EpochPlan
from capri.epoch.problem import Problem
from capri.epoch.rewards import RewardTerms
from capri.epoch.storage import (
    below,
    damage_as_storage_error,
    named,
    next_from_state,
    next_state,
    plan_from_state,
    plan_state,
    problem_arguments,
    read_policy_file,
    write_policy_file,
)
from capri.learners.start import Observed, stored_prior
from capri.local.gathering import Gathering
from capri.local.wire import SIZE
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, certify_devices
from capri.privacy.promise import Promise
from capri.spaces import Contexts


@dataclass(frozen=True)
class BundleDraws:
    """The generator of everything in a bundle that is drawn."""

    public: np.random.Generator


class SavedAggregator(ABC):
    """What :class:`~capri.LocalCapri` keeps and promises, and how it is written and read."""

    _problem: Problem
    _next: Problem | None
    _course: Course
    _lock: RLock
    _budget: Budget
    _terms: RewardTerms
    _draws: BundleDraws
    _releases: list[dict[str, Any]]
    _digests: list[bytes]
    _bundle: bytes
    _opened: int
    _newest: Gathering | None
    _waiting: list[Gathering]
    _observed: Observed | None
    _accepted: int
    _received: int
    _due: int
    _began: float | None

    @property
    def reports(self) -> int:
        """How many reports counted so far, to whichever bundle: public."""
        return self._accepted

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Number of the newest bundle, reports since, and how many of them end its epoch."""
        with self._lock:
            return self._opened, self._received, self._due

    @abstractmethod
    def __init__(self, **settings: Any) -> None:
        """See :class:`capri.LocalCapri`."""

    @abstractmethod
    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""

    @abstractmethod
    def _enter(self, plan: EpochPlan) -> Gathering:
        """An epoch whose bundle is handed out from now on."""

    @abstractmethod
    def _now(self) -> float:
        """Seconds on the public clock."""

    @abstractmethod
    def _settle(self, now: float) -> None:
        """Everything public that is due."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the aggregator to one file, reports of open epochs included: they are private.

        A loaded aggregator continues bit for bit.
        """
        with self._lock:
            self._settle(self._now())
            configuration, problem_arrays = self._configuration()
            course_values, course_arrays = self._course.state()
            values: dict[str, Any] = {
                "kind": "aggregator",
                **configuration,
                "public": self._draws.public.bit_generator.state,
                **course_values,
                "releases": self._releases,
                "digests": [digest.hex() for digest in self._digests],
                "plan_seconds": self._course.plan_seconds,
                "received": self._received,
                "accepted": self._accepted,
                "began": self._began,
                "waiting": [],
                "open": None,
            }
            arrays: dict[str, Any] = course_arrays | problem_arrays
            if self._newest is not None:
                values["open"], plan_arrays = plan_state(self._newest.plan)
                arrays |= plan_arrays | named("open", self._newest.sums())
            for place, gathering in enumerate(self._waiting):
                waiting, own = gathering.state()
                values["waiting"].append(waiting)
                arrays |= named(f"waiting.{place}", own)
            coming, rows = next_state(self._next)
            write_policy_file(path, values | coming, arrays | rows)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        contexts: Contexts | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> Self:
        """Read a saved aggregator. A context sampler and a clock are code: give them again."""
        values, arrays = read_policy_file(path, "aggregator")
        with damage_as_storage_error(path):
            arguments = problem_arguments(values["problem"], arrays, contexts)
            arguments |= RewardTerms.from_dict(values["terms"]).arguments()
            for name in (
                "model", "contributions_per_user", "contributions_per_epoch", "reward_rule",
            ):  # fmt: skip
                del arguments[name]
            loaded = cls(
                **arguments,
                horizon=values["horizon"],
                clock=clock,
                prior=stored_prior(values, arrays),
                **values["options"],
            )
            loaded._restore(values, arrays)
        return loaded

    def _restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        kernel = self._problem.kernel
        self._draws.public.bit_generator.state = values["public"]
        self._next = next_from_state(values, arrays, self._problem)
        self._releases = values["releases"]
        self._digests = [bytes.fromhex(digest) for digest in values["digests"]]
        self._opened = len(self._digests)
        self._course.restore(values, arrays, values["plan_seconds"])
        self._received, self._began = values["received"], values["began"]
        self._accepted = values["accepted"]
        self._waiting = [
            Gathering.from_state(waiting, below(f"waiting.{place}", arrays), kernel)
            for place, waiting in enumerate(values["waiting"])
        ]
        self._newest, self._bundle = None, b""
        if values["open"] is not None:
            unread = self._received - sum(gathering.unread for gathering in self._waiting)
            self._newest = self._enter(plan_from_state(values["open"], arrays, kernel))
            self._newest.restore_sums(below("open", arrays), unread)

    # -- what is promised -------------------------------------------------------------------------

    @property
    def guarantee(self) -> str:
        """In one line, what every user of a :class:`~capri.LocalClient` is promised."""
        epsilon, delta = self._budget.epsilon, self._budget.delta
        if self._problem.shuffle is not None:
            return (
                f"({epsilon:g}, {delta:g})-privacy of each user behind a shuffler, and pure "
                f"{self._problem.shuffle.most:g}-local privacy, made on the device"
            )
        return f"pure {epsilon:g}-local privacy of each user, made on the device"

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared."""
        if self._problem.shuffle is not None:
            return Promise(model="shuffle", kind="approximate")
        return Promise(model="local", kind="pure")

    @property
    def device_budget(self) -> Budget:
        """What a device must be willing to spend: the local promise, whoever reads a report."""
        shuffle = self._problem.shuffle
        return self._budget if shuffle is None else Budget(epsilon=shuffle.most)

    def terms(self) -> dict[str, Any]:
        """What real devices certify, without what was reported so far."""
        with self._lock:
            return self._certify().terms()

    def _certify(self, **wanted: Any) -> Certificate:
        return certify_devices(
            self._budget,
            tuple(self._releases),
            reported=self._accepted > 0,
            prior=None if self._observed is None else self._observed.event,
            shuffle=self._problem.shuffle,
            **wanted,
        )

    def _entry(self, gathering: Gathering) -> dict[str, Any]:
        """A reading, as the certificate lists it."""
        plan, shuffle, mixed = gathering.plan, self._problem.shuffle, {}
        if shuffle is not None:
            mixed["local_epsilon"] = gathering.sphere.epsilon
            mixed["reports_needed"] = shuffle.counted(plan.length)
        return {
            "epoch": plan.epoch,
            "reports": gathering.unread,
            "coordinates": plan.dimension,
            "bytes": SIZE,
            "noise": plan.noise_scale,
            "epsilon": self._budget.epsilon,
            **mixed,
        }
