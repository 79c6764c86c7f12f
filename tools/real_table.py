"""Write the table of results on real problems into docs/results.md.

    python tools/real_table.py build/real

Figures are regret over that of uniform play, the mean over seeds with a 95 % Student interval.
Whether somebody is better is decided seed by seed: all players meet the same users. What stands
between the marks of the table is replaced, nothing else.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from capri_lab.datasets.real import CHECK_NAMES, LISTED_NAMES
from capri_lab.experiments import read_results

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results.md"
OURS, TOLD, FIXED = "capri-joint", "capri, suggested kernel", "best-fixed"
HORIZONS = {10_000: "1e4", 100_000: "1e5"}

# By policy and epsilon, the ratio of every seed.
Ratios = Mapping[tuple[str, float | None], Mapping[int, float]]


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half of its 95 % interval; None for a single value.

    >>> mean_and_half_width([1.0, 3.0])
    (2.0, 12.706204736174694)
    """
    if len(values) < 2:
        return fmean(values), None
    error = stdev(values) / sqrt(len(values))
    return fmean(values), float(student.ppf(0.975, len(values) - 1)) * error


def shown(values: Sequence[float]) -> str:
    """A figure of the table.

    >>> shown([0.25]), shown([0.25, 0.25, 0.25])
    ('.25', '.25 ± .00')
    """
    mean, half = mean_and_half_width(values)
    text = _short(mean)
    return text if half is None else f"{text} ± {_short(half)}"


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value >= 0 else f"{value:.2f}"


def verdict(ours: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Who is better on the seeds that both played: the mean difference and its 95 % interval.

    >>> verdict({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.4, 1: 0.51, 2: 0.6})
    'loses'
    >>> verdict({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.9})
    'even'
    """
    seeds = sorted(ours.keys() & other.keys())
    if len(seeds) < 2:
        return "one seed"
    mean, half = mean_and_half_width([ours[seed] - other[seed] for seed in seeds])
    assert half is not None
    if abs(mean) <= half:
        return "even"
    return "loses" if mean > 0 else "wins"


def gathered(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Ratios]:
    """Ratios by environment and horizon. A failed cell is an error: a table must not hide it."""
    found: dict[tuple[str, int], dict[tuple[str, float | None], dict[int, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for record in records:
        if record["status"] != "done":
            raise SystemExit(
                f"{record['policy']} on {record['environment']} failed: {record['error']}; "
                "play it again with capri-lab run real --retry"
            )
        player = record["policy"], record["epsilon"]
        found[record["environment"], record["rounds"]][player][record["seed"]] = record["ratio"]
    return {key: dict(value) for key, value in found.items()}


def rivals_of(ratios: Ratios) -> list[tuple[str, float | None]]:
    """Private policies that are not ours."""
    return [key for key in ratios if key[1] is not None and key[0] not in (OURS, TOLD)]


def result_line(name: str, rounds: int, ratios: Ratios) -> str:
    """A problem at a horizon."""
    ours = ratios[OURS, 1.0]
    best = min(rivals_of(ratios), key=lambda key: fmean(ratios[key].values()))
    cells = [
        f"`{name}`",
        HORIZONS[rounds],
        str(len(ours)),
        f"**{shown(list(ours.values()))}**",
        shown(list(ratios[OURS, None].values())),
        shown(list(ratios[TOLD, 1.0].values())),
        f"{shown(list(ratios[best].values()))} {best[0]}",
        shown(list(ratios[FIXED, None].values())),
        verdict(ours, ratios[best]),
        verdict(ours, ratios[FIXED, None]),
    ]
    return "| " + " | ".join(cells) + " |"


def result_table(records: Sequence[Mapping[str, Any]]) -> str:
    """All problems: those that defaults were chosen on, then the check."""
    found = gathered(records)
    lines = [
        "| problem | T | seeds | **CAPRI, nothing told** | the same without privacy "
        "| CAPRI, suggested kernel | best private rival | best fixed action "
        "| against that rival | against that action |",
        "| --- | --- | ---: | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for names in (LISTED_NAMES, CHECK_NAMES):
        for name in names:
            for rounds in HORIZONS:
                if (OURS, 1.0) in found.get((name, rounds), {}):
                    lines.append(result_line(name, rounds, found[name, rounds]))
    return "\n".join(lines)


def with_table(page: str, mark: str, table: str) -> str:
    """The page with what stands between the marks replaced."""
    start, end = f"<!-- {mark} -->\n", f"\n<!-- /{mark} -->"
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise SystemExit(f"the page has no marks {start.strip()} and {end.strip()}")
    return f"{before}{start}{table}{end}{after}"


def main(folder: str) -> None:
    """The table of what was played in this folder."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, cwd=DOCS, capture_output=True, text=True, check=True)
    stamp = f"*Commit `{commit.stdout.strip()}`, {datetime.now(UTC):%Y-%m-%d}.*\n\n"
    table = stamp + result_table(read_results(folder).records)
    RESULTS.write_text(with_table(RESULTS.read_text(), "real problems", table))


if __name__ == "__main__":
    main(sys.argv[1])
