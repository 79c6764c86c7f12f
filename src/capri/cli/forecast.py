"""``capri forecast``: what to expect of an epsilon, a horizon and a kernel, before any user."""

from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capri.checks import one_of
from capri.cli.options import (
    KERNELS,
    PRESETS,
    Delta,
    Json,
    Preset,
    count,
    flag,
    numbers,
    of_policy,
    option,
    whole_numbers,
)
from capri.errors import ConfigurationError

if TYPE_CHECKING:
    from capri.forecast.result import Forecast

_SPACE_PANEL = "Spaces"
_STYLES = {"good": "green", "learns": "green", "learns slowly": "yellow", "hopeless": "red"}


_space, _count = partial(option, panel=_SPACE_PANEL), partial(count, panel=_SPACE_PANEL)


def forecast(
    epsilon: Annotated[str, option("Budgets to compare; inf is no privacy.", "LIST")] = "0.1,1,4",
    rounds: Annotated[str, option("Horizons to compare.", "LIST")] = "1000,10000,100000",
    functions: Annotated[int, count("Random functions to play.", 2)] = 12,
    noise: Annotated[float, option("Rewards are f plus uniform noise up to this.", min=0.0)] = 0.1,
    detail: Annotated[
        float | None, option("Epsilon whose epochs are listed. Default: the middle one.")
    ] = None,
    compare: Annotated[
        bool,
        flag("--compare/--no-compare", "Compare a known kernel with auto on the same functions."),
    ] = True,
    kernel: Annotated[str, _space(f"auto, or one of {KERNELS}.", "NAME")] = "matern52",
    lengthscale: Annotated[float, _space("Lengthscale of the kernel.")] = 0.3,
    contexts: Annotated[int, _count("Number of random contexts in the unit cube.")] = 50,
    actions: Annotated[int, _count("Number of random actions in the unit cube.")] = 50,
    context_dimension: Annotated[int, _count("Of random contexts.")] = 1,
    action_dimension: Annotated[int, _count("Of random actions.")] = 1,
    contexts_csv: Annotated[
        Path | None, _space("Your contexts instead: a header, then a row of numbers each.", "PATH")
    ] = None,
    actions_csv: Annotated[
        Path | None, _space("Your actions instead: a header, then a row of numbers each.", "PATH")
    ] = None,
    model: Annotated[
        str,
        of_policy(
            "Whom users trust: a curator; nobody (real devices); or a shuffler, to mix reports.",
            "joint|local|shuffle",
        ),
    ] = "joint",
    most: Annotated[
        float, of_policy("Model shuffle: the largest local epsilon of a device.")
    ] = 8.0,
    preset: Preset = PRESETS[0],
    delta: Delta = 1e-5,
    seed: Annotated[int, count("Of spaces, functions, users and noise.", 0)] = 0,
    json: Json = None,
    output: Annotated[Path, option("The picture: png, svg or pdf.")] = Path("capri-forecast.png"),
) -> None:
    """Will it work? Regret to expect by epsilon and horizon, and what each epoch can tell.

    Everything but the reward function is public before the first user comes.
    So the policy is played, with seeded noise, against random functions of
    many kinds, smooth and rough, and a known kernel is compared with "auto".
    A simulation: it carries no privacy claim.
    """
    epsilons, horizons = numbers("epsilon", epsilon), whole_numbers("rounds", rounds)

    from capri.cli.outcome import Meter, Output
    from capri.environments import random_rkhs
    from capri.files import read_numbers
    from capri.kernels import kernel_by_name
    from capri.players import make_capri
    from capri.privacy.budget import Budget
    from capri.privacy.shuffle import Shuffle
    from capri.spaces import ContextPool

    files = Output(json, output)
    chosen = epsilons[len(epsilons) // 2] if detail is None else detail
    if chosen not in epsilons:
        raise ConfigurationError(f"detail must be one of the epsilons {epsilon}, got {chosen:g}")
    unknown = kernel == "auto"
    # The spaces that ``capri simulate`` draws under the same seed; its function is not used.
    drawn_with = kernel_by_name("matern52" if unknown else kernel, lengthscale)
    spaces = random_rkhs(
        drawn_with,
        contexts=contexts,
        actions=actions,
        context_dimension=context_dimension,
        action_dimension=action_dimension,
        seed=seed,
    )
    pool: Any = spaces.contexts if contexts_csv is None else read_numbers(contexts_csv)
    # The epsilon whose epochs are listed is the policy's own; kernels are compared there.
    finite = chosen if chosen != inf else next((one for one in epsilons if one != inf), None)
    one_of("model", model, ("joint", "local", "shuffle"))
    if finite is None and model != "joint" and preset == PRESETS[0]:
        raise ConfigurationError("devices always make their reports private: give a finite epsilon")
    pure = (model, preset) == ("local", PRESETS[0])
    policy = make_capri(
        model=model,
        preset=preset,
        shuffle=Shuffle(most=most),
        kernel="auto" if unknown else drawn_with,
        actions=spaces.actions if actions_csv is None else read_numbers(actions_csv),
        contexts=ContextPool(pool),
        budget=None if finite is None else Budget(epsilon=finite, delta=0.0 if pure else delta),
        horizon=max(horizons),
        simulation_seed=seed,
    )
    with Meter("forecast", "rounds") as meter:
        found = policy.forecast(
            horizons=horizons, epsilons=epsilons, functions=functions, noise=noise, seed=seed,
            compare=compare, progress=meter,
        )  # fmt: skip
    files.put(
        _grid(found),
        _kinds(found, chosen),
        _epochs(found, chosen),
        *([found.delta_buys] if found.delta_buys else []),
        document=found.to_dict(),
        figure=found.plot(),
    )


def _grid(found: "Forecast") -> object:
    from capri.cli.outcome import a_table
    from capri.plots.forecast import name_of

    table = a_table(
        ("", *(f"{horizon:,} rounds" for horizon in found.horizons)),
        left=("",),
        padding=(0, 1),
        title="Regret per round divided by that of uniform play",
        caption=(
            f"Mean of {found.functions} random functions +- its standard error; "
            f"{found.contexts}; {found.model} model.\n"
            "good: up to 0.2, learns: up to 0.5, learns slowly: up to 0.9, hopeless: above."
        ),
    )
    for epsilon in found.epsilons:
        cells = []
        for horizon in found.horizons:
            row = found.at(epsilon, horizon)
            style = _STYLES[row.grade]
            cells.append(f"{row.figure}\n[{style}]{row.grade}[/{style}]")
        table.add_row(name_of(epsilon), *cells)
    return table


def _kinds(found: "Forecast", epsilon: float) -> object:
    from capri.cli.outcome import a_table
    from capri.plots.forecast import name_of

    kinds = tuple(dict.fromkeys(each.kind for each in found.kinds))
    table = a_table(
        ("functions", *(f"{horizon:,} rounds" for horizon in found.horizons)),
        left=("functions",),
        title=f"By kind of function, at {name_of(epsilon)}",
        caption=found.advice,
    )
    rows = [found.kinds_at(epsilon, horizon) for horizon in found.horizons]
    for place, kind in enumerate(kinds):
        table.add_row(kind, *(f"{row[place].figure} {row[place].grade}" for row in rows))
    return table


def _epochs(found: "Forecast", epsilon: float) -> object:
    from capri.cli.outcome import a_table
    from capri.plots.forecast import name_of

    epochs = found.epochs_of(epsilon)
    name = name_of(epsilon)
    if not epochs:
        return f"At {name} no epoch closes within {found.horizons[-1]:,} rounds: nothing is learnt."
    table = a_table(
        ("epoch", "rounds\nso far", "width", "predicted\nerror", "gap", "privacy\nnoise",
         "sampling", "pairs\nin play", "noise\nscale"),
        title=f"Epochs at {name}",
        caption=(
            "gap: between two actions, that can be told apart; the mean gap to the best action is "
            f"{found.uniform_regret_per_round:.3f}.\n"
            "privacy noise, sampling: their shares in the variance of a release."
        ),
    )  # fmt: skip
    for epoch in epochs:
        error = epoch.predicted_error
        table.add_row(
            str(epoch.epoch),
            f"{epoch.rounds:,}",
            _short(epoch.width),
            "-" if error is None else _short(error),
            _short(epoch.gap),
            f"{epoch.noise_share:.0%}",
            f"{epoch.sampling_share:.0%}",
            f"{epoch.active_share:.0%}",
            _short(epoch.noise_scale),
        )
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
