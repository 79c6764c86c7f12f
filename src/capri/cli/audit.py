"""``capri audit``: attack the code that serves users and see what can be proved."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capri.cli.options import POLICY_PANEL, PRESETS, Delta, Epsilon, Json, Preset, picture_kind
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.joint.audit import AuditResult
    from capri.joint.policy import Capri

FAILED = 1
DEVICE = "device"
_SIDE, _HORIZON = 10, 1_000
_PICTURE = Path("capri-audit.png")


def audit(
    model: Annotated[
        str,
        typer.Option(
            help="Whom users trust: a curator, or nobody; device: what real devices upload.",
            metavar=f"joint|local|{DEVICE}",
            rich_help_panel=POLICY_PANEL,
        ),
    ] = "joint",
    randomizer: Annotated[
        str,
        typer.Option(
            help="Of the device.", metavar="sphere|gaussian", rich_help_panel=POLICY_PANEL
        ),
    ] = "sphere",
    epsilon: Epsilon = 4.0,
    delta: Delta = 1e-5,
    preset: Preset = PRESETS[0],
    trials: Annotated[int, typer.Option(help="Runs in each of the two worlds.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Of what is proved.")] = 0.999,
    json: Json = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help=f"The picture: png, svg or pdf; none of a device. Default: {_PICTURE}.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Attack the real pipeline: claimed against proven privacy loss, and a picture.

    The worst neighbouring pair is played many times with real noise, in two
    worlds that differ in one reward. How well they can be told apart proves a
    lower bound on the loss. Model device reads the bytes that devices upload.
    Ends with exit code 1 where an attack proves more than was claimed.
    """
    if model == DEVICE:
        from capri.cli.device_audit import audit_bytes

        if output is not None:
            raise ConfigurationError("there is no picture of a device: leave --output out")
        if preset != PRESETS[0]:
            raise ConfigurationError(f"devices run preset {PRESETS[0]!r}, got {preset!r}")
        passed = audit_bytes(
            _setting(epsilon, delta),
            randomizer=randomizer,
            trials=trials,
            confidence=confidence,
            json=json,
        )
    else:
        passed = _audit_policy(
            model, preset, _setting(epsilon, delta), trials, confidence, json, output or _PICTURE
        )
    if not passed:
        raise typer.Exit(FAILED)


def _audit_policy(
    model: str,
    preset: str,
    setting: dict[str, Any],
    trials: int,
    confidence: float,
    json: str | None,
    output: Path,
) -> bool:
    """Audit the code of one process, print, draw; whether it passed."""
    kind = picture_kind(output)

    from rich.console import Console

    from capri.cli.progress import Meter
    from capri.files import check_writable, to_json, write_atomically
    from capri.joint.audit import audit as attack
    from capri.plots import audit_figure, to_bytes

    check_writable(output)
    if json is not None and json != "-":
        check_writable(Path(json))
    policy = _policy(model, preset, setting)
    with Meter("audit", "runs") as meter:
        result = attack(policy, trials=trials, confidence=confidence, progress=meter)
    described = (
        f"{policy.guarantee}, preset {preset}, {_SIDE} contexts x {_SIDE} actions, Matern-5/2, "
        f"{trials:,} trials in each world"
    )
    # Files first: they are there even if nobody reads the tables to their end.
    write_atomically(
        output, to_bytes(audit_figure(result, footnote=f"Audit of {described}."), kind)
    )
    text = to_json(_document(result, preset, trials))
    if json is not None and json != "-":
        write_atomically(Path(json), text.encode())
    console = Console(stderr=json == "-", highlight=False)
    console.print(f"[bold]CAPRI audit[/bold]: {described}.")
    console.print(_summary(result))
    console.print(_attacks(result))
    console.print(_verdict(result))
    console.print(f"Picture: {output}", soft_wrap=True, markup=False)
    if json == "-":
        typer.echo(text, nl=False)
    elif json is not None:
        console.print(f"Results: {json}", soft_wrap=True, markup=False)
    return result.passed


def _setting(epsilon: float, delta: float) -> dict[str, Any]:
    """A small problem: what is attacked is the code, not the problem."""
    import numpy as np

    from capri.kernels import Matern
    from capri.privacy.budget import Budget
    from capri.spaces import ContextPool

    rows = np.linspace(0.0, 1.0, _SIDE)[:, None]
    return {
        "kernel": Matern(nu=2.5, lengthscale=0.3),
        "actions": rows,
        "contexts": ContextPool(rows),
        "budget": Budget(epsilon=epsilon, delta=delta),
        "horizon": _HORIZON,
    }


def _policy(model: str, preset: str, setting: dict[str, Any]) -> "Capri":
    """A small private policy: real noise, no seed."""
    from capri.joint.policy import Capri

    # The printed noise of the paper wastes most of the budget: nothing could be proved of it.
    options: dict[str, Any] = {"calibration": "analytic"} if preset == "paper" else {}
    return Capri(model=model, preset=preset, **setting, **options)


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
    from capri.cli.outcome import versions

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
