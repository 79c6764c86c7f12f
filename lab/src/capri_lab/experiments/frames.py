"""Results as a pandas DataFrame and as Parquet: one row per cell."""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capri.checks import need
from capri.files import write_atomically
from capri_lab.experiments.records import Record, read_results, result_folders

if TYPE_CHECKING:
    import pandas

# Columns that a record has, those inside its tables, and its tables as JSON.
_PLAIN = (
    "study", "cell", "simulated", "status", "error", "environment", "policy", "epsilon", "delta",
    "rounds", "seed", "regret_per_round", "uniform_regret_per_round", "ratio", "simple_regret",
    "note", "version",
)  # fmt: skip
_INSIDE = (
    {"environment_name": ("world", "name"), "policy_name": ("player", "name")}
    | {f"promise_{name}": ("promise", name) for name in ("model", "kind", "protects", "unit")}
    | {name: ("measured", name) for name in ("seconds", "peak_memory_bytes", "finished")}
    | {f"curve_{name}": ("curve", name) for name in ("round", "regret")}
)
_NESTED = ("world", "player", "epochs", "active", "certificate")
# Null in some records, so that pandas would have to guess.
_NUMBERS = (
    "epsilon", "delta", "regret_per_round", "uniform_regret_per_round", "ratio", "simple_regret",
    "seconds", "peak_memory_bytes",
)  # fmt: skip


def load_results(path: str | PathLike[str]) -> "pandas.DataFrame":
    """The results of a study, or of all studies in a folder, one row per cell.

    ``docs/experiments.md`` lists the columns. Nested values (``world``, ``player``, ``epochs``,
    ``active``, ``certificate``) are JSON texts; the regret curve is two columns of lists.
    """
    need("load_results", "pandas", "pyarrow", extra="capri-lab[studies]")
    import pandas

    rows = [
        _row(record) for folder in result_folders(path) for record in read_results(folder).records
    ]
    frame = pandas.DataFrame(rows, columns=[*_PLAIN, *_INSIDE, *_NESTED])
    return frame.astype(dict.fromkeys(_NUMBERS, "float64"))


def to_parquet(path: str | PathLike[str], target: str | PathLike[str]) -> None:
    """Write the results of :func:`load_results` to a Parquet file."""
    write_atomically(Path(target), load_results(path).to_parquet(index=False))


def _row(record: Record) -> dict[str, Any]:
    return (
        {name: record[name] for name in _PLAIN}
        | {name: (record[table] or {}).get(key) for name, (table, key) in _INSIDE.items()}
        | {name: None if record[name] is None else json.dumps(record[name]) for name in _NESTED}
    )
