"""What a player sees of a world whose users come with raw columns.

CAPRI with an untold kernel takes columns as they are. Everybody else gets the same users with
contexts in the unit ball and the kernel that public rows suggest; rivals, which play on a finite
list of contexts, get them rounded to the nearest of public prototypes. Rewards, users and their
order are the same for all, so regrets can be compared.
"""

from dataclasses import replace
from typing import Any

from capri.environments import Environment
from capri_lab.datasets import suggested_kernel
from capri_lab.experiments.worlds import Told
from capri_lab.rivals import BY_NAME

# "auto" tells no kernel; "suggested" is that of public rows.
UNTOLD, SUGGESTED = "auto", "suggested"

# Public prototypes that users are rounded to, where there are so many public contexts.
_PROTOTYPES = 200
# Features of linear rivals by number of actions: tried on two problems, the best of 10, 20 and 40
# was 40; beyond that noise costs more than features bring.
_FEATURES = (40, 4, 150)  # at least, for each action, at most


def view_of(world: Environment, told: Told, player: dict[str, Any]) -> tuple[Environment, Told]:
    """The world as a player sees it, and what the player is told."""
    rival, own = player["name"] in BY_NAME, player.get("kernel")
    untold = own == UNTOLD or (own is None and told.kernel is None)
    if told.encoded is None or (untold and not rival):
        return world, told
    seen = told.encoded()
    if rival:
        seen = told.encoded(prototypes=min(_PROTOTYPES, seen.pool.size))
    least, each, most = _FEATURES
    features = min(most, max(least, each * len(seen.actions)))
    kernel = suggested_kernel(seen) if told.kernel is None else told.kernel
    return seen, replace(told, kernel=kernel, features=features)
