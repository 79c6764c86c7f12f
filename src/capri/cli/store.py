"""``capri backup``, ``restore``, ``doctor`` and ``store``: what operators do to a store."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from capri.store.shelf import Shelf

UNWELL = 1
KEY_VARIABLE = "CAPRI_STORE_KEY"  # capri.store.seal has it, which the help does not load

Address = Annotated[str, typer.Argument(help="sqlite:///file.db or postgresql://...")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--store-key-file",
        help=f"The store key, 32 bytes, plain, hexadecimal or base64; else ${KEY_VARIABLE}.",
    ),
]
AnchorPlace = Annotated[
    str | None, typer.Option("--anchor", help="A file or a database outside of the store.")
]
store = typer.Typer(help="Stores of policies.", no_args_is_help=True)


@store.callback()
def _stores() -> None:
    """Stores of policies."""


def read_key(file: Path | None, variable: str = KEY_VARIABLE) -> bytes | None:
    """A store key from a file or the environment; None where there is none. Never quoted."""
    from capri.errors import ConfigurationError
    from capri.store.seal import key_from

    if file is None:
        raw = os.environ.get(variable, "").encode()
        return key_from(raw, variable) if raw else None
    try:
        return key_from(file.read_bytes(), str(file))
    except OSError as problem:
        raise ConfigurationError(f"cannot read {file}: {problem.strerror}") from None


@contextmanager
def opened(url: str, key_file: Path | None, anchor: str | None = None) -> "Iterator[Shelf]":
    """A store without its policy, closed at the end."""
    from capri.store.address import open_database
    from capri.store.anchor import open_anchor
    from capri.store.shelf import Shelf
    from capri.store.transaction import empty_store

    held = open_anchor(anchor, url)
    database = open_database(url, create=False)
    try:
        shelf = Shelf(database, read_key(key_file), held)
        if shelf.configuration() is None:
            raise empty_store(repr(database))
        shelf.open()
        yield shelf
    finally:
        database.close()


def backup(
    url: Address, file: Annotated[Path, typer.Argument(help="The copy, a new SQLite file.")]
) -> None:
    """Copy a store as it is now, while it serves, into one file.

    The copy is a store itself. It holds what users did and is not released
    yet, sealed as in the store: keep it as safe, and no longer than you
    promise to forget. Whoever goes on with an older copy releases data twice,
    see docs/deploy.md.
    """
    from capri.errors import ConfigurationError

    if file.exists():
        raise ConfigurationError(f"{file} is there already: give a new name")
    typer.echo(f"copied {_copied(url, f'sqlite:///{file}')} to {file}")


def _copied(source: str, target: str) -> str:
    """Copy a store into an empty one; how far it had come, in words."""
    from contextlib import closing

    from capri.store.address import open_database
    from capri.store.copies import copy_store

    with (
        closing(open_database(source, create=False)) as ours,
        closing(open_database(target)) as theirs,
    ):
        seen = copy_store(ours, theirs)
    return f"generation {seen.generation} of line {seen.line[:12]}"


def restore(
    file: Annotated[Path, typer.Argument(help="A copy that `capri backup` made.")], url: Address
) -> None:
    """Put a copy into an empty store.

    Only the newest copy may be gone on with: give the policy its anchor, and
    an older one is refused when it is opened.
    """
    typer.echo(f"restored {_copied(f'sqlite:///{file}', url)}")


def doctor(url: Address, store_key_file: KeyFile = None, anchor: AnchorPlace = None) -> None:
    """Look a store over: history, ledger, forgetting, limits, settings.

    Changes nothing and shows no value of a user. Ends with exit code 1 where
    something is wrong.
    """
    from capri.notebook import text_table
    from capri.store.doctor import BAD, Doctor

    with opened(url, store_key_file, anchor) as shelf:
        findings = Doctor(shelf).findings()
    typer.echo(
        text_table([{"what": f.name, "state": f.state, "finding": f.said} for f in findings])
    )
    if any(finding.state == BAD for finding in findings):
        raise typer.Exit(UNWELL)


@store.command()
def forget(
    url: Address,
    user: Annotated[str, typer.Option(help="The id of the user, as it was given to the policy.")],
    number: Annotated[bool, typer.Option("--number", help="The id is a whole number.")] = False,
    store_key_file: KeyFile = None,
) -> None:
    """Delete what a store keeps of one user, as far as that can be.

    Decisions of epochs under way keep their slot and count for nothing. What
    was released stays, and so does how often a digest took part.
    """
    from dataclasses import asdict

    from capri.privacy.users import user_digest
    from capri.store.forgetting import forget_user

    with opened(url, store_key_file) as shelf:
        done = forget_user(shelf, user_digest(int(user) if number else user, shelf.salt))
    for name, count in asdict(done).items():
        typer.echo(f"{name.replace('_', ' ')}: {count}")


@store.command("rotate-key")
def rotate_key(
    url: Address,
    new_key_file: Annotated[Path, typer.Option(help="The new store key.")],
    store_key_file: KeyFile = None,
) -> None:
    """Seal a store under another key; one without a key gets one.

    Processes that have it open with the old key are refused from then on:
    start them with the new one.
    """
    from capri.store.rotation import rotate_store_key

    new = read_key(new_key_file)
    assert new is not None
    with opened(url, store_key_file) as shelf:
        count = rotate_store_key(shelf, new)
    typer.echo(f"{count} values are sealed under the new key. Copies keep the old one")


@store.command("rotate-ids")
def rotate_ids(url: Address, store_key_file: KeyFile = None) -> None:
    """Make ids of decisions by a new key; those of the last one stay known."""
    from capri.store.rotation import rotate_id_key

    with opened(url, store_key_file) as shelf:
        rotate_id_key(shelf)
    typer.echo("ids are made by a new key; those of the one before are understood until the next")


@store.command()
def mode(
    url: Address,
    name: Annotated[str, typer.Argument(metavar="MODE", help="active, shadow or default.")],
    action: Annotated[str | None, typer.Option(help="The action that everybody gets.")] = None,
    store_key_file: KeyFile = None,
    anchor: AnchorPlace = None,
) -> None:
    """Say who decides, from the next decision on, in every process."""
    from capri.joint.policy import Capri

    default = int(action) if action is not None and action.isdecimal() else action
    with Capri.open(url, store_key=read_key(store_key_file), anchor=anchor) as policy:
        names = policy.actions.names
        policy.set_mode(name, action=action if names is not None and action in names else default)
        typer.echo(str(policy.operations[-1]))


@store.command()
def operations(url: Address, store_key_file: KeyFile = None) -> None:
    """List what operators did: modes, catalogues, keys."""
    from capri.epoch.modes import Operation
    from capri.store.blobs import unpacked

    with opened(url, store_key_file) as shelf:
        rows = shelf.database.read(
            lambda transaction: transaction.rows(
                "SELECT kind, made, record FROM operations ORDER BY generation"
            )
        )
    for kind, made, record in rows:
        typer.echo(str(Operation(kind, made, unpacked(record)[0])))
