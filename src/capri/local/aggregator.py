"""The aggregator: hands out public bundles, adds up private reports, learns from the sums.

Nothing here could see a raw datum: it imports neither the device nor the encoder, and a contract in
pyproject.toml keeps it so.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from math import sqrt
from os import PathLike
from threading import RLock
from typing import Any

import numpy as np

from capri.arrays import BoolArray, IntArray
from capri.blas import one_blas_thread
from capri.checks import whole
from capri.epoch.course import Course, PublicFace
from capri.epoch.plan import EpochPlan, Release
from capri.epoch.problem import checked_problem
from capri.epoch.storage import (
    damage_as_storage_error,
    plan_from_state,
    plan_state,
    problem_arguments,
    problem_state,
    read_policy_file,
    write_policy_file,
)
from capri.errors import ConfigurationError, HorizonError
from capri.kernels import Kernel
from capri.learners.messages import first_epoch_length
from capri.learners.options import PracticalOptions
from capri.learners.practical import PracticalLearner
from capri.learners.presets import checked_horizon, checked_options
from capri.local import wire
from capri.local.bundle import make_bundle
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, certify_devices
from capri.privacy.directions import DIRECTION_UNITS, direction_sum
from capri.privacy.promise import Promise, Randomizer
from capri.schedule import Schedule
from capri.spaces import Contexts

# Honest Gaussian reports lie farther out than this many deviations with probability e^-800.
_FAR_OUT = 40.0


class ReportStatus(IntEnum):
    """What became of a report."""

    ACCEPTED = 0
    STALE = 1  # answers the bundle of an epoch that is closed
    UNKNOWN = 2  # answers a bundle that this aggregator never gave out
    REPLAYED = 3  # carries a token that was seen before
    MALFORMED = 4  # is not a report of this kind and size, or was damaged

    def __str__(self) -> str:
        return self.name.lower()


class LocalCapri(PublicFace):
    """A contextual kernel bandit in the local model: the server that nobody has to trust.

    Devices fetch :meth:`bundle`, decide with :class:`~capri.LocalClient` and upload one report
    each; an epoch closes by itself after its number of reports.

    Parameters
    ----------
    kernel, actions, contexts, reward_bound, horizon, options:
        As in :class:`~capri.Capri` with preset "practical"; all of them are public. The horizon
        counts reports.
    budget:
        What each user is promised. The sphere randomizer keeps ``delta = 0``.
    randomizer:
        "sphere": pure epsilon, reports of 32 bytes. "gaussian": as in the paper.
    public_seed:
        Seed of the public draws (basis, Thompson draws), for reproducible runs. These draws are
        published in the bundle, so privacy does not rest on them.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        actions: object,
        contexts: Contexts,
        budget: Budget,
        horizon: int | None = None,
        reward_bound: float = 1.0,
        randomizer: str = "sphere",
        public_seed: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(budget, Budget):
            raise ConfigurationError(
                f"the local model needs a capri.Budget, got {type(budget).__name__}"
            )
        self._budget = budget
        self._problem = checked_problem(
            kernel=kernel,
            actions=actions,
            contexts=contexts,
            reward_bound=reward_bound,
            budget=budget,
            model="local",
            randomizer=randomizer,
        )
        self._horizon = checked_horizon(horizon)
        checked = checked_options("practical", options)
        assert isinstance(checked, PracticalOptions)
        self._options = checked
        self._draws = _Draws(_generator(public_seed))
        with one_blas_thread():
            self._learner = PracticalLearner(self._problem, checked, self._draws.public)
        first = checked.first_epoch or first_epoch_length(self._problem)
        schedule = Schedule(first, checked.growth, self._horizon)
        self._course = Course(schedule, self._learner, self._draws, timed=True)
        self._releases: list[dict[str, Any]] = []
        self._digests: list[bytes] = []
        self._lock = RLock()
        self._plan: EpochPlan | None = None
        self._open_epoch()

    def __repr__(self) -> str:
        return f"LocalCapri({self.guarantee}; epoch {self._course.closed + 1})"

    # -- what is public ---------------------------------------------------------------------------

    @property
    def guarantee(self) -> str:
        """In one line, what every user of a :class:`~capri.LocalClient` is promised."""
        epsilon, delta = self._budget.epsilon, self._budget.delta
        if self.pure:
            return f"pure {epsilon:g}-local privacy of each user, made on the device"
        return f"({epsilon:g}, {delta:g})-local privacy of each user, made on the device"

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared."""
        return Promise(model="local", kind="pure" if self.pure else "approximate")

    @property
    def pure(self) -> bool:
        """Whether reports keep ``delta = 0``: those of the sphere do."""
        return self._problem.randomizer is Randomizer.SPHERE

    @property
    def remaining(self) -> int:
        """Reports that the open epoch still takes; 0 at the horizon."""
        with self._lock:
            return 0 if self._plan is None else self._plan.length - self._received

    def bundle(self) -> bytes:
        """The public bundle of the open epoch, for every device the same."""
        with self._lock:
            if self._plan is None:
                raise HorizonError(
                    f"all {self._horizon} reports of the horizon are in: build a new aggregator, "
                    "for new users, to go on"
                )
            return self._bundle

    @property
    def digest(self) -> bytes:
        """SHA-256 of the open epoch's bundle, to be published where devices can compare it."""
        return self.bundle()[-32:]

    def terms(self) -> dict[str, Any]:
        """What real devices certify, without what was reported so far."""
        with self._lock:
            return self._certify(accounted=False).terms()

    def _certify(self, **wanted: Any) -> Certificate:
        return certify_devices(
            self._problem.randomizer,
            self._budget,
            tuple(self._releases),
            reported=bool(self._received or self._releases),
            **wanted,
        )

    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""
        values, arrays = problem_state(self._problem)
        options = asdict(self._options)
        return {"problem": values, "horizon": self._horizon, "options": options}, arrays

    # -- reports ----------------------------------------------------------------------------------

    def receive(self, report: bytes) -> ReportStatus:
        """Add one report, or say why not. A report that is not accepted changes nothing."""
        return ReportStatus(int(self.receive_many([report])[0]))

    def receive_many(self, reports: Sequence[bytes] | wire.Messages) -> IntArray:
        """Add reports in order; a :class:`ReportStatus` code for each.

        Also takes rows of bytes, ``(n, size)`` of ``uint8``.
        """
        with self._lock:
            if isinstance(reports, np.ndarray) and reports.ndim == 2:
                rows = np.ascontiguousarray(reports, dtype=np.uint8)
                if rows.shape[1] == self._size > 0:
                    return self._receive(rows)
                reports = [row.tobytes() for row in rows]
            reports = [
                bytes(each) if isinstance(each, bytearray | memoryview) else each
                for each in reports
            ]
            statuses = np.full(len(reports), int(ReportStatus.MALFORMED), dtype=np.int64)
            start = 0
            while start < len(reports):
                # A run of reports of the size that the open epoch expects, then whatever else.
                end = start
                while end < len(reports) and self._fits(reports[end]):
                    end += 1
                if end > start:
                    size, joined = self._size, b"".join(reports[start:end])
                    rows = np.frombuffer(joined, dtype=np.uint8).reshape(-1, size)
                    statuses[start:end] = self._receive(rows)
                    start = end
                else:
                    statuses[start] = self._of_other_size(reports[start])
                    start += 1
            return statuses

    def _fits(self, report: object) -> bool:
        return isinstance(report, bytes) and len(report) == self._size > 0

    def _of_other_size(self, report: object) -> int:
        """Reports of closed epochs may have another size; anything else is malformed."""
        if isinstance(report, bytes) and 30 <= len(report) <= 1 << 20:
            row = np.frombuffer(report, dtype=np.uint8)[None]
            if self._is_report(row)[0] and report[wire.DIGEST] in self._digests:
                return int(ReportStatus.STALE)
        return int(ReportStatus.MALFORMED)

    def _is_report(self, rows: wire.Messages) -> BoolArray:
        kind = wire.VERSION << 4 | wire.KINDS[self._problem.randomizer]
        return np.asarray((rows[:, 0] == wire.MAGIC) & (rows[:, 1] == kind) & wire.sound(rows))

    def _receive(self, rows: wire.Messages) -> IntArray:
        """Reports of the expected size: check, add those that count, close the epoch when full."""
        self._close()
        statuses = np.empty(len(rows), dtype=np.int64)
        start = 0
        while start < len(rows):
            found, new = self._judge(rows[start:])
            accepted = np.flatnonzero(found == ReportStatus.ACCEPTED)
            end = len(found)
            full = self._plan is not None and 0 < self.remaining <= len(accepted)
            if full:
                accepted = accepted[: self.remaining]
                end = int(accepted[-1]) + 1
            statuses[start : start + end] = found[:end]
            if len(accepted):
                self._add(rows[start:][accepted])
                self._tokens.update(new[place] for place in accepted)
                self._received += len(accepted)
            if full:
                self._close()
                if start + end < len(rows) and rows.shape[1] != self._size:
                    rest = [row.tobytes() for row in rows[start + end :]]
                    statuses[start + end :] = [self._of_other_size(report) for report in rest]
                    break
            start += end
        return statuses

    def _judge(self, rows: wire.Messages) -> tuple[IntArray, list[bytes]]:
        """The status of each report in the open epoch, and the tokens."""
        statuses = np.where(
            self._is_report(rows), int(ReportStatus.ACCEPTED), int(ReportStatus.MALFORMED)
        )
        digests = [digest.tobytes() for digest in rows[:, wire.DIGEST]]
        tokens = [token.tobytes() for token in rows[:, wire.TOKEN]]
        present = None if self._plan is None else self._digests[-1]
        past = set(self._digests) - {present}
        sensible = self._sensible(rows)
        fresh: set[bytes] = set()
        for place in np.flatnonzero(statuses == ReportStatus.ACCEPTED):
            if digests[place] in past:
                statuses[place] = ReportStatus.STALE
            elif digests[place] != present:
                statuses[place] = ReportStatus.UNKNOWN
            elif not sensible[place]:
                statuses[place] = ReportStatus.MALFORMED
            elif tokens[place] in self._tokens or tokens[place] in fresh:
                statuses[place] = ReportStatus.REPLAYED
            else:
                fresh.add(tokens[place])
        return statuses, tokens

    def _sensible(self, rows: wire.Messages) -> BoolArray:
        """Whether the payload is one that a device could have sent.

        A sphere report names a direction, so it moves the sum by one unit vector of the known
        length and no more. A Gaussian report is refused when it lies far outside of its noise.
        """
        payload = wire.payload_of(rows, self._problem.randomizer)
        if self._plan is None:
            return np.zeros(len(rows), dtype=np.bool_)
        if self._plan.sphere is not None:
            return np.asarray(payload[:, 0] < self._plan.sphere.candidates)
        grid = self._plan.grid
        reach = grid.norm_limit + grid.noise_units * (sqrt(payload.shape[1]) + _FAR_OUT)
        numbers = payload.astype(np.float64)
        return np.asarray(np.einsum("ij,ij->i", numbers, numbers) <= reach**2)

    def _add(self, rows: wire.Messages) -> None:
        """Alg. 1, line 15, in exact integers."""
        payload = wire.payload_of(rows, self._problem.randomizer)
        if self._plan is not None and self._plan.sphere is not None:
            number = payload[:, 0]
            self._sum += direction_sum(
                wire.tokens_of(rows), number // 2, 1 - 2 * (number % 2), len(self._sum)
            )
        else:
            self._sum += payload.sum(axis=0)

    # -- epochs -----------------------------------------------------------------------------------

    def _open_epoch(self) -> None:
        """Plan the next epoch and write its bundle; at the horizon there is none."""
        plan = self._course.plan()
        self._plan, self._bundle, self._size = None, b"", 0
        self._tokens: set[bytes] = set()
        self._received = 0
        if plan is not None:
            self._enter(plan, np.zeros(plan.dimension, dtype=np.int64))
            self._digests.append(self._bundle[-32:][:8])

    def _enter(self, plan: EpochPlan, total: IntArray) -> None:
        self._plan, self._sum = plan, total
        self._bundle = make_bundle(self._problem, plan, self._learner.conduct())
        self._size = wire.report_size(self._problem.randomizer, plan.dimension)

    def _close(self) -> None:
        """Learn from a full epoch and plan the next. If interrupted, the next call makes up."""
        plan = self._plan
        if plan is None or self._received < plan.length:
            return
        if self._course.closed < plan.epoch:
            self._learn(plan)
        self._open_epoch()

    def _learn(self, plan: EpochPlan) -> None:
        """Read the sum (Alg. 1, lines 18-20). Reports were private already."""
        self._releases.append(
            {
                "epoch": plan.epoch,
                "reports": plan.length,
                "coordinates": plan.dimension,
                "bytes": self._size,
                "noise": plan.noise_scale,
                "epsilon": self._budget.epsilon,
            }
        )
        vector = np.asarray(self._sum * self._unit(plan))
        self._course.close(Release(plan=plan, vector=vector, event=None))

    @staticmethod
    def _unit(plan: EpochPlan) -> float:
        """What one unit of the sum is worth: a report is unbiased after division by shrinkage."""
        if plan.sphere is None:
            return plan.grid.step
        return plan.grid.norm_limit * plan.grid.step / (plan.sphere.shrinkage * DIRECTION_UNITS)

    # -- storage ----------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the aggregator to one file, reports of the open epoch included: they are private.

        A loaded aggregator continues bit for bit.
        """
        with self._lock:
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
                "open": None,
            }
            arrays: dict[str, Any] = course_arrays | problem_arrays
            if self._plan is not None:
                values["open"], plan_arrays = plan_state(self._plan)
                arrays |= plan_arrays
                tokens = np.frombuffer(b"".join(sorted(self._tokens)), dtype=np.uint8)
                arrays |= {"open.sum": self._sum, "open.tokens": tokens.reshape(-1, 16)}
            write_policy_file(path, values, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str], *, contexts: Contexts | None = None) -> "LocalCapri":
        """Read a saved aggregator. A context sampler is code and must be given again."""
        values, arrays = read_policy_file(path, "aggregator")
        with damage_as_storage_error(path):
            arguments = problem_arguments(values["problem"], arrays, contexts)
            for name in ("model", "contributions_per_user", "contributions_per_epoch"):
                arguments.pop(name)
            loaded = cls(
                **arguments,
                randomizer=values["problem"]["randomizer"],
                horizon=values["horizon"],
                **values["options"],
            )
            loaded._restore(values, arrays)
        return loaded

    def _restore(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._draws.public.bit_generator.state = values["public"]
        self._releases = values["releases"]
        self._digests = [bytes.fromhex(digest) for digest in values["digests"]]
        self._plan, self._bundle, self._size = None, b"", 0
        self._course.restore(values, arrays, values["plan_seconds"])
        self._received = values["received"]
        self._tokens = set()
        if values["open"] is not None:
            plan = plan_from_state(values["open"], arrays, self._problem.kernel)
            self._enter(plan, arrays["open.sum"].astype(np.int64))
            self._tokens = {token.tobytes() for token in arrays["open.tokens"]}


@dataclass(frozen=True)
class _Draws:
    """The generator of everything in a bundle that is drawn."""

    public: np.random.Generator


def _generator(seed: int | None) -> np.random.Generator:
    if seed is not None:
        whole("public_seed", seed, least=0)
    return np.random.default_rng(seed)
