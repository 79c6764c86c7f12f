"""Studies: declared in one file, run on all cores or a cluster, interrupted and resumed."""

from capri.experiments.backends import Here
from capri.experiments.cells import Cell
from capri.experiments.pool import Pool
from capri.experiments.records import Results, read_results, result_folders
from capri.experiments.runner import Summary, Watcher, run_study
from capri.experiments.study import (
    Study,
    load_study,
    shipped_studies,
    study_from_dict,
    study_from_text,
)

__all__ = [
    "Cell",
    "Here",
    "Pool",
    "Results",
    "Study",
    "Summary",
    "Watcher",
    "load_study",
    "read_results",
    "result_folders",
    "run_study",
    "shipped_studies",
    "study_from_dict",
    "study_from_text",
]
