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
from capri.cli.serve import init, key, serve
from capri.cli.shell import Shell
from capri.cli.simulate import simulate
from capri.version import VERSION

app = typer.Typer(
    cls=Shell,
    help="Differentially private contextual kernel bandits.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (demo, simulate, arena, run, report, forecast, audit, noise):
    app.command()(command)
app.add_typer(certificate, name="certificate")


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


app.command()(init)
app.command()(key)
app.command()(serve)


def main() -> None:
    """Run the command line."""
    app(prog_name="capri")
