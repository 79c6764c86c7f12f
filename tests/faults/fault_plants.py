"""Defects that are built into workers, to see that each is found."""

from collections.abc import Callable
from typing import Any


class _Undone(Exception):  # noqa: N818 - not an error
    pass


def forget_decisions() -> None:
    """Now and then a decision is answered and not committed."""
    from capri.joint.decisions import Decider

    honest, calls = Decider.decide, [0]

    def decide(decider: Decider, visits: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3:
            return honest(decider, visits)
        kept, made = decider._decide, []

        def undone(*arguments: Any) -> Any:
            made.append(kept(*arguments))
            raise _Undone

        decider._decide = undone  # type: ignore[method-assign]
        try:
            return honest(decider, visits)
        except _Undone:
            return made[-1][:2]
        finally:
            del decider._decide

    Decider.decide = decide  # type: ignore[method-assign]


def forget_changes() -> None:
    """Changes of operators are acknowledged and not made."""
    from capri.joint.engine import Engine

    Engine.set_mode = lambda engine, mode, noted: None  # type: ignore[assignment, method-assign]


def double_changes() -> None:
    """Changes of operators are made twice."""
    from capri.joint.engine import Engine

    honest = Engine.change

    def twice(engine: Engine, *change: Any) -> None:
        honest(engine, *change)
        honest(engine, *change)

    Engine.change = twice  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "forgetful": forget_decisions,
    "change lost": forget_changes,
    "change twice": double_changes,
}
