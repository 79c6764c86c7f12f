"""Noise that ignores its input, and every other draw fixed: the oracle of these tests.

Each mechanism is run as it is, on zeros instead of the secret and with a seeded source instead of
the operating system: what it gives has the right law and shape and knows nothing of the data. In
the textbook local model a release carries one noise vector for every visit, some of them added
when rewards came; the blind one is drawn for their number, so that a run which adds more or fewer
of them is seen.

This is for tests only. A private policy takes no seed, and nothing here makes it take one: the
sources are replaced under it.
"""

import itertools
import os
import secrets
from collections import Counter
from typing import Any

import numpy as np
import pytest

from capri.local.randomness import SimulatedRandomness
from capri.privacy.gate import (
    MessageMechanism,
    MomentMechanism,
    SphereMechanism,
    SumMechanism,
)
from capri.privacy.grid import Grid
from capri.privacy.noise import SimulatedNoise
from capri.privacy.randomness import Streams

_PUBLIC, _ACTIONS, _NOISE = 1, 2, 3


def blind(patch: pytest.MonkeyPatch, seed: int = 7) -> None:
    """Fix public and action draws, keys and salts; let no release depend on what it releases."""
    releases, reports = itertools.count(), itertools.count()
    noises: Counter[int] = Counter()  # of each epoch, known by its grid
    grids: list[Grid] = []

    def source(*parts: int) -> SimulatedNoise:
        return SimulatedNoise(np.random.default_rng([seed, _NOISE, *parts]))

    def fixed(streams: Streams) -> None:
        streams._process = os.getpid()
        streams._public = np.random.default_rng([seed, _PUBLIC])
        streams._actions = np.random.default_rng([seed, _ACTIONS])

    def noised(mechanism: SumMechanism, units: Any, _: Any) -> Any:
        """A report of the textbook local model: its noise is in the release below."""
        grids.append(mechanism.grid)  # kept, so that no other has its number
        noises[id(mechanism.grid)] += mechanism.noises
        return np.zeros_like(units)

    def of_sum(mechanism: SumMechanism, secret: Any, _: Any) -> Any:
        total = noises.pop(id(mechanism.grid), 0) + mechanism.noises
        draws = source(next(releases), total)
        units = draws.add(np.zeros_like(secret), mechanism.grid.noise_units, reports=total)
        return np.asarray(units * mechanism.grid.step)

    honest_message = MessageMechanism.noisy

    def of_message(mechanism: MessageMechanism, secret: Any, _: Any) -> Any:
        return honest_message(mechanism, np.zeros_like(secret), source(next(releases)))

    honest_moments = MomentMechanism.noisy

    def of_moments(mechanism: MomentMechanism, secret: Any, _: Any) -> Any:
        return honest_moments(mechanism, np.zeros_like(secret), source(next(releases)))

    honest_report = SphereMechanism.noisy

    def of_report(mechanism: SphereMechanism, secret: Any, _: Any) -> Any:
        users = np.array([next(reports) for _ in secret])
        return honest_report(mechanism, np.zeros_like(secret), SimulatedRandomness(seed, users))

    patch.setattr(Streams, "_reseed", fixed)
    patch.setattr(secrets, "token_bytes", lambda count=32: bytes(range(count)))
    patch.setattr(SumMechanism, "noised", noised)
    patch.setattr(SumMechanism, "noisy", of_sum)
    patch.setattr(MessageMechanism, "noisy", of_message)
    patch.setattr(MomentMechanism, "noisy", of_moments)
    patch.setattr(SphereMechanism, "noisy", of_report)
