"""Worlds: what users are and do. Two worlds agree in what is public and in nothing else.

Public is how many visits there are, and when. Private is every value: contexts, rewards, whether a
reward comes, how late and how often, who comes again. Some visits are *shared*: the same context
and user in both worlds, with rewards of their own, so that their actions can be compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

VISITS = 30
SHARED = frozenset(range(2, VISITS, 3))
# What may stand where a number is expected.
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"), None, 10**400, 1e308)
# Sets of available actions: everything, some, nothing, and what cannot be read.
SETS = (None, [0], [1, 2], [], [99], ["nobody"], [True, False, True], [False] * 3, [None, 0.5])
ODD_NUMBERS = (0.0, -0.0, 5e-324, 1e99, -1e99, 7.5, 1e6)


@dataclass(frozen=True)
class Visit:
    """One user's visit; rewards as ``(after how many batches, value, by id)``.

    ``available`` is what the visit may get, where users come with sets of actions. ``again``: the
    contexts with which its key comes again; ``forgotten``: after how many batches its user asks for
    that. ``chosen`` by another system, with probability ``chance``.
    """

    context: Any
    user: str
    rewards: tuple[tuple[int, Any, bool], ...]
    available: Any = None
    again: tuple[Any, ...] = ()
    forgotten: int | None = None
    chosen: Any = 0
    chance: Any = 0.5


World = tuple[Visit, ...]


def shared(place: int, visit: Visit) -> Visit:
    """The visit that both worlds have at this place; only its rewards differ."""
    return Visit([0.0, 0.3, 0.6, 1.0][place % 4], f"shared {place}", visit.rewards, [0, 2])


def quiet_world() -> World:
    """Everybody comes once, from one context, and answers once, in time."""
    return _world([Visit(0.3, f"user {place}", ((0, 0.5, False),)) for place in range(VISITS)])


def wild_world(seed: int) -> World:
    """Everything that may happen: half of the values are no numbers, rewards come late, twice or
    never, and three people come all the time."""
    rng = np.random.default_rng([seed, 0x0AC])

    def value() -> Any:
        kind = rng.integers(4)
        if kind < 2:
            return float(rng.normal())
        odd = NO_NUMBERS if kind == 2 else ODD_NUMBERS
        return odd[rng.integers(len(odd))]

    def rewards() -> tuple[tuple[int, Any, bool], ...]:
        return tuple(
            (int(rng.integers(4)), value(), bool(rng.integers(2))) for _ in range(rng.integers(4))
        )

    return _world(
        [
            Visit(value(), f"regular {rng.integers(3)}", rewards(), SETS[place % len(SETS)])
            for place in range(VISITS)
        ]
    )


def _world(visits: list[Visit]) -> World:
    return tuple(
        shared(place, visit) if place in SHARED else visit for place, visit in enumerate(visits)
    )


_VALUES = st.one_of(
    st.none(),
    st.floats(),
    st.floats(-2, 2),
    st.sampled_from(NO_NUMBERS + ODD_NUMBERS),
    st.integers(),
    st.booleans(),
)
_REWARDS = st.lists(st.tuples(st.integers(0, 3), _VALUES, st.booleans()), max_size=2)
_VISIT = st.builds(
    Visit,
    context=_VALUES,
    user=st.sampled_from(["ann", "bob", "eve"]),
    rewards=_REWARDS.map(tuple),
    available=st.sampled_from(SETS),
)
worlds = st.lists(_VISIT, min_size=VISITS, max_size=VISITS).map(_world)
