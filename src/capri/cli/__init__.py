"""The command ``capri``. Commands import what they compute with only when they run."""

from typing import Annotated

import typer

from capri.cli.audit import audit, certificate
from capri.cli.forecast import forecast
from capri.cli.ledger import ledger
from capri.cli.options import Shell
from capri.cli.serve import aggregate, apply, diff, init, key, report, serve
from capri.cli.simulate import demo, simulate
from capri.cli.store import backup, check, restore, store
from capri.version import VERSION

app = typer.Typer(
    cls=Shell,
    help="Differentially private contextual kernel bandits.",
    no_args_is_help=True,
    add_completion=False,
)
_BEFORE_SERVICE = (demo, simulate, forecast, audit)
_IN_SERVICE = (init, key, serve, diff, apply, report, aggregate, backup, restore, check)
for command in (*_BEFORE_SERVICE, *_IN_SERVICE):
    app.command()(command)
app.add_typer(certificate, name="certificate")
app.add_typer(store, name="store")
app.add_typer(ledger, name="ledger")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capri {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """Run the command line."""
    app(prog_name="capri")
