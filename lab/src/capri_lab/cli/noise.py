"""``capri-lab noise``: how much noise three calibrations add, and the epsilon each really delivers.

Then what a delta buys: Laplace noise, which needs none, beside Gaussian noise. With ``--local``:
what a device's report adds, and a Gaussian one would. With ``--shuffled``: what a batch of mixed
reports gives away.
"""

from dataclasses import dataclass
from math import floor, sqrt
from typing import Annotated, Any

import typer

from capri.cli.options import Delta, Json, count, flag, numbers, option, whole_numbers
from capri.errors import ConfigurationError

Row = dict[str, Any]


def noise(
    epsilon: Annotated[str, option("Budgets to compare.", "LIST")] = "0.1,0.5,1,2,4,8",
    rounds: Annotated[str, option("Horizons to compare.", "LIST")] = "10000,100000,1000000",
    delta: Delta = 1e-5,
    contributions: Annotated[
        str, option("How often one user contributes, each time to another epoch.", "LIST")
    ] = "1,10",
    dimension: Annotated[int, count("Coordinates of a release, or of a report.", 1)] = 100,
    local: Annotated[bool, flag("--local", "The noise of one report of a device instead.")] = False,
    shuffled: Annotated[
        str | None, option("Sizes of batches whose reports are mixed: what each delivers.", "LIST")
    ] = None,
    central: Annotated[
        bool, flag("--central", "With --shuffled: epsilons are central; what may a device spend?")
    ] = False,
    markdown: Annotated[bool, flag("--markdown", "Print a Markdown table instead.")] = False,
    json: Json = None,
) -> None:
    """The noise of the paper, of a split budget and of ours, and what each delivers.

    Paper: as printed. Split: the exact Gaussian mechanism, with the budget
    divided by the number of epochs. Ours: the exact Gaussian mechanism on
    integers, with the full budget in every epoch, as each user is in one epoch
    only. All per unit of the contribution bound. Then what a delta buys: Laplace
    noise on messages of one cell, which needs none, beside Gaussian noise on
    dense messages. With --delta 0 that is all. With --local: what one report
    of a device adds, and what one with Gaussian noise would. With
    --shuffled: the epsilon of so many mixed reports of devices, each of them of
    the given local epsilon; with --central as well, the largest local epsilon
    whose batch keeps the given one: the plan of an epoch of the shuffle model.
    """
    from capri.cli.outcome import check_json, console, put_json

    check_json(json)
    epsilons = numbers("epsilon", epsilon)
    if central and shuffled is None:
        raise ConfigurationError("--central is about mixed reports: give --shuffled")
    rows: list[Row] = []
    kinds: list[Row] = []
    if shuffled is not None and central:
        rows = planned_rows(epsilons, whole_numbers("shuffled", shuffled), delta, dimension)
        view = _PLANNED
    elif shuffled is not None:
        rows = shuffled_rows(epsilons, whole_numbers("shuffled", shuffled), delta, dimension)
        view = _SHUFFLED
    elif local:
        rows, view = local_noise_rows(epsilons, delta, dimension), _LOCAL
    else:
        kinds = kind_rows(epsilons, whole_numbers("contributions", contributions), delta, dimension)
        horizons, view = whole_numbers("rounds", rounds), _RELEASES
        rows = noise_rows(epsilons, horizons, delta, dimension) if delta else []
    document = {"delta": delta, "dimension": dimension, "rows": rows}
    put_json(json, document | ({"kinds": kinds} if kinds else {}))
    if json == "-":
        return
    shown = [(view, rows), (_KINDS if delta else _PURE, kinds)]
    tables = [(view, _cells(view, rows)) for view, rows in shown if rows]
    if markdown:
        typer.echo("\n\n".join(_markdown(*table, delta, dimension) for table in tables))
        return
    for table in tables:
        console(json).print(_table(*table, delta, dimension))


