"""``capri-lab run``: play a study, or what is missing of it."""

from collections import Counter, defaultdict
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capri.cli.options import INTERRUPTED, count, flag, option
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri_lab.experiments import Results
    from capri_lab.experiments.backends import Backend
    from capri_lab.experiments.records import Record

CELLS_FAILED = 1


def run(
    study: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a study from --list.")
    ] = None,
    show_list: Annotated[bool, flag("--list", "Show the studies that come with it.")] = False,
    output: Annotated[Path, option("Results go to a folder of the study's name in here.")] = Path(
        "results"
    ),
    workers: Annotated[
        int | None, count("Worker processes; default: one per core. 0: in this process.", 0)
    ] = None,
    cluster: Annotated[
        str | None, option("Play on Dask workers: an address, or local.", "tcp://...|local")
    ] = None,
    seeds: Annotated[int | None, count("Play the study's first seeds only.", 1)] = None,
    retry: Annotated[bool, flag("--retry", "Play failed cells again.")] = False,
    parquet: Annotated[bool, flag("--parquet", "Also write results as records.parquet.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Check the study and count its cells.")] = False,
) -> None:
    """Run a study: environments x policies x epsilons x horizons x seeds.

    Each cell is recorded as soon as it is played. Run the same command again
    after an interruption or a change, and only what is missing is played. All
    runs are seeded simulations and carry no privacy claim.
    """
    if show_list:
        _list()
        return
    if study is None:
        raise ConfigurationError("say which study to run: a TOML file or a name from --list")
    from capri_lab.cli.progress import StudyProgress
    from capri_lab.experiments import load_study, read_results, run_study
    from capri_lab.experiments.study import with_seeds

    wanted = load_study(study)
    if seeds is not None:
        wanted = with_seeds(wanted, seeds)
    if dry_run:
        cells = sum(1 for _ in wanted.cells())
        typer.echo(f"{wanted.name}: {cells} cells")
        return
    if parquet:
        from capri.checks import need

        need("--parquet", "pandas", "pyarrow", extra="capri-lab[studies]")
    backend = _backend(workers, cluster)
    folder = output / wanted.name
    try:
        with StudyProgress() as progress:
            summary = run_study(wanted, output, backend=backend, retry=retry, watcher=progress)
    except KeyboardInterrupt:
        typer.echo(_stopped(folder), err=True)
        raise typer.Exit(INTERRUPTED) from None
    results = read_results(folder)
    _show(results)
    if parquet:
        from capri_lab.experiments.records import to_parquet

        to_parquet(folder, folder / "records.parquet")
    if summary.stopped:
        typer.echo(_stopped(folder), err=True)
        raise typer.Exit(INTERRUPTED)
    typer.echo(f"Results: {folder}", err=True)
    failed = summary.failed + summary.kept_failed
    if failed:
        for line in _failures(results):
            typer.echo(line, err=True)
        typer.echo(f"{failed} cells failed: play them again with --retry", err=True)
        raise typer.Exit(CELLS_FAILED)


def _failures(results: "Results") -> list[str]:
    """A line for every different error: how many cells of which policy on what failed so."""
    found = Counter(
        (record["policy"], record["environment"], record["error"])
        for record in results.records
        if record["status"] == "failed"
    )
    return [
        f"failed: {policy} on {environment}, {count} cells: {error}"
        for (policy, environment, error), count in found.items()
    ]


def _list() -> None:
    from capri_lab.experiments import load_study, shipped_studies

    for name in shipped_studies():
        study = load_study(name, thorough=False)
        cells = sum(1 for _ in study.cells())
        typer.echo(f"{name:<20} {study.title} ({cells} cells)")


def _backend(workers: int | None, cluster: str | None) -> "Backend":
    from capri_lab.experiments import Here, Pool

    if cluster is not None:
        from capri_lab.experiments.on_dask import OnDask

        return OnDask(cluster, workers=workers or None)
    return Here() if workers == 0 else Pool(workers)


def _stopped(folder: Path) -> str:
    return (
        f"stopped: all cells that were finished are recorded in {folder}; "
        "run the same command again to go on"
    )


def _show(results: "Results") -> None:
    """Mean and standard error of the ratio, per environment, horizon, policy and epsilon.

    Beside each number stands what the policy promises: only like promises compare.
    With a single context also the mean simple regret: what the recommended action loses.
    """
    from rich.console import Console
    from rich.table import Table

    found: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in results.records:
        if record["ratio"] is not None:
            model, kind = record["promise"]["model"], record["promise"]["kind"]
            pure = " pure" if kind == "pure" and model not in ("none", "perfect") else ""
            key = (record["environment"], record["rounds"], model + pure, record["policy"],
                   record["epsilon"])  # fmt: skip
            found[key].append({name: record[name] for name in ("ratio", "simple_regret")})
    if not found:
        return
    table = Table(title=f"{results.study.title}: regret over that of uniform play")
    left = ("problem", "promise", "policy")
    for name in ("problem", "T", "promise", "policy", "epsilon", "ratio", "seeds"):
        table.add_column(name, justify="left" if name in left else "right")
    simple = any(each["simple_regret"] is not None for same in found.values() for each in same)
    if simple:
        table.add_column("simple regret", justify="right")
    for (environment, rounds, promise, policy, epsilon), same in found.items():
        ratios = [each["ratio"] for each in same]
        kept = [each["simple_regret"] for each in same if each["simple_regret"] is not None]
        error = f" ± {stdev(ratios) / sqrt(len(ratios)):.3f}" if len(ratios) > 1 else ""
        budget = "" if epsilon is None else f"{epsilon:g}"
        mean = f"{fmean(ratios):.3f}{error}"
        row = [environment, f"{rounds:,}", promise, policy, budget, mean, str(len(ratios))]
        if simple:
            row.append(f"{fmean(kept):.3f}" if kept else "")
        table.add_row(*row)
    Console(highlight=False).print(table)
