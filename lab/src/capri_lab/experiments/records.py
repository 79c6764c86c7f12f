"""Results on disk: one line of JSON per finished cell, appended whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from capri.checks import need
from capri.errors import StorageError
from capri.files import write_atomically
from capri.version import VERSION
from capri_lab.experiments.study import Study, study_from_text

if TYPE_CHECKING:
    import pandas

FORMAT = 2
RECORDS, STUDY, ABOUT = "records.jsonl", "study.toml", "about.json"
_OWN = {"format": FORMAT, "capri": VERSION}

Record = dict[str, Any]


@final
class Records:
    """The record of a study, open for appending. One process at a time may have it open.

    A crash can only cut the last line short; opening removes such a rest, so its cell is played
    again. Whatever else was written stays.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        self._path = folder / RECORDS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as problem:
            raise StorageError(f"cannot write to {folder}: {problem.strerror}") from None
        try:
            _lock(self._file, folder)
            if os.fstat(self._file).st_size > 0 or (folder / ABOUT).exists():
                _check_version(folder, *_OWN)
            self._index, end = _index(self._path)
            self._cut(end)
            _write_changed(folder / ABOUT, json.dumps(_OWN))
            _write_changed(folder / STUDY, study.archive)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def status(self, cell: str) -> str | None:
        """ "done" or "failed" for a cell that was played, None for one that was not."""
        found = self._index.get(cell)
        return None if found is None else found.status

    def append(self, record: Record) -> None:
        """Add a line and wait until it is on the disk. If there is no room, nothing is added."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as problem:
            self._cut(size)
            raise StorageError(
                f"cannot write to {self._path}: {problem.strerror}. All cells before this one are "
                "recorded: make room and run the same command again"
            ) from None
        self._index[record["cell"]] = Place(size, record["status"])

    def _cut(self, size: int) -> None:
        with suppress(OSError):  # not a file that can be cut; opening it again repairs it
            os.ftruncate(self._file, size)


class Place(NamedTuple):
    """Where the line of a cell starts, and whether it was "done" or "failed"."""

    offset: int
    status: str


def _index(path: Path) -> tuple[dict[str, Place], int]:
    """The last line of every cell, and where the last whole line ends.

    Holds no records: memory stays small.
    """
    found: dict[str, Place] = {}
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break  # cut short: the cell counts as not played
            try:
                record = json.loads(line)
                found[record["cell"]] = Place(offset, record["status"])
            except (ValueError, KeyError, TypeError):
                raise StorageError(
                    f"{path}, line {number} is damaged: delete that line, and its cell is played "
                    "again"
                ) from None
            offset += len(line)
    return found, offset


@final
@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a study, as far as it was run."""

    study: Study
    folder: Path
    places: dict[str, Place]

    @property
    def records(self) -> Iterator[Record]:
        """Records of the study's cells, in its order, under its present labels."""
        with (self.folder / RECORDS).open("rb") as file:
            for cell in self.study.cells():
                place = self.places.get(cell.hash)
                if place is None:
                    continue
                file.seek(place.offset)
                labels = {name: getattr(cell, name) for name in ("study", "environment", "policy")}
                yield json.loads(file.readline()) | labels

    @property
    def missing(self) -> int:
        """Cells that were not played yet."""
        return sum(cell.hash not in self.places for cell in self.study.cells())


def read_results(path: str | PathLike[str]) -> Results:
    """The results in the folder of a study. Only reads; a run may be under way."""
    folder = Path(path)
    if not (folder / STUDY).is_file() or not (folder / RECORDS).is_file():
        raise StorageError(f"{folder} holds no results: {STUDY} and {RECORDS} are expected there")
    _check_version(folder, "format")
    text = (folder / STUDY).read_text(encoding="utf-8")
    study = study_from_text(text, name=str(folder / STUDY), thorough=False)
    return Results(study=study, folder=folder, places=_index(folder / RECORDS)[0])


def result_folders(path: str | PathLike[str]) -> list[Path]:
    """The folder itself if it is one of a study, else those right below it."""
    folder = Path(path)
    if (folder / RECORDS).is_file():
        return [folder]
    found = sorted(each.parent for each in folder.glob(f"*/{RECORDS}"))
    if not found:
        raise StorageError(f"{folder} holds no results, and no folder of results")
    return found


def _check_version(folder: Path, *keys: str) -> None:
    """Results of two versions are not mixed: a comparison would compare the versions as well."""
    about: Any = None
    with suppress(OSError, ValueError):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if not isinstance(about, dict):
        about = {}
    if any(about.get(key) != _OWN[key] for key in keys):
        raise StorageError(
            f"{folder} was written by capri {about.get('capri', 'of an unknown version')} in "
            f"format {about.get('format', 'unknown')}; this is capri {VERSION}, format {FORMAT}. "
            "Nothing was changed there: choose another folder with --output, or use that version"
        )


def _write_changed(path: Path, text: str) -> None:
    """Write a file that is complete or not there; unchanged ones are left alone."""
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


def _lock(file: int, folder: Path) -> None:
    """Refuse a folder that another run writes to. The lock goes with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # not on this platform: two runs at once are up to the user
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise StorageError(
            f"another run is writing to {folder}: wait for it, or choose another --output"
        ) from None


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

    ``docs/howto/evaluate.md`` lists the columns. Nested values (``world``, ``player``,
    ``epochs``, ``active``, ``certificate``) are JSON texts; the regret curve is two columns
    of lists.
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
