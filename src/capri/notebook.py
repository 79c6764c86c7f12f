"""How results show themselves: as a table in a notebook or a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

Row = Mapping[str, float | str | None]


def text_table(rows: Sequence[Row]) -> str:
    """Columns of one width each, under their names.

    >>> print(text_table([{"epoch": 1, "noise": 0.25}, {"epoch": 10, "noise": None}]))
    epoch  noise
        1   0.25
       10      -
    """
    columns = [[name, *cells] for name, cells in _columns(rows).items()]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def html_table(rows: Sequence[Row]) -> str:
    """The same as an element, without a style of its own: a notebook brings one."""
    columns = _columns(rows)
    head, body = _html_row("th", columns), zip(*columns.values(), strict=True)
    return f"<table>{head}{''.join(_html_row('td', cells) for cells in body)}</table>"


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Cells by column; a column in which nothing is known is left out."""
    return {
        name: [in_short(row[name]) for row in rows]
        for name in rows[0]
        if any(row[name] is not None for row in rows)
    }


def in_short(value: float | str | None) -> str:
    """A number as a reader wants it: three digits, or all of a whole number."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3g}"
        case int():
            return f"{value:,}"
    return value
