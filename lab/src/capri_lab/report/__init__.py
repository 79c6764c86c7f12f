"""Results to look at: a page for a browser, figures for a paper, both for a notebook."""

from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, final

from capri_lab.experiments import Results, read_results, result_folders
from capri_lab.experiments.worlds import holds_rows
from capri_lab.report.page import document, page
from capri_lab.report.summary import Summary, summarise
from capri_lab.report.tables import to_csv, to_latex

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The results of one or more studies, ready to be looked at.

    In a notebook the report shows itself; :meth:`html` is the page and :meth:`figures` holds the
    pictures for a paper.
    """

    results: tuple[Results, ...]
    summaries: tuple[Summary, ...]

    @property
    def title(self) -> str:
        """What a browser shows above the page."""
        return " · ".join(each.study.title or each.study.name for each in self.results)

    def html(self) -> str:
        """One page that holds everything it needs and opens offline."""
        studies = [
            _texts(result) | document(summary)
            for result, summary in zip(self.results, self.summaries, strict=True)
        ]
        return page(studies, title=self.title)

    def figures(self) -> "dict[str, Figure]":
        """Pictures by name, in the style of the others; ``figure.savefig(path)`` writes one."""
        from capri_lab.report.figures import figures

        found = {}
        for result, summary in zip(self.results, self.summaries, strict=True):
            for name, figure in figures(summary, title=result.study.title or result.study.name):
                found[f"{result.study.name}-{name}"] = figure
        return found

    def tables(self, kind: str) -> dict[str, str]:
        """The numbers by study, as text: ``kind`` is "csv" or "tex"."""
        write = to_csv if kind == "csv" else to_latex
        pairs = zip(self.results, self.summaries, strict=True)
        return {result.study.name: write(summary) for result, summary in pairs}

    def _repr_html_(self) -> str:
        # A frame of its own: the page brings its own style and scripts.
        return (
            f'<iframe srcdoc="{escape(self.html())}" title="{escape(self.title)}" '
            'width="100%" height="800" style="border:0"></iframe>'
        )


def read_report(path: str | PathLike[str]) -> Report:
    """The report of a study's folder, or of all such folders right below a folder."""
    results = tuple(read_results(folder) for folder in result_folders(path))
    return Report(results=results, summaries=tuple(summarise(result.records) for result in results))


def _texts(result: Results) -> dict[str, Any]:
    study = result.study
    return {name: getattr(study, name) for name in ("name", "title", "description", "text")} | {
        "missing": result.missing,
        "left_out": list(study.left_out()),
        "tables": [world.label for world in study.worlds if holds_rows(world.name)],
    }
