"""``capri noise``: how much noise three calibrations add, and the epsilon each really delivers."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from capri.cli.options import Delta, Json, numbers, whole_numbers
from capri.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """Noise scales per unit of the contribution bound ``B C``, with what each delivers.

    ``epochs`` is the number of doubling epochs that the split divides the budget by.
    """

    epsilon: float
    rounds: int
    epochs: int
    paper_noise: float
    paper_epsilon: float
    split_noise: float
    split_epsilon: float
    noise: float
    delivered_epsilon: float


def noise(
    epsilon: Annotated[str, typer.Option(help="Budgets to compare.", metavar="LIST")] = (
        "0.1,0.5,1,2,4,8"
    ),
    rounds: Annotated[str, typer.Option(help="Horizons to compare.", metavar="LIST")] = (
        "10000,100000,1000000"
    ),
    delta: Delta = 1e-5,
    dimension: Annotated[
        int, typer.Option(help="Coordinates of a release, or of a report.", min=1)
    ] = 100,
    local: Annotated[
        bool, typer.Option("--local", help="Compare the randomizers of devices instead.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table instead.")
    ] = False,
    json: Json = None,
) -> None:
    """The noise of the paper, of a split budget and of ours, and what each delivers.

    Paper: as printed. Split: the exact Gaussian mechanism, with the budget
    divided by the number of epochs. Ours: the exact Gaussian mechanism on
    integers, with the full budget in every epoch, as each user is in one epoch
    only. All per unit of the contribution bound. With --local: what one report
    of a device adds, by the sphere and by the Gaussian randomizer.
    """
    from capri.cli.local_noise import local_markdown, local_noise_rows, local_table
    from capri.files import check_writable, to_json, write_atomically

    if json is not None and json != "-":
        check_writable(Path(json))
    epsilons = numbers("epsilon", epsilon)
    if local:
        reports = local_noise_rows(epsilons, delta, dimension)
        document = [asdict(row) for row in reports]
        page, table = local_markdown(reports, delta), local_table(reports, delta)
    else:
        rows = noise_rows(epsilons, whole_numbers("rounds", rounds), delta, dimension)
        document = [asdict(row) for row in rows]
        page, table = _markdown(rows, delta), _table(rows, delta)
    if json is not None:
        text = to_json({"delta": delta, "dimension": dimension, "rows": document})
        if json == "-":
            typer.echo(text, nl=False)
            return
        write_atomically(Path(json), text.encode())
    if markdown:
        typer.echo(page)
        return
    from rich.console import Console

    Console(highlight=False).print(table)


def noise_rows(
    epsilons: list[float], horizons: list[int], delta: float, dimension: int
) -> list[NoiseRow]:
    """One row per epsilon and horizon.

    A user is in one epoch, so a noise of scale ``s`` on contributions bounded by 1 is the Gaussian
    mechanism with ``mu = 2 / s`` (replace-one sensitivity is twice the bound), once:

        paper   s = (4 ln T / eps) sqrt(ln(1.25 ln T / delta))
        split   s = 2 x the analytic multiplier of (eps / E, delta / E), E epochs
        ours    s = 2 x the analytic multiplier of (eps, delta) less the integers' slack
    """
    from capri.privacy.budget import Budget
    from capri.privacy.calibration import (
        analytic_multiplier,
        delivered_by_integers,
        delivered_epsilon,
        noise_multiplier,
        paper_noise_scale,
    )
    from capri.schedule import Schedule

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
                NoiseRow(
                    epsilon=epsilon,
                    rounds=horizon,
                    epochs=epochs,
                    paper_noise=paper,
                    paper_epsilon=delivered_epsilon(2 / paper, delta),
                    split_noise=split,
                    split_epsilon=delivered_epsilon(2 / split, delta),
                    noise=ours,
                    delivered_epsilon=delivered_by_integers(2 / ours, budget, dimension),
                )
            )
    return rows


def _cells(row: NoiseRow) -> list[str]:
    return [
        f"{row.epsilon:g}",
        f"{row.rounds:,}",
        f"{row.paper_noise:,.1f}",
        f"{row.paper_epsilon:.3g}",
        f"{row.split_noise:,.1f}",
        f"{row.split_epsilon:.3g}",
        f"{row.noise:,.2f}",
        f"{row.delivered_epsilon:.4g}",
        f"{row.paper_noise / row.noise:.1f}",
    ]


_COLUMNS = (
    "epsilon", "T", "paper", "delivers", "split", "delivers", "ours", "delivers", "paper / ours",
)  # fmt: skip
_NARROW = (
    "eps", "T", "paper", "(eps)", "split", "(eps)", "ours", "(eps)", "paper\n/ ours",
)  # fmt: skip


def _markdown(rows: list[NoiseRow], delta: float) -> str:
    from capri.cli.local_noise import markdown_table

    title = f"Noise scale per unit of `B C`, and the epsilon it delivers at delta = {delta:g}:"
    return markdown_table(title, _COLUMNS, [_cells(row) for row in rows])


def _table(rows: list[NoiseRow], delta: float) -> object:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"Noise scale per unit of B C, and the epsilon it delivers at delta {delta:g}",
        title_justify="left",
        title_style="bold",
        caption="(eps): the epsilon that the noise left of it really delivers.",
        caption_justify="left",
    )
    for name in _NARROW:
        style = "dim" if name == "(eps)" else None
        table.add_column(name, justify="right", no_wrap=True, style=style)
    for number, row in enumerate(rows):
        last = number + 1 == len(rows) or rows[number + 1].epsilon != row.epsilon
        table.add_row(*_cells(row), end_section=last)
    return table
