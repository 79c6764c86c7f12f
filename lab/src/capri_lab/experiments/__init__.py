"""Studies: declared in one file, run on all cores or a cluster, interrupted and resumed."""

from capri_lab.experiments.backends import Here, Pool
from capri_lab.experiments.cells import Cell
from capri_lab.experiments.records import Results, load_results, read_results, result_folders
from capri_lab.experiments.runner import Summary, Watcher, run_study
from capri_lab.experiments.study import (
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
    "load_results",
    "load_study",
    "read_results",
    "result_folders",
    "run_study",
    "shipped_studies",
    "study_from_dict",
    "study_from_text",
]
