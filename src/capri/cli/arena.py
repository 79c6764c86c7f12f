"""``capri arena``: CAPRI and every rival on the same problems, in one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capri.cli.options import POLICY_PANEL, Delta, Json, numbers, whole_numbers
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.arena import Result

# Spelled out: asking the catalogues would make --help load everything. A test compares.
PROBLEMS = "rbf, matern52, hartmann4"
EXPERIMENTS = "dubey-2021, usca-2025"


def arena(
    problems: Annotated[
        str, typer.Option(help=f"Problems, with commas: {PROBLEMS}.", metavar="NAMES")
    ] = "rbf,matern52,hartmann4",
    policies: Annotated[
        str,
        typer.Option(
            help="Players, with commas: all, capri-joint, capri-local or any rival.",
            metavar="NAMES",
            rich_help_panel=POLICY_PANEL,
        ),
    ] = "all",
    epsilon: Annotated[
        str,
        typer.Option(
            help="Budgets with commas; inf is no noise.",
            metavar="NUMBERS",
            rich_help_panel=POLICY_PANEL,
        ),
    ] = "1,inf",
    delta: Delta = 1e-5,
    rounds: Annotated[str, typer.Option(help="Horizons with commas.", metavar="NUMBERS")] = "1e4",
    seeds: Annotated[int, typer.Option(help="How many seeds to play.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    experiment: Annotated[
        str | None,
        typer.Option(
            help=f"A published set-up instead of the problems: {EXPERIMENTS}.", metavar="NAME"
        ),
    ] = None,
    markdown: Annotated[
        str | None, typer.Option(help="Write the table to this file.", metavar="PATH")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One table, a column for every problem and horizon.")
    ] = False,
    json: Json = None,
) -> None:
    """Play CAPRI and its rivals side by side, with what each promises.

    Regret over that of uniform play, seconds and extra memory. Rows are grouped
    by promise and epsilon: only rows of one group promise the same. All runs
    are seeded simulations and carry no privacy claim.
    """
    from capri.arena import contest, entries, problem_by_name, to_markdown, to_wide_markdown
    from capri.arena import experiment as play_experiment
    from capri.arena.contest import ENTRY_NAMES
    from capri.cli.outcome import PRIVACY_CLAIM, versions
    from capri.cli.progress import Meter
    from capri.files import check_writable, to_json, write_atomically

    for path in (markdown, json):
        if path is not None and path != "-":
            check_writable(Path(path))
    played = range(seed, seed + seeds)
    results: list[Result] = []
    with Meter("arena", "runs") as meter:

        def show(done: int, total: int, what: str) -> None:
            meter(done, total)

        if experiment is not None:
            if (policies, delta) != ("all", 1e-5):
                raise ConfigurationError(
                    "an experiment has its own players and delta = 1e-5: leave out --policies and "
                    "--delta"
                )
            results = play_experiment(experiment, seeds=played, progress=show)
        else:
            wanted = [problem_by_name(name) for name in names(problems)]
            chosen = ENTRY_NAMES if policies == "all" else names(policies)
            field = entries(chosen, numbers("epsilon", epsilon))
            horizons = whole_numbers("rounds", rounds)
            if min(horizons) < 2:
                raise ConfigurationError(f"rounds must be 2 or more, got {rounds}")
            results += contest(
                wanted, field, rounds=horizons, seeds=played, delta=delta, progress=show
            )

    table = to_wide_markdown(results) if wide else to_markdown(results)
    typer.echo(table, err=json == "-")
    if markdown is not None:
        write_atomically(Path(markdown), table.encode())
    if json is None:
        return
    text = to_json(
        {
            "experiment": experiment,
            "seed": seed,
            "seeds": seeds,
            "delta": delta,
            "privacy_claim": PRIVACY_CLAIM,
            "results": [result.to_dict() for result in results],
            "versions": versions(),
        }
    )
    if json == "-":
        typer.echo(text, nl=False)
    else:
        write_atomically(Path(json), text.encode())


def names(text: str) -> list[str]:
    """The names of a list with commas.

    >>> names("rbf, matern52")
    ['rbf', 'matern52']
    """
    return [part.strip() for part in text.split(",")]
