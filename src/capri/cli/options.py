"""What commands share before they run: options, lists of numbers, and how all of them end."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from math import inf
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from capri.errors import CapriError, ConfigurationError


def whole(least: float = -inf) -> Callable[[Any], int]:
    """A parser of whole numbers of at least so much; 1e4 is one, as in lists of numbers.

    >>> whole(2)("1e4")
    10000
    """

    def integer(value: Any) -> int:
        try:
            number = Decimal(str(value))  # exact, unlike floats, for large seeds
            if number % 1 == 0 and number >= least:
                return int(number)
        except InvalidOperation:
            pass  # no number, or one beyond all use
        wanted = "a whole number" + (f" of {least:g} or more" if least > -inf else "")
        raise typer.BadParameter(f"{value} is not {wanted}.")

    return integer


def option(
    help: str, metavar: str | None = None, *names: str, panel: str | None = None, **more: Any
) -> Any:
    """An option, in the panel of the help that it belongs to."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **more)


def flag(name: str, help: str, *, panel: str | None = None) -> Any:
    """An option that is given or not."""
    return option(help, None, name, panel=panel)


def count(help: str, least: float = -inf, *, panel: str | None = None) -> Any:
    """An option that is a whole number."""
    return option(help, "INTEGER", panel=panel, parser=whole(least))


# The first is the default.
PRESETS = ("practical", "paper")
# Spelled out: asking the catalogues would make --help load everything. A test compares.
KERNELS = "rbf, matern12, matern32, matern52, rq, linear"

POLICY_PANEL = "Policy and privacy"
of_policy = partial(option, panel=POLICY_PANEL)

Preset = Annotated[str, of_policy("Constants of CAPRI.", "|".join(PRESETS))]
Epsilon = Annotated[float, of_policy("Budget: smaller is more private.")]
Delta = Annotated[float, of_policy("Budget: the slack beside epsilon.")]
Model = Annotated[
    str,
    of_policy("Whom users trust: a curator, nobody, or a shuffler.", "joint|local|shuffle"),
]
Rounds = Annotated[int, count("Rounds to play.", 2)]
Seeds = Annotated[int, count("How many seeds to play.", 1)]
FirstSeed = Annotated[int, count("The first seed.", 0)]
Json = Annotated[
    str | None, option("Write results to this file; - is the standard output.", "PATH")
]


def numbers(name: str, text: str) -> list[float]:
    """The numbers of a list with commas.

    >>> numbers("epsilon", "0.1, 1,4")
    [0.1, 1.0, 4.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"{name} must be numbers with commas between them, got {text!r}"
        ) from None


def whole_numbers(name: str, text: str) -> list[int]:
    """The whole numbers of a list with commas; 1e5 is one.

    >>> whole_numbers("rounds", "1000,1e5")
    [1000, 100000]
    """
    values = numbers(name, text)
    if not all(value.is_integer() for value in values):
        raise ConfigurationError(f"{name} must be whole numbers, got {text!r}")
    return [int(value) for value in values]


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
