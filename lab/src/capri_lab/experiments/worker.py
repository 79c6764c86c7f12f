"""A worker process: takes cells as lines of JSON on stdin and answers on stdout.

A :class:`~capri_lab.experiments.Pool` starts it as ``python -m capri_lab.experiments.worker`` with
one BLAS thread. It ends when stdin does, so it does not outlive the run that started it by more
than a cell.
"""

import json
import os
import sys
from time import monotonic
from typing import Any

# How often the run hears of a cell under way, in seconds.
_EVERY = 0.5


def main() -> None:
    """Serve until stdin closes."""
    # Whatever prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(kind: str, value: Any) -> None:
        try:
            answers.write(json.dumps([kind, value], separators=(",", ":")) + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the run is gone

    from capri_lab.experiments.cells import Cell
    from capri_lab.experiments.play import play

    last = 0.0

    def watch(rounds: int, ratio: float) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= _EVERY:
            last = now
            say("going", [rounds, ratio if ratio == ratio else None])

    say("ready", None)
    for line in sys.stdin:
        last = monotonic()
        say("finished", play(Cell(**json.loads(line)), watch))


if __name__ == "__main__":
    main()
