"""The device: decides, and makes one report that gives nothing away."""

import os
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from capri.decisions import Decision
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError, StorageError
from capri.local.bundle import Bundle, read_bundle
from capri.local.device import Device
from capri.local.randomness import DeviceRandomness, SimulatedRandomness, SystemRandomness
from capri.privacy.budget import Budget
from capri.spaces import as_contexts, as_numbers
from capri.typing import FloatArray, IntArray


class LocalClient:
    """One user's device in the local model.

    Context, action and reward stay here; what leaves is one report, private by itself. The client
    trusts nobody: it works out from the bundle what a report would cost its user and refuses a
    bundle that asks for more than ``budget``.

    Parameters
    ----------
    bundle:
        The bytes of :meth:`LocalCapri.bundle`, the same for every device.
    budget:
        What this user is willing to spend, in all: the client reports once.
    digest:
        The digest of the bundle as published elsewhere, to make sure that everybody got the same.
    receipt:
        Path of a file that remembers across restarts that the report was made. It is created just
        before the report; where it exists, the device stays silent.
    simulation:
        ``(seed, user)`` to reproduce a user of a simulation, without any privacy. None for a real
        device.
    """

    def __init__(
        self,
        bundle: bytes,
        budget: Budget,
        *,
        digest: bytes | None = None,
        receipt: str | PathLike[str] | None = None,
        simulation: tuple[int, int] | None = None,
    ) -> None:
        if not isinstance(budget, Budget):
            raise ConfigurationError(f"budget must be a capri.Budget, got {type(budget).__name__}")
        self._budget = budget
        self._randomness: DeviceRandomness = SystemRandomness()
        if simulation is not None:
            seed, user = simulation
            self._randomness = SimulatedRandomness(seed, np.array([user]))
        self._bundle = read_bundle(bundle, digest)
        check_promise(self._bundle, budget)
        self._device = Device(self._bundle)
        self._pending: tuple[FloatArray, IntArray] | None = None
        self._receipt = None if receipt is None else Path(receipt)
        self._reported = self._receipt is not None and self._receipt.exists()
        self._lock = Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"LocalClient(epoch={self.epoch}, reported={self._reported})"

    @property
    def epoch(self) -> int:
        """The epoch this device takes part in."""
        return self._bundle.plan.epoch

    @property
    def reported(self) -> bool:
        """Whether the one report was made, and the budget spent."""
        return self._reported

    @property
    def private(self) -> bool:
        """Whether reports are protected: False only for a simulated user."""
        return self._randomness.private

    def act(self, context: object) -> Decision:
        """Decide on the device. A second decision replaces one that was not reported."""
        if self._reported:
            raise BudgetError("this device has reported: its budget is spent")
        dimension = self._bundle.context_dimension
        row = as_numbers(context, "a context must be a row of finite numbers").reshape(1, -1)
        if row.shape[1] != dimension:
            raise DataError(f"a context must have {dimension} numbers, got {row.shape[1]}")
        row = as_contexts(row, dimension)
        action, propensity = self._device.decide(row, self._randomness.action(1))
        features = self._bundle.actions.features_of(row, action)
        self._pending = row, action
        return Decision(0, self.epoch, int(action[0]), features[0], float(propensity[0]))

    def report(self, reward: float | None) -> bytes:
        """The bytes to upload; None if no reward was seen, which nobody can tell from a report.

        Can be called once. Lost in transport? Upload the same bytes again, never make new ones.
        """
        if self._reported:
            raise BudgetError("this device has reported: a second report would spend twice")
        if self._pending is None:
            raise DataError("there is nothing to report: act comes first")
        value = as_numbers(0.0 if reward is None else reward, "a reward must be a finite number")
        if value.size != 1 or not np.isfinite(value).all():
            raise DataError("a reward must be a finite number")
        context, action = self._spend()
        message = self._device.report(context, action, value.reshape(1), self._randomness)
        return bytes(message[0].tobytes())

    def _spend(self) -> tuple[FloatArray, IntArray]:
        """Take the datum, once for all threads, processes and restarts.

        Before anything is drawn: an interrupted report is not made a second time.
        """
        if os.getpid() != self._process:
            raise BudgetError("this client was forked: its report belongs to the first process")
        with self._lock:
            datum, self._pending = self._pending, None
            if datum is None or self._reported:
                raise BudgetError("this device has reported: a second report would spend twice")
            self._reported = True
        if self._receipt is not None:
            try:
                os.close(os.open(self._receipt, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                raise BudgetError(
                    "this device has reported before: a second report would spend twice"
                ) from None
            except OSError as problem:
                raise StorageError(
                    f"cannot write the receipt: {problem.strerror}. Nothing is reported"
                ) from problem
        return datum

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a client is neither pickled nor copied: two copies would report twice")

    def renew(self, bundle: bytes, *, digest: bytes | None = None) -> bool:
        """Go on with the bundle of a later epoch; True if a datum had to be dropped for it.

        A decision that was made under the old bundle belongs to its epoch: it is dropped rather
        than encoded anew. A device that has reported stays silent for good.
        """
        renewed = read_bundle(bundle, digest)
        check_promise(renewed, self._budget)
        if renewed.plan.epoch < self.epoch:
            raise BundleError(
                f"this bundle is older (epoch {renewed.plan.epoch}) than the one in use "
                f"(epoch {self.epoch})"
            )
        if renewed.digest == self._bundle.digest:
            return False
        dropped = self._pending is not None
        self._bundle, self._device, self._pending = renewed, Device(renewed), None
        return dropped


def check_promise(bundle: Bundle, budget: Budget) -> None:
    """Refuse a plan that protects less than the budget asks for.

    Sphere: the ratio of probabilities in exact fractions. Gaussian: sensitivity ``2 norm_limit``,
    which the encoder enforces in integers, against the noise on the grid.
    """
    if bundle.plan.sphere is not None:
        if not bundle.plan.sphere.keeps(budget.epsilon):
            raise BundleError(
                f"this bundle asks for a report that costs epsilon {bundle.plan.sphere.epsilon:g}, "
                f"this device allows {budget.epsilon:g}: nothing is reported"
            )
        return
    from capri.privacy.calibration import RESOLUTION, delivered_by_integers

    grid = bundle.plan.grid
    if grid.noise_scale < RESOLUTION * (1 - 1e-9):
        raise BundleError(
            f"the noise must be at least {RESOLUTION} grid units wide, got {grid.noise_scale:g}"
        )
    if budget.delta == 0:
        raise BundleError(
            "Gaussian noise cannot keep delta = 0: this device allows sphere reports only"
        )
    cost = delivered_by_integers(grid.sensitivity / grid.noise_scale, budget, bundle.dimension)
    if cost > budget.epsilon * (1 + 1e-9):
        raise BundleError(
            f"this bundle asks for a report that costs epsilon {cost:g} at delta {budget.delta:g}, "
            f"this device allows {budget.epsilon:g}: nothing is reported"
        )
