"""``capri serve``, ``capri init`` and ``capri key``: a policy behind HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from capri.cli.options import count, flag, option


def serve(
    file: Annotated[str, typer.Argument(help="What the policy is: see capri init.")],
    store: Annotated[
        str | None,
        option("Where it lives; a SQLite file beside the policy file by default.", "ADDRESS"),
    ] = None,
    host: Annotated[str, option("The address to listen at.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, count("The port to listen at.", 0)] = 8017,
    workers: Annotated[int, count("Processes that serve; several want Postgres.", 1)] = 1,
    keys: Annotated[
        str | None,
        option("Keys, as `capri key` writes them; beside the policy file by default.", "PATH"),
    ] = None,
    anchor: Annotated[
        str | None,
        option(
            "A file or a database outside of the store that knows how far it has come.", "PLACE"
        ),
    ] = None,
    new_anchor: Annotated[
        bool,
        flag("--new-anchor", "Begin an anchor for a store with a past. Once, never in a unit."),
    ] = False,
    insecure_local: Annotated[
        bool, flag("--insecure-local", "Without keys, for trying out on this machine alone.")
    ] = False,
    forecast: Annotated[
        bool, flag("--forecast", "Compute beside it what to expect, for the page.")
    ] = False,
    site: Annotated[
        str | None, option("Files for /site/, a page whose devices report here.", "FOLDER")
    ] = None,
) -> None:
    """Serve a policy over HTTP: decisions, rewards, figures, and a page to look at.

    What was answered is durable. Keys come from a file or from CAPRI_KEYS, the
    key that seals the store from CAPRI_STORE_KEY, addresses of a store or an
    anchor that have a password from CAPRI_STORE and CAPRI_ANCHOR.
    """
    import os

    from capri.errors import MissingExtraError

    try:
        from capri.service.server import Start
        from capri.service.server import serve as run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "capri":
            raise
        raise MissingExtraError(
            f"the service needs {missing.name}: pip install 'capri-bandits[serve]'"
        ) from None
    path = Path(file)
    ring = Path(keys) if keys is not None else path.with_suffix(".keys")
    start = Start(
        path,
        store or os.environ.get("CAPRI_STORE"),
        ring,
        insecure_local,
        anchor or os.environ.get("CAPRI_ANCHOR"),
        None if site is None else Path(site),
    )
    run(start, host=host, port=port, workers=workers, forecast=forecast, new_anchor=new_anchor)


def init(
    rows: Annotated[str, typer.Argument(help="A CSV of public rows like those who will come.")],
    actions: Annotated[str, option("Names of the actions, with commas.", "NAMES")] = "a,b",
    output: Annotated[str, option("The file to write.", "PATH", "--output", "-o")] = "policy.toml",
) -> None:
    """Write a commented policy file from a CSV of public rows.

    Every cell that is read here is published with the policy: no user's data.
    """
    from capri.errors import ConfigurationError
    from capri.service.example import example_file

    path = Path(output)
    if path.exists():
        raise ConfigurationError(f"{output} is there already: give another --output")
    names = [name.strip() for name in actions.split(",") if name.strip()]
    path.write_text(example_file(Path(rows), names, path.parent), encoding="utf-8")
    typer.echo(f"{output}: look through it, then")
    typer.echo(
        f"  capri key shop --roles decide,reward,operator --file {path.with_suffix('.keys')}"
    )
    typer.echo(f"  capri serve {output}")


def key(
    name: Annotated[str, typer.Argument(help="Who is to hold it.")],
    roles: Annotated[str, option("Of decide, reward, read, operator, admin.", "ROLES")] = "read",
    file: Annotated[str, option("The file of keys.", "PATH")] = "policy.keys",
) -> None:
    """Make a key of a service: shown once, kept as a digest.

    A service that runs knows it within a second. To change a key, make another
    of the same name, give it out, and delete the line of the old one.
    """
    from capri.service.keys import add_key

    typer.echo(add_key(Path(file), name, [role.strip() for role in roles.split(",")]))
