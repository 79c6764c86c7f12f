"""Many devices at once, for simulations: the same lines as one device, on arrays of users."""

from typing import Any, final

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.decide import Decisions
from capri.epoch.plan import Epochs
from capri.errors import DataError
from capri.local.aggregator import LocalCapri
from capri.local.bundle import Bundle, open_bundle
from capri.local.client import check_promise
from capri.local.device import Device
from capri.local.randomness import SimulatedRandomness
from capri.privacy.budget import Budget
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.promise import Promise
from capri.spaces import as_numbers, visit_rows


@final
class Fleet:
    """Simulated users of an aggregator, as a policy that :func:`capri.simulate` can play.

    User ``i`` decides and reports exactly like ``LocalClient(..., simulation=(seed, i))``.
    """

    def __init__(self, aggregator: LocalCapri, budget: Budget, *, simulation_seed: int) -> None:
        self._aggregator = aggregator
        self._budget = budget
        self._seed = simulation_seed
        self._users = 0
        self._bundle: Bundle | None = None
        # Batches by their first user: a report answers the bundle that was decided with.
        self._waiting: dict[int, tuple[Device, FloatArray, IntArray]] = {}

    @classmethod
    def build(cls, *, budget: Budget, simulation_seed: int, **settings: Any) -> "Fleet":
        """An aggregator and its users from one seed."""
        aggregator = LocalCapri(budget=budget, public_seed=simulation_seed, **settings)
        return cls(aggregator, budget, simulation_seed=simulation_seed)

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
    def pure(self) -> bool:
        """Whether reports keep ``delta = 0``."""
        return self._aggregator.pure

    @property
    def remaining(self) -> int:
        """Users that the open epoch still takes."""
        return self._aggregator.remaining

    @property
    def epochs(self) -> Epochs:
        """The aggregator's records."""
        return self._aggregator.epochs

    def estimate(self, contexts: object) -> FloatArray:
        """The aggregator's estimate."""
        return self._aggregator.estimate(contexts)

    def terms(self) -> dict[str, Any]:
        """What a deployment on real devices certifies."""
        return self._aggregator.terms()

    def act_many(self, contexts: object) -> Decisions:
        """Each context is a new user who fetches the bundle and decides."""
        bundle = self._open_bundle()
        rows = visit_rows(contexts, bundle.context_dimension)
        users = np.arange(self._users, self._users + len(rows))
        draws = SimulatedRandomness(self._seed, users).action(len(rows))
        device = Device(bundle)
        actions, propensity = device.decide(rows, draws)
        if len(rows):
            self._users += len(rows)
            self._waiting[int(users[0])] = device, rows, actions
        features = bundle.actions.features_of(rows, actions)
        return Decisions.simulated(users, bundle.plan.epoch, actions, features, propensity)

    def _open_bundle(self) -> Bundle:
        """The bundle of the open epoch, read and checked once like a device does."""
        if self._bundle is None or self._bundle.digest != self._aggregator.digest:
            bundle = open_bundle(self._aggregator.bundle())
            check_promise(bundle, self._budget)
            self._bundle = bundle
        return self._bundle

    def update_many(self, decisions: Decisions, rewards: object) -> IntArray:
        """Every user of the batch reports; the aggregator's statuses."""
        users = decisions.number
        values = as_numbers(rewards, "a reward must be a number or None")
        if not len(users):
            return np.empty(0, dtype=np.int64)
        found = self._waiting.get(int(users[0]))
        if found is None or len(found[1]) != len(users) or values.shape != users.shape:
            raise DataError("a fleet takes one reward for every user of a batch, once")
        device, contexts, actions = self._waiting.pop(int(users[0]))
        gate = Gate(SimulatedRandomness(self._seed, users), Ledger(self._budget, tolerance=0.0))
        reports = device.report(contexts, actions, values, gate)
        return self._aggregator.receive_many(reports)
