"""Result files: refused before a long run rather than after it, and never half-written."""

import os
from pathlib import Path

from capri.errors import ConfigurationError, StorageError


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written when the run is over."""
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
            partial = _open_partial(path)
            partial.unlink()
        except OSError as problem:
            raise ConfigurationError(f"cannot write {path}: {problem.strerror}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary neighbour that takes the name when it is complete."""
    try:
        if not _replaceable(path):
            path.write_bytes(content)
            return
        partial = _open_partial(path)
        try:
            partial.write_bytes(content)
            partial.replace(path.resolve())
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        raise StorageError(f"cannot write {path}: {problem.strerror}") from None


def _replaceable(path: Path) -> bool:
    """Devices and pipes are written to; replacing them would destroy them."""
    return path.is_file() or not path.exists()


def _open_partial(path: Path) -> Path:
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.touch()
    return partial
