"""The numbers of a report as a table: CSV for a spreadsheet, LaTeX for a paper."""

import csv
from io import StringIO

from capri_lab.report.summary import Mean, Series, Summary

_HEADER = ("problem", "rounds", "promise", "policy", "epsilon", "delta", "ratio", "ratio_error",
           "regret_per_round", "regret_error", "simple_regret", "seconds", "seeds")  # fmt: skip
# What LaTeX would read as its own.
_ESCAPES = {each: f"\\{each}" for each in "&%$#_{}"}
_ESCAPES |= {"~": r"\textasciitilde{}", "\\": r"\textbackslash{}"}


def to_csv(summary: Summary) -> str:
    """One row for each problem, horizon, policy and budget, with every digit."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for each in summary.series:
        player, ratio = summary.players[each.player], each.ratio
        writer.writerow(
            [
                each.environment,
                each.rounds,
                player.promise["label"],
                player.policy,
                each.epsilon,
                each.delta,
                *_pair(ratio),
                *(value if value is None else value / each.rounds for value in _pair(each.regret)),
                _pair(each.simple_regret)[0],
                _pair(each.seconds)[0],
                len(each.finals),
            ]
        )
    return text.getvalue()


def _pair(mean: Mean | None) -> tuple[float | None, float | None]:
    return (None, None) if mean is None else (mean.mean, mean.standard_error)


def to_latex(summary: Summary) -> str:
    """Regret over that of uniform play, for the package booktabs; rows of one promise together."""
    lines = [
        r"\begin{tabular}{llrllr}",
        r"\toprule",
        r"problem & promise & $T$ & policy & $\varepsilon$ & regret / uniform \\",
        r"\midrule",
    ]

    def place(each: Series) -> tuple[object, ...]:
        promise = summary.players[each.player].promise["label"]
        return each.environment, each.rounds, promise, each.budget

    ordered = sorted(summary.series, key=place)
    lines += [_latex_row(summary, each) for each in ordered if each.ratio is not None]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(summary: Summary, series: Series) -> str:
    player = summary.players[series.player]
    mean, error = _pair(series.ratio)
    spread = "" if error is None else f" \\pm {error:.3f}"
    cells = (
        _escaped(series.environment),
        _escaped(player.promise["label"]),
        f"{series.rounds:,}".replace(",", r"\,"),
        _escaped(player.policy),
        "" if series.epsilon is None else f"${series.epsilon:g}$",
        f"${mean:.3f}{spread}$",
    )
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    """A text that LaTeX prints as it is.

    >>> _escaped("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(_ESCAPES.get(each, each) for each in text)
