"""How many rewards of one decision go on to what others share: a lane, a transaction, a rate.

Whether, when and how often a reward comes is private. One that comes a thousand times must not make
others wait, so after the first few it is answered here, at once, to whoever sent it.
"""

from collections.abc import Iterable, Sequence

_KEPT = 100_000  # ids that are surely remembered


class Tally:
    """Counts rewards by the id that they came with.

    Of the ids, the newest are kept: a flood for one decision forgets none of its own.

    >>> tally = Tally(2)
    >>> tally.takes(["a", "a", "a", "b"])
    [True, True, False, True]
    >>> tally.refund(["a"])
    >>> tally.takes(["a", "a"])
    [True, False]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: dict[str, int] = {}
        self._older: dict[str, int] = {}

    def takes(self, decisions: Sequence[str]) -> list[bool]:
        """Whether one more goes on, of each."""
        if len(self._newest) >= _KEPT:
            self._older, self._newest = self._newest, {}
        newest, older, most = self._newest, self._older, self._most
        first = dict.fromkeys(decisions, 1)
        if len(first) == len(decisions) and not (newest.keys() & first or older.keys() & first):
            newest.update(first)  # nearly always
            return [True] * len(decisions)
        found = []
        for decision in decisions:
            count = newest.get(decision)
            if count is None:
                count = older.get(decision, 0)
            newest[decision] = min(count + 1, most)
            found.append(count < most)
        return found

    def refund(self, decisions: Iterable[str]) -> None:
        """Some did not arrive: they may be sent again."""
        for decision in decisions:
            self._newest[decision] = max(0, self._newest.get(decision, 0) - 1)
