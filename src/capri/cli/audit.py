"""``capri audit``: attack the code that serves users, or the bytes that their devices upload."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from capri.cli.options import (
    PRESETS,
    Delta,
    Epsilon,
    Json,
    Preset,
    count,
    of_policy,
    option,
)
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from capri.joint.audit import AuditResult
    from capri.joint.policy import Capri
    from capri.local.audit import DeviceAudit

FAILED = 1
DEVICE = "device"
_SIDE, _ACTIONS, _HORIZON = 10, 4, 1_000
_PICTURE = Path("capri-audit.png")
_TABLE: dict[str, Any] = {"padding": (0, 2, 0, 0), "pad_edge": False}
_READS = {
    "report": "the payload, knowing both worlds",
    "bits": "the most telling single bit",
    "tokens": "a seed that comes twice",
}
_PASSED = "[bold green]Passed[/bold green]"
_PROVED_TOO_MUCH = (
    "[bold red]FAILED[/bold red]: an attack proves more loss than is claimed. "
    "Users are not protected as promised."
)


def audit(
    model: Annotated[
        str,
        of_policy(
            "Whom users trust: a curator, or nobody; device: what real devices upload.",
            f"joint|local|{DEVICE}",
        ),
    ] = "joint",
    epsilon: Epsilon = 4.0,
    delta: Delta = 1e-5,
    preset: Preset = PRESETS[0],
    trials: Annotated[int, count("Runs in each of the two worlds.")] = 10_000,
    confidence: Annotated[float, option("Of what is proved.")] = 0.999,
    json: Json = None,
    output: Annotated[
        Path | None,
        option(
            f"The picture: png, svg or pdf; none of a device. Default: {_PICTURE}.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Attack the real pipeline: claimed against proven privacy loss, and a picture.

    Private runs are played through act, update, save and load, in memory and
    on a store, in two worlds that differ in one user: a reward, whether it
    comes, late, in shadow mode, which actions are available. How well they
    can be told apart proves a lower bound on the loss. Model device reads the
    bytes that devices upload.
    Ends with exit code 1 where an attack proves more than was claimed.
    """
    from capri.cli.outcome import Output, versions

    setting = _setting(epsilon, delta)
    if model == DEVICE:
        if output is not None:
            raise ConfigurationError("there is no picture of a device: leave --output out")
        if preset != PRESETS[0]:
            raise ConfigurationError(f"devices run preset {PRESETS[0]!r}, got {preset!r}")
        files = Output(json)
        found = _audit_device(setting, trials, confidence)
    else:
        files = Output(json, output or _PICTURE)
        found = _audit_policy(model, preset, setting, trials, confidence)
    files.put(
        f"[bold]CAPRI audit[/bold]: {found.described}.",
        *found.parts,
        document=found.document | {"versions": versions()},
        figure=found.figure,
    )
    if not found.document["passed"]:
        raise typer.Exit(FAILED)


class _Found(NamedTuple):
    """What an audit shows: what was attacked, as JSON, as tables and a verdict, as a picture."""

    described: str
    document: dict[str, Any]
    parts: "list[Table | str]"
    figure: "Figure | None" = None


def _audit_policy(
    model: str, preset: str, setting: dict[str, Any], trials: int, confidence: float
) -> _Found:
    """Audit the code of one process: a small private policy with real noise, no seed."""
    from capri.cli.progress import Meter
    from capri.joint.audit import audit_policy
    from capri.plots import audit_figure

    policy, wider = (_policy(model, preset, setting, count) for count in (1, _ACTIONS))
    with Meter("audit", "runs") as meter:
        result = audit_policy(
            policy,
            trials=trials,
            confidence=confidence,
            also={f"{_ACTIONS} actions": wider},
            progress=meter,
        )
    described = (
        f"{policy.guarantee}, preset {preset}, {_SIDE} contexts, one action, Matern-5/2, "
        f"up to {trials:,} runs in each world"
    )
    share = max(result.proven_mu, 0.0) / result.claimed_mu
    verdict = f"{_PASSED}: {share:.0%} of the claimed mu is proven, no more."
    return _Found(
        described,
        _document(result, preset, trials),
        [_summary(result), _attacks(result), verdict if result.passed else _PROVED_TOO_MUCH],
        audit_figure(result, footnote=f"Audit of {described}."),
    )


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