def noise_rows(
    epsilons: list[float], horizons: list[int], delta: float, dimension: int
) -> list[Row]:
    """Noise scales per unit of the contribution bound ``B C``, and the epsilon each delivers.

    A user is in one epoch, so a noise of scale ``s`` on contributions bounded by 1 is the Gaussian
    mechanism with ``mu = 2 / s`` (replace-one sensitivity is twice the bound), once:

        paper   s = (4 ln T / eps) sqrt(ln(1.25 ln T / delta))
        split   s = 2 x the analytic multiplier of (eps / E, delta / E), E epochs
        ours    s = 2 x the analytic multiplier of (eps, delta) less the integers' slack
    """
    from capri.epoch.plan import Schedule
    from capri.privacy.budget import Budget
    from capri.privacy.calibration import (
        analytic_multiplier,
        delivered_by_integers,
        delivered_epsilon,
        noise_multiplier,
        paper_noise_scale,
    )

    rows = []
    for epsilon in epsilons:
        budget = Budget(epsilon=epsilon, delta=delta)
        ours = noise_multiplier(budget, dimension)
        for horizon in horizons:
            if horizon < 2:
                raise ConfigurationError(f"rounds must be at least 2, got {horizon}")
            epochs = len(list(Schedule.paper(horizon)))
            paper = paper_noise_scale(budget, sigma_max=1.0, reward_bound=1.0, horizon=horizon)
            split = 2 * analytic_multiplier(Budget(epsilon=epsilon / epochs, delta=delta / epochs))
            rows.append(
                {
                    "epsilon": epsilon,
                    "rounds": horizon,
                    "epochs": epochs,
                    "paper_noise": paper,
                    "paper_epsilon": delivered_epsilon(2 / paper, delta),
                    "split_noise": split,
                    "split_epsilon": delivered_epsilon(2 / split, delta),
                    "noise": ours,
                    "delivered_epsilon": delivered_by_integers(2 / ours, budget, dimension),
                }
            )
    return rows


def kind_rows(
    epsilons: list[float], contributions: list[int], delta: float, dimension: int
) -> list[Row]:
    """Deviations of both kinds of noise, per unit of the bound, by a user's contributions ``k``.

        laplace         2 sqrt 2 k / eps, on each cell of messages of one cell
        gaussian        s sqrt k, ``s`` as above, on each coordinate of dense messages
        gaussian_from   the least k at which Gaussian noise is less

    ``(gaussian / laplace)^2`` is the number of cells for each direction of what is learnt up to
    which cells tell more. Without a delta there is no Gaussian noise.
    """
    from capri.privacy.budget import Budget, UserLimit
    from capri.privacy.calibration import laplace_scale, noise_multiplier

    rows = []
    for epsilon in epsilons:
        budget = Budget(epsilon=epsilon, delta=delta)
        for times in contributions:
            factor = UserLimit(total=times).composition()
            laplace = sqrt(2) * laplace_scale(epsilon, 2.0, times)
            row: Row = {"epsilon": epsilon, "contributions": times, "laplace": laplace}
            if delta:
                gaussian = noise_multiplier(budget, dimension, factor)
                equal = times * (gaussian / laplace) ** 2
                row |= {"gaussian": gaussian, "gaussian_from": floor(equal) + 1}
            rows.append(row)
    return rows


def local_noise_rows(epsilons: list[float], delta: float, dimension: int) -> list[Row]:
    """Variance per coordinate of an unbiased report of a vector of norm at most 1.

        sphere     1 / (m c^2), c the mean product of the reported direction with the unit vector
        gaussian   s^2, s twice the analytic multiplier of (eps, delta) less the integers' slack

    That of the sphere is reached at the vector 0 and is by 1/m less at norm 1.
    """
    from capri.privacy.budget import Budget
    from capri.privacy.calibration import noise_multiplier
    from capri.privacy.sphere import COIN, sphere

    rows = []
    for epsilon in epsilons:
        budget = Budget(epsilon=epsilon, delta=delta)
        best = sphere(epsilon, dimension)
        rows.append(
            {
                "epsilon": epsilon,
                "dimension": dimension,
                "candidates": best.candidates,
                "near": best.near,
                "chance": best.chance / COIN,
                "sphere_variance": best.deviation**2,
                "gaussian_variance": noise_multiplier(budget, dimension) ** 2,
            }
        )
    return rows


