"""``capri aggregate``: an epoch's reports from many files, added up on any number of workers."""

from pathlib import Path
from typing import Annotated

import typer

from capri.cli.options import count, option

NOTHING = 1


def aggregate(
    bundle: Annotated[Path, typer.Argument(help="The bundle that the reports answer.")],
    reports: Annotated[
        list[Path],
        typer.Argument(help="Files of reports, one after the other, and folders of such files."),
    ],
    output: Annotated[
        Path, option("The sum, as JSON.", "PATH", "--output", "-o", show_default=True)
    ] = Path("sum.json"),
    workers: Annotated[int, count("Processes; 0 works in this one, without Dask.", 0)] = 1,
    cluster: Annotated[
        str | None, option("A Dask scheduler instead, whose workers share all folders.", "ADDRESS")
    ] = None,
    scratch: Annotated[
        Path | None, option("A folder with room for 18 bytes a report; deleted after.", "PATH")
    ] = None,
) -> None:
    """Add up an epoch's reports, each token once, to the same bits anywhere.

    Replays are found across all files. LocalCapri.receive_sum takes the sum
    up. Ends with exit code 1 where no report counts.
    """
    from contextlib import ExitStack

    from capri.errors import ConfigurationError
    from capri.local.summing import Run, here, report_files
    from capri.local.summing import aggregate as add_up

    try:
        data = bundle.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {bundle}: {problem.strerror}") from None
    files = report_files(reports)
    with ExitStack() as running:
        run: Run = here
        if workers or cluster:
            from capri.local.on_dask import dask_cluster

            run = running.enter_context(dask_cluster(workers, cluster))
        made = add_up(data, files, scratch=scratch, run=run)
    made.save(output)
    typer.echo(f"epoch {made.epoch}: {made.accepted:,} reports are in {output}")
    for name in ("replayed", "unknown", "malformed"):
        if number := getattr(made, name):
            typer.echo(f"{name}: {number:,}")
    if not made.accepted:
        raise typer.Exit(NOTHING)
