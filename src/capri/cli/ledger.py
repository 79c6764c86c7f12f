"""``capri ledger``: what an organisation promised to its populations, and what is left of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capri.cli.store import FAILED, Address, GuardPlace

if TYPE_CHECKING:
    from capri.store.organisation import OrganisationLedger

ledger = typer.Typer(help="The ledger of an organisation.", no_args_is_help=True)


@contextmanager
def _looked_at(url: str) -> "Iterator[OrganisationLedger]":
    """A ledger that is read whole, and neither changed nor noted anywhere."""
    from capri.store.organisation import OrganisationLedger

    with OrganisationLedger(url, read_only=True) as found:
        yield found


@ledger.command()
def promise(
    url: Address,
    population: Annotated[str, typer.Argument(help="A name for the people.")],
    epsilon: Annotated[float, typer.Option(help="For all sources together.")],
    delta: Annotated[float, typer.Option(help="For all sources together.")] = 0.0,
    period: Annotated[
        str | None, typer.Option(help="year, month or day: a budget for each; else for ever.")
    ] = None,
    account: Annotated[
        str, typer.Option(help="How sources add up: basic, gaussian or mixed.")
    ] = "basic",
    organisation: Annotated[
        str | None, typer.Option(help="Whose promise it is: needed for a new ledger.")
    ] = None,
    rollback_guard: GuardPlace = None,
) -> None:
    """Promise a budget to a population, in a ledger that is made where there is none."""
    from capri.privacy.budget import Budget
    from capri.store.organisation import OrganisationLedger

    with OrganisationLedger(url, organisation=organisation, rollback_guard=rollback_guard) as found:
        found.add_population(population, Budget(epsilon, delta), account=account, period=period)
        typer.echo(f"promised by {found.organisation}: {found.standing(population)['promised']}")


@ledger.command()
def show(url: Address) -> None:
    """Show what every population was promised and what is reserved of it."""
    from capri.files import text_table

    with _looked_at(url) as found:
        book = found.look()
        rows = [_standing(found, name) for name in sorted(book.populations)]
        sources = [
            {"population": key[0], "period": key[1] or "for ever", "source": source[:12],
             "what": book.sources[source]["what"], "epsilon": f"{held.charge.epsilon:g}",
             "delta": f"{held.charge.delta:g}"}
            for key, sources in sorted(book.held.items()) for source, held in sources.items()
        ]  # fmt: skip
        typer.echo(f"{found.organisation}, ledger {found.id[:12]}")
    for table in filter(None, (rows, sources)):
        typer.echo(text_table(table))


def _standing(found: "OrganisationLedger", population: str) -> dict[str, Any]:
    from capri.store.book import at_most

    told = found.standing(population)
    reserved = told["reserved"]
    return {
        "population": population,
        "period": told["period"] or "for ever",
        "account": told["account"],
        "promised": f"({told['promised']['epsilon']:g}, {told['promised']['delta']:g})",
        "reserved": f"({at_most(reserved['epsilon'])}, {at_most(reserved['delta'])})",
        "sources": str(told["sources"]),
    }


@ledger.command()
def check(url: Address, rollback_guard: GuardPlace = None) -> None:
    """Read a ledger from its first entry: chain, filters, older copies.

    Changes nothing. Ends with exit code 1 where an entry was changed, is
    missing or is beyond a budget, and where a newer copy was seen.
    """
    from capri.errors import StorageError
    from capri.store.organisation import checked_copy

    try:
        with _looked_at(url) as found:
            said = checked_copy(found, url, rollback_guard)
    except StorageError as problem:
        typer.echo(f"not good: {problem}", err=True)
        raise typer.Exit(FAILED) from None
    typer.echo(said)


@ledger.command()
def export(
    url: Address,
    file: Annotated[Path, typer.Argument(help="A JSON file, written anew.")],
) -> None:
    """Write every entry, all of them public, with the digest that ends the chain."""
    from capri.files import to_json, write_atomically

    with _looked_at(url) as found:
        book, at = found.known()
        populations = [found.standing(name) for name in sorted(book.populations)]
        entries = list(found.entries())[: at.generation]
        content = {
            "schema": "urn:capri:ledger:1",
            "organisation": found.organisation,
            "ledger": found.id,
            "generation": at.generation,
            "digest": at.digest,
            "populations": populations,
            "entries": entries,
        }
    write_atomically(file, to_json(content).encode())
    typer.echo(f"{len(entries)} entries written to {file}")
