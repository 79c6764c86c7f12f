"""Policies and environments of one's own, named as ``module:Class`` and ``module:function``.

The module is looked for in the current folder, then as Python does. What it holds is part of what a
result is of, so a digest of its source goes with the name.
"""

import hashlib
import importlib
import inspect
import sys
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from typing import Any

from capri.errors import ConfigurationError


def is_own(name: str) -> bool:
    """Whether a name is that of somebody's own module."""
    return ":" in name


def spelled(thing: Any) -> str:
    """The name of a class or function of one's own.

    >>> from capri_lab.rivals.linear.linucb import LinUCB
    >>> spelled(LinUCB)
    'capri_lab.rivals.linear.linucb:LinUCB'
    """
    if thing.__module__ == "__main__" or "<locals>" in thing.__qualname__:
        raise ConfigurationError(
            f"{thing.__qualname__} must stand at the top of a module of its own: worker processes "
            "import it from there"
        )
    return f"{thing.__module__}:{thing.__qualname__}"


def load(name: str) -> Any:
    """What a name stands for, or what is wrong with it and in which line."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise ConfigurationError(f"{name} needs {problem.name}, which is not there") from None
        raise ConfigurationError(
            f"{name}: there is no module {module_name!r} in this folder or on Python's path"
        ) from None
    except Exception as problem:
        raise ConfigurationError(f"{name} cannot be imported: {in_line(problem)}") from None
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, vars(module), 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(f"{module_name} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def digest(name: str) -> str:
    """SHA-256 of the module that a name stands in."""
    file = inspect.getsourcefile(inspect.unwrap(load(name)))
    if file is None:
        raise ConfigurationError(f"{name} has no source that a result could be known by")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def place_of(thing: Any) -> str:
    """The file and line in which something of one's own begins, for a message."""
    try:
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return str(thing)
    return f"{Path(file or '?').name}, line {line}"


def in_line(problem: Exception, of: Any = None) -> str:
    """An exception and the line that raised it: the last one in the file ``of`` something."""
    trace = list(extract_tb(problem.__traceback__))
    file = None if of is None else inspect.getsourcefile(of)
    trace = [each for each in trace if each.filename == file] or trace
    place = f" ({Path(trace[-1].filename).name}, line {trace[-1].lineno})" if trace else ""
    return f"{type(problem).__name__}: {problem}{place}"
