"""Many devices at once, for simulations: the same lines as one device, on arrays of users."""

from collections import Counter, deque
from typing import Any, Final, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.cells import as_numbers, visit_rows
from capri.checks import whole
from capri.epoch.bounds import as_sets
from capri.epoch.decisions import Decisions
from capri.epoch.plan import Epochs, Notice
from capri.epoch.problem import Problem
from capri.errors import ConfigurationError, DataError
from capri.forecast.result import Forecast
from capri.learners.options import PracticalOptions
from capri.local.aggregator import LocalCapri
from capri.local.bundle import Bundle, open_bundle
from capri.local.client import check_promise
from capri.local.device import Device, SimulatedRandomness
from capri.local.reports import ReportStatus
from capri.local.shuffler import Shuffler
from capri.local.wire import Messages
from capri.privacy.budget import Budget, Promise
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger


@final
class DeviceSimulator:
    """Simulated users of an aggregator, as a policy that :func:`capri.simulate` can play.

    User ``i`` decides and reports exactly like ``LocalClient(..., simulation=(seed, i))``. With
    ``delay`` the report of a user arrives when so many later users have decided.

    >>> import capri
    >>> devices = DeviceSimulator.build(
    ...     budget=capri.Budget(epsilon=4.0), simulation_seed=1, delay=30, reward_wait=30,
    ...     kernel=capri.kernels.RBF(lengthscale=0.5), actions=[[0.0], [1.0]],
    ...     contexts=capri.ContextPool([[0.0], [1.0]]), first_epoch=50,
    ... )
    >>> decisions = devices.act_many([[0.0]] * 80)
    >>> len(devices.update_many(decisions, [0.5] * 80))  # thirty reports are under way
    50
    >>> [record.length for record in devices.epochs]
    [50]
    """

    def __init__(
        self, aggregator: LocalCapri, budget: Budget, *, simulation_seed: int, delay: int = 0
    ) -> None:
        self._delay = whole("delay", delay, least=0)
        # Reports under way, oldest first, and how many they are.
        self._under_way: deque[Messages] = deque()
        self._flying = 0
        # Where reports are mixed: those of the batch that is not whole yet.
        self._shuffler: Shuffler | None = None
        self.statuses: Counter[ReportStatus] = Counter()
        self._aggregator = aggregator
        self._budget = budget
        self._seed = simulation_seed
        self._users = 0
        self._bundle: Bundle | None = None
        # Batches by their first user: a report answers the bundle that was decided with.
        self._waiting: dict[int, tuple[Device, FloatArray, IntArray]] = {}

    @classmethod
    def build(
        cls, *, budget: Budget, simulation_seed: int, delay: int = 0, **settings: Any
    ) -> "DeviceSimulator":
        """An aggregator and its users from one seed."""
        aggregator = LocalCapri(budget=budget, public_seed=simulation_seed, **settings)
        own = aggregator.device_budget
        return cls(aggregator, own, simulation_seed=simulation_seed, delay=delay)

    # What a forecast asks of a policy.
    preset: Final = "practical"

    @property
    def problem(self) -> Problem:
        """What the aggregator was built for."""
        return self._aggregator.problem

    @property
    def options(self) -> PracticalOptions:
        """The aggregator's."""
        return self._aggregator.options

    def again(self, **changes: Any) -> "DeviceSimulator":
        """New users and a fresh aggregator, of the same configuration but for some arguments."""
        budget = changes.pop("budget", self._aggregator.budget)
        seed = changes.pop("simulation_seed", self._seed)
        if not isinstance(budget, Budget):
            raise ConfigurationError(
                "devices always make their reports private: give finite epsilons"
            )
        fresh = self._aggregator.again(budget=budget, public_seed=seed, **changes)
        return DeviceSimulator(fresh, fresh.device_budget, simulation_seed=seed, delay=self._delay)

    def forecast(self, **asked: Any) -> Forecast:
        """What to expect of the aggregator with real devices; see :func:`capri.forecast.forecast`.

        Touches neither these devices nor its aggregator.
        """
        from capri.forecast.run import forecast

        return forecast(self, **asked)

    @property
    def aggregator(self) -> LocalCapri:
        """Who receives the reports: all of it is public."""
        return self._aggregator

    @property
    def guarantee(self) -> str:
        """What real devices would be promised."""
        return f"simulation of {self._aggregator.guarantee}: seeded devices, no privacy claim"

    @property
    def promise(self) -> Promise:
        """The aggregator's."""
        return self._aggregator.promise

    @property
    def remaining(self) -> int:
        """Users who decide before there can be a new bundle; 0 at the horizon.

        Each brings at most one report to the aggregator, once ``delay`` of them are under way.
        """
        to_come = self._aggregator.remaining
        if to_come and self._shuffler is not None:
            to_come -= self._shuffler.held
        return to_come + self._delay - self._flying if to_come else 0

    @property
    def epochs(self) -> Epochs:
        """The aggregator's records."""
        return self._aggregator.epochs

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The aggregator's notices."""
        return self._aggregator.notices

    def estimate(self, contexts: object) -> FloatArray:
        """The aggregator's estimate."""
        return self._aggregator.estimate(contexts)

    def terms(self) -> dict[str, Any]:
        """What a deployment on real devices certifies."""
        return self._aggregator.terms()

    def act_many(self, contexts: object, *, available: object = None) -> Decisions:
        """Each context is a new user who fetches the bundle and decides."""
        bundle = self._open_bundle()
        rows = visit_rows(bundle.encoded(contexts), bundle.context_dimension)
        users = np.arange(self._users, self._users + len(rows))
        draws = SimulatedRandomness(self._seed, users).action(len(rows))
        device = Device(bundle)
        sets = None if available is None else as_sets(available, len(rows), bundle.actions)
        actions, propensity = device.decide(rows, draws, sets)
        counted = rows if sets is None else device.counted(rows, sets)
        if len(rows):
            self._users += len(rows)
            self._waiting[int(users[0])] = device, counted, actions
        features = bundle.actions.features_of(rows, actions)
        return Decisions.simulated(
            users, bundle.plan.epoch, actions, features, propensity, bundle.actions.names
        )

    def _open_bundle(self) -> Bundle:
        """The bundle of the open epoch, read and checked once like a device does."""
        if self._bundle is None or self._bundle.digest != self._aggregator.digest:
            bundle = open_bundle(self._aggregator.bundle())
            check_promise(bundle, self._budget)
            self._bundle = bundle
        return self._bundle

    def update_many(self, decisions: Decisions, rewards: object) -> IntArray:
        """Every user of the batch reports; statuses of the reports that arrive by it.

        Without a delay those are its own.
        """
        users = decisions.number
        values = as_numbers(rewards)
        if not len(users):
            return np.empty(0, dtype=np.int64)
        found = self._waiting.get(int(users[0]))
        if found is None or len(found[1]) != len(users) or values.shape != users.shape:
            raise DataError("a simulator takes one reward for every user of a batch, once")
        device, contexts, actions = self._waiting.pop(int(users[0]))
        gate = Gate(SimulatedRandomness(self._seed, users), Ledger(self._budget, tolerance=0.0))
        reports = device.report(contexts, actions, values, gate)
        self._under_way.append(reports)
        self._flying += len(reports)
        return self._deliver(self._flying - self._delay)

    def _deliver(self, count: int) -> IntArray:
        """The oldest reports arrive, in their order."""
        found = [np.empty(0, dtype=np.int64)]
        while count > 0:
            reports = self._under_way.popleft()
            if len(reports) > count:
                self._under_way.appendleft(reports[count:])
                reports = reports[:count]
            found.append(self._mixed(reports))
            self._flying -= len(reports)
            count -= len(reports)
        statuses = np.concatenate(found)
        self.statuses.update(ReportStatus(code) for code in statuses.tolist())
        return statuses

    def _mixed(self, reports: Messages) -> IntArray:
        """Hand reports to the aggregator, or to the shuffler, who waits until all are there."""
        terms = self._aggregator.problem.shuffle
        if terms is None:
            return self._aggregator.receive_many(reports)
        if self._shuffler is None:
            budget = self._aggregator.budget
            assert budget is not None  # an aggregator has one
            self._shuffler = Shuffler(self._aggregator.bundle(), budget, shuffle=terms, least=1)
        statuses = self._shuffler.add(reports)
        if (batch := self._shuffler.batch()) is not None:
            self._aggregator.receive_many(batch)
            self._shuffler = None
        return statuses
