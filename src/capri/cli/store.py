"""``capri backup``, ``restore``, ``check`` and ``store``: what operators do to a store."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from capri.store.sql import SqlRepository

FAILED = 1
KEY_VARIABLE = "CAPRI_STORE_KEY"  # capri.store.seal has it, which the help does not load

Address = Annotated[str, typer.Argument(help="sqlite:///file.db or postgresql://...")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--store-key-file",
        help=f"The store key, 32 bytes, plain, hexadecimal or base64; else ${KEY_VARIABLE}.",
    ),
]
GuardPlace = Annotated[
    str | None, typer.Option("--rollback-guard", help="A file or a database outside of the store.")
]
Wait = Annotated[
    float, typer.Option(min=0.0, help="Seconds to wait for who reads, before giving up.")
]
store = typer.Typer(help="Stores of policies.", no_args_is_help=True)


def operator() -> str:
    """Who runs this command, for the history of operations."""
    try:
        return f"{getuser()} at a shell"
    except (KeyError, OSError):  # a container without a user of that number
        return "a shell"


def read_key(file: Path | None, variable: str = KEY_VARIABLE) -> bytes | None:
    """A store key from a file or the environment; None where there is none. Never quoted."""
    from capri.errors import ConfigurationError
    from capri.files import secret
    from capri.store.seal import key_from

    if file is None:
        raw = (secret(variable) or "").encode()
        return key_from(raw, variable) if raw else None
    try:
        return key_from(file.read_bytes(), str(file))
    except OSError as problem:
        raise ConfigurationError(f"cannot read {file}: {problem.strerror}") from None


@contextmanager
def opened(
    url: str, key_file: Path | None, rollback_guard: str | None = None, *, read_only: bool = False
) -> "Iterator[SqlRepository]":
    """A store without its policy, closed at the end.

    ``read_only``: a view of it that is neither migrated nor noted anywhere.
    """
    from capri.store.rollback import open_guard
    from capri.store.sql import SqlRepository
    from capri.store.transaction import empty_store, open_database

    with closing(open_database(url, create=False, read_only=read_only)) as database:
        repository = SqlRepository(database, read_key(key_file), open_guard(rollback_guard, url))
        if repository.configuration() is None:
            raise empty_store(repr(database))
        repository.read_secrets() if read_only else repository.open()
        yield repository


def backup(
    url: Address, file: Annotated[Path, typer.Argument(help="The copy, a new SQLite file.")]
) -> None:
    """Copy a store as it is now, while it serves, into one file.

    The copy is a store itself. It holds what users did and is not released
    yet, sealed as in the store: keep it as safe, and no longer than you
    promise to forget. Whoever goes on with an older copy releases data twice,
    see docs/howto/service.md.
    """
    from capri.errors import ConfigurationError

    if file.exists():
        raise ConfigurationError(f"{file} is there already: give a new name")
    typer.echo(f"copied {_copied(url, f'sqlite:///{file}')} to {file}")


def _copied(source: str, target: str) -> str:
    """Copy a store into an empty one; how far it had come, in words."""
    from capri.store.maintenance import copy_store
    from capri.store.transaction import open_database

    with (
        closing(open_database(source, read_only=True)) as ours,
        closing(open_database(target)) as theirs,
    ):
        seen = copy_store(ours, theirs)
    return f"generation {seen.generation} of store {seen.store_id[:12]}"


def restore(
    file: Annotated[Path, typer.Argument(help="A copy that `capri backup` made.")], url: Address
) -> None:
    """Put a copy into an empty store.

    Only the newest copy may be gone on with: give the policy its rollback guard, and
    an older one is refused when it is opened.
    """
    typer.echo(f"restored {_copied(f'sqlite:///{file}', url)}")


def check(url: Address, store_key_file: KeyFile = None, rollback_guard: GuardPlace = None) -> None:
    """Check a store: history, ledger, forgetting, limits, settings.

    Changes nothing, neither store nor rollback guard, and shows no value of a user.
    Ends with exit code 1 where something is wrong, an older copy among it.
    """
    from capri.errors import StorageError
    from capri.files import text_table
    from capri.store.check import BAD, Check, Finding

    try:
        with opened(url, store_key_file, rollback_guard, read_only=True) as repository:
            if (repository.configuration() or ({},))[0].get("kind") == "organisation":
                raise StorageError("this is an organisation's ledger: capri ledger check")
            findings = Check(repository).findings()
    except StorageError as problem:
        findings = [Finding("store", BAD, str(problem))]
    typer.echo(
        text_table([{"what": f.name, "state": f.state, "finding": f.said} for f in findings])
    )
    if any(finding.state == BAD for finding in findings):
        raise typer.Exit(FAILED)


User = Annotated[
    str | None, typer.Option(help="The id of the user, as it was given to the policy.")
]
Number = Annotated[
    bool | None,
    typer.Option("--number/--text", help="Only as a number, or only as a text; else as both."),
]
Shown = Annotated[
    list[str] | None,
    typer.Option("--decision", help="The id of a decision that the user shows; may be repeated."),
]


@store.command()
def forget(
    url: Address,
    user: User = None,
    number: Number = None,
    decision: Shown = None,
    store_key_file: KeyFile = None,
    wait: Wait = 30.0,
) -> None:
    """Delete what a store keeps of one user, as far as that can be.

    By the id of the user, or, where a store knows no users, by the ids of
    their decisions. Decisions of epochs under way keep their slot and count
    for nothing. What was released stays, and so does how often a digest took
    part. Ends with exit code 1 where the store has nothing of the user, and
    while somebody who reads keeps deleted values from being overwritten.
    """
    from dataclasses import asdict

    from capri.store.maintenance import forget_user, has_seen

    with opened(url, store_key_file) as repository:
        digests, numbers = _person(repository, user, number, decision)
        done = forget_user(repository, digests, numbers)
        known = done.anything or has_seen(repository, digests)
        clean = repository.database.forget_soon(wait)
    for name, count in asdict(done).items():
        typer.echo(f"{name.replace('_', ' ')}: {count}")
    if not known:
        typer.echo("this store has never seen such a user: check the id", err=True)
    _end(clean)
    if not known:
        raise typer.Exit(FAILED)


def _person(
    repository: "SqlRepository", user: str | None, number: bool | None, decision: list[str] | None
) -> tuple[list[str], set[int]]:
    """Digests and decisions that may be of one person."""
    from capri.errors import ConfigurationError
    from capri.privacy.budget import user_digest

    if (user is None) == (not decision):
        raise ConfigurationError("give the id of the user, or ids of their decisions: one of both")
    if user is not None:
        salt = repository.rows.salt
        return [user_digest(each, salt) for each in _meant(user, number)], set()
    return [], set(repository.ids.numbers(decision or [])) - {-1}


@store.command()
def access(
    url: Address,
    file: Annotated[Path, typer.Argument(help="A JSON file, written anew, for its owner alone.")],
    user: User = None,
    number: Number = None,
    decision: Shown = None,
    store_key_file: KeyFile = None,
) -> None:
    """Write down what a store holds about one user, for that user.

    Changes nothing in the store.
    """
    from capri.files import to_json, write_atomically
    from capri.store.maintenance import held_about

    with opened(url, store_key_file, read_only=True) as repository:
        told = held_about(repository, *_person(repository, user, number, decision))
    write_atomically(file, to_json(told).encode(), confidential=True)
    count = len(told["decisions"]) + len(told["keyed_decisions"])
    typer.echo(f"{count} decisions, {len(told['contributions_by_epoch'])} epochs: {file}")


@store.command()
def retention(url: Address, store_key_file: KeyFile = None) -> None:
    """Show what a store keeps where, in which form and for how long."""
    from capri.files import text_table
    from capri.store.maintenance import retention as kept

    with opened(url, store_key_file, read_only=True) as repository:
        typer.echo(text_table(kept(repository)))


def _meant(user: str, number: bool | None) -> list[str | int]:
    """The ids that a word may stand for: JSON has numbers, a shell has none."""
    from capri.errors import ConfigurationError

    try:
        whole = int(user)
    except ValueError:
        if number:
            raise ConfigurationError("--number: the id must be a whole number") from None
        return [user]
    if number is None:
        return [user, whole] if str(whole) == user else [user]
    return [whole] if number else [user]


def _end(clean: bool) -> None:
    """Say so, and end as what has failed, where deleted values can still be read."""
    if not clean:
        typer.echo(
            "it is done, but the old values can still be read: somebody who reads the store (a "
            "backup, a shell) keeps them from being overwritten. End that, then: capri store clean",
            err=True,
        )
        raise typer.Exit(FAILED)


@store.command()
def clean(url: Address, wait: Wait = 30.0) -> None:
    """Have what was deleted overwritten where somebody stood in the way."""
    from capri.store.transaction import open_database

    with closing(open_database(url, create=False)) as database:
        _end(database.forget_soon(wait))
    typer.echo("what was deleted is overwritten")


@store.command("rotate-key")
def rotate_key(
    url: Address,
    new_key_file: Annotated[Path, typer.Option(help="The new store key.")],
    store_key_file: KeyFile = None,
    wait: Wait = 30.0,
) -> None:
    """Seal a store under another key; one without a key gets one.

    Processes that have it open with the old key are refused from then on:
    start them with the new one.
    """
    from capri.store.maintenance import rotate_store_key

    new = read_key(new_key_file)
    assert new is not None
    with opened(url, store_key_file) as repository:
        count = rotate_store_key(repository, new)
        clean = repository.database.forget_soon(wait)
    typer.echo(f"{count} values are sealed under the new key. Copies keep the old one")
    _end(clean)


@store.command("rotate-ids")
def rotate_ids(url: Address, store_key_file: KeyFile = None, wait: Wait = 30.0) -> None:
    """Make ids of decisions by a new key; those of the last one stay known."""
    from capri.store.maintenance import rotate_id_key

    with opened(url, store_key_file) as repository:
        rotate_id_key(repository)
        clean = repository.database.forget_soon(wait)
    typer.echo("ids are made by a new key; those of the one before are understood until the next")
    _end(clean)


@store.command()
def mode(
    url: Address,
    name: Annotated[str, typer.Argument(metavar="MODE", help="active, shadow, default or frozen.")],
    action: Annotated[str | None, typer.Option(help="The action that everybody gets.")] = None,
    why: Annotated[str, typer.Option(help="What operations note as the reason.")] = "",
    store_key_file: KeyFile = None,
    rollback_guard: GuardPlace = None,
) -> None:
    """Say who decides, from the next decision on, in every process."""
    from capri.joint.policy import Capri

    default = int(action) if action is not None and action.isdecimal() else action
    with Capri.open(
        url, store_key=read_key(store_key_file), rollback_guard=rollback_guard
    ) as policy:
        names = policy.actions.names
        wanted = action if names is not None and action in names else default
        policy.set_mode(name, action=wanted, by=operator(), why=why)
        typer.echo(str(policy.operations[-1]))


@store.command()
def operations(url: Address, store_key_file: KeyFile = None) -> None:
    """List what operators did: modes, catalogues, keys, rollback guards."""
    with opened(url, store_key_file, read_only=True) as repository:
        done = repository.operations()
    for operation in done:
        typer.echo(str(operation))
