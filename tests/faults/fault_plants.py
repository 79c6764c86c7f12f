"""Defects that are built into workers, to see that each is found."""

from collections.abc import Callable
from typing import Any


class _Undone(Exception):  # noqa: N818 - not an error
    pass


def forget_decisions() -> None:
    """Now and then a decision is answered and not committed."""
    from capri.joint.desk import Desk

    honest, calls = Desk.decide, [0]

    def decide(desk: Desk, visits: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3:
            return honest(desk, visits)
        kept, made = desk._decide, []

        def undone(*arguments: Any) -> Any:
            made.append(kept(*arguments))
            raise _Undone

        desk._decide = undone  # type: ignore[method-assign]
        try:
            return honest(desk, visits)
        except _Undone:
            return made[-1][:2]
        finally:
            del desk._decide

    Desk.decide = decide  # type: ignore[method-assign]


def forget_changes() -> None:
    """Changes of operators are acknowledged and not made."""
    from capri.joint.changes import Changes

    Changes.set_mode = lambda changes, mode: None  # type: ignore[method-assign]


def double_changes() -> None:
    """Changes of operators are made twice."""
    from capri.joint.changes import Changes

    honest = Changes.replace_actions

    def twice(changes: Changes, renewed: Any) -> None:
        honest(changes, renewed)
        honest(changes, renewed)

    Changes.replace_actions = twice  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "forgetful": forget_decisions,
    "change lost": forget_changes,
    "change twice": double_changes,
}