def shuffled_rows(
    epsilons: list[float], sizes: list[int], delta: float, dimension: int
) -> list[Row]:
    """The central epsilon of mixed sphere reports, and that of any randomizer's as private."""
    from capri.privacy.shuffle import central_epsilon
    from capri.privacy.sphere import sphere
    from capri_lab.clones import clones_epsilon

    return [
        {
            "epsilon": epsilon,
            "reports": reports,
            "any_randomizer": clones_epsilon(epsilon, reports, delta),
            "sphere": central_epsilon(sphere(epsilon, dimension), reports, delta),
        }
        for epsilon in epsilons
        for reports in sizes
    ]


def planned_rows(
    epsilons: list[float], sizes: list[int], delta: float, dimension: int
) -> list[Row]:
    """What a report may spend in a batch that keeps a central epsilon, and the noise it adds."""
    from capri.privacy.budget import Budget
    from capri.privacy.shuffle import LARGEST_LOCAL, Shuffle
    from capri.privacy.sphere import sphere

    mixed = Shuffle(most=LARGEST_LOCAL)
    rows = []
    for epsilon in epsilons:
        for reports in sizes:
            local = mixed.randomizer(Budget(epsilon, delta), reports, dimension)
            rows.append(
                {
                    "epsilon": epsilon,
                    "reports": reports,
                    "local_epsilon": local.epsilon,
                    "variance": local.deviation**2,
                    "variance_unmixed": sphere(epsilon, dimension).deviation ** 2,
                }
            )
    return rows


@dataclass(frozen=True, kw_only=True)
class _View:
    """A table: for each column what documents and the shell call it, and its number's format."""

    columns: tuple[tuple[str, str, str], ...]
    more: str
    less: str
    title: str
    caption: str
    parted: bool = True


_COLUMNS = (
    ("epsilon", "eps", "{epsilon:g}"),
    ("T", "T", "{rounds:,}"),
    ("paper", "paper", "{paper_noise:,.1f}"),
    ("delivers", "(eps)", "{paper_epsilon:.3g}"),
    ("split", "split", "{split_noise:,.1f}"),
    ("delivers", "(eps)", "{split_epsilon:.3g}"),
    ("ours", "ours", "{noise:,.2f}"),
    ("delivers", "(eps)", "{delivered_epsilon:.4g}"),
    ("paper / ours", "paper\n/ ours", "{ratio:.1f}"),
)
_LOCAL_COLUMNS = (
    ("epsilon", "eps", "{epsilon:g}"),
    ("M", "M", "{candidates}"),
    ("k", "k", "{near}"),
    ("p", "p", "{chance:.3f}"),
    ("sphere, pure", "sphere", "{sphere_variance:.3g}"),
    ("Gaussian", "Gaussian", "{gaussian_variance:.3g}"),
    ("Gaussian / sphere", "ratio", "{ratio:.1f}"),
)


_RELEASES = _View(
    columns=_COLUMNS,
    more="paper_noise",
    less="noise",
    title="Noise scale per unit of {of}, and the epsilon it delivers at delta{sign}{delta:g}",
    caption="(eps): the epsilon that the noise left of it really delivers.",
)
_LOCAL = _View(
    columns=_LOCAL_COLUMNS,
    more="gaussian_variance",
    less="sphere_variance",
    title="Variance per coordinate of one report, {dimension} coordinates, Gaussian at "
    "delta{sign}{delta:g}",
    caption="sphere: pure epsilon; M directions, the k nearest have probability p together.",
    parted=False,
)
_SHUFFLED = _View(
    columns=(
        ("local epsilon", "local", "{epsilon:g}"),
        ("reports", "reports", "{reports:,}"),
        ("any randomizer (clones)", "any\nrandomizer", "{any_randomizer:.3g}"),
        ("the sphere's blanket", "sphere", "{sphere:.3g}"),
        ("ratio", "ratio", "{ratio:.2f}"),
    ),
    more="any_randomizer",
    less="sphere",
    title="Epsilon of a batch of mixed reports, {dimension} coordinates, at delta{sign}{delta:g}",
    caption="Against whoever sees the mixed batch alone; against all others the local epsilon.",
)


