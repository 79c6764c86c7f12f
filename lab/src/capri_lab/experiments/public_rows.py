"""Public rows that a player of a study knows beforehand: of the world it plays, or of another."""

from typing import Any

import numpy as np

from capri.environments import Environment
from capri.errors import ConfigurationError
from capri.learners.start import Prior
from capri.toml import Given
from capri_lab.streams import PUBLIC_ROWS

KEYS = ("public_rows", "rows_of")
# Of the world itself, or of one in which every reward has the other sign.
_SOURCES = ("world", "opposite")


def read_public_rows(given: Given) -> dict[str, Any]:
    """The keys of a player: how many rows, and of what."""
    if not given.has("public_rows"):
        if given.has("rows_of"):
            raise given.error("rows_of says what public_rows are of: give both", "rows_of")
        return {}
    whole = given.number(
        "public_rows",
        None,
        lambda value: value >= 1 and value == int(value),
        "a whole number of 1 or more",
    )
    source = given.word("rows_of", _SOURCES, _SOURCES[0])
    return {"public_rows": int(whole), "rows_of": source}


def prior_of(player: dict[str, Any], world: Environment, seed: int) -> dict[str, Any]:
    """The argument ``prior`` of a policy, from rows under uniform play; nothing without them."""
    count = player.get("public_rows")
    if count is None:
        return {}
    if not isinstance(world.actions, np.ndarray):
        raise ConfigurationError("public_rows needs a world with a fixed list of actions")
    rng = np.random.default_rng([seed, PUBLIC_ROWS])
    context = world.draw_contexts(rng, count)
    action = rng.integers(len(world.actions), size=count)
    sign = -1.0 if player["rows_of"] == "opposite" else 1.0
    rewards = sign * world.rewards(rng, context, action)
    return {"prior": Prior.from_rows(world.contexts[context], action, rewards)}
