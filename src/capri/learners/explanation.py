"""What a policy believes, in words and numbers: all of it from public things."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from capri.files import html_table, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class KernelShare:
    """A candidate kernel: which ``effect`` it is for, and its share of the expected ``E f^2``.

    ``context`` and ``action`` name it on each side, None for the constant. ``expected``: its share
    before any release.
    """

    name: str
    effect: str
    context: str | None
    action: str | None
    share: float
    expected: float


@dataclass(frozen=True, kw_only=True)
class EffectShare:
    """A kind of effect: its share of ``E f^2`` before any release, by evidence, in the estimate.

    Of a known kernel the evidence chooses no shares. ``estimate`` is None where the estimate is 0.
    """

    name: str
    expected: float
    share: float
    estimate: float | None


@dataclass(frozen=True, kw_only=True)
class SmoothnessShare:
    """A shape along one ``side``, contexts or actions: its share of all effects of that side."""

    side: str
    name: str
    expected: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ColumnEffect:
    """How much a column matters.

    ``effect``: root-mean-square change of the estimate when the column alone is exchanged between
    public rows, over the root of 2. ``standard_error``: of these changes, under the belief.
    ``lengthscale``: over so much of its own units the column changes ``f`` by about that.
    """

    name: str
    effect: float
    standard_error: float
    lengthscale: float | None

    @property
    def clear(self) -> bool:
        """Whether the effect is beyond what is unknown of it."""
        return self.effect > 2 * self.standard_error


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """What a policy believes; ``print(explanation)`` shows it on one screen.

    ``resolved``: the share of the prior variance that the releases have resolved.
    ``effective_dimension``: ``tr(J P)``, of ``rank``. ``noise``: deviation of rewards about ``f``;
    ``noise_measured`` says whether a release told it. ``crowd``: how many people the releases stand
    for, infinity where everybody counts as new. ``changes`` and ``forgot``: how often the function
    was new, and how often since the last time only a part of what was learnt still counted.
    """

    kernel: str
    releases: int
    rank: int
    effective_dimension: float
    resolved: float
    noise: float
    noise_measured: bool
    crowd: float
    effects: tuple[EffectShare, ...]
    kernels: tuple[KernelShare, ...]
    smoothness: tuple[SmoothnessShare, ...]
    columns: tuple[ColumnEffect, ...]
    changes: int = 0
    forgot: int = 0

    @property
    def informed(self) -> bool:
        """Whether releases, or what was known beforehand, tell anything of ``f``."""
        return self.releases > 0 or self.resolved > 0.005  # less is shown as 0 %

    @property
    def headline(self) -> str:
        """In one sentence, what is known."""
        if not self.informed:
            return "No release yet: nothing is known of f. This is what is expected of it."
        times = "1 release" if self.releases == 1 else f"{self.releases} releases"
        since = f"After {times}" if self.releases else "By what was known beforehand"
        told = f"{since}, {self.resolved:.0%} of what was unknown of f is resolved."
        clear = sum(each.clear for each in self.columns)  # the level alone may be most of f
        return f"{told} Clear effects: {clear} of {len(self.columns)} columns."

    @property
    def facts(self) -> tuple[str, ...]:
        """A few sentences on kernel, dimension, noise and people."""
        noise = "measured" if self.noise_measured else "assumed"
        told = [
            f"Kernel: {self.kernel}.",
            f"Effective dimension {self.effective_dimension:.1f} of {self.rank}; "
            f"rewards scatter by {self.noise:.2g} about f ({noise}).",
        ]
        if self.releases:
            told.append(
                "Releases read as if everybody were new."
                if self.crowd == inf
                else f"Releases read as if {self.crowd:,.0f} people took turns: more rounds alone "
                "teach no more than they can."
            )
        if self.changes or self.forgot:
            told.append(
                f"The function has changed: {self.changes} times everything learnt was dropped, "
                f"and since the last {self.forgot} times a part of it."
            )
        return tuple(told)

    @property
    def largest_columns(self) -> tuple[ColumnEffect, ...]:
        """Columns by how much they matter, the largest first."""
        if not self.informed:  # the estimate is 0, so what is expected speaks
            return tuple(sorted(self.columns, key=lambda each: -each.standard_error))
        return tuple(sorted(self.columns, key=lambda each: -each.effect))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None as ``crowd`` where everybody counts as new."""
        values = asdict(self)
        for name in ("effects", "kernels", "smoothness", "columns"):
            values[name] = [*values[name]]
        return values | {"crowd": self.crowd if isfinite(self.crowd) else None}

    def plot(self) -> "Figure":
        """A picture of the shares and of the columns; ``.savefig(path)`` writes it."""
        from capri.plots import explanation_figure

        return explanation_figure(self)

    def _tables(self) -> list[tuple[str, Sequence[dict[str, Any]]]]:
        """What is shown, each table under its title."""
        weighed = self.releases > 0 and len(self.kernels) > 0
        effects = [
            {
                "effect": each.name,
                "expected": _percent(each.expected),
                "by evidence": _percent(each.share) if weighed else None,
                "estimate": None if each.estimate is None else _percent(each.estimate),
            }
            for each in self.effects
        ]
        smoothness = [
            {
                "side": each.side,
                "shape": each.name,
                "expected": _percent(each.expected),
                "by evidence": _percent(each.share) if weighed else None,
            }
            for each in self.smoothness
        ]
        columns = [
            {
                "column": each.name,
                "effect": each.effect if self.informed else None,
                "+-": each.standard_error,
                "lengthscale": each.lengthscale,
                "": ("" if each.clear else "not clear yet") if self.informed else None,
            }
            for each in self.largest_columns[:_SHOWN]
        ]
        left = len(self.columns) - len(columns)
        more = f", the first {len(columns)} of {len(self.columns)}" if left else ""
        return [
            ("Share of the mean square of f, by kind of effect", effects),
            ("From linear and smooth to rough", smoothness),
            (f"What matters: change of f when a column alone is exchanged{more}", columns),
        ]

    def __str__(self) -> str:
        parts = ["\n".join((self.headline, *self.facts))]
        parts += [f"{title}\n{text_table(rows)}" for title, rows in self._tables() if rows]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from html import escape

        parts = [f"<p><b>{escape(self.headline)}</b></p>"]
        parts += [f"<p>{escape(fact)}</p>" for fact in self.facts]
        parts += [
            f"<p>{escape(title)}</p>{html_table(rows)}" for title, rows in self._tables() if rows
        ]
        return "".join(parts)


def _percent(share: float) -> str:
    return f"{share:.0%}"
