"""The oracle test of devices: reports that ignore their input, from bundle to aggregator."""

import json
from typing import Any

import numpy as np
import pytest
from devices import ACTIONS, BUDGET, CONTEXTS

import capri
from oracle.blind import blind
from oracle.transcript import Transcript, assert_same, certified, overheard, told_apart_by

# Whether contexts and rewards that are no numbers are served, too: devices refused them once.
VALUES_ARE_TOTAL = True
REPORTS = 26


def _quiet(user: int) -> tuple[Any, Any]:
    return 0.5, 0.25


def _wild(user: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([user, 0xDE])
    rewards = [float(rng.normal()), None, 1e308, -0.0, 5e-324, 10**9]
    return float(rng.normal() * 10.0 ** rng.integers(-3, 90)), rewards[user % len(rewards)]


def _missing(user: int) -> tuple[Any, Any]:
    values = [float("nan"), float("inf"), None, 0.5]
    return values[user % 4], values[user // 4 % 4]


TOLD = capri.kernels.RBF(lengthscale=0.4)


def uploaded(world: Any, *, kernel: Any = TOLD, leak: bool = False) -> Transcript:
    """Bundles, reports and all that the aggregator says, over two epochs and a little more."""
    transcript: Transcript = []
    with pytest.MonkeyPatch.context() as patch, overheard(transcript):
        blind(patch)
        aggregator = capri.LocalCapri(
            kernel=kernel,
            actions=ACTIONS,
            contexts=capri.ContextPool(CONTEXTS),
            budget=BUDGET,
            horizon=100,
            first_epoch=10,
            public_seed=3,
        )
        for user in range(REPORTS):
            context, reward = world(user)
            bundle = aggregator.bundle()
            client = capri.LocalClient(bundle, BUDGET)
            decision = client.act([context])
            report = client.report(reward)
            if leak:
                report += b"late" if reward is None else b""
            transcript += [
                ("bundle", bundle),
                ("device", (repr(client), repr(decision), client.reported, client.epoch)),
                ("report", report),
                ("status", int(aggregator.receive(report))),
                ("remaining", aggregator.remaining),
            ]
        records = [record.to_dict() | {"seconds": None} for record in aggregator.epochs]
        transcript += [
            ("records", json.dumps(records)),
            ("estimate", aggregator.estimate(CONTEXTS).tobytes()),
            ("law", aggregator.probabilities(CONTEXTS).tobytes()),
            ("active", aggregator.active(CONTEXTS).tobytes()),
            ("shown", (repr(aggregator), aggregator.guarantee)),
            ("certificate", certified(aggregator)),
        ]
    return transcript


@pytest.mark.parametrize("kernel", [TOLD, "auto"], ids=["told", "auto"])
def test_reports_and_what_follows_are_the_same_whatever_users_are_and_do(kernel: Any) -> None:
    quiet = uploaded(_quiet, kernel=kernel)
    assert_same(quiet, uploaded(_wild, kernel=kernel))
    if VALUES_ARE_TOTAL:
        assert_same(quiet, uploaded(_missing, kernel=kernel))


def test_premise_a_longer_report_of_those_without_a_reward_is_seen() -> None:
    told = told_apart_by(uploaded(_quiet, leak=True), uploaded(_wild, leak=True))
    assert told == "report"
