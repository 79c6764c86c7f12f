"""The files of a folder at ``/site/``: a page whose visitors' devices decide and report.

Read once, when the service starts; nothing is looked for on the disk by the name of a request.
"""

from pathlib import Path

from capri.errors import ConfigurationError
from capri.service.answers import SELF, fixed
from capri.service.door import Answer, Door, Guard

_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
}
_LARGEST = 1 << 23
_POLICY = SELF + b"; worker-src 'self'; font-src 'self'"


def site_doors(guard: Guard, folder: Path) -> dict[str, Door]:
    """A door for each file; ``/site/`` is ``index.html``."""
    if not (folder / "index.html").is_file():
        raise ConfigurationError(f"--site must be a folder with an index.html, got {folder}")
    doors: dict[str, Door] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in _KINDS and path.is_file():
            if path.stat().st_size > _LARGEST:
                raise ConfigurationError(f"{path} is larger than {_LARGEST} bytes")
            answer = Answer(path.read_bytes(), kind=_KINDS[path.suffix], policy=_POLICY)
            doors["/site/" + path.relative_to(folder).as_posix()] = Door(guard, fixed(answer), None)
    doors["/site/"] = doors["/site/index.html"]
    return doors
