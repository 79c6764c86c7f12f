"""``capri simulate``: play one policy on one kind of environment, over several seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capri.cli.options import POLICY_PANEL, PRESETS, Delta, Epsilon, Preset, Rounds
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.environments import TabularEnvironment
    from capri.kernels import Kernel
    from capri.simulation import Policy, SimulationResult

# Spelled out: asking the catalogues would make --help load everything. A test compares.
ENVIRONMENTS = "rkhs, branin, hartmann4, hartmann6, camel, styblinski-tang, michalewicz"
KERNELS = "rbf, matern12, matern32, matern52, rq, linear"
_WORLD_PANEL = "Environment"


def _option(help: str, metavar: str | None = None, *, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel, **more)


def simulate(
    env: Annotated[str, _option(f"One of {ENVIRONMENTS}.", "NAME", panel=_WORLD_PANEL)] = "rkhs",
    kernel: Annotated[
        str, _option(f"Of the policy, and of rkhs: {KERNELS}.", "NAME", panel=_WORLD_PANEL)
    ] = "matern52",
    lengthscale: Annotated[float, _option("Lengthscale of the kernel.", panel=_WORLD_PANEL)] = 0.3,
    contexts: Annotated[int, _option("Number of contexts.", panel=_WORLD_PANEL)] = 50,
    actions: Annotated[int, _option("Number of actions.", panel=_WORLD_PANEL)] = 50,
    context_dimension: Annotated[
        int | None, _option("Default: half of the function's, or 1.", panel=_WORLD_PANEL)
    ] = None,
    action_dimension: Annotated[
        int | None, _option("Default: the rest of the function's, or 1.", panel=_WORLD_PANEL)
    ] = None,
    noise: Annotated[
        float, _option("Rewards are f plus uniform noise up to this.", panel=_WORLD_PANEL)
    ] = 0.1,
    policy: Annotated[
        str, _option("Who plays: capri, uniform or any rival.", "NAME", panel=POLICY_PANEL)
    ] = "capri",
    model: Annotated[
        str,
        _option("Whom users trust: a curator, or nobody.", "joint|local", panel=POLICY_PANEL),
    ] = "joint",
    randomizer: Annotated[
        str,
        _option("Of devices in the local model.", "sphere|gaussian", panel=POLICY_PANEL),
    ] = "sphere",
    preset: Preset = PRESETS[0],
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    no_privacy: Annotated[
        bool, typer.Option("--no-privacy", help="Add no noise.", rich_help_panel=POLICY_PANEL)
    ] = False,
    features: Annotated[
        str | None, _option("Default: the preset's.", "low-rank|dense", panel=POLICY_PANEL)
    ] = None,
    tau: Annotated[
        float | None, _option("Ridge. Default: the preset's.", panel=POLICY_PANEL)
    ] = None,
    linear_features: Annotated[
        str,
        _option("Of linear rivals.", "kernel|raw|polynomial|fourier", panel=POLICY_PANEL),
    ] = "kernel",
    rounds: Rounds = 10_000,
    seeds: Annotated[int, _option("How many seeds to play.", min=1)] = 1,
    seed: Annotated[int, _option("The first seed.", min=0)] = 0,
    json: Annotated[
        str | None, _option("Write results to this file; - is the standard output.", "PATH")
    ] = None,
) -> None:
    """Measure the regret of a policy over several seeds: a table and JSON.

    The seed draws the function, the users who come and the noise: a result
    can be repeated exactly, and carries no privacy claim.
    """
    from rich.console import Console

    from capri.cli.outcome import outcome
    from capri.cli.progress import Bars
    from capri.environments import environment_by_name
    from capri.files import check_writable, to_json, write_atomically
    from capri.kernels import kernel_by_name
    from capri.privacy.budget import Budget
    from capri.rivals import promise_of, rival
    from capri.simulation import simulate as play

    if json is not None and json != "-":
        check_writable(Path(json))
    _check_policy(policy, features, tau)
    budget = None if no_privacy else Budget(epsilon=epsilon, delta=delta)
    chosen_kernel = kernel_by_name(kernel, lengthscale)
    given = {"features": features, "tau": tau}
    options = {name: value for name, value in given.items() if value is not None}

    def world(number: int) -> "TabularEnvironment":
        return environment_by_name(
            env,
            kernel=chosen_kernel,
            contexts=contexts,
            actions=actions,
            context_dimension=context_dimension,
            action_dimension=action_dimension,
            noise=noise,
            seed=number,
        )

    def player(environment: "TabularEnvironment", number: int) -> "Policy":
        if policy != "capri":
            return rival(
                policy,
                environment,
                kernel=chosen_kernel,
                horizon=rounds,
                simulation_seed=number,
                budget=budget,
                features=linear_features,
            )
        return _capri(
            environment, chosen_kernel, number,
            budget=budget, horizon=rounds, model=model, preset=preset, randomizer=randomizer,
            **options,
        )  # fmt: skip

    first = world(seed)
    if first.uniform_regret() == 0.0:
        raise ConfigurationError(
            "every action is equally good here, so there is no regret to measure: "
            "ask for 2 or more actions"
        )
    contender = player(first, seed)  # bad options are refused here, before any bar is shown
    promised = promise_of(contender)
    promise, spends = str(promised), promised.model not in ("none", "perfect")

    results: list[SimulationResult] = []
    with Bars() as bars:
        for number in range(seed, seed + seeds):
            environment = world(number)
            bar = bars.add(f"seed {number}", rounds, environment.uniform_regret())
            bar.start()
            results.append(
                play(player(environment, number), environment, rounds, seed=number, progress=bar)
            )

    console = Console(stderr=json == "-", highlight=False)
    console.print(_table(results, seed, promise))
    if json is None:
        return
    parameters = {
        "env": env,
        "kernel": kernel,
        "lengthscale": lengthscale,
        "contexts": contexts,
        "actions": actions,
        "context_dimension": first.contexts.shape[1],
        "action_dimension": first.actions.shape[1],
        "noise": noise,
        "reward_bound": first.reward_bound,
        "policy": policy,
        "promise": promise,
        "model": model if policy == "capri" else None,
        "randomizer": randomizer if (policy, model) == ("capri", "local") else None,
        "preset": preset if policy == "capri" else None,
        "epsilon": None if budget is None or not spends else budget.epsilon,
        "delta": None if budget is None or not spends else budget.delta,
        **given,
        "rounds": rounds,
        "seeds": seeds,
        "seed": seed,
    }
    text = to_json(outcome(parameters, seed, results))
    if json == "-":
        typer.echo(text, nl=False)
    else:
        write_atomically(Path(json), text.encode())
        console.print(f"Results: {json}", soft_wrap=True, markup=False)


def _capri(
    environment: "TabularEnvironment", kernel: "Kernel", seed: int, *, randomizer: str, **rest: Any
) -> "Policy":
    """CAPRI with a curator, or devices and an aggregator; the paper has its own local form."""
    from capri.joint.policy import Capri
    from capri.local.fleet import Fleet
    from capri.spaces import ContextPool

    settings: dict[str, Any] = {
        "kernel": kernel,
        "actions": environment.actions,
        "contexts": ContextPool(environment.contexts, weights=environment.weights),
        "reward_bound": environment.reward_bound,
        **rest,
    }
    if (rest["model"], rest["preset"]) == ("local", "practical") and rest["budget"] is not None:
        del settings["model"], settings["preset"]
        return Fleet.build(randomizer=randomizer, simulation_seed=seed, **settings)
    return Capri(simulation_seed=seed, **settings)


def _check_policy(policy: str, features: str | None, tau: float | None) -> None:
    """Refuse a name nobody bears, and options of CAPRI for somebody else."""
    from capri.rivals import RIVAL_NAMES

    if policy != "capri" and policy not in RIVAL_NAMES:
        raise ConfigurationError(
            f"policy must be one of capri, {', '.join(RIVAL_NAMES)}, got {policy!r}"
        )
    if policy != "capri" and (features is not None or tau is not None):
        raise ConfigurationError(f"--features and --tau are options of capri, not of {policy}")


def _table(results: "list[SimulationResult]", first_seed: int, promise: str) -> object:
    from rich import box
    from rich.table import Table

    from capri.cli.outcome import PRIVACY_CLAIM, mean

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=len(results) > 1,
        caption=f"Simulated promise: {promise}.\nPrivacy claim: {PRIVACY_CLAIM}.",
        caption_justify="left",
    )
    over = mean(results)
    error = over["ratio_standard_error"]
    for name, footer in (
        ("seed", "mean"),
        ("regret\nper round", f"{over['regret_per_round']:.4f}"),
        ("uniform\nplay", f"{over['uniform_regret_per_round']:.4f}"),
        ("ratio", f"{over['ratio']:.3f}" + ("" if error is None else f" +- {error:.3f}")),
        ("closed\nepochs", f"{over['epochs']:g}"),
        ("pairs\nactive", ""),
        ("seconds", f"{over['seconds']:.1f}"),
        ("peak\nMB", _megabytes(over["peak_memory_bytes"])),
    ):
        table.add_column(name, footer, justify="right", no_wrap=True)
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
