"""The site of these pages: ``make docs``, then open build/docs/index.html; no network is needed."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from sphinx.application import Sphinx

import write_reference
from capri.version import VERSION

project, author, release = "capri", "the authors of capri", VERSION
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["example-report", "real-report"]
html_theme, html_title, html_copy_source, html_show_sphinx = "furo", "capri", False, False
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["misc.highlighting_failure"]  # blocks of curl have no lexer
autodoc_typehints, autodoc_member_order = "signature", "bysource"
autodoc_default_options = {
    "members": True,
    "exclude-members": ", ".join(  # written by scikit-learn, for its own pages
        f"set_{step}_request" for step in ("fit", "partial_fit", "predict", "score")
    ),
}


def _stay_on_the_site(app: Sphinx, page: str, text: list[str]) -> None:
    """A link to a file of the repository that is no page names the file instead."""
    pages, folder = Path(app.srcdir), Path(app.srcdir, page).parent

    def kept(link: re.Match[str]) -> str:
        target = (folder / link[2].partition("#")[0]).resolve()
        if link[2].startswith("http") or target.is_relative_to(pages):
            return link[0]
        return f"{link[1]} (`{target.relative_to(pages.parent)}`)"

    text[0] = re.sub(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)]+)\)", kept, text[0])


def setup(app: Sphinx) -> None:
    """Write what is generated before Sphinx looks for pages."""
    write_reference.write(Path(__file__).parent / "reference")
    app.connect("source-read", _stay_on_the_site)
