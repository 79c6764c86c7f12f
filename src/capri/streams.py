"""Random streams: those of a policy, and salts that keep streams apart which share a seed.

One seed draws the function, the users, the policy and its noise. Each takes a generator of
``[seed, salt]``, with a salt from this list, so that reward noise never correlates with actions.
A test keeps the numbers distinct; they are part of every published result and never change.

A policy has three: public draws, action draws, noise. Private run: public and action draws come
from generators seeded by the operating system, fresh after a fork, never stored; noise does not
come from a generator at all. Simulation: all three come from one seed, and their state can be
saved.
"""

import os
from typing import Any

import numpy as np

from capri.checks import whole
from capri.errors import ConfigurationError

POLICY = 0xCA9
ENVIRONMENT = 0xE57
FORECAST = 0xF0E
EXPLANATION = 0xE9A1


class Streams:
    """The randomness of one policy.

    >>> Streams(None).noise is None
    True
    >>> Streams(7).actions.random() == Streams(7).actions.random()
    True
    """

    def __init__(self, simulation_seed: int | None) -> None:
        if simulation_seed is not None:
            whole("simulation_seed", simulation_seed, least=0)
        self.simulated = simulation_seed is not None
        # Of a simulation only: noise of a private run comes from no generator.
        self.noise: np.random.Generator | None = None
        if simulation_seed is None:
            self._reseed()
        else:
            root = np.random.SeedSequence([int(simulation_seed), POLICY])
            public, actions, noise = root.spawn(3)
            self._public = np.random.default_rng(public)
            self._actions = np.random.default_rng(actions)
            self.noise = np.random.default_rng(noise)

    def _reseed(self) -> None:
        self._process = os.getpid()
        self._public = np.random.default_rng()
        self._actions = np.random.default_rng()

    @property
    def public(self) -> np.random.Generator:
        """Draws that anyone may see: copies S and R, support samples."""
        if not self.simulated and os.getpid() != self._process:
            self._reseed()
        return self._public

    @property
    def actions(self) -> np.random.Generator:
        """Draws that choose an action from its public law."""
        if not self.simulated and os.getpid() != self._process:
            self._reseed()
        return self._actions

    def state(self) -> dict[str, Any] | None:
        """Generator states of a simulation; None in a private run, whose streams are not stored."""
        if self.noise is None:
            return None
        return {
            "public": self._public.bit_generator.state,
            "actions": self._actions.bit_generator.state,
            "noise": self.noise.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue a simulation where :meth:`state` was taken."""
        if self.noise is None:
            raise ConfigurationError("a private run has no stored randomness to restore")
        self._public.bit_generator.state = state["public"]
        self._actions.bit_generator.state = state["actions"]
        self.noise.bit_generator.state = state["noise"]
