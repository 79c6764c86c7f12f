"""``capri demo``: a contest on one environment, a table and a picture."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from capri.cli.options import POLICY_PANEL, PRESETS, Delta, Epsilon, Preset, Rounds, picture_kind

if TYPE_CHECKING:
    from capri.cli.contest import Run


def demo(
    rounds: Rounds = 20_000,
    epsilon: Epsilon = 1.0,
    local_epsilon: Annotated[
        float,
        typer.Option(
            help="Of the local model, where each user adds noise.", rich_help_panel=POLICY_PANEL
        ),
    ] = 4.0,
    delta: Delta = 1e-5,
    preset: Preset = PRESETS[0],
    seed: Annotated[int, typer.Option(help="Another seed is another function.", min=0)] = 0,
    output: Annotated[Path, typer.Option(help="The picture: png, svg or pdf.")] = Path(
        "capri-demo.png"
    ),
) -> None:
    """CAPRI against uniform play: a table and a picture in under a minute.

    CAPRI in the joint and in the local model, CAPRI without privacy, and
    uniform play meet the same random function of 50 contexts and 50 actions.
    All of it is a seeded simulation and carries no privacy claim.
    """
    kind = picture_kind(output)

    from rich.console import Console

    from capri.cli.contest import contestants, finding, play, price_of_trust
    from capri.cli.progress import Bars
    from capri.environments import random_rkhs
    from capri.files import check_writable, write_atomically
    from capri.kernels import Matern
    from capri.privacy.budget import Budget

    check_writable(output)
    budget = Budget(epsilon=epsilon, delta=delta)
    kernel = Matern(nu=2.5, lengthscale=0.3)
    environment = random_rkhs(kernel, contexts=50, actions=50, seed=seed)
    field = list(
        contestants(
            environment,
            kernel,
            budget,
            local_epsilon=local_epsilon,
            rounds=rounds,
            preset=preset,
            seed=seed,
        )
    )
    setting = (
        f"random function (Matern-5/2, lengthscale 0.3), 50 contexts x 50 actions, "
        f"{rounds:,} rounds, preset {preset}, seed {seed}"
    )
    console = Console(highlight=False)
    console.print(f"[bold]CAPRI demo[/bold]: {setting}.\nSimulation, no privacy claim.\n")

    with Bars() as bars:
        uniform_regret = environment.uniform_regret()
        waiting = [bars.add(each.label, rounds, uniform_regret) for each in field]
        runs = [
            play(each, environment, rounds, seed, bar)
            for each, bar in zip(field, waiting, strict=True)
        ]

    reward_range = 2 * environment.reward_bound
    sentence = finding(runs, reward_range)
    price = price_of_trust(*runs[:2])
    if price is not None:
        sentence = f"{sentence} {price}"
    console.print(_table(runs))
    console.print(f"\n{sentence}\n")
    footnote = f"Simulation, no privacy claim: {setting}, delta {delta:g}."
    write_atomically(output, _picture(runs, reward_range, sentence, footnote, kind))
    console.print(f"Picture: {output}", soft_wrap=True, markup=False)


def _table(runs: "list[Run]") -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True)
    table.add_column("simulated\nguarantee")
    for name in (
        "regret\n/ round",
        "ratio to\nuniform",
        "closed\nepochs",
        "in\nplay",
        "time",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        share = run.active_share
        table.add_row(
            run.label,
            run.promise,
            f"{run.result.regret_per_round:.4f}",
            f"{run.result.ratio:.3f}",
            str(len(run.result.epochs)) if run.result.epochs else "-",
            "-" if share is None else f"{share:.0%}",
            f"{run.seconds:.1f} s",
        )
    return table


def _picture(
    runs: "list[Run]", reward_range: float, sentence: str, footnote: str, kind: str
) -> bytes:
    from capri.plots import Contest, contest_figure, to_bytes

    figure = contest_figure(
        [
            Contest(
                label=run.full_label,
                result=run.result,
                errors=run.errors,
                reference=not run.result.epochs,
            )
            for run in runs
        ],
        reward_range=reward_range,
        headline=fill(sentence, 110),
        footnote=footnote,
    )
    return to_bytes(figure, kind)