def _policy(model: str, preset: str, setting: dict[str, Any], actions: int) -> "Capri":
    """A small private policy: real noise, no seed."""
    from capri.joint.policy import Capri

    # The printed noise of the paper wastes most of the budget: nothing could be proved of it.
    options: dict[str, Any] = {"calibration": "analytic"}
    if preset != "paper":
        # Runs of short epochs, and nearly all of a message in the block that is attacked.
        options = {"first_epoch": 100, "growth": 1.1, "moment_share": 0.05, "tail_share": 0.05}
        setting = setting | {"horizon": None}
    rows = setting["actions"]
    return Capri(model=model, preset=preset, **setting | {"actions": rows[:actions]}, **options)


def _summary(result: "AuditResult") -> "Table":
    from capri.cli.outcome import a_table

    columns = ("privacy loss", f"epsilon at delta {result.delta:g}", "mu")
    proven = f"proven at {100 * result.confidence:g} %: at least"
    table = a_table(columns, left=columns[:1], **_TABLE)
    table.add_row("claimed: at most", f"{result.epsilon:.3f}", f"{result.claimed_mu:.3f}")
    table.add_row(proven, f"{result.proven_epsilon:.3f}", f"{max(result.proven_mu, 0.0):.3f}")
    return table


def _attacks(result: "AuditResult") -> "Table":
    """Each scenario: how often the attacker errs, and what two estimators prove of the claim."""
    from capri.cli.outcome import a_table

    columns = ("scenario", "runs", "false alarms", "misses", "proven mu", "learnt mu", "of claim")
    table = a_table(columns, left=columns[:1], **_TABLE)
    for attack in result.attacks:
        table.add_row(
            attack.name,
            f"{attack.trials:,}",
            f"{(attack.low > 0).mean():.1%}",
            f"{(attack.high <= 0).mean():.1%}",
            f"{max(attack.proven_mu, 0.0):.3f}",
            f"{attack.learnt_mu:.3f}",
            f"{attack.largest_mu / result.claimed_mu:.0%}",
        )
    return table


def _document(result: "AuditResult", preset: str, trials: int) -> dict[str, Any]:
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
                "learnt_mu": attack.learnt_mu,
            }
            for attack in result.attacks
        ],
    }


def _audit_device(setting: dict[str, Any], trials: int, confidence: float) -> _Found:
    """Audit real devices of a fresh bundle."""
    from dataclasses import replace

    from capri.cli.progress import Meter
    from capri.local.aggregator import LocalCapri
    from capri.local.audit import audit_device

    budget = replace(setting["budget"], delta=0.0)  # what a device promises is pure
    rows = setting["contexts"].rows
    aggregator = LocalCapri(**setting | {"budget": budget})
    with Meter("audit", "reports") as meter:
        result = audit_device(
            aggregator.bundle(), budget, rows, trials=trials, confidence=confidence, progress=meter
        )
    return _Found(
        f"bytes of devices, {aggregator.guarantee}, {trials:,} reports in each world",
        _device_document(result),
        [_device_attacks(result), _device_verdict(result)],
    )


def _device_attacks(result: "DeviceAudit") -> "Table":
    from capri.cli.outcome import a_table

    columns = ("attack", "reads", f"epsilon at delta {result.delta:g}")
    table = a_table(columns, left=columns[:2], **_TABLE)
    table.add_row("", "claimed: at most", f"{result.claimed_epsilon:.3f}", end_section=True)
    for name, proven in result.proven.items():
        table.add_row(name, _READS[name], f"{proven:.3f}" if proven > 0 else "nothing")
    table.add_section()
    table.add_row("law", "how often each number comes", f"{result.law:.2g} by chance")
    table.add_row("bias", "the mean of reports", f"{result.bias:.1f} std. errors")
    return table


def _device_verdict(result: "DeviceAudit") -> str:
    if result.passed:
        share = result.proven_epsilon / result.claimed_epsilon
        return (
            f"{_PASSED}: {share:.0%} of the claimed epsilon is proven at "
            f"{100 * result.confidence:g} %, no more, and reports follow their law."
        )
    if result.proven_epsilon > result.claimed_epsilon:
        return _PROVED_TOO_MUCH
    return (
        "[bold red]FAILED[/bold red]: reports do not follow the law that the proof and the "
        "aggregator assume."
    )


def _device_document(result: "DeviceAudit") -> dict[str, Any]:
    return {
        "model": "device",
        "delta": result.delta,
        "confidence": result.confidence,
        "trials": result.trials,
        "claimed": {"epsilon": result.claimed_epsilon},
        "proven": {"epsilon": result.proven_epsilon, **result.proven},
        "law": result.law,
        "bias": result.bias,
        "passed": result.passed,
    }