_PLANNED = _View(
    columns=(
        ("central epsilon", "central", "{epsilon:g}"),
        ("reports", "reports", "{reports:,}"),
        ("local epsilon", "local", "{local_epsilon:.3g}"),
        ("variance of a report", "variance", "{variance:.3g}"),
        ("unmixed", "unmixed", "{variance_unmixed:.3g}"),
        ("unmixed / mixed", "ratio", "{ratio:.1f}"),
    ),
    more="variance_unmixed",
    less="variance",
    title="Largest local epsilon of a batch of mixed reports, {dimension} coordinates, at "
    "delta{sign}{delta:g}",
    caption="Variance per coordinate of one report, and of one that is not mixed.",
)


_KIND_COLUMNS = (
    ("epsilon", "eps", "{epsilon:g}"),
    ("contributions", "contri-\nbutions", "{contributions}"),
    ("Laplace, one cell, delta = 0", "Laplace,\ndelta 0", "{laplace:,.2f}"),
    ("Gaussian", "Gaussian", "{gaussian:,.2f}"),
    ("Gaussian / Laplace", "ratio", "{ratio:.2f}"),
    ("Gaussian is less from", "Gaussian is\nless from", "{gaussian_from}"),
)
_KINDS = _View(
    columns=_KIND_COLUMNS,
    more="gaussian",
    less="laplace",
    title="What a delta buys: deviation of the noise per unit of {of}, Gaussian at "
    "delta{sign}{delta:g}",
    caption="Laplace: on each cell, of messages of one cell. Gaussian: on each coordinate, of\n"
    "dense messages. Dense ones tell more from ratio^2 cells a direction on.",
)
_PURE = _View(
    columns=_KIND_COLUMNS[:3],
    more="laplace",
    less="laplace",
    title="Deviation of Laplace noise on each cell, per unit of {of}",
    caption="Messages of one cell: all that is played without a delta.",
)


def _cells(view: _View, rows: list[Row]) -> list[list[str]]:
    """What a table shows of its rows."""
    return [
        [shown.format(**row, ratio=row[view.more] / row[view.less]) for *_, shown in view.columns]
        for row in rows
    ]


def _markdown(view: _View, cells: list[list[str]], delta: float, dimension: int) -> str:
    """The table of the documents: numbers, aligned to the right."""
    columns = [name for name, *_ in view.columns]
    lines = [
        view.title.format(of="`B C`", sign=" = ", delta=delta, dimension=dimension) + ":",
        "",
        "| " + " | ".join(columns) + " |",
        "| " + " | ".join("---:" for _ in columns) + " |",
        *("| " + " | ".join(line) + " |" for line in cells),
    ]
    return "\n".join(lines)


def _table(view: _View, cells: list[list[str]], delta: float, dimension: int) -> object:
    """The table of the shell; budgets are parted where each has several rows."""
    from capri.cli.outcome import a_table

    columns = [name for _, name, _ in view.columns]
    title = view.title.format(of="B C", sign=" ", delta=delta, dimension=dimension)
    table = a_table(columns, title=title, caption=view.caption)
    for column in table.columns:
        column.style = "dim" if column.header == "(eps)" else ""
    for number, line in enumerate(cells):
        last = number + 1 == len(cells) or cells[number + 1][0] != line[0]
        table.add_row(*line, end_section=last and view.parted)
    return table
