"""Files that are whole or not there, and values that JSON can hold."""

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from capri.errors import AwayError, ConfigurationError, StorageError

# What passes: no room, or a disk that fails.
_PASSING = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's; for ``json.dumps(..., default=plain)``."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot store a {type(value).__name__}")


def to_json(document: Mapping[str, Any]) -> str:
    """JSON text for a person; numbers that JSON does not know (infinity, NaN) become null.

    >>> print(to_json({"ratio": float("nan")}), end="")
    {
      "ratio": null
    }
    """
    return json.dumps(json_values(document), indent=2, allow_nan=False, default=plain) + "\n"


def json_values(value: Any) -> Any:
    """The same with lists for tuples, Python's numbers, and None for what JSON cannot hold.

    >>> json_values({"pair": (1, float("inf"))})
    {'pair': [1, None]}
    """
    match value:
        case Mapping():
            return {key: json_values(item) for key, item in value.items()}
        case list() | tuple():
            return [json_values(item) for item in value]
        case np.generic():
            return json_values(value.item())
        case float() if not math.isfinite(value):
            return None
    return value


def canonical(content: Any) -> str:
    """JSON in one form only: sorted keys, no blanks, ASCII, shortest digits of every number.

    >>> canonical({"b": (1, 2.50), "a": "é"})
    '{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=plain)


def digest_of(content: Any, arrays: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of canonical JSON, in hexadecimals; an array enters by type, shape and digest.

    The same content has the same digest, on any machine.
    """
    whole = content
    if arrays is not None:
        named = {name: _array(np.asarray(array)) for name, array in arrays.items()}
        whole = {"values": content, "arrays": named}
    return hashlib.sha256(canonical(whole).encode("ascii")).hexdigest()


def _array(array: Any) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": little.dtype.str,
        "shape": list(array.shape),
        "sha256": hashlib.sha256(little.tobytes()).hexdigest(),
    }


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written when a long run is over."""
    folder = path.resolve().parent
    if path.is_dir():
        raise ConfigurationError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise ConfigurationError(f"cannot write {path}: the directory {folder} does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: permission denied")
    if _replaceable(path):
        try:
            # Only trying tells: access rights say nothing of read-only or full disks.
            _partial(path, 0o600).unlink()
        except OSError as problem:
            raise ConfigurationError(f"cannot write {path}: {problem.strerror}") from None


def write_atomically(path: Path, content: bytes, *, confidential: bool = False) -> None:
    """Write to a temporary neighbour that takes the name when it is complete.

    A crash leaves the old file or the new one, never half of one. A confidential file can be read
    by its owner only.
    """
    try:
        if not _replaceable(path):
            path.write_bytes(content)
            return
        partial = _partial(path, 0o600 if confidential else 0o666)
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # or a power cut could leave the new name without content
            partial.replace(path.resolve())
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        kind = AwayError if problem.errno in _PASSING else StorageError
        raise kind(f"cannot write {path}: {problem.strerror}") from problem


def _replaceable(path: Path) -> bool:
    """Devices and pipes are written to; replacing them would destroy them."""
    return path.is_file() or not path.exists()


def _partial(path: Path, mode: int) -> Path:
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
    partial.touch(mode=mode)
    return partial
