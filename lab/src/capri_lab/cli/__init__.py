"""The command ``capri-lab``. Commands import what they compute with only when they run."""

import typer

from capri.cli.options import Shell
from capri_lab.cli.arena import arena
from capri_lab.cli.check import check
from capri_lab.cli.noise import noise
from capri_lab.cli.report import report
from capri_lab.cli.run import run

app = typer.Typer(
    cls=Shell,
    help="The laboratory of capri: its rivals, studies of them, and reports.",
    no_args_is_help=True,
    add_completion=False,
)
for command in (arena, run, report, noise, check):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    app(prog_name="capri-lab")
