"""``capri-lab check``: whether a policy or an environment of one's own can be played."""

from typing import Annotated

import typer

from capri.errors import ConfigurationError


def check(
    name: Annotated[
        str, typer.Argument(help="A policy module:Class or an environment module:function.")
    ],
) -> None:
    """Try a policy or an environment of your own on small problems, and say what is missing.

    The module is looked for in this folder. A policy derives from
    capri_lab.rivals.Rival; an environment is a function of a seed that returns
    a capri.environments.Environment.
    """
    from capri_lab.experiments.contract import contract
    from capri_lab.own import is_own

    if not is_own(name):
        raise ConfigurationError(f"give module:Class or module:function, got {name!r}")
    failed = 0
    for each in contract(name):
        typer.echo(f"{'missing' if each.missing else 'ok':8}{each.check}")
        if each.missing:
            failed += 1
            typer.echo(f"{'':8}{each.missing}")
    if failed:
        raise typer.Exit(1)
