"""Threads of a server: a reward is counted once, however many deliver it at the same time."""

import threading
import time
import warnings
from typing import Any

import pytest

import capri
from builders import small_policy
from capri.epoch.encode import Encoder
from capri.learners.paper import PaperLearner


@pytest.mark.parametrize("model", ["joint", "local"])
def test_reward_is_counted_once_by_concurrent_threads(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Encoding is slowed down so that both threads are surely inside it at once."""
    policy = small_policy(simulation_seed=None, model=model)
    decision = policy.act([0.3])
    honest = Encoder.total

    def slow(self: Encoder, *arguments: Any) -> Any:
        time.sleep(0.05)
        return honest(self, *arguments)

    monkeypatch.setattr(Encoder, "total", slow)
    statuses: list[capri.RewardStatus] = []

    def deliver() -> None:
        statuses.append(policy.update(decision, 1.0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
        threads = [threading.Thread(target=deliver) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(statuses) == [0, 2, 2]


def test_decisions_of_concurrent_threads_have_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two users with one number would share one contribution and overwrite each other's context."""
    policy = small_policy(simulation_seed=None, horizon=1000)
    honest = PaperLearner.plan

    def slow(self: PaperLearner, *arguments: Any) -> Any:
        time.sleep(0.05)
        return honest(self, *arguments)

    monkeypatch.setattr(PaperLearner, "plan", slow)
    numbers: list[int] = []

    def ask() -> None:
        numbers.append(policy.act([0.3]).number)

    room = policy.remaining
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(min(numbers), min(numbers) + 4))
    assert policy.remaining == room - 4
