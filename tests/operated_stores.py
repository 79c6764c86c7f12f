"""What tests of operating a store share: a small policy, commands, and another machine."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import capri
from capri import Capri, ContextPool
from capri.cli import app
from capri.store import rollback

SETTINGS: dict[str, Any] = {
    "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.5),
    "actions": ["red", "green"],
    "contexts": ContextPool(np.linspace(0, 1, 3)[:, None]),
    "budget": capri.Budget(epsilon=1.0, delta=1e-5),
    "first_epoch": 10,
    "growth": 1.02,
    "reward_wait": 4,
    "contributions_per_user": 3,
    "key_retention": timedelta(days=1),
}


def command(*words: str, code: int = 0, **environment: str) -> str:
    done = CliRunner().invoke(app, list(words), env=environment)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def play(policy: Capri, visits: int, name: str = "visit") -> list[capri.Decision]:
    made = []
    for place in range(visits):
        made.append(policy.act([0.5], user=f"{name} {place}", key=f"{name} {place}"))
        policy.update(made[-1].id, 0.5)
    return made


def forget_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine."""
    monkeypatch.setattr(rollback, "_SEEN", {})
