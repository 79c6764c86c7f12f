"""A process that collects reports until it is killed: ``collecting.py FOLDER SEED``.

Prints the tokens of what was answered, a line for each answer, after it was durable.
"""

import random
import sys
from pathlib import Path

import capri
from capri.local.reports import ReportStatus
from capri.service.aggregator import DurableAggregator
from capri.service.settings import load_settings


def main() -> None:
    """Make reports and hand them in, some of them twice, in lists of any size."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(seed)
    arguments = load_settings(folder / "policy.toml").arguments
    collector = DurableAggregator(arguments, folder / "kept.db")
    user, before = seed * 100_000, []
    print("ready", collector.aggregator.reports, flush=True)
    while True:
        bundle, made = collector.bundle(), []
        for _ in range(draw.randrange(1, 9)):
            user += 1
            client = capri.LocalClient(bundle, capri.Budget(epsilon=4.0), simulation=(1, user))
            client.act({"mood": draw.random()})
            made.append(client.report(draw.random()))
        statuses = collector.receive(made + before)
        counted = [
            report[10:26].hex()
            for report, status in zip(made + before, statuses, strict=True)
            if status is ReportStatus.ACCEPTED
        ]
        print("counted", *counted, flush=True)
        before = draw.sample(made, min(2, len(made)))


if __name__ == "__main__":
    main()
