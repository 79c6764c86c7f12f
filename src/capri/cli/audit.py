"""``capri audit``: attack the code that serves users and see what can be proved."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capri.cli.options import PRESETS, Delta, Epsilon, Json, Model, Preset, picture_kind

if TYPE_CHECKING:
    from capri.audit import AuditResult
    from capri.policy import Capri

FAILED = 1
_SIDE, _HORIZON = 10, 1_000


def audit(
    model: Model = "joint",
    epsilon: Epsilon = 4.0,
    delta: Delta = 1e-5,
    preset: Preset = PRESETS[0],
    trials: Annotated[int, typer.Option(help="Runs in each of the two worlds.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Of what is proved.")] = 0.999,
    json: Json = None,
    output: Annotated[Path, typer.Option(help="The picture: png, svg or pdf.")] = Path(
        "capri-audit.png"
    ),
) -> None:
    """Attack the real pipeline: claimed against proven privacy loss, and a picture.

    The worst neighbouring pair is played many times with real noise, in two
    worlds that differ in one reward. How well they can be told apart proves a
    lower bound on the loss. Ends with exit code 1 where an attack proves more
    than was claimed.
    """
    kind = picture_kind(output)

    from rich.console import Console

    from capri.audit import audit as attack
    from capri.cli.files import check_writable, write_atomically
    from capri.cli.progress import Meter
    from capri.cli.report import to_json
    from capri.plots import audit_figure, to_bytes

    check_writable(output)
    if json is not None and json != "-":
        check_writable(Path(json))
    policy = _policy(model, epsilon, delta, preset)
    with Meter("audit", "runs") as meter:
        result = attack(policy, trials=trials, confidence=confidence, progress=meter)
    setting = (
        f"{policy.guarantee}, preset {preset}, {_SIDE} contexts x {_SIDE} actions, Matern-5/2, "
        f"{trials:,} trials in each world"
    )
    # Files first: they are there even if nobody reads the tables to their end.
    write_atomically(output, to_bytes(audit_figure(result, footnote=f"Audit of {setting}."), kind))
    text = to_json(_document(result, preset, trials))
    if json is not None and json != "-":
        write_atomically(Path(json), text.encode())
    console = Console(stderr=json == "-", highlight=False)
    console.print(f"[bold]CAPRI audit[/bold]: {setting}.")
    console.print(_summary(result))
    console.print(_attacks(result))
    console.print(_verdict(result))
    console.print(f"Picture: {output}", soft_wrap=True, markup=False)
    if json == "-":
        typer.echo(text, nl=False)
    elif json is not None:
        console.print(f"Results: {json}", soft_wrap=True, markup=False)
    if not result.passed:
        raise typer.Exit(FAILED)


def _policy(model: str, epsilon: float, delta: float, preset: str) -> "Capri":
    """A small private policy: real noise, no seed."""
    import numpy as np

    from capri.kernels import Matern
    from capri.policy import Capri
    from capri.privacy.budget import Budget
    from capri.spaces import ContextPool

    # The printed noise of the paper wastes most of the budget: nothing could be proved of it.
    options: dict[str, Any] = {"calibration": "analytic"} if preset == "paper" else {}
    rows = np.linspace(0.0, 1.0, _SIDE)[:, None]
    return Capri(
        kernel=Matern(nu=2.5, lengthscale=0.3),
        actions=rows,
        contexts=ContextPool(rows),
        budget=Budget(epsilon=epsilon, delta=delta),
        horizon=_HORIZON,
        model=model,
        preset=preset,
        **options,
    )


def _verdict(result: "AuditResult") -> str:
    if result.passed:
        share = max(result.proven_mu, 0.0) / result.claimed_mu
        return f"[bold green]Passed[/bold green]: {share:.0%} of the claimed mu is proven, no more."
    return (
        "[bold red]FAILED[/bold red]: an attack proves more loss than is claimed. "
        "Users are not protected as promised."
    )


def _table() -> Any:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)


def _summary(result: "AuditResult") -> object:
    table = _table()
    table.add_column("privacy loss")
    table.add_column(f"epsilon at delta {result.delta:g}", justify="right")
    table.add_column("mu", justify="right")
    table.add_row("claimed: at most", f"{result.epsilon:.3f}", f"{result.claimed_mu:.3f}")
    table.add_row(
        f"proven at {100 * result.confidence:g} %: at least",
        f"{result.proven_epsilon:.3f}",
        f"{max(result.proven_mu, 0.0):.3f}",
    )
    return table


def _attacks(result: "AuditResult") -> object:
    table = _table()
    for name in ("attack", "trials", "false alarms", "misses", "proven mu"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    for attack in result.attacks:
        table.add_row(
            attack.name,
            f"{attack.trials:,}",
            f"{(attack.low > 0).mean():.1%}",
            f"{(attack.high <= 0).mean():.1%}",
            f"{attack.proven_mu:.3f}" if attack.proven_mu > 0 else "nothing",
        )
    return table


def _document(result: "AuditResult", preset: str, trials: int) -> dict[str, Any]:
    from capri.cli.report import versions

    return {
        "model": result.model,
        "preset": preset,
        "delta": result.delta,
        "confidence": result.confidence,
        "trials": trials,
        "claimed": {"epsilon": result.epsilon, "mu": result.claimed_mu},
        "proven": {"epsilon": result.proven_epsilon, "mu": result.proven_mu},
        "passed": result.passed,
        "attacks": [
            {
                "name": attack.name,
                "trials": attack.trials,
                "false_alarms": float((attack.low > 0).mean()),
                "misses": float((attack.high <= 0).mean()),
                "proven_mu": attack.proven_mu,
            }
            for attack in result.attacks
        ],
        "versions": versions(),
    }
