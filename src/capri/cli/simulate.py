"""``capri simulate``: play one policy on one kind of environment, over several seeds."""

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from capri.cli.options import (
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
    from capri.simulation import SimulationResult, UniformPlay

# Spelled out: asking the catalogues would make --help load everything. A test compares.
ENVIRONMENTS = "rkhs, branin, hartmann4, hartmann6, camel, styblinski-tang, michalewicz"
KERNELS = "rbf, matern12, matern32, matern52, rq, linear"
_WORLD_PANEL = "Environment"


_of_world, _count = partial(option, panel=_WORLD_PANEL), partial(count, panel=_WORLD_PANEL)


def simulate(
    env: Annotated[str, _of_world(f"One of {ENVIRONMENTS}.", "NAME")] = "rkhs",
    kernel: Annotated[
        str, _of_world(f"Of the policy, and of rkhs: {KERNELS}.", "NAME")
    ] = "matern52",
    lengthscale: Annotated[float, _of_world("Lengthscale of the kernel.")] = 0.3,
    contexts: Annotated[int, _count("Number of contexts.")] = 50,
    actions: Annotated[int, _count("Number of actions.")] = 50,
    context_dimension: Annotated[
        int | None, _count("Default: half of the function's, or 1.")
    ] = None,
    action_dimension: Annotated[
        int | None, _count("Default: the rest of the function's, or 1.")
    ] = None,
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
    from capri.cli.outcome import PRIVACY_CLAIM, Bars, Output, mean, versions
    from capri.environments import environment_by_name
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
    world = partial(environment_by_name, env, kernel=known, **space)

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
    with Bars() as bars:
        for number in range(seed, seed + seeds):
            environment = world(seed=number)
            bar = bars.add(f"seed {number}", rounds, environment.uniform_regret())
            bar(0, 0.0)
            playing = contender(environment, number)
            results.append(play(playing, environment, rounds, seed=number, progress=bar))

    parameters = {
        "env": env,
        "kernel": kernel,
        "lengthscale": lengthscale,
        **space,
        "context_dimension": first.contexts.shape[1],
        "action_dimension": first.actions.shape[1],
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
