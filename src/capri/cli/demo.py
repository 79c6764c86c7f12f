"""``capri demo``: a contest on one environment, a table and a picture."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from capri.cli.options import PRESETS, Delta, Epsilon, Preset, Rounds, of_policy, option

if TYPE_CHECKING:
    from capri.players import Run


def demo(
    rounds: Rounds = 20_000,
    epsilon: Epsilon = 1.0,
    local_epsilon: Annotated[
        float, of_policy("Of the local model, where each user adds noise.")
    ] = 4.0,
    delta: Delta = 1e-5,
    preset: Preset = PRESETS[0],
    seed: Annotated[int, option("Another seed is another function.", min=0)] = 0,
    output: Annotated[Path, option("The picture: png, svg or pdf.")] = Path("capri-demo.png"),
) -> None:
    """CAPRI against uniform play: a table and a picture in under a minute.

    CAPRI in the joint and in the local model, CAPRI without privacy, and
    uniform play meet the same random function of 50 contexts and 50 actions.
    All of it is a seeded simulation and carries no privacy claim.
    """
    from dataclasses import replace

    from capri.cli.outcome import Bars, Output, console
    from capri.environments import random_rkhs
    from capri.kernels import Matern
    from capri.players import contestants, finding, play, price_of_trust
    from capri.plots import contest_figure
    from capri.privacy.budget import Budget

    files = Output(picture=output)
    budget = Budget(epsilon=epsilon, delta=delta)
    kernel = Matern(nu=2.5, lengthscale=0.3)
    environment = random_rkhs(kernel, contexts=50, actions=50, seed=seed)
    field = contestants(
        environment, kernel, budget, local_epsilon=local_epsilon, rounds=rounds, preset=preset,
        seed=seed,
    )  # fmt: skip
    setting = (
        f"random function (Matern-5/2, lengthscale 0.3), 50 contexts x 50 actions, "
        f"{rounds:,} rounds, preset {preset}, seed {seed}"
    )
    console(None).print(f"[bold]CAPRI demo[/bold]: {setting}.\nSimulation, no privacy claim.\n")

    with Bars() as bars:
        uniform_regret = environment.uniform_regret()
        waiting = [(each, bars.add(each.label, rounds, uniform_regret)) for each in field]
        runs = [play(each, environment, rounds, seed, bar) for each, bar in waiting]

    reward_range = 2 * environment.reward_bound
    said = finding(runs, reward_range), price_of_trust(*runs[:2])
    sentence = " ".join(filter(None, said))
    figure = contest_figure(
        [replace(run, label=run.full_label) for run in runs],
        reward_range=reward_range,
        headline=fill(sentence, 110),
        footnote=f"Simulation, no privacy claim: {setting}, delta {delta:g}.",
    )
    files.put(_table(runs), f"\n{sentence}\n", document={}, figure=figure)


def _table(runs: "list[Run]") -> object:
    from capri.cli.outcome import a_table

    texts = ("policy", "simulated\nguarantee")
    figures = ("regret\n/ round", "ratio to\nuniform", "closed\nepochs", "in\nplay", "time")
    table = a_table(texts + figures, left=texts, pad_edge=False)
    for run in runs:
        table.add_row(
            run.label,
            run.promise,
            f"{run.result.regret_per_round:.4f}",
            f"{run.result.ratio:.3f}",
            str(len(run.result.epochs) or "-"),
            "-" if run.active_share is None else f"{run.active_share:.0%}",
            f"{run.seconds:.1f} s",
        )
    return table
