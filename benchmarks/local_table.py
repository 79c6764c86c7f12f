"""Write results/local.json into docs/results.md."""

import json
from textwrap import fill
from typing import Any

import common

_PROBLEMS = {
    "matern": "Matern-5/2, lengthscale 0.3",
    "rbf 0.6": "RBF, lengthscale 0.6",
    "hartmann4": "Hartmann-4, 2 context dimensions",
}


def regret_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | epsilon | bar | regret | std. error | max |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {_PROBLEMS[row['problem']]} | {row['epsilon']:g} | {row['bar']:g} "
        f"| **{row['mean']:.3f}** | {row['error']:.3f} | {row['worst']:.3f} |"
        for row in rows
    ]
    functions = min(row["functions"] for row in rows)
    largest = max(row["bundle"] for row in rows)
    note = (
        f"Means over {functions} functions. The largest bundle of all these runs had "
        f"{largest / 1e6:.2f} MB."
    )
    return "\n".join(lines) + f"\n\n{note}\n"


def speed_text(speed: dict[str, Any]) -> str:
    clients = speed["client ms"]
    words = (
        "A million sphere reports of 200 coordinates are checked and added up in "
        f"{speed['aggregation per product']:.2f} times the time of one product of 4000 x 4000 "
        f"float64 matrices ({speed['aggregation seconds']:.1f} s on the two cores used here). What "
        "a device takes after 20,000 users of the Matern problem:"
    )
    lines = [
        fill(words, 110),
        "",
        "| epsilon | decide and report, median | slowest of 300 | load the bundle | bundle |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {epsilon} | {row['decide and report']:.2f} ms | {row['slowest of 300']:.1f} ms | "
        f"{row['load']:.2f} ms | {row['bundle bytes'] / 1e6:.2f} MB |"
        for epsilon, row in clients.items()
    ]
    return "\n".join(lines) + "\n"


def late_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| late by | without a wait | std. error | stale | `reward_wait` = delay | std. error |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    found = {(row["delay"], row["wait"]): row for row in rows}
    for delay in sorted({delay for delay, _ in found}):
        before, after = found[delay, 0], found[delay, delay]
        waited = f"**{after['mean']:.3f}** | {after['error']:.3f}" if delay else "|"
        lines.append(
            f"| {delay:,} | {before['mean']:.3f} | {before['error']:.3f} | {before['stale']:.0%} | "
            f"{waited} |"
        )
    functions, rounds = rows[0]["functions"], rows[0]["rounds"]
    return "\n".join(lines) + f"\n\nMeans over {functions} functions, {rounds:,} users.\n"


def start_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| problem | epsilon | users | bar | regret | std. error | max |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {_PROBLEMS[row['problem']]} | {row['epsilon']:g} | {row['rounds']:,} | "
        f"{'' if row['bar'] is None else format(row['bar'], 'g')} | **{row['mean']:.3f}** | "
        f"{row['error']:.3f} | {row['worst']:.3f} |"
        for row in rows
    ]
    functions = sorted({row["functions"] for row in rows})
    return "\n".join(lines) + f"\n\nMeans over {' to '.join(map(str, functions))} functions.\n"


def model_table(rows: list[dict[str, Any]]) -> str:
    names = {
        "local": "local: single reports, epsilon 1",
        "shuffle": "shuffle: mixed reports, central epsilon 1, local at most 8",
        "joint": "joint: a curator, epsilon 1",
    }
    lines = [
        "| model | users | regret | std. error | max | functions |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {names[row['model']]} | {row['rounds']:,} | **{row['mean']:.3f}** | "
        f"{row['error']:.3f} | {row['worst']:.3f} | {row['functions']} |"
        for row in sorted(rows, key=lambda row: row["rounds"])
    ]
    return "\n".join(lines) + "\n"


def publish(results: dict[str, Any]) -> None:
    if results.get("regret"):
        common.publish("devices: regret", regret_table(results["regret"]))
    if results.get("start"):
        common.publish("devices: start", start_table(results["start"]))
    if results.get("shuffle"):
        common.publish("devices: shuffle", model_table(results["shuffle"]))
    if results.get("late"):
        common.publish("devices: late", late_table(results["late"]))
    if results.get("speed"):
        common.publish("devices: speed", speed_text(results["speed"]))


if __name__ == "__main__":
    publish(json.loads((common.RESULTS / "local.json").read_text()))
