"""Everyone on the same problems: CAPRI and its rivals, side by side with what each promises."""

from capri.arena.contest import Entry, Result, contest, entries
from capri.arena.experiments import EXPERIMENT_NAMES, experiment
from capri.arena.problems import PROBLEM_NAMES, ArenaProblem, problem_by_name
from capri.arena.table import to_markdown

__all__ = [
    "EXPERIMENT_NAMES",
    "PROBLEM_NAMES",
    "ArenaProblem",
    "Entry",
    "Result",
    "contest",
    "entries",
    "experiment",
    "problem_by_name",
    "to_markdown",
]
