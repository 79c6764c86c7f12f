"""Where in a TOML text a value stands: the parser of the standard library does not say."""

import re

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")

# Strings and comments hold no keys, whatever they look like; strings of several lines come first.
_QUIET = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'|#[^\n]*",
    re.DOTALL,
)


def line_of(text: str, path: Path) -> int:
    """The line, from 1, of the key or table that a path leads to; of the nearest one above it.

    A path has keys and, after the name of an array, positions from 0.

    >>> text = 'name = "a"\\n[[policies]]\\nname = "uniform"\\n[[policies]]\\nname = "capri"\\n'
    >>> line_of(text, ("policies", 1, "name"))
    5
    >>> line_of(text, ("policies", 1, "model"))
    4
    """
    lines = _QUIET.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text).splitlines()
    first, last = 0, _next_header(lines, 0)
    found = 1
    steps = list(path)
    while steps:
        key = str(steps.pop(0))
        position = steps.pop(0) if steps and isinstance(steps[0], int) else None
        table = _table(lines, key, int(position or 0), first if found > 1 else 0)
        if table is not None:
            first, last = table, _next_header(lines, table)
            found = table
            continue
        wanted = re.compile(rf"(?:^|[{{,\s]){re.escape(key)}\s*=")
        hits = [n for n in range(first, last) if wanted.search(lines[n].split("#")[0])]
        if not hits:
            break
        # Within an inline array every table has the key: the position counts them.
        first = hits[min(int(position or 0), len(hits) - 1)] if found == 1 else hits[0]
        found = first + 1
    return found


def _table(lines: list[str], name: str, position: int, start: int) -> int | None:
    """The number of the line after a header: ``[name]``, ``[above.name]`` or ``[[name]]``."""
    seen = 0
    for number, line in enumerate(lines[start:], start=start):
        header = _HEADER.match(line)
        if header is None:
            continue
        if header[2].split(".")[-1].strip() == name:
            if seen == position:
                return number + 1
            seen += 1
        elif start and "." not in header[2]:
            return None  # the next table of the level above
    return None


def _next_header(lines: list[str], start: int) -> int:
    for number in range(start, len(lines)):
        if _HEADER.match(lines[number]):
            return number
    return len(lines)
