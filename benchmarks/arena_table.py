"""Write results/arena.json into the table of docs/results.md.

python benchmarks/arena_table.py
"""

import json
from typing import Any

import common

PROBLEMS = {"matern52": "Matern", "hartmann4": "Hartmann-4"}
TASKS = [(problem, rounds) for problem in PROBLEMS for rounds in (10_000, 100_000)]
# Of policies without privacy these stand for all; ``capri-lab arena`` plays the others, too.
WITHOUT_PRIVACY = ("igp-ucb", "linucb", "capri-joint")
ORDER = {"perfect": 0, "local": 1, "shuffle": 2, "joint": 3, "central": 4, "none": 5}


def promise(row: dict[str, Any]) -> str:
    told = row["promise"]
    if told["model"] in ("none", "perfect"):
        return {"none": "no privacy", "perfect": "no data used"}[told["model"]]
    return f"{told['model']}, {told['kind']}, {told['unit']}, {told['protects']}"


def figure(row: dict[str, Any] | None) -> str:
    if row is None or row["ratio"] is None:
        return ""
    error = row["ratio_standard_error"]
    return (
        f"{row['ratio']:.3f}"
        + ("" if error is None else f" ± {error:.3f}")
        + ("*" if row["note"] else "")
    )


def table(rows: list[dict[str, Any]]) -> str:
    found = {(row["problem"], row["rounds"], row["policy"], row["epsilon"]): row for row in rows}
    groups: dict[str, dict[tuple[str, str | None], float]] = {}
    ranks: dict[str, int] = {}
    for row in rows:
        if row["promise"]["model"] == "none" and row["policy"] not in WITHOUT_PRIVACY:
            continue
        if (row["problem"], row["rounds"]) == TASKS[0] and row["ratio"] is not None:
            name = promise(row)
            groups.setdefault(name, {})[row["policy"], row["epsilon"]] = row["ratio"]
            ranks[name] = ORDER[row["promise"]["model"]]
    powers = {10_000: "1e4", 100_000: "1e5"}
    titles = [f"{PROBLEMS[problem]} {powers[rounds]}" for problem, rounds in TASKS]
    header = ["promise", "policy", "epsilon", *titles]
    lines = [
        "| " + " | ".join(header) + " |",
        "| --- | --- | --- |" + " ---: |" * (len(header) - 3),
    ]
    for name in sorted(groups, key=lambda each: (ranks[each], each)):
        lines.append(f"| *{name}* |" + " |" * (len(header) - 1))
        for policy, epsilon in sorted(groups[name], key=groups[name].__getitem__):
            mine = [found.get((*task, policy, epsilon)) for task in TASKS]
            shown = "" if epsilon is None else f"{float(epsilon):g}"
            lines.append("| " + " | ".join(["", policy, shown, *map(figure, mine)]) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = json.loads((common.RESULTS / "arena.json").read_text())["results"]
    common.publish("arena", table(rows))


if __name__ == "__main__":
    main()
