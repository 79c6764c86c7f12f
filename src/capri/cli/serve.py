"""``capri init``, ``key``, ``serve``, ``diff``, ``apply``, ``report``: a policy in service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from capri.cli.options import count, flag, option

NOTHING = 1


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
    rollback_guard: Annotated[
        str | None,
        option(
            "A file or a database outside of the store that knows how far it has come.", "PLACE"
        ),
    ] = None,
    new_rollback_guard: Annotated[
        bool,
        flag(
            "--new-rollback-guard",
            "Begin a rollback guard for a store with a past. Once, never in a unit.",
        ),
    ] = False,
    insecure_local: Annotated[
        bool, flag("--insecure-local", "Without keys, for trying out on this machine alone.")
    ] = False,
    forecast: Annotated[
        bool, flag("--forecast", "Compute beside it what to expect, for the page.")
    ] = False,
    log: Annotated[str, option("How the log is written: text or json.", "text|json")] = "text",
    traces: Annotated[
        bool, flag("--traces", "Send a span of each request by OpenTelemetry (extra traces).")
    ] = False,
    site: Annotated[
        str | None, option("Files for /site/, a page whose devices report here.", "FOLDER")
    ] = None,
) -> None:
    """Serve a policy over HTTP: decisions, rewards, figures, and a page to look at.

    What was answered is durable. Keys come from a file or from CAPRI_KEYS, the
    key that seals the store from CAPRI_STORE_KEY, addresses of a store or an
    rollback guard that have a password from CAPRI_STORE and CAPRI_ROLLBACK_GUARD;
    or each from a file that CAPRI_STORE_FILE and so on name.
    """
    from capri.errors import MissingExtraError
    from capri.files import secret

    try:
        from capri.service.server import Start
        from capri.service.server import serve as run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "capri":
            raise
        raise MissingExtraError(
            f"the service needs {missing.name}: pip install 'capri-bandits[serve]'"
        ) from None
    if log not in ("text", "json"):
        raise typer.BadParameter(f"{log!r} is neither text nor json", param_hint="--log")
    path = Path(file)
    ring = Path(keys) if keys is not None else path.with_suffix(".keys")
    start = Start(
        path,
        store or secret("CAPRI_STORE"),
        ring,
        insecure_local,
        rollback_guard or secret("CAPRI_ROLLBACK_GUARD"),
        None if site is None else Path(site),
        log == "json",
        traces,
    )
    run(
        start,
        host=host,
        port=port,
        workers=workers,
        forecast=forecast,
        new_rollback_guard=new_rollback_guard,
    )


def init(
    rows: Annotated[
        str | None, typer.Argument(help="A CSV of public rows like those who will come.")
    ] = None,
    columns: Annotated[
        str,
        option(
            "Without a CSV: age=18:98,plan=free|pro,member for a range, levels, yes or no.", "C"
        ),
    ] = "",
    actions: Annotated[str, option("Names of the actions, with commas.", "NAMES")] = "a,b",
    output: Annotated[str, option("The file to write.", "PATH", "--output", "-o")] = "policy.toml",
    reward_wait: Annotated[
        str | None,
        option("How late rewards come: decisions, or a time such as 90m or 2d.", "WAIT"),
    ] = None,
    missing: Annotated[
        str | None,
        option("What a reward that never comes counts as: 0 to 1, or as-estimated.", "VALUE"),
    ] = None,
) -> None:
    """Write a commented policy file from --columns, or a CSV of public rows.

    Everything that is read here is published with the policy: no user's data.
    What is not given is asked for at a terminal; elsewhere rewards are waited
    for as long as 2,000 decisions take, and those that never come count as 0.
    """
    from capri.errors import ConfigurationError
    from capri.service.tables import USUAL_WAIT, example_file, missing_of, wait_of

    path = Path(output)
    if path.exists():
        raise ConfigurationError(f"{output} is there already: give another --output")
    names = [name.strip() for name in actions.split(",") if name.strip()]
    wait = wait_of(
        _asked("How late do rewards come? Decisions, or a time: 90m, 2d", USUAL_WAIT)
        if reward_wait is None
        else reward_wait
    )
    never = missing_of(
        _asked("A reward that never comes counts as? 0 to 1, or as-estimated", 0)
        if missing is None
        else missing
    )
    sheet = None if rows is None else Path(rows)
    text = example_file(sheet, names, path.parent, columns=columns, wait=wait, missing=never)
    path.write_text(text, encoding="utf-8")
    if reward_wait is None:
        said = f"{wait} decisions" if isinstance(wait, int) else wait
        typer.echo(f"rewards count for {said} after their epoch; --reward-wait gives another wait")
    typer.echo(f"{output}: look through it, then")
    typer.echo(
        f"  capri key shop --roles decide,reward,operator --file {path.with_suffix('.keys')}"
    )
    typer.echo(f"  capri serve {output}")


def _asked(question: str, usual: object) -> str:
    """What somebody at a terminal answers; where there is none, what is usual."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return str(usual)
    return str(typer.prompt(question, default=str(usual)))


def key(
    name: Annotated[str, typer.Argument(help="Who is to hold it.")],
    roles: Annotated[str, option("Of decide, reward, read, operator, admin.", "ROLES")] = "read",
    file: Annotated[str, option("The file of keys.", "PATH")] = "policy.keys",
) -> None:
    """Make a key of a service: shown once, kept as a digest.

    A service that runs knows it within a second. To change a key, make another
    of the same name, give it out, and delete the line of the old one.
    """
    from capri.service.auth import add_key

    typer.echo(add_key(Path(file), name, [role.strip() for role in roles.split(",")]))


