"""The log: lines of ours and of the server's to standard error, as text or as JSON.

No line quotes a request: neither a context, a reward, an id of a decision, a key nor a user. What
is said of a request is its name (:data:`~capri.service.endpoint.request_id`), which is random.
"""

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

from capri.errors import KernelWarning, PrivacyLeakWarning
from capri.service.endpoint import request_id


class _Line(logging.Formatter):
    """A line as text."""

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record)
        name = request_id.get()
        return f"{said} [{name.decode()}]" if name else said


class _JsonLine(logging.Formatter):
    """A line as JSON: time, level, logger, message, and the request where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := request_id.get():
            line["request_id"] = name.decode()
        return json.dumps(line)


def log_to_standard_error(*, as_json: bool) -> None:
    """Set the loggers of this process up."""
    handler = logging.StreamHandler()
    text = _Line("%(asctime)s %(name)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLine() if as_json else text)
    for name in ("capri", "uvicorn.error", "asyncio"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.propagate = False
        log.setLevel(logging.WARNING)
        if name != "capri":
            log.addFilter(_without_traceback)


def tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Notices, which are public, as lines of the log; of any other warning its kind alone."""
    ours = issubclass(category, KernelWarning | PrivacyLeakWarning)
    said = str(message) if ours else category.__name__
    logging.getLogger("capri.service").warning("%s", said)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A traceback may quote what a request held: the kind of a failure is enough."""
    kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
    record.msg = record.getMessage().partition("\n")[0]
    record.args = ()
    if kind is not None:
        record.msg += f" ({kind.__name__})"
    record.exc_info = record.exc_text = None
    return True
