"""Actions and contexts: who may be asked for, and the public law of who comes.

A *pair* is one row ``w = (c, x)``: a context followed by an action (paper, Section 2). Nothing here
enumerates all pairs; callers walk through contexts in chunks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from capri.arrays import BoolArray, FloatArray, IntArray
from capri.cells import is_table, visit_rows
from capri.checks import whole
from capri.errors import ConfigurationError, DataError, ShapeError
from capri.schema import Schema, checked_ranges, columns_of, even_shares, within

ContextFunction = Callable[[np.random.Generator, int], FloatArray]

# Beyond this, squared distances overflow; no sensible feature is that large.
LARGEST_CONTEXT = 1e100

# Pairs handled at once when a computation walks over contexts: bounds temporary memory.
CHUNK_PAIRS = 1 << 14


def as_rows(values: object, name: str, dimension: int | None = None) -> FloatArray:
    """Return public feature rows as a finite float matrix, or say what is wrong with them.

    >>> as_rows([0.0, 0.5], "actions").shape
    (2, 1)
    """
    try:
        rows = np.array(values)
    except (TypeError, ValueError):
        rows = np.array(None)
    if rows.dtype.kind not in "biuf":
        raise ShapeError(f"{name} must be a matrix of numbers, one row each")
    rows = rows.astype(np.float64)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0:
        raise ShapeError(
            f"{name} must be a matrix with at least one row and one column, got shape {rows.shape}"
        )
    if dimension is not None and rows.shape[1] != dimension:
        raise ShapeError(f"{name} must have {dimension} columns, got {rows.shape[1]}")
    if not np.isfinite(rows).all():
        raise ConfigurationError(f"{name} must be finite numbers, got NaN or infinity")
    rows += 0.0  # -0.0 becomes 0.0, so that equal rows have equal bytes
    rows.flags.writeable = False
    return rows


def check_schema(schema: object) -> None:
    """Refuse what is no schema."""
    if schema is not None and not isinstance(schema, Schema):
        raise ConfigurationError(f"schema must be a capri.Schema, got {type(schema).__name__}")


def named_rows(values: object, name: str, schema: Schema | None) -> FloatArray:
    """Public rows, numbers or a table with the columns of a schema, as a finite matrix."""
    check_schema(schema)
    if schema is None:
        if is_table(values):
            raise ConfigurationError(
                f"{name} with named columns need a schema: declare one, or infer it from these "
                "public rows by capri.Schema.from_frame(rows)"
            )
        return as_rows(values, name)
    rows = schema.rows(values)
    if np.isnan(rows).any():
        column = schema.features[int(np.isnan(rows).any(axis=0).argmax())]
        raise ConfigurationError(
            f"{name}: column {column!r} has a missing value, and its schema expects none: "
            "declare it with missing='own', or with a value that stands for it"
        )
    return as_rows(rows, name, schema.dimension)


def as_visits(
    values: object, dimension: int, *, schema: Schema | None = None, single: bool = False
) -> tuple[FloatArray, BoolArray | None]:
    """Contexts of users, and which of them are sensible; None if all are.

    With a ``schema`` they are records; what comes as numbers is left as it is. A value never
    refuses a visit: rows that are not numbers, or beyond any sensible size, become zeros and are
    marked.
    """
    if schema is not None:
        values = schema.encoded(values, single=single)
    rows = visit_rows(values, dimension, single=single)
    sensible = np.abs(rows) <= LARGEST_CONTEXT
    valid = None if sensible.all() else np.asarray(sensible.all(axis=1))
    if valid is not None:
        rows[~valid] = 0.0
    rows += 0.0  # -0.0 becomes 0.0, so that equal rows have equal bytes
    return rows, valid


def as_contexts(values: object, dimension: int, schema: Schema | None = None) -> FloatArray:
    """Contexts that somebody asks about, all of them sensible numbers."""
    rows, valid = as_visits(values, dimension, schema=schema)
    if valid is not None:
        raise DataError(f"a context must be finite and within +-{LARGEST_CONTEXT:g}")
    return rows


class Contexts(ABC):
    """The public law of the contexts (kappa in the paper, Assumption 2.4).

    With a ``schema``, contexts are records with named columns; without, rows of numbers.
    """

    dimension: int
    schema: Schema | None = None

    @abstractmethod
    def draw(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
        """Draw ``count`` contexts: distinct rows, and for each draw the row it is."""

    @abstractmethod
    def support(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, FloatArray]:
        """Rows and weights that stand for the law: exact for a pool, a sample for a sampler."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of distinct contexts, or None when they cannot be counted."""


