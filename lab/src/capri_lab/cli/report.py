"""``capri-lab report``: one page, and pictures for papers, from the results of studies."""

from pathlib import Path
from typing import Annotated

import typer

from capri.cli.options import option
from capri.errors import ConfigurationError


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
    csv: Annotated[str | None, option("Also write a table of each study here.", "FOLDER")] = None,
    tex: Annotated[str | None, option("Also write a LaTeX table of each here.", "FOLDER")] = None,
) -> None:
    """Write one self-contained page about the results of a study.

    Regret curves, regret against epsilon, paired comparisons, epochs, time,
    memory, promises and certificates. It opens offline in any browser. Results
    of a run that is under way may be looked at.
    """  # fmt: skip
    from capri.cli.outcome import check_picture, put_picture
    from capri.files import check_writable, write_atomically
    from capri_lab.report import read_report

    folder = Path(results)
    target = folder / "report.html" if output is None else Path(output)
    pictures = [(kind, Path(each)) for kind, each in (("png", png), ("svg", svg)) if each]
    found = read_report(folder)
    check_writable(target)
    tables = [(kind, Path(each)) for kind, each in (("csv", csv), ("tex", tex)) if each]
    for _, wanted in (*pictures, *tables):
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ConfigurationError(f"cannot write to {wanted}: {problem.strerror}") from None
    write_atomically(target, found.html().encode())
    typer.echo(f"wrote {target}")
    for kind, wanted in tables:
        for name, text in found.tables(kind).items():
            target = wanted / f"{name}.{kind}"
            write_atomically(target, text.encode())
            typer.echo(f"wrote {target}")
    figures = found.figures() if pictures else {}
    for kind, wanted in pictures:
        for name, figure in figures.items():
            target = wanted / f"{name}.{kind}"
            check_picture(target)
            put_picture(target, figure)
            typer.echo(f"wrote {target}")
