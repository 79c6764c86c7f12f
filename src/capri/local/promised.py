"""What an aggregator promises: on the device alone, or behind a shuffler as well."""

from typing import Any

from capri.local.gathering import Gathering
from capri.local.saved import SavedAggregator
from capri.local.wire import SIZE
from capri.privacy.budget import Budget
from capri.privacy.certificate import Certificate, certify_devices
from capri.privacy.promise import Promise


class PromisedAggregator(SavedAggregator):
    """What :class:`~capri.LocalCapri` promises its users, in words and numbers."""

    _budget: Budget

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
