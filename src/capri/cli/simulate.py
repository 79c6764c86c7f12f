"""``capri demo``, a contest on one environment, and ``capri simulate``, one policy over seeds."""

from functools import partial
from math import inf
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from capri.cli.options import (
    KERNELS,
    POLICY_PANEL,
    PRESETS,
    Delta,
    Epsilon,
    FirstSeed,
    Json,
    Model,
    Preset,
    Rounds,
    Seeds,
    count,
    flag,
    of_policy,
    option,
)
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.environments import TabularEnvironment
    from capri.joint.policy import Capri
    from capri.local.simulator import DeviceSimulator
    from capri.players import ContestRun
    from capri.simulation import SimulationResult, UniformPlay

_WORLD_PANEL = "Environment"


_of_world, _count = partial(option, panel=_WORLD_PANEL), partial(count, panel=_WORLD_PANEL)


def simulate(
    kernel: Annotated[
        str, _of_world(f"Of the policy, and of the random function: {KERNELS}.", "NAME")
    ] = "matern52",
    lengthscale: Annotated[float, _of_world("Lengthscale of the kernel.")] = 0.3,
    contexts: Annotated[int, _count("Number of contexts.")] = 50,
    actions: Annotated[int, _count("Number of actions.")] = 50,
    context_dimension: Annotated[int, _count("Numbers of a context.")] = 1,
    action_dimension: Annotated[int, _count("Numbers of an action.")] = 1,
    noise: Annotated[float, _of_world("Rewards are f plus uniform noise up to this.")] = 0.1,
    policy: Annotated[str, of_policy("Who plays.", "capri|uniform")] = "capri",
    model: Model = "joint",
    preset: Preset = PRESETS[0],
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    no_privacy: Annotated[
        bool, flag("--no-privacy", "Add no noise, as epsilon inf.", panel=POLICY_PANEL)
    ] = False,
    features: Annotated[str | None, of_policy("Of preset paper.", "low-rank|dense")] = None,
    tau: Annotated[float | None, of_policy("Ridge of preset paper.")] = None,
    rounds: Rounds = 10_000,
    seeds: Seeds = 1,
    seed: FirstSeed = 0,
    json: Json = None,
) -> None:
    """Measure the regret of a policy over several seeds: a table and JSON.

    The seed draws the function, the users who come and the noise: a result
    can be repeated exactly, and carries no privacy claim.
    """
    from capri.cli.outcome import PRIVACY_CLAIM, Output, RegretBars, mean, versions
    from capri.environments import random_rkhs
    from capri.kernels import kernel_by_name
    from capri.players import CAPRI, make_player
    from capri.privacy.budget import Budget
    from capri.simulation import simulate as play

    files = Output(json)
    given = {"features": features, "tau": tau}
    player: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if policy == CAPRI:
        player |= {"model": model, "preset": preset}
    else:
        own = {"model": model != "joint", "preset": preset != PRESETS[0]}
        _refuse(policy, [*(name for name, wanted in own.items() if wanted), *player])
    budget = None
    if not no_privacy and epsilon != inf:
        budget = Budget(epsilon=epsilon, delta=delta)
    known = kernel_by_name(kernel, lengthscale)

    space: dict[str, Any] = {
        "contexts": contexts,
        "actions": actions,
        "context_dimension": context_dimension,
        "action_dimension": action_dimension,
        "noise": noise,
    }
    world = partial(random_rkhs, known, **space)

    def contender(
        environment: "TabularEnvironment", seed: int
    ) -> "Capri | DeviceSimulator | UniformPlay":
        return make_player(
            policy, environment, kernel=known, budget=budget, rounds=rounds, seed=seed, **player
        )

    first = world(seed=seed)
    if first.uniform_regret() == 0.0:
        raise ConfigurationError(
            "every action is equally good here, so there is no regret to measure: "
            "ask for 2 or more actions"
        )
    # Bad options are refused here, before any bar is shown.
    promised = contender(first, seed).promise
    promise, spends = str(promised), promised.model not in ("none", "perfect")

    results: list[SimulationResult] = []
    with RegretBars() as bars:
        for number in range(seed, seed + seeds):
            environment = world(seed=number)
            bar = bars.begin(f"seed {number}", rounds, environment.uniform_regret())
            bar(0, 0.0)
            playing = contender(environment, number)
            results.append(play(playing, environment, rounds, seed=number, progress=bar))

    parameters = {
        "kernel": kernel,
        "lengthscale": lengthscale,
        **space,
        "reward_bound": first.reward_bound,
        "policy": policy,
        "promise": promise,
        "model": model if policy == CAPRI else None,
        "preset": preset if policy == CAPRI else None,
        "epsilon": None if budget is None or not spends else budget.epsilon,
        "delta": None if budget is None or not spends else budget.delta,
        **given,
        "rounds": rounds,
        "seeds": seeds,
        "seed": seed,
    }
    document = {
        "parameters": parameters,
        "privacy_claim": PRIVACY_CLAIM,
        "seeds": [{"seed": number, **each.to_dict()} for number, each in enumerate(results, seed)],
        "mean": mean(results),
        "versions": versions(),
    }
    files.put(_table(results, seed, promise), document=document)


def _refuse(policy: str, options: list[str]) -> None:
    """Refuse options of CAPRI for a policy that takes none."""
    if options:
        wrong = " and ".join(f"--{name}" for name in options)
        raise ConfigurationError(
            f"leave out {wrong}, of capri alone: {policy} has a promise of its own"
        )


def _table(results: "list[SimulationResult]", first_seed: int, promise: str) -> object:
    from capri.cli.outcome import PRIVACY_CLAIM, a_table, mean

    over = mean(results)
    error = over["ratio_standard_error"]
    footers = {
        "seed": "mean",
        "regret\nper round": f"{over['regret_per_round']:.4f}",
        "uniform\nplay": f"{over['uniform_regret_per_round']:.4f}",
        "ratio": f"{over['ratio']:.3f}" + ("" if error is None else f" +- {error:.3f}"),
        "closed\nepochs": f"{over['epochs']:g}",
        "pairs\nactive": "",
        "seconds": f"{over['seconds']:.1f}",
        "peak\nMB": _megabytes(over["peak_memory_bytes"]),
    }
    table = a_table(
        footers,
        pad_edge=False,
        show_footer=len(results) > 1,
        caption=f"Simulated promise: {promise}.\nPrivacy claim: {PRIVACY_CLAIM}.",
    )
    for column, footer in zip(table.columns, footers.values(), strict=True):
        column.footer = footer
    for number, result in enumerate(results, first_seed):
        table.add_row(
            str(number),
            f"{result.regret_per_round:.4f}",
            f"{result.uniform_regret_per_round:.4f}",
            f"{result.ratio:.3f}",
            str(len(result.epochs)),
            f"{result.epochs[-1].active_share:.0%}" if result.epochs else "-",
            f"{result.seconds:.1f}",
            _megabytes(result.peak_memory_bytes),
        )
    return table


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f}"


# -- the contest -----------------------------------------------------------------------------------


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

    from capri.cli.outcome import Output, RegretBars, console
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

    with RegretBars() as bars:
        uniform_regret = environment.uniform_regret()
        waiting = [(each, bars.begin(each.label, rounds, uniform_regret)) for each in field]
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
    files.put(_contest_table(runs), f"\n{sentence}\n", document={}, figure=figure)


def _contest_table(runs: "list[ContestRun]") -> object:
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
