"""Many devices at once, for simulations: the same lines as one device, on arrays of users."""

from math import inf
from typing import Any, final

import numpy as np

from capri.decisions import Decisions, decision_ids
from capri.errors import DataError
from capri.local.aggregator import LocalCapri
from capri.local.bundle import Bundle, read_bundle
from capri.local.client import check_promise
from capri.local.device import Device
from capri.local.randomness import SimulatedRandomness
from capri.plan import EpochRecord
from capri.privacy.budget import Budget
from capri.spaces import as_contexts, as_numbers
from capri.typing import FloatArray, IntArray


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
        self._digest = b""
        self._bundle: Bundle
        self._waiting: dict[int, tuple[FloatArray, IntArray]] = {}

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
    def remaining(self) -> int:
        """Users that the open epoch still takes."""
        return self._aggregator.remaining

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """The aggregator's records."""
        return self._aggregator.epochs

    def estimate(self, contexts: object) -> FloatArray:
        """The aggregator's estimate."""
        return self._aggregator.estimate(contexts)

    def act_many(self, contexts: object) -> Decisions:
        """Each context is a new user who fetches the bundle and decides."""
        if self._digest != self._aggregator.digest:
            self._bundle = read_bundle(self._aggregator.bundle())
            check_promise(self._bundle, self._budget)
            self._digest = self._bundle.digest
            self._device = Device(self._bundle)
        rows = as_contexts(contexts, self._bundle.context_dimension)
        users = np.arange(self._users, self._users + len(rows))
        draws = SimulatedRandomness(self._seed, users).action(len(rows))
        actions, propensity = self._device.decide(rows, draws)
        self._users += len(rows)
        self._waiting[int(users[0])] = rows, actions
        features = self._bundle.actions.features_of(rows, actions)
        return Decisions(users, self._bundle.plan.epoch, actions, features, propensity)

    def update_many(self, decisions: Decisions, rewards: object) -> IntArray:
        """Every user of the batch reports; the aggregator's statuses."""
        users = decision_ids(decisions)
        values = as_numbers(rewards, "a reward must be a finite number")
        found = self._waiting.pop(int(users[0]), None) if len(users) else None
        if found is None or len(found[0]) != len(users) or values.shape != users.shape:
            raise DataError("a fleet takes one reward for every user of a batch, once")
        if not (np.abs(values) < inf).all():
            raise DataError("a reward must be a finite number")
        contexts, actions = found
        randomness = SimulatedRandomness(self._seed, users)
        reports = self._device.report(contexts, actions, values, randomness)
        return self._aggregator.receive_many(reports)
