"""Serialised bytes and separate processes give what the vectorised simulation gives, to the bit."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
from devices import BUDGET, CONTEXTS, reward_of, small_aggregator

import capri
from capri.local.simulator import DeviceSimulator
from waiting import PATIENCE

SEED = 17
# Contexts of the users: those of the pool and some that it does not hold.
USERS = np.random.default_rng(4).choice(np.append(CONTEXTS.ravel(), [0.123, 0.77]), size=400)


class Devices:
    """Two processes of devices, of which each user knows one."""

    def __init__(self, budget: capri.Budget) -> None:
        script = Path(__file__).with_name("worker.py")
        self._workers = [
            subprocess.Popen(
                [sys.executable, str(script), repr(budget.epsilon), repr(budget.delta)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            for _ in range(2)
        ]

    def reports(self, bundle: bytes, users: list[int]) -> list[bytes]:
        """What these users upload, in an order of its own."""
        shares = [users[number::2] for number in range(2)]
        for worker, share in zip(self._workers, shares, strict=True):
            assert worker.stdin is not None
            lines = [f"{SEED} {user} {float(USERS[user]).hex()}\n" for user in share]
            head = f"{len(bundle)}\n".encode() + bundle + f"{len(share)}\n".encode()
            worker.stdin.write(head + "".join(lines).encode())
            worker.stdin.flush()
        made = [
            bytes.fromhex(worker.stdout.readline().decode())  # type: ignore[union-attr]
            for worker, share in zip(self._workers, shares, strict=True)
            for _ in share
        ]
        random.Random(len(users)).shuffle(made)
        return made

    def close(self) -> None:
        for worker in self._workers:
            worker.communicate(b"0\n", timeout=PATIENCE)
            assert worker.returncode == 0


def test_separate_processes_equal_the_vectorised_run() -> None:
    settings = {"horizon": 285, "growth": 1.5}  # epochs of 60, 90 and 135
    simulated = small_aggregator(**settings)
    fleet = DeviceSimulator(simulated, BUDGET, simulation_seed=SEED)
    aggregator = small_aggregator(**settings)
    devices = Devices(BUDGET)
    user = 0
    while fleet.remaining:
        count = fleet.remaining
        users = list(range(user, user + count))
        bundle = aggregator.bundle()
        assert bundle == simulated.bundle()
        statuses = aggregator.receive_many(devices.reports(bundle, users))
        assert (statuses == capri.ReportStatus.ACCEPTED).all()
        decisions = fleet.act_many(USERS[users][:, None])
        rewards = [reward_of(u, a) for u, a in zip(users, decisions.action_index, strict=True)]
        assert (fleet.update_many(decisions, rewards) == capri.ReportStatus.ACCEPTED).all()
        everywhere = np.linspace(-1, 2, 31)
        assert aggregator.estimate(everywhere).tobytes() == fleet.estimate(everywhere).tobytes()
        user += count
    devices.close()
    assert len(aggregator.epochs) == 3
    assert (aggregator.estimate(CONTEXTS) != 0).all()
