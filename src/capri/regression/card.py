"""A model card: what a reader must know of a fit, in Markdown."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from capri.errors import ConfigurationError
from capri.files import Row, in_short
from capri.regression.engine import FitEngine
from capri.version import VERSION

# Parts of the function and columns that are named, at most.
_NAMED = 12
_LIMITS = """## Limits

- Predictions are means over people, and widths are of those means: a person may be far from theirs.
- Widths do not know of what no part of the kernel can follow, such as many jumps that several
  columns cause together.
- Far from the rows of the fit predictions are guesses, and their widths say so.
- The guarantee is that of a row. Whoever has several rows is protected less.
- Whether the model is fair to groups of people was not examined."""


def card_of(fit: Any, engine: FitEngine, stages: Sequence[Row]) -> str:
    """Of a fitted estimator; the guarantee in the words of its certificate, or why it has none."""
    bounds = [
        f"{low:g} to {high:g}"
        for low, high in zip(fit.model_.targets.low, fit.model_.targets.high, strict=True)
    ]
    several = len(bounds) > 1
    parts = (
        [
            {"part": name, "share of the square": share}
            for name, share in sorted(fit.parts_.items(), key=lambda each: -each[1])[:_NAMED]
        ]
        if not several
        else []
    )
    sections = {
        "Guarantee": _guarantee(fit),
        "Data": f"{fit.n_rows_:,} rows of {fit.n_features_in_} columns: {_columns(fit)}. Targets "
        f"are clipped to {' and '.join(bounds)}.",
        "Releases": _table(stages),
        "What was learnt": "`parts_` tells it of each output." if several else _table(parts),
        "How strong columns are": _table(fit.explain().table()[:_NAMED]),
        "How sure it is of the mean, over rows like those of the fit": _table(_sure(fit, engine)),
    }
    return "\n\n".join(
        [
            f"# Model card: {type(fit).__name__}",
            f"Kernel ridge regression by capri {VERSION}, rank {fit.rank_}.",
            *(f"## {title}\n\n{text}" for title, text in sections.items()),
            _LIMITS + "\n",
        ]
    )


def _guarantee(fit: Any) -> str:
    try:
        certificate = fit.certificate()
    except ConfigurationError as refused:
        return f"None is stated: {refused}."
    return f"{certificate.statement} {certificate.spent_means}"


def _columns(fit: Any) -> str:
    schema, names = getattr(fit, "schema_", None), getattr(fit, "feature_names_in_", None)
    if schema is not None:
        return ", ".join(f"{column.name} ({column.kind})" for column in schema.columns)
    return "numbers without names" if names is None else ", ".join(map(str, names))


def _sure(fit: Any, engine: FitEngine) -> list[Row]:
    """Of each output the size of a width, and of noise in y with what the fit cannot follow."""
    rows = engine.law.rows
    width = np.asarray(fit.model_.width(fit.model_.basis.pivots if rows is None else rows))
    sizes = np.sqrt(np.mean(width**2, axis=0))
    noise = np.sqrt([each.noise_variance for each in fit.model_.estimates])
    spread = noise * fit.model_.targets.half
    return [
        {"output": place, "width of the mean": float(size), "deviation of a target": float(away)}
        for place, (size, away) in enumerate(zip(sizes, spread, strict=True))
    ]


def _table(rows: Sequence[Row]) -> str:
    """Rows as a table of Markdown."""
    if not rows:
        return "Nothing was released."
    lines = [[*rows[0]], ["---"] * len(rows[0])]
    lines += [[in_short(cell) for cell in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
