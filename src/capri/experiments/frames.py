"""Results as a pandas DataFrame and as Parquet: one row per cell."""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capri.checks import need
from capri.experiments.records import Record, read_results, result_folders
from capri.files import write_atomically

if TYPE_CHECKING:
    import pandas

# Columns that are copied from a record as they are.
_PLAIN = (
    "study", "cell", "simulated", "status", "error", "environment", "policy", "epsilon", "delta",
    "rounds", "seed", "regret_per_round", "uniform_regret_per_round", "ratio", "simple_regret",
    "note", "version",
)  # fmt: skip
_PROMISE = ("model", "kind", "protects", "unit")
# Null in some records, so that pandas would have to guess.
_TYPES = {
    "epsilon": "float64",
    "delta": "float64",
    "regret_per_round": "float64",
    "uniform_regret_per_round": "float64",
    "ratio": "float64",
    "simple_regret": "float64",
    "seconds": "float64",
    "peak_memory_bytes": "float64",
}


def load_results(path: str | PathLike[str]) -> "pandas.DataFrame":
    """The results of a study, or of all studies in a folder, one row per cell.

    ``docs/experiments.md`` lists the columns. Nested values (``world``, ``player``, ``epochs``,
    ``active``, ``certificate``) are JSON texts; the regret curve is two columns of lists.
    """
    need("capri.load_results", "pandas", "pyarrow")
    import pandas

    rows = [
        _row(record) for folder in result_folders(path) for record in read_results(folder).records
    ]
    columns = list(_row(_EMPTY))
    return pandas.DataFrame(rows, columns=columns).astype(_TYPES)


def to_parquet(path: str | PathLike[str], target: str | PathLike[str]) -> None:
    """Write the results of :func:`load_results` to a Parquet file."""
    write_atomically(Path(target), load_results(path).to_parquet(index=False))


def _row(record: Record) -> dict[str, Any]:
    promise = record["promise"] or {}
    curve = record["curve"] or {"round": None, "regret": None}
    measured = record["measured"]
    return (
        {name: record[name] for name in _PLAIN}
        | {"environment_name": record["world"]["name"], "policy_name": record["player"]["name"]}
        | {f"promise_{name}": promise.get(name) for name in _PROMISE}
        | {
            "seconds": measured["seconds"],
            "peak_memory_bytes": measured["peak_memory_bytes"],
            "finished": measured["finished"],
            "curve_round": curve["round"],
            "curve_regret": curve["regret"],
        }
        | {
            name: None if record[name] is None else json.dumps(record[name])
            for name in ("world", "player", "epochs", "active", "certificate")
        }
    )


_EMPTY: Record = dict.fromkeys(_PLAIN) | {
    "world": {"name": None},
    "player": {"name": None},
    "promise": None,
    "curve": None,
    "epochs": [],
    "active": None,
    "certificate": None,
    "measured": {"seconds": None, "peak_memory_bytes": None, "finished": None},
}
