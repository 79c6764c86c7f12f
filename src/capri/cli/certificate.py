"""``capri certificate``: verify a certificate, by itself or against a saved policy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from capri.privacy.certificate import Certificate

CHANGED = 1
certificate = typer.Typer(help="Certificates of differential privacy.", no_args_is_help=True)


@certificate.callback()
def _certificates() -> None:
    """Certificates of differential privacy."""


@certificate.command()
def verify(
    file: Annotated[str, typer.Argument(help="The certificate, as JSON or as a page.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="A saved policy: its configuration and plans must be those certified.",
            metavar="PATH",
        ),
    ] = None,
) -> None:
    """Check that a certificate is whole, and that it is that of a saved policy.

    The content must follow its schema and have the digest it states; a page
    must show its own data, to the last byte. This finds changes, not forgers:
    compare the digest that is printed with the one its organisation publishes.
    Ends with exit code 1 where something is wrong.
    """
    from capri.errors import StorageError
    from capri.privacy.certificate.verify import read_certificate

    try:
        told = read_certificate(file)
        later = None if policy is None else _releases_since(told, Path(policy))
    except StorageError as problem:
        typer.echo(f"not verified: {problem}", err=True)
        raise typer.Exit(CHANGED) from None
    typer.echo(
        f"verified: ({told.epsilon:g}, {told.delta:g})-differential privacy, {told.model} model, "
        f"{len(told.releases)} releases"
    )
    typer.echo(f"issued by: {told.declaration['organisation'] or 'not declared'}")
    typer.echo(f"digest: {told.digest}")
    if later is not None:
        since = "none since" if later == 0 else f"{later} since"
        typer.echo(f"policy: configuration and all plans agree; releases of the policy: {since}")


def _releases_since(told: "Certificate", path: Path) -> int:
    """How many releases a saved policy has made since, or an error where it is another one."""
    from capri.epoch.digests import configuration_digest
    from capri.epoch.storage import damage_as_storage_error, read_policy_file
    from capri.privacy.certificate.verify import check_digests

    values, arrays = read_policy_file(path, None)
    with damage_as_storage_error(path):
        plans = values.get("plans", [None] * len(values["epochs"]))
        return check_digests(told, configuration_digest(values, arrays), plans)