_StoreOption = Annotated[
    str | None, option("Where it lives; CAPRI_STORE or beside the file by default.", "ADDRESS")
]
_FileArgument = Annotated[str, typer.Argument(help="The policy file.")]


def diff(file: _FileArgument, store: _StoreOption = None) -> None:
    """Compare a policy file with its store: what would change, and what cannot.

    Changes nothing. Ends with exit code 1 where they differ.
    """
    from capri.files import secret
    from capri.service.changes import PolicyFile

    found = PolicyFile(Path(file), store or secret("CAPRI_STORE")).differences()
    for each in found:
        typer.echo(f"{'cannot' if each.why else 'would change'}  {each}")
    if found:
        raise typer.Exit(NOTHING)
    typer.echo("the file and the store say the same")


def apply(
    file: _FileArgument,
    store: _StoreOption = None,
    why: Annotated[str, option("What operations note as the reason.", "TEXT")] = "",
    rollback_guard: Annotated[str | None, option("As of capri serve.", "PLACE")] = None,
) -> None:
    """Change a running policy to what its file says, from the next epoch on.

    One publication for every process of the store, noted with who and why.
    Where something cannot change, nothing does. See capri diff.
    """
    from capri.cli.store import operator, read_key
    from capri.errors import ConfigurationError
    from capri.files import secret
    from capri.joint.policy import Capri
    from capri.service.changes import PolicyFile, asked_for

    known = PolicyFile(Path(file), store or secret("CAPRI_STORE"))
    settings, found = known.settings, known.differences()
    if fixed := [str(each) for each in found if each.why]:
        raise ConfigurationError("nothing was changed. " + "; ".join(fixed))
    if not found:
        typer.echo("the file and the store say the same")
        return
    where = rollback_guard or secret("CAPRI_ROLLBACK_GUARD") or settings.rollback_guard
    place = store or secret("CAPRI_STORE") or settings.default_store
    with Capri.open(place, store_key=read_key(None), rollback_guard=where) as policy:
        asked = asked_for(settings, [each.setting for each in found])
        policy.change(**asked, by=operator(), why=why)
        typer.echo(str(policy.operations[-1]))
        if policy.mode.name == "frozen":
            typer.echo(f"it is frozen: capri store mode {place} active goes on learning")


def report(
    url: Annotated[str, typer.Argument(help="Where the service is, such as http://host:8017.")],
    output: Annotated[str, option("The file to write.", "PATH", "--output", "-o")] = "report.html",
) -> None:
    """Keep the page of a running service as one file, for who has no key.

    Public figures alone: what it is worth, who gets what, the promise and
    what was spent. It opens anywhere and asks nobody. The key, with the role
    read, comes from CAPRI_KEY, or from a file that CAPRI_KEY_FILE names.
    """
    from capri.client import Client
    from capri.files import secret, write_atomically
    from capri.service.figures import one_page

    with Client(url, secret("CAPRI_KEY")) as client:
        page = one_page(client.figure)
    write_atomically(Path(output), page)
    typer.echo(f"{output}: {len(page) / 1024:.0f} kB")


def aggregate(
    bundle: Annotated[Path, typer.Argument(help="The bundle that the reports answer.")],
    reports: Annotated[
        list[str],
        typer.Argument(
            help="Files of reports, one after the other, and folders of such files; also those of "
            "an object store, such as s3://bucket/day."
        ),
    ],
    output: Annotated[
        Path, option("The sum, as JSON.", "PATH", "--output", "-o", show_default=True)
    ] = Path("sum.json"),
    workers: Annotated[
        int | None,
        count("Processes; 0 works in this one, without Dask. By default what is fastest.", 0),
    ] = None,
    cluster: Annotated[
        str | None, option("A Dask scheduler instead, whose workers share all folders.", "ADDRESS")
    ] = None,
    scratch: Annotated[
        Path | None, option("A folder with room for 18 bytes a report; deleted after.", "PATH")
    ] = None,
) -> None:
    """Add up an epoch's reports, each token once, to the same bits anywhere.

    Replays are found across all files, damaged files are set aside and
    named, those that end in .gz may be compressed. LocalCapri.receive_sum
    takes the sum up. Ends with exit code 1 where no report counts.
    """
    from contextlib import ExitStack

    from capri.errors import ConfigurationError
    from capri.local.summing import TaskRunner, here, report_files, workers_for
    from capri.local.summing import aggregate as add_up

    try:
        data = bundle.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {bundle}: {problem.strerror}") from None
    files = report_files(reports)
    with ExitStack() as running:
        run: TaskRunner = here
        processes = workers_for(files) if workers is None else workers
        if processes or cluster:
            from capri.local.on_dask import dask_cluster

            run = running.enter_context(dask_cluster(processes, cluster))
        made = add_up(data, files, scratch=scratch, run=run)
    made.save(output)
    typer.echo(f"epoch {made.epoch}: {made.accepted:,} reports are in {output}")
    for name in ("replayed", "unknown", "malformed"):
        if number := getattr(made, name):
            typer.echo(f"{name}: {number:,}")
    for reason in made.set_aside:
        typer.echo(f"set aside: {reason}")
    if not made.accepted:
        raise typer.Exit(NOTHING)
