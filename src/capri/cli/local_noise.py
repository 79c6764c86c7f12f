"""``capri noise --local``: what a device's report adds, by either randomizer."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LocalNoiseRow:
    """Variance per coordinate of an unbiased report of a vector of norm at most 1, and its bytes.

    ``candidates``, ``near`` and ``chance`` are ``M``, ``k`` and ``p`` of the sphere randomizer.
    """

    epsilon: float
    dimension: int
    candidates: int
    near: int
    chance: float
    sphere_variance: float
    gaussian_variance: float
    sphere_bytes: int
    gaussian_bytes: int


def local_noise_rows(epsilons: list[float], delta: float, dimension: int) -> list[LocalNoiseRow]:
    """One row per epsilon.

        sphere     1 / (m c^2), c the mean product of the reported direction with the unit vector
        gaussian   s^2, s twice the analytic multiplier of (eps, delta) less the integers' slack

    That of the sphere is reached at the vector 0 and is by 1/m less at norm 1.
    """
    from capri.local.wire import report_size
    from capri.privacy.budget import Budget
    from capri.privacy.calibration import noise_multiplier
    from capri.privacy.promise import Randomizer
    from capri.privacy.sphere import COIN, sphere

    rows = []
    for epsilon in epsilons:
        budget = Budget(epsilon=epsilon, delta=delta)
        best = sphere(epsilon, dimension)
        rows.append(
            LocalNoiseRow(
                epsilon=epsilon,
                dimension=dimension,
                candidates=best.candidates,
                near=best.near,
                chance=best.chance / COIN,
                sphere_variance=best.deviation**2,
                gaussian_variance=noise_multiplier(budget, dimension) ** 2,
                sphere_bytes=report_size(Randomizer.SPHERE, dimension),
                gaussian_bytes=report_size(Randomizer.GAUSSIAN, dimension),
            )
        )
    return rows


def _cells(row: LocalNoiseRow) -> list[str]:
    return [
        f"{row.epsilon:g}",
        str(row.candidates),
        str(row.near),
        f"{row.chance:.3f}",
        f"{row.sphere_variance:.3g}",
        f"{row.gaussian_variance:.3g}",
        f"{row.gaussian_variance / row.sphere_variance:.1f}",
        f"{row.sphere_bytes:,}",
        f"{row.gaussian_bytes:,}",
    ]


_COLUMNS = (
    "epsilon", "M", "k", "p", "sphere, pure", "Gaussian", "Gaussian / sphere", "bytes, sphere",
    "bytes, Gaussian",
)  # fmt: skip
_NARROW = (
    "eps", "M", "k", "p", "sphere", "Gaussian", "ratio", "bytes", "bytes,\nGaussian",
)  # fmt: skip


def _title(rows: list[LocalNoiseRow], delta: float, sign: str) -> str:
    return (
        f"Variance per coordinate of one report, {rows[0].dimension} coordinates, Gaussian at "
        f"delta{sign}{delta:g}"
    )


def local_markdown(rows: list[LocalNoiseRow], delta: float) -> str:
    """The table of the documents."""
    return markdown_table(_title(rows, delta, " = ") + ":", _COLUMNS, [_cells(row) for row in rows])


def markdown_table(title: str, columns: Sequence[str], cells: list[list[str]]) -> str:
    """Numbers, aligned to the right."""
    lines = [
        title,
        "",
        "| " + " | ".join(columns) + " |",
        "| " + " | ".join("---:" for _ in columns) + " |",
        *("| " + " | ".join(line) + " |" for line in cells),
    ]
    return "\n".join(lines)


def local_table(rows: list[LocalNoiseRow], delta: float) -> object:
    """The table of the shell."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=_title(rows, delta, " "),
        title_justify="left",
        title_style="bold",
        caption="sphere: pure epsilon; M directions, the k nearest have probability p together.",
        caption_justify="left",
    )
    for name in _NARROW:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table
