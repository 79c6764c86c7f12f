"""One loader for every table: columns in, a bandit with public and private rows out."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.checks import between, one_of, positive, whole
from capri.errors import ConfigurationError, ShapeError
from capri.schema import Schema
from capri.spaces import ContextPool
from capri_lab.datasets.bandit import DataBandit
from capri_lab.datasets.encoder import fit_encoder
from capri_lab.datasets.rewards import ActionSet, LabelRule, Match
from capri_lab.datasets.tables import (
    Source,
    column_names,
    complete_rows,
    label_cells,
    numeric_cells,
    read_frame,
)
from capri_lab.streams import TABLE_SPLIT

if TYPE_CHECKING:
    import pandas
from typing import TYPE_CHECKING, Any

from capri.schema import Boolean, Categorical, Column, Numeric

FEATURES = ("one-hot", "embedding")


def load(
    source: Source,
    *,
    context: Sequence[str] | Schema,
    label: str | None = None,
    actions: Sequence[str] | None = None,
    reward: LabelRule | None = None,
    reward_bound: float | None = None,
    public_share: float | None = None,
    public: object = None,
    seed: int = 0,
    dimensions: int | None = None,
    prototypes: int | None = None,
    features: str = "one-hot",
    missing: str = "error",
    raw: bool = False,
    bernoulli: bool = False,
    name: str | None = None,
) -> DataBandit:
    """Turn a CSV, a Parquet file or a data frame into a bandit.

    Parameters
    ----------
    source:
        Path or data frame. Other columns than those named below are not read.
    context:
        Columns of numbers that describe a user; or a :class:`Schema`, whose rows the contexts then
        are: policies on the pool take records by name.
    label, reward:
        A column with the right answer, and the rule that pays for it: :class:`Match` (default) for
        classes, :class:`Closeness` for doses.
    actions, reward_bound:
        Instead of a label: one column per action with the reward it would earn. The bound is the
        largest absolute value in public rows unless given; private rewards beyond it are clipped.
    public_share, public, seed:
        Which rows are public: a share drawn by ``seed``, a mask, or the name of a column of true
        and false (1 and 0). One of them must be given. Scaling, projection, prototypes, actions
        and the pool come from public rows; users are drawn from the others.
    dimensions:
        Keep so many principal directions of the public rows: privacy noise grows with dimension.
    prototypes:
        Round contexts to so many public centres, for policies that play on a finite pool only.
    features:
        How labels look to the kernel: "one-hot" (nothing in common), or "embedding" (the mean
        public context of a class, so that classes which look alike share what is learnt).
    missing:
        "error", or "drop" to leave out rows with missing cells.
    raw:
        Leave context columns as they are: neither scaled nor projected nor rounded. For policies
        that see to that themselves.
    bernoulli:
        Columns of ``actions`` are chances of the reward 1; else it is 0.
    """
    schema = context if isinstance(context, Schema) else None
    if schema is not None or raw:
        check_no_encoder(dimensions, prototypes, raw=schema is None)
    if bernoulli and actions is None:
        raise ConfigurationError("bernoulli belongs to actions=[...]: columns of chances")
    names = context.names if isinstance(context, Schema) else context
    columns = column_names("context", names, least=1)
    if (label is None) == (actions is None):
        raise ConfigurationError("give either label or actions (one column per action), not both")
    one_of("features", features, FEATURES)
    outcomes = [label] if label is not None else column_names("actions", actions, least=2)
    split_column = [public] if isinstance(public, str) else []
    frame = read_frame(source, [*columns, *outcomes, *split_column])
    mask = public_mask(
        len(frame),
        public_share=public_share,
        public=_flags(frame[public], public) if isinstance(public, str) else public,
        seed=seed,
    )
    if label is not None:
        rule = Match() if reward is None else reward
        if not isinstance(rule, LabelRule):
            raise ConfigurationError(
                f"reward must be a rule such as Match() or Closeness(), got {type(rule).__name__}"
            )
        if reward_bound is not None:
            raise ConfigurationError("reward_bound belongs to actions=[...]: a rule has its own")
        named = not rule.numeric
        mask, rows, labels = _complete(
            frame, columns, outcomes, mask, missing, named=named, schema=schema
        )
        labels = labels if named else labels[:, 0]
        choice = rule.actions(labels[mask])
        table = rule.rewards(labels[~mask], labels[mask], choice)
        bound, kind = rule.bound, "dose" if rule.numeric else features
    else:
        if reward is not None:
            raise ConfigurationError("reward is the rule for a label: action columns hold rewards")
        mask, rows, labels = _complete(frame, columns, outcomes, mask, missing, schema=schema)
        choice = ActionSet(names=tuple(outcomes), rows=np.eye(len(outcomes)))
        bound = _column_bound(labels[mask], reward_bound)
        # A chance is a chance whatever the bound; a reward is cut, as a policy would cut it.
        table = (
            np.clip(labels[~mask], 0.0, 1.0) if bernoulli else np.clip(labels[~mask], -bound, bound)
        )
        kind = features
    # Rows of a schema, and raw ones, are contexts as they are.
    encoder: Callable[[FloatArray], FloatArray] = np.asarray
    if schema is None and not raw:
        encoder = fit_encoder(rows[mask], dimensions=dimensions, prototypes=prototypes)
    if kind == "embedding":
        if label is None:
            raise ConfigurationError("features='embedding' needs a label: classes have examples")
        choice = _embedded(choice, encoder(rows[mask]), labels[mask])
    # Contexts of the public rows, equal ones once, weighted by how many there are.
    pool, counts = np.unique(encoder(rows[mask]), axis=0, return_counts=True)
    shown = name or (Path(source).stem if isinstance(source, str | PathLike) else "data")
    return DataBandit(
        name=shown,
        pool=ContextPool(pool, weights=counts / counts.sum(), schema=schema),
        contexts=encoder(rows[~mask]),
        actions=choice.rows,
        action_names=choice.names,
        features=kind,
        means=table,
        reward_bound=bound,
        origin={
            "context_columns": len(columns),
            "outcome": label if label is not None else list(outcomes),
            "public_rows": int(mask.sum()),
            "public_share": public_share,
            "seed": seed,
            "dimensions": dimensions,
            "prototypes": prototypes,
        }
        | ({"raw": True} if raw else {}),
        bernoulli=bernoulli,
    )


def public_mask(
    count: int, *, public_share: float | None = None, public: object = None, seed: int = 0
) -> BoolArray:
    """True for public rows: given as a mask, or a share of the rows drawn at random.

    A share is rounded to whole rows and depends on the number of rows and the seed only, never on
    what the rows hold.

    >>> int(public_mask(10, public_share=0.3).sum())
    3
    """
    if (public_share is None) == (public is None):
        raise ConfigurationError(
            "say which rows are public: give either public_share, a share of the rows, or public, "
            "a column or a mask of True and False"
        )
    if public is not None:
        mask = np.array(public)
        if mask.dtype != np.bool_:
            raise ConfigurationError(
                f"public must be a mask of True and False, one per row, got {mask.dtype} values"
            )
        if mask.shape != (count,):
            raise ShapeError(f"public must have shape ({count},), one per row, got {mask.shape}")
    else:
        mask = np.zeros(count, dtype=np.bool_)
        generator = np.random.default_rng([whole("seed", seed, least=0), TABLE_SPLIT])
        share = between("public_share", public_share, 0.0, 1.0, open_ends=True)
        mask[generator.permutation(count)[: round(share * count)]] = True
    if mask.sum() < 2 or mask.all():
        raise ConfigurationError(
            f"at least 2 rows must be public and 1 private, got {int(mask.sum())} public of {count}"
        )
    return mask


def _complete(
    frame: "pandas.DataFrame",
    columns: Sequence[str],
    outcomes: Sequence[str],
    mask: BoolArray,
    missing: str,
    *,
    named: bool = False,
    schema: Schema | None = None,
) -> tuple[BoolArray, FloatArray, np.ndarray]:
    """Of complete rows: which are public, their context columns and their outcomes.

    Outcomes are numbers, or one column of names.
    """
    if schema is None:
        rows, absent, wrong = numeric_cells(frame, columns)
    else:
        rows, absent = schema_rows(frame, schema)
        wrong = np.zeros_like(absent)
    labels: np.ndarray
    if not named:
        labels, unrewarded, text = numeric_cells(frame, outcomes)
        absent, wrong = np.column_stack([absent, unrewarded]), np.column_stack([wrong, text])
    else:
        labels, unlabelled = label_cells(frame[outcomes[0]])
        absent = np.column_stack([absent, unlabelled])
        wrong = np.column_stack([wrong, np.zeros_like(unlabelled)])
    keep = complete_rows([*columns, *outcomes], absent, wrong, mask, missing)
    return mask[keep], rows[keep], labels[keep]


def _embedded(choice: ActionSet, contexts: FloatArray, labels: np.ndarray) -> ActionSet:
    """Each class as the mean of its public contexts."""
    empty = [name for name in choice.names if not (labels == name).any()]
    if empty:
        raise ConfigurationError(
            f"features='embedding' needs a public row of every class, none has {empty[0]!r}: make "
            "more rows public or use features='one-hot'"
        )
    means = [contexts[labels == name].mean(axis=0) for name in choice.names]
    return ActionSet(names=choice.names, rows=np.stack(means))


def _column_bound(public_rewards: FloatArray, bound: float | None) -> float:
    if bound is not None:
        return positive("reward_bound", bound)
    largest = float(np.abs(public_rewards).max())
    if largest == 0.0:
        raise ConfigurationError(
            "all rewards of public rows are 0: state the bound with reward_bound"
        )
    return largest


def _flags(column: object, name: str) -> BoolArray:
    """The column that says which rows are public: this much of every row is known to all."""
    words = {"true": True, "1": True, "false": False, "0": False}
    names, _ = label_cells(column)
    flags = [words.get(str(each).lower()) for each in names]
    if None in flags:
        raise ConfigurationError(
            f"column {name!r} must hold true and false (or 1 and 0) in every row: it says which "
            "rows are public"
        )
    return np.array(flags, dtype=np.bool_)


_WORDS = {"true": True, "1": True, "false": False, "0": False}


def schema_rows(frame: "pandas.DataFrame", schema: Schema) -> tuple[FloatArray, BoolArray]:
    """Rows of numbers, and for each column where a cell is missing that should be there.

    What users send is never refused; of a table that somebody prepared, a gap in a column whose
    schema expects none is worth a word.
    """
    rows = schema.rows({column.name: _cells(frame, column) for column in schema.columns})
    gaps = [np.isnan(rows[:, schema.places(name)]).any(axis=1) for name in schema.names]
    return rows, np.stack(gaps, axis=1)


def check_no_encoder(dimensions: int | None, prototypes: int | None, *, raw: bool = False) -> None:
    """A schema says what contexts are, and raw ones stay: nothing is left to project or round."""
    if dimensions is None and prototypes is None:
        return
    if raw:
        raise ConfigurationError(
            "dimensions and prototypes change columns, and raw=True leaves them as they are: give "
            "one or the other"
        )
    raise ConfigurationError(
        "dimensions and prototypes belong to columns of numbers: with a schema as context, "
        "records become rows by the schema alone"
    )


def _cells(frame: "pandas.DataFrame", column: Column) -> Any:
    """The cells of a column as their kind has them; None for a missing one."""
    if isinstance(column, Numeric) or _coded_by_numbers(column):
        return numeric_cells(frame, [column.name])[0][:, 0]
    texts, absent = label_cells(frame[column.name])
    known = zip(texts.tolist(), absent.tolist(), strict=True)
    if isinstance(column, Boolean):
        return [None if gone else _WORDS.get(text.lower()) for text, gone in known]
    return [None if gone else text for text, gone in known]


def _coded_by_numbers(column: Column) -> bool:
    if not isinstance(column, Categorical):
        return False
    kinds = {isinstance(level, int) for level in column.levels}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"column {column.name!r}: levels of a table must be texts or whole numbers, not both"
        )
    return kinds.pop()
