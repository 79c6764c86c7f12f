"""Noise that ignores its input, and every other draw fixed: the oracle of these tests.

The gate runs as it is, with zeros in the place of the secret and a seeded source in the place of
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

from capri.local.device import SimulatedRandomness
from capri.privacy import gate
from capri.privacy.gate import Gate
from capri.privacy.layout import Layout
from capri.privacy.noise import SimulatedNoise
from capri.streams import Streams

_PUBLIC, _ACTIONS, _NOISE = 1, 2, 3


def blind(patch: pytest.MonkeyPatch, seed: int = 7) -> None:
    """Fix public and action draws, keys and salts; let no release depend on what it releases."""
    releases, reports = itertools.count(), itertools.count()
    honest_noise, honest_reports = gate.noised, gate.randomized
    alone: Counter[int] = Counter()  # noises of each epoch, known by its layout
    layouts: list[Layout] = []

    def fixed(streams: Streams) -> None:
        streams._process = os.getpid()
        streams._public = np.random.default_rng([seed, _PUBLIC])
        streams._actions = np.random.default_rng([seed, _ACTIONS])

    def add_noise(_: Gate, units: Any, layout: Layout, reports: int) -> Any:
        """A report of the textbook local model: its noise is in the release below."""
        layouts.append(layout)  # kept, so that no other has its number
        alone[id(layout)] += reports
        return np.zeros_like(units)

    def noised(total: Any, layout: Layout, _: Any, noises: int = 1) -> Any:
        noises += alone.pop(id(layout), 0)
        draws = np.random.default_rng([seed, _NOISE, next(releases), noises])
        return honest_noise(np.zeros_like(total), layout, SimulatedNoise(draws), noises)

    def randomized(units: Any, norm_limit: int, sphere: Any, _: Any) -> Any:
        users = np.array([next(reports) for _ in units])
        draws = SimulatedRandomness(seed, users)
        return honest_reports(np.zeros_like(units), norm_limit, sphere, draws)

    patch.setattr(Streams, "_reseed", fixed)
    patch.setattr(secrets, "token_bytes", lambda count=32: bytes(range(count)))
    patch.setattr(Gate, "add_noise", add_noise)
    patch.setattr(gate, "noised", noised)
    patch.setattr(gate, "randomized", randomized)
