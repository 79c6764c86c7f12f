"""``capri report``: one page, and pictures for papers, from the results of studies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capri.cli.options import option

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report(
    results: Annotated[
        str, typer.Argument(help="The folder of a study's results, or the one above.")
    ],
    output: Annotated[
        str | None,
        option("The page to write: report.html there if left out.", "PATH", "--output", "-o"),
    ] = None,
    png: Annotated[str | None, option("Also write figures as PNG here.", "FOLDER")] = None,
    svg: Annotated[str | None, option("Also write figures as SVG here.", "FOLDER")] = None,
) -> None:
    """Write one self-contained page about the results of a study.

    Regret curves, regret against epsilon, paired comparisons, epochs, time,
    memory, promises and certificates. It opens offline in any browser. Results
    of a run that is under way may be looked at.
    """  # fmt: skip
    from capri.files import check_writable, write_atomically
    from capri.report import read_report

    folder = Path(results)
    target = folder / "report.html" if output is None else Path(output)
    pictures = [(kind, Path(each)) for kind, each in (("png", png), ("svg", svg)) if each]
    found = read_report(folder)
    check_writable(target)
    for _, wanted in pictures:
        _make_folder(wanted)
    write_atomically(target, found.html().encode())
    typer.echo(f"wrote {target}")
    if pictures:
        _write_figures(found.figures(), pictures)


def _make_folder(folder: Path) -> None:
    from capri.errors import ConfigurationError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigurationError(f"cannot write to {folder}: {problem.strerror}") from None


def _write_figures(figures: "dict[str, Figure]", wanted: list[tuple[str, Path]]) -> None:
    from capri.files import check_writable, write_atomically
    from capri.plots import to_bytes

    for kind, folder in wanted:
        for name, figure in figures.items():
            target = folder / f"{name}.{kind}"
            check_writable(target)
            write_atomically(target, to_bytes(figure, kind))
            typer.echo(f"wrote {target}")
