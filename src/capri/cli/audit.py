"""``capri audit`` and ``capri certificate``: what is promised, attacked and verified.

An audit attacks the code that serves users, or the bytes that their devices upload. A certificate
is verified by itself, against a saved policy, or against an organisation's ledger.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from rich.table import Table

    from capri.audit.proof import AttackResult, AuditResult
    from capri.joint.policy import Capri
    from capri.privacy.certificate import Certificate
    from capri.store.book import Book

FAILED = CHANGED = 1
certificate = typer.Typer(help="Certificates of differential privacy.", no_args_is_help=True)
DEVICE = "device"
_SIDE, _ACTIONS, _HORIZON = 10, 4, 1_000
_PICTURE = Path("capri-audit.png")
_TABLE: dict[str, Any] = {"padding": (0, 2, 0, 0), "pad_edge": False}
_READS = {
    "report": "the payload, knowing both worlds",
    "bits": "the most telling single bit",
    "tokens": "a seed that comes twice",
    "law": "how often each number comes",
    "bias": "the mean of reports",
}
_CHECKED = {"law": "{:.2g} by chance", "bias": "{:.1f} std. errors"}


def audit(
    model: Annotated[
        str,
        of_policy(
            "Whom users trust: a curator; nobody (local, preset paper); device: its bytes.",
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

    setting, figure = _setting(epsilon, delta), None
    if model == DEVICE:
        if output is not None:
            raise ConfigurationError("there is no picture of a device: leave --output out")
        if preset != PRESETS[0]:
            raise ConfigurationError(f"devices run preset {PRESETS[0]!r}, got {preset!r}")
        files = Output(json)
        described, result = _audit_device(setting, trials, confidence)
    else:
        files = Output(json, output or _PICTURE)
        described, result = _audit_policy(model, preset, setting, trials, confidence)
        from capri.plots import audit_figure

        figure = audit_figure(result, footnote=f"Audit of {described}.")
    files.put(
        f"[bold]CAPRI audit[/bold]: {described}.",
        _summary(result),
        _attacks(result),
        _verdict(result),
        document=result.to_dict() | {"preset": preset, "versions": versions()},
        figure=figure,
    )
    if not result.passed:
        raise typer.Exit(FAILED)


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


def _audit_policy(
    model: str, preset: str, setting: dict[str, Any], trials: int, confidence: float
) -> "tuple[str, AuditResult]":
    """Audit the code of one process: a small private policy with real noise, no seed."""
    from capri.audit.scenarios import audit_policy
    from capri.cli.outcome import Meter

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
    return described, result


def _policy(model: str, preset: str, setting: dict[str, Any], actions: int) -> "Capri":
    from capri.joint.policy import Capri

    # The printed noise of the paper wastes most of the budget: nothing could be proved of it.
    options: dict[str, Any] = {"calibration": "analytic"}
    if preset != "paper":
        # Runs of short epochs, and nearly all of a message in the block that is attacked.
        options = {"first_epoch": 100, "growth": 1.1, "moment_share": 0.05, "tail_share": 0.05}
        setting = setting | {"horizon": None}
    rows = setting["actions"]
    return Capri(model=model, preset=preset, **setting | {"actions": rows[:actions]}, **options)


def _audit_device(
    setting: dict[str, Any], trials: int, confidence: float
) -> "tuple[str, AuditResult]":
    """Audit real devices of a fresh bundle."""
    from dataclasses import replace

    from capri.audit.device import audit_device
    from capri.cli.outcome import Meter
    from capri.local.aggregator import LocalCapri

    budget = replace(setting["budget"], delta=0.0)  # what devices promise is pure
    aggregator = LocalCapri(**setting | {"budget": budget})
    with Meter("audit", "reports") as meter:
        result = audit_device(
            aggregator.bundle(),
            budget,
            setting["contexts"].rows,
            trials=trials,
            confidence=confidence,
            progress=meter,
        )
    return f"bytes of devices, {aggregator.guarantee}, {trials:,} reports in each world", result


def _summary(result: "AuditResult") -> "Table":
    from capri.cli.outcome import a_table

    columns = ["privacy loss", f"epsilon at delta {result.delta:g}"]
    claimed = ["claimed: at most", f"{result.epsilon:.3f}"]
    proven = [f"proven at {100 * result.confidence:g} %: at least", f"{result.proven_epsilon:.3f}"]
    if result.unit == "mu":
        columns.append("mu")
        claimed.append(f"{result.claimed:.3f}")
        proven.append(f"{result.proven:.3f}")
    table = a_table(columns, left=columns[:1], **_TABLE)
    table.add_row(*claimed)
    table.add_row(*proven)
    return table


def _attacks(result: "AuditResult") -> "Table":
    """Each attack: how often it errs where it has a threshold, and what is proven of the claim."""
    from capri.cli.outcome import a_table

    if result.model == DEVICE:
        columns = ["attack", "reads", "proven epsilon"]
        table = a_table(columns, left=columns[:2], **_TABLE)
        for attack in result.attacks:
            proven = f"{attack.proven:.3f}" if attack.proven > 0 else "nothing"
            table.add_row(attack.name, _READS[attack.name], proven)
        table.add_section()
        for name, (value, _) in result.checks.items():
            table.add_row(name, _READS[name], _CHECKED[name].format(value))
        return table
    proven, learnt = f"proven {result.unit}", f"learnt {result.unit}"
    columns = ["scenario", "runs", "false alarms", "misses", proven, learnt, "of claim"]
    table = a_table(columns, left=columns[:1], **_TABLE)
    for attack in result.attacks:
        table.add_row(*_figures(attack), f"{attack.largest / result.claimed:.0%}")
    return table


def _figures(attack: "AttackResult") -> list[str]:
    errors = (f"{rate:.1%}" for rate in attack.errors)
    proven = f"{max(attack.proven, 0.0):.3f}", f"{attack.learnt:.3f}"
    return [attack.name, f"{attack.trials:,}", *errors, *proven]


def _verdict(result: "AuditResult") -> str:
    if result.passed:
        share = f"{result.proven / result.claimed:.0%} of the claimed {result.unit} is proven"
        lawful = ", and reports follow their law" if result.checks else ""
        return f"[bold green]Passed[/bold green]: {share}, no more{lawful}."
    if result.proven > result.claimed:
        return (
            "[bold red]FAILED[/bold red]: an attack proves more loss than is claimed. "
            "Users are not protected as promised."
        )
    return (
        "[bold red]FAILED[/bold red]: reports do not follow the law that the proof and the "
        "aggregator assume."
    )


@certificate.command()
def key(
    private: Annotated[Path, typer.Argument(help="The private key, a new file. Keep it safe.")],
    public: Annotated[Path, typer.Argument(help="The public key, to be published.")],
) -> None:
    """Make a pair of keys to sign certificates with."""
    from capri.privacy.certificate.verify import make_keys

    typer.echo(f"public key {make_keys(private, public)}: publish it where people look for you")


@certificate.command()
def sign(
    file: Annotated[Path, typer.Argument(help="The certificate, in any form.")],
    private: Annotated[Path, typer.Option("--key", help="The private key.")],
) -> None:
    """Sign a certificate as it is; the signature is written to FILE.sig."""
    from capri.privacy.certificate.verify import sign as signed

    typer.echo(f"signed: {signed(file, private)}")


@certificate.command()
def registry(
    file: Annotated[str, typer.Argument(help="The certificate, as JSON or as a page.")],
    name: Annotated[str, typer.Option(help="What is deployed.")],
    region: Annotated[str, typer.Option(help="Whose people it is about, or whose laws apply.")],
    target: Annotated[
        Path | None,
        typer.Argument(
            help="The entry, a YAML file: lower-case letters, digits, underscores. Default: of the "
            "names and the year.",
            show_default=False,
        ),
    ] = None,
    sector: Annotated[str | None, typer.Option(help="Such as Healthcare or Education.")] = None,
) -> None:
    """Write a certificate as an entry of the public registry of deployments."""
    from capri.files import write_atomically
    from capri.privacy.certificate import registry as entries
    from capri.privacy.certificate.verify import read_certificate

    told = read_certificate(file)
    entry = entries.registry_entry(told, name=name, region=region, sector=sector)
    place = target or Path(entries.file_name(entry))
    entries.check_file_name(place.name)
    write_atomically(place, entries.registry_yaml(entry).encode())
    typer.echo(f"a draft of tier {entry['tier']}: {place}. Read it before you hand it in")


@certificate.command()
def verify(
    file: Annotated[
        str, typer.Argument(help="The certificate: JSON or page, or any form that was signed.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="A saved policy: its configuration and plans must be those certified.",
            metavar="PATH",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="The organisation's ledger: the entry that is named must say what is stated.",
            metavar="URL",
        ),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="FILE.sig must be a signature by this key.")
    ] = None,
) -> None:
    """Check that a certificate is whole, signed, of a saved policy and of a ledger.

    The content must follow its schema and have the digest it states; a page
    must show its own data, to the last byte. Where there is FILE.sig, it must
    be a signature of the file as it is; a text, or any other form without
    data, is verified by that alone. Whose key that is, you have to know: give
    --public-key. Ends with exit code 1 where something is wrong.
    """
    from capri.errors import StorageError
    from capri.privacy.certificate.verify import verify_file

    try:
        told, key = verify_file(file, public_key)
        if told is None and (policy or ledger):
            raise StorageError("this form carries no data to compare: give its JSON or its page")
        said = [_same_policy(told, Path(policy))] if told and policy else []
        said += [_same_total(told, ledger)] if told and ledger else []
    except StorageError as problem:
        typer.echo(f"not verified: {problem}", err=True)
        raise typer.Exit(CHANGED) from None
    for line in (*_told(told), _signed(key, public_key), *said):
        typer.echo(line)


def _told(told: "Certificate | None") -> list[str]:
    """What was verified."""
    if told is None:
        return ["verified: every byte is as it was signed; this form carries no data to be read"]
    return [
        f"verified: ({told.epsilon:g}, {told.delta:g})-differential privacy, {told.model} model, "
        f"{len(told.releases)} releases",
        f"issued by: {told.declaration['organisation'] or 'not declared'} (self-issued)",
        f"digest: {told.digest}",
    ]


def _signed(key: str | None, public_key: Path | None) -> str:
    """By which key a certificate was signed."""
    if key is None:
        return "signature: none. This finds changes, not forgers: compare the digest"
    whose = "the key given" if public_key is not None else "compare it with the published one"
    return f"signature: by key {key} ({whose})"


def _same_total(told: "Certificate", url: str) -> str:
    """How far a ledger has come since a certificate, or an error where it says something else."""
    from itertools import islice

    from capri.errors import StorageError
    from capri.store.book import Book
    from capri.store.organisation import OrganisationLedger

    stated = told.in_total
    if stated is None:
        raise StorageError("the certificate states no total: it is of no ledger")
    with OrganisationLedger(url, read_only=True) as ledger:
        now, digests = ledger.repository.database.read(ledger.repository.checkpoint)
        if ledger.id != stated["ledger"]:
            raise StorageError(
                f"the certificate is of the ledger {stated['ledger'][:12]}, this one is "
                f"{ledger.id[:12]}"
            )
        if now.generation < stated["generation"]:
            raise StorageError(
                f"the ledger is older than the certificate: {now.generation} entries against "
                f"{stated['generation']}. Give the newest copy"
            )
        book = Book()
        for entry in islice(ledger.entries(), stated["generation"]):
            book.read(entry["kind"], entry)
        found = _standing(book, stated) | {"organisation": ledger.organisation}
    found["digest"] = digests[stated["generation"]]
    if differs := [name for name, value in found.items() if stated[name] != value]:
        raise StorageError(
            f"entry {stated['generation']} of the ledger does not say what the certificate states: "
            f"{', '.join(differs)} differ"
        )
    since = now.generation - stated["generation"]
    return f"ledger: entry {stated['generation']} says what is stated; entries since: {since}"


def _standing(book: "Book", stated: dict[str, Any]) -> dict[str, Any]:
    """What a book says of the population that a certificate names; nothing where it knows none."""
    from dataclasses import asdict

    population, period = book.populations.get(stated["population"]), stated["period"] or ""
    if population is None:
        return {"population": None}
    return {
        "promised": asdict(population.budget),
        "account": population.account,
        "reserved": asdict(book.spent(population, period)),
        "sources": len(book.held.get((population.name, period), {})),
    }


def _same_policy(told: "Certificate", path: Path) -> str:
    """How many releases a saved policy has made since, or an error where it is another one."""
    from capri.epoch.storage import configuration_digest, damage_as_storage_error, read_policy_file
    from capri.privacy.certificate.verify import check_digests

    values, arrays = read_policy_file(path, None)
    with damage_as_storage_error(path):
        laws = values["repository"]["tables"]["laws"] if "repository" in values else []
        known = laws[-1]["state"]["learning"] if laws else values
        later = check_digests(told, configuration_digest(values, arrays), known["plans"])
    since = "none since" if later == 0 else f"{later} since"
    return f"policy: configuration and all plans agree; releases of the policy: {since}"
