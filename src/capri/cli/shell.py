"""How the commands end: one clear line instead of a traceback."""

from typing import Any

import typer
from typer.core import TyperGroup

from capri.errors import CapriError

BAD_OPTION = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class Shell(TyperGroup):
    """Turns the errors this package raises on purpose, and Ctrl-C, into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except CapriError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(BAD_OPTION) from None
        except KeyboardInterrupt:
            typer.echo("stopped: nothing was written", err=True)
            raise typer.Exit(INTERRUPTED) from None