@dataclass(frozen=True, eq=False)
class ContextPool(Contexts):
    """Finitely many public contexts, with optional weights: the public law of who comes.

    **Weights are a law**, not a wish: a row of weight 0.02 stands for 2 % of the users, and rows
    without weights for equally many each. Privacy never depends on it; plans and estimates do. In
    the joint model the practical preset learns how far those who come are from it, and goes on with
    that. Rows must be public: an old study's, or made up by :meth:`from_ranges`.

    >>> pool = ContextPool([[0.0], [1.0]], weights=[0.25, 0.75])
    >>> pool.weights
    array([0.25, 0.75])
    >>> pool.locate(np.array([[1.0], [0.5]]))
    array([ 1, -1])

    With a schema the contexts are a table with named columns:

    >>> from capri.schema import Numeric
    >>> ContextPool([{"age": 20}, {"age": 70}], schema=Schema([Numeric("age", 0, 100)])).rows
    array([[0.2],
           [0.7]])
    """

    rows: FloatArray
    weights: FloatArray = None  # type: ignore[assignment]
    schema: Schema | None = None
    ranges: FloatArray | None = None  # a low and a high of each number, where rows were made up
    dimension: int = field(init=False)
    _place: dict[bytes, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = named_rows(self.rows, "contexts", self.schema)
        weights = self._normalised(self.weights, len(rows))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "dimension", rows.shape[1])
        ranges = None if self.ranges is None else as_rows(self.ranges, "ranges", 2)
        object.__setattr__(self, "ranges", ranges)
        # Backwards, so that of equal rows the first is found.
        place = {key: number for number, key in reversed([*enumerate(_row_bytes(rows))])}
        object.__setattr__(self, "_place", place)

    @classmethod
    def from_ranges(cls, ranges: object, size: int = 256) -> "ContextPool":
        """Made-up rows that fill public ranges evenly, for those who have no public rows.

        ``ranges``: a (low, high) for each column, or a :class:`~capri.Schema`, whose levels take
        turns; where a missing cell is a value of its own, a tenth of them is missing. The same rows
        for everybody. As a law it is where learning begins.

        >>> ContextPool.from_ranges([(0, 1), (18, 98)], size=3).rows.round(2).tolist()
        [[0.25, 23.59], [0.01, 69.17], [0.76, 34.76]]
        """
        known = checked_ranges(ranges)
        rows = within(known, even_shares(whole("size", size), columns_of(known)))
        if isinstance(known, Schema):
            return cls(rows, schema=known, ranges=np.tile([0.0, 1.0], (known.dimension, 1)))
        return cls(rows, ranges=np.array(known))

    @staticmethod
    def _normalised(weights: object, count: int) -> FloatArray:
        """Weights as probabilities: non-negative, one per row, summing to 1."""
        if weights is None:
            weights = np.full(count, 1.0 / count)
        try:
            array = np.array(weights, dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigurationError("weights must be numbers, one per context") from None
        if array.shape != (count,):
            raise ShapeError(f"weights must have shape ({count},), got {array.shape}")
        total = float(array.sum())
        if not (np.isfinite(array).all() and (array >= 0).all() and abs(total - 1.0) < 1e-6):
            raise ConfigurationError(
                f"weights must be finite, non-negative and sum to 1, got sum {total}"
            )
        if abs(total - 1.0) > 1e-12:  # else a saved pool would change its last bits when loaded
            array /= total
        array.flags.writeable = False
        return array

    @property
    def size(self) -> int:
        """Number of contexts in the pool."""
        return len(self.rows)

    def draw(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
        """Draw contexts by weight; the rows are the whole pool."""
        index = generator.choice(len(self.rows), size=count, p=self.weights)
        return self.rows, index.astype(np.int64)

    def support(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, FloatArray]:
        """All contexts of positive weight."""
        positive = self.weights > 0
        return self.rows[positive], self.weights[positive]

    def locate(self, rows: FloatArray) -> IntArray:
        """Position of each row in the pool, -1 for a context the pool does not hold."""
        keys = _row_bytes(rows + 0.0)  # -0.0 and 0.0 are the same context
        return np.array([self._place.get(key, -1) for key in keys], dtype=np.int64)


def _row_bytes(rows: FloatArray) -> list[bytes]:
    """The bytes of each row: equal for equal rows, as none holds NaN or -0.0."""
    content, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    return [content[start : start + width] for start in range(0, len(content), width)]


@dataclass(frozen=True)
class ContextSampler(Contexts):
    """A public generator of contexts: ``sample(generator, count)`` gives ``(count, dimension)``.

    With a schema it may give a table of ``count`` rows instead, and needs no dimension.

    >>> sampler = ContextSampler(lambda generator, count: generator.random((count, 3)), 3)
    >>> sampler.draw(np.random.default_rng(0), 5)[0].shape
    (5, 3)
    """

    sample: ContextFunction
    dimension: int = None  # type: ignore[assignment]
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if not callable(self.sample):
            raise ConfigurationError("sample must be a function (generator, count) -> rows")
        check_schema(self.schema)
        if self.schema is not None and self.dimension is None:
            object.__setattr__(self, "dimension", self.schema.dimension)
        whole("dimension", self.dimension)
        if self.schema is not None and self.dimension != self.schema.dimension:
            raise ShapeError(
                f"rows of this schema have {self.schema.dimension} numbers, "
                f"got dimension {self.dimension}: leave it out"
            )

    @classmethod
    def from_ranges(cls, ranges: object) -> "ContextSampler":
        """Contexts drawn evenly from public ranges: as :meth:`ContextPool.from_ranges`, unlisted.

        >>> sampler = ContextSampler.from_ranges([(0, 1), (18, 98)])
        >>> sampler.draw(np.random.default_rng(0), 5)[0].shape
        (5, 2)
        """
        known = checked_ranges(ranges)
        columns = columns_of(known)

        def sample(generator: np.random.Generator, count: int) -> FloatArray:
            return within(known, generator.random((count, columns)))  # type: ignore[no-any-return]

        if isinstance(known, Schema):
            return cls(sample, schema=known)
        return cls(sample, columns)

    @property
    def size(self) -> None:
        """A sampler's contexts cannot be counted."""
        return None

    def draw(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
        """Draw fresh contexts, one row each."""
        sampled: object = self.sample(generator, count)
        if self.schema is not None:
            sampled = self.schema.encoded(sampled)
        rows = as_rows(sampled, "sampled contexts", self.dimension)
        if len(rows) != count:
            raise ShapeError(f"the context sampler gave {len(rows)} rows, {count} were asked for")
        return rows, np.arange(count)

    def support(self, generator: np.random.Generator, count: int) -> tuple[FloatArray, FloatArray]:
        """An equally weighted sample of ``count`` contexts."""
        rows, _ = self.draw(generator, count)
        return rows, np.full(count, 1.0 / count)


class Actions(ABC):
    """What may be done in a context: ``count`` actions of ``dimension`` features each.

    ``names`` are what people call them, where they have names.
    """

    count: int
    dimension: int
    names: tuple[str, ...] | None = None

    def pair_dimension(self, context_dimension: int) -> int:
        """Numbers of a pair, for contexts of so many numbers."""
        return context_dimension + self.dimension

    @abstractmethod
    def parts(self, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Context features ``(n, d)`` and the action rows of each, ``(n, count, dimension)``."""

    def own(self, contexts: FloatArray) -> FloatArray:
        """Context features alone."""
        return self.parts(contexts)[0]

    def pairs(self, contexts: FloatArray) -> FloatArray:
        """All pairs of each context: ``(n, count, context dimension + action dimension)``."""
        own, rows = self.parts(contexts)
        n, d = own.shape
        pairs = np.empty((n, self.count, d + self.dimension))
        pairs[:, :, :d] = own[:, None, :]
        pairs[:, :, d:] = rows
        return pairs

    def chosen(self, contexts: FloatArray, action_index: IntArray) -> FloatArray:
        """The pairs that were played, one per context."""
        own, _ = self.parts(contexts)
        return np.concatenate([own, self.features_of(contexts, action_index)], axis=1)

    def features_of(self, contexts: FloatArray, action_index: IntArray) -> FloatArray:
        """The feature rows of the actions that were played."""
        _, rows = self.parts(contexts)
        return np.asarray(rows[np.arange(len(rows)), action_index])


@dataclass(frozen=True, eq=False)
class FixedActions(Actions):
    """The same actions for every context: one feature row each.

    ``codes`` is set where features are indicators: what each column stands for.

    >>> FixedActions([[0.0], [1.0]]).pairs(np.array([[0.5]]))
    array([[[0.5, 0. ],
            [0.5, 1. ]]])
    """

    rows: FloatArray
    names: tuple[str, ...] | None = None
    schema: Schema | None = None
    codes: tuple[str, ...] | None = None
    count: int = field(init=False)
    dimension: int = field(init=False)

    def __post_init__(self) -> None:
        rows = named_rows(self.rows, "actions", self.schema)
        object.__setattr__(self, "names", _checked_names(self.names, len(rows)))
        if self.codes is not None:
            object.__setattr__(self, "codes", _checked_names(self.codes, rows.shape[1]))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "count", len(rows))
        object.__setattr__(self, "dimension", rows.shape[1])

    @property
    def unrelated(self) -> bool:
        """Whether features are indicators: each action one 1, in a column of its own."""
        ones = self.rows == 1.0
        alone = (ones.sum(axis=1) == 1) & (np.abs(self.rows).sum(axis=1) == 1)
        return bool(alone.all() and ones.sum(axis=0).max() <= 1 and self.dimension > 1)

    def parts(self, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The contexts as they are, and the same rows for each."""
        return contexts, np.broadcast_to(self.rows, (len(contexts), *self.rows.shape))

    def own(self, contexts: FloatArray) -> FloatArray:
        """The contexts as they are."""
        return contexts

    def chosen(self, contexts: FloatArray, action_index: IntArray) -> FloatArray:
        """The pairs that were played: the rows of the actions are looked up at once."""
        return np.concatenate([contexts, self.rows[action_index]], axis=1)


def _checked_names(names: object, count: int) -> tuple[str, ...] | None:
    """One text for each action, all different."""
    if names is None:
        return None
    listed = [names] if isinstance(names, str) or not isinstance(names, Iterable) else [*names]
    if not all(isinstance(name, str) for name in listed):
        raise ConfigurationError("names of actions must be texts")
    if len(listed) != count or len(set(listed)) < count:
        raise ConfigurationError(
            f"{count} actions need as many different names, got {len(set(listed))} in {len(listed)}"
        )
    return tuple(str(name) for name in listed)


@dataclass(frozen=True)
class VaryingActions(Actions):
    """Every context brings its own actions: a context row is ``(c, x_1, ..., x_count)``.

    The last ``count * dimension`` numbers of a context are the feature rows of its actions, one
    after the other; what stands before them are the features of the context itself. The kernel sees
    pairs ``(c, x_i)`` as always.

    >>> VaryingActions(count=2, dimension=1).pairs(np.array([[0.5, 7.0, 8.0]]))
    array([[[0.5, 7. ],
            [0.5, 8. ]]])
    """

    count: int
    dimension: int

    def __post_init__(self) -> None:
        whole("count", self.count)
        whole("dimension", self.dimension)

    def pair_dimension(self, context_dimension: int) -> int:
        """A context brings its actions along: a pair keeps one of them."""
        return context_dimension - (self.count - 1) * self.dimension

    def parts(self, contexts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What stands before the actions, and the actions."""
        split = contexts.shape[1] - self.count * self.dimension
        if split < 0:
            raise ShapeError(
                f"a context must hold {self.count} actions of {self.dimension} numbers, "
                f"got {contexts.shape[1]} numbers in all"
            )
        rows = contexts[:, split:].reshape(len(contexts), self.count, self.dimension)
        return contexts[:, :split], rows


def context_chunks(count: int, actions: int) -> Iterator[slice]:
    """Slices over contexts so that a chunk holds about ``CHUNK_PAIRS`` pairs."""
    step = max(1, CHUNK_PAIRS // actions)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
