"""One small tree of exceptions and warnings.

Messages say what was given, what is allowed and what to do. They never repeat a user's context or
reward: an exception may end in a log, and a log is public.
"""

import sys
import warnings
from traceback import walk_stack


class CapriError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(CapriError, ValueError):
    """A parameter is outside its allowed range."""


class ShapeError(ConfigurationError):
    """An array has the wrong shape or dimension."""


class DataError(CapriError, ValueError):
    """A context or reward is not a finite number of the right shape. Its value is never shown."""


class HorizonError(CapriError, RuntimeError):
    """More decisions were asked for than the policy was built for."""


class BudgetError(CapriError, RuntimeError):
    """The privacy budget of a user, or of the policy, is spent."""


class StorageError(CapriError, ValueError):
    """A saved file or a store is damaged, of another kind, out of reach, or of a newer version."""


class AwayError(StorageError):
    """A store that does not serve now: out of reach, held by another program, or without room.

    Nothing was changed. The same call may be made again.
    """


class InDoubtError(StorageError):
    """A store that was lost while it stored something, and cannot be asked whether it did.

    The same call, with the same key, settles it.
    """


class BundleError(CapriError, ValueError):
    """A bundle is damaged, of another version, malformed, or weaker than the device allows.

    ``reason`` is its class, the same word in every client: ``not-a-bundle``, ``too-large``,
    ``version``, ``damaged``, ``other-bundle``, ``malformed``, ``too-much-work``,
    ``too-costly`` or ``older``.
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class RewardIgnoredWarning(UserWarning):
    """A late, duplicate or unknown reward arrived and changed nothing."""


class PrivacyLeakWarning(UserWarning):
    """Something the guarantee does not cover depends on the data, or the noise can be repeated."""


class KernelWarning(UserWarning):
    """A kernel, basis, pool or bounds do not fit what is public: see docs/reference/glossary.md."""


class MissingExtraError(CapriError, ImportError):
    """An optional library is not installed."""


def steps_to_caller() -> int:
    """How far up the stack the line is that called this package, for ``stacklevel`` of a warning.

    Counted from whoever asks: 1 is its own line.
    """
    for steps, (frame, _) in enumerate(walk_stack(sys._getframe(1)), 1):
        if not str(frame.f_globals.get("__name__", "")).startswith("capri."):
            return steps
    return 1


def warn_of_leak(message: str) -> None:
    """Warn, at the line that called this package, of what weakens its guarantee."""
    warnings.warn(message, PrivacyLeakWarning, stacklevel=steps_to_caller())
