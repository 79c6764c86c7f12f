"""The command ``capri``. Commands import what they compute with only when they run."""

from typing import Annotated

import typer

from capri.cli.arena import arena
from capri.cli.audit import audit
from capri.cli.certificate import certificate
from capri.cli.demo import demo
from capri.cli.forecast import forecast
from capri.cli.noise import noise
from capri.cli.report import report
from capri.cli.run import run
from capri.cli.shell import Shell
from capri.cli.simulate import simulate

app = typer.Typer(
    cls=Shell,
    help="Differentially private contextual kernel bandits.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(demo)
app.command()(simulate)
app.command()(arena)
app.command()(run)
app.command()(report)
app.command()(forecast)
app.command()(audit)
app.command()(noise)
app.add_typer(certificate, name="certificate")


def _show_version(wanted: bool) -> None:
    if wanted:
        from capri import __version__

        typer.echo(f"capri {__version__}")
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
