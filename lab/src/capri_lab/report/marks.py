"""How a player is drawn: a colour of its own, and a dash that tells unlike promises apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from capri.plots.style import COLOURS
from capri_lab.report.summary import Player

# One per promise, as SVG dash arrays. The first, for the promise that comes first, is solid.
DASHES = (
    "", "9 4", "3 3", "12 3 3 3", "6 2 2 2 2 2", "16 5", "1.5 3.5", "20 3 6 3", "5 5",
    "14 2 2 2 2 2", "7 2 1 2", "24 4", "3 1.5", "10 2 10 6", "2 6", "18 2 1.5 2 1.5 2",
)  # fmt: skip
SHAPES = ("circle", "square", "triangle", "diamond", "down")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Places in the lists of colours, dashes and shapes; the shape tells two of a colour apart."""

    colour: int
    dash: int
    shape: int


def marks(players: Sequence[Player]) -> list[Mark]:
    """A policy has one colour under all its promises, and no other has it while colours last.

    What uses no data is drawn in grey. Once colours run out they differ within a trust model first.
    """
    promises = list(dict.fromkeys(player.promise["label"] for player in players))
    models = [player.promise["model"] for player in players]
    within = {model: Counter[int]() for model in models}
    overall = Counter[int]()
    colours: dict[str, int] = {}
    found = {}
    # The first of every model, then the second: those that matter most get colours of their own.
    for place in sorted(range(len(players)), key=lambda i: models[:i].count(models[i])):
        player, used = players[place], within[models[place]]
        dash = promises.index(player.promise["label"]) % len(DASHES)
        if models[place] == "perfect":
            found[place] = Mark(colour=0, dash=dash, shape=0)
            continue
        fresh = min(range(len(COLOURS)), key=lambda each: (used[each], overall[each]))
        colour = colours.setdefault(player.policy, fresh)
        found[place] = Mark(colour=colour, dash=dash, shape=used[colour] % len(SHAPES))
        used[colour] += 1
        overall[colour] += 1
    return [found[place] for place in range(len(players))]
