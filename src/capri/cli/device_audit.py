"""``capri audit --model device``: attack the bytes that a device uploads."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from capri.local.audit import DeviceAudit

_WHAT = {
    "report": "the payload, knowing both worlds",
    "bits": "the most telling single bit",
    "tokens": "a seed that comes twice",
}


def audit_bytes(
    setting: dict[str, Any], *, randomizer: str, trials: int, confidence: float, json: str | None
) -> bool:
    """Audit real devices of a fresh bundle, print and write; whether they passed."""
    from dataclasses import replace

    from rich.console import Console

    from capri.cli.progress import Meter
    from capri.files import check_writable, to_json, write_atomically
    from capri.local.aggregator import LocalCapri
    from capri.local.audit import audit_device
    from capri.spaces import ContextPool

    if json is not None and json != "-":
        check_writable(Path(json))
    pool, budget = setting["contexts"], setting["budget"]
    assert isinstance(pool, ContextPool)
    if randomizer == "sphere":
        budget = replace(budget, delta=0.0)  # what it promises is pure
    aggregator = LocalCapri(**{**setting, "budget": budget}, randomizer=randomizer)
    with Meter("audit", "reports") as meter:
        result = audit_device(
            aggregator.bundle(),
            budget,
            pool.rows,
            trials=trials,
            confidence=confidence,
            progress=meter,
        )
    text = to_json(_document(result))
    if json is not None and json != "-":
        write_atomically(Path(json), text.encode())
    console = Console(stderr=json == "-", highlight=False)
    console.print(
        f"[bold]CAPRI audit[/bold]: bytes of devices, {randomizer} randomizer, "
        f"{aggregator.guarantee}, {trials:,} reports in each world."
    )
    console.print(_attacks(result))
    console.print(_verdict(result))
    if json == "-":
        typer.echo(text, nl=False)
    elif json is not None:
        console.print(f"Results: {json}", soft_wrap=True, markup=False)
    return result.passed


def _attacks(result: "DeviceAudit") -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("attack")
    table.add_column("reads")
    table.add_column(f"epsilon at delta {result.delta:g}", justify="right")
    table.add_row("", "claimed: at most", f"{result.claimed_epsilon:.3f}", end_section=True)
    for name, proven in result.proven.items():
        table.add_row(name, _WHAT[name], f"{proven:.3f}" if proven > 0 else "nothing")
    table.add_section()
    table.add_row("law", "how often each number comes", f"{result.law:.2g} by chance")
    table.add_row("bias", "the mean of reports", f"{result.bias:.1f} std. errors")
    return table


def _verdict(result: "DeviceAudit") -> str:
    if result.passed:
        share = result.proven_epsilon / result.claimed_epsilon
        return (
            f"[bold green]Passed[/bold green]: {share:.0%} of the claimed epsilon is proven at "
            f"{100 * result.confidence:g} %, no more, and reports follow their law."
        )
    if result.proven_epsilon > result.claimed_epsilon:
        return (
            "[bold red]FAILED[/bold red]: an attack proves more loss than is claimed. "
            "Users are not protected as promised."
        )
    return (
        "[bold red]FAILED[/bold red]: reports do not follow the law that the proof and the "
        "aggregator assume."
    )


def _document(result: "DeviceAudit") -> dict[str, Any]:
    from capri.cli.outcome import versions

    return {
        "model": "device",
        "randomizer": result.randomizer,
        "delta": result.delta,
        "confidence": result.confidence,
        "trials": result.trials,
        "claimed": {"epsilon": result.claimed_epsilon},
        "proven": {"epsilon": result.proven_epsilon, **result.proven},
        "law": result.law,
        "bias": result.bias,
        "passed": result.passed,
        "versions": versions(),
    }
