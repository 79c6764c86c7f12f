"""What scikit-learn asks of an estimator, and what it does around one: it can undo a guarantee.

scikit-learn reads the names of parameters off the signature of ``__init__``. That of a dataclass is
made of its fields and those of its bases, so an estimator adds its own and repeats none.

The stack tells who calls a fit, as far as it is of this process: an estimator around this one,
which may fit the same rows again or choose rows by their labels, and transformers that learnt from
the same rows before they came here. What is not known to be harmless counts as harmful.
:class:`PublicScaler` learns from nobody.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import walk_stack
from types import FrameType
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder
from sklearn.utils import get_tags

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.regression.tables import as_matrix, checked_bounds

# They fit their last part once, on all rows; what they do before is looked at by itself.
_ONCE = (Pipeline, TransformedTargetRegressor)
# Modules of scikit-learn that call a fit on behalf of one of these, or of a caller of their own.
_MODULES = ("sklearn.base", "sklearn.pipeline", "sklearn.compose._target", "sklearn.utils")


@dataclass(kw_only=True, eq=False, repr=False)
class SharedParameters:
    """What is taken by all; their meaning is told by :class:`PrivateKernelRidge`."""

    kernel: Any = "auto"
    epsilon: float = 1.0
    delta: float = 1e-5
    tau: Any = "auto"
    X_bounds: Any = None
    public_X: Any = None  # noqa: N815 (scikit-learn calls rows X)
    rank: Any = "auto"
    calibration: str = "analytic"
    random_state: Any = None
    weight_bound: float = 1.0
    ledger: Any = None
    population: str | None = None


def estimator_around() -> str | None:
    """What else than one pipeline calls this fit: the outermost class or function; None if nothing.

    A search, a vote, a chain, one-vs-one or whatever anybody writes fits several times, or on rows
    of its own choice, or looks at held-out rows. What all of it spends is not known here. In a
    worker process the function is seen that it runs there.
    """
    found = None
    for frame, _ in walk_stack(sys._getframe()):
        found = _around(frame) or found
    return found


def _around(frame: FrameType) -> str | None:
    caller, module = frame.f_locals.get("self"), str(frame.f_globals.get("__name__", ""))
    if isinstance(caller, BaseEstimator):
        harmless = type(caller) in _ONCE or isinstance(caller, SharedParameters)
        return None if harmless else type(caller).__name__
    if not module.startswith("sklearn.") or module.startswith(_MODULES):
        return None
    name = frame.f_code.co_name
    return module if name.startswith(("_", "<")) else name


def transformers_fitted_on_the_data() -> tuple[str, ...]:
    """Classes of the transformers that fitted the rows, or the targets, on their way here; or may.

    A scaler that learnt means from private rows carries every one of them into what it scales, and
    into the pipeline that is published: no noise covers that.
    """
    found: list[str] = []
    for frame, _ in walk_stack(sys._getframe()):
        caller = frame.f_locals.get("self")
        if not frame.f_code.co_name.startswith("fit"):
            continue
        if isinstance(caller, Pipeline):
            found += [name for _, step in caller.steps[:-1] for name in _fitted(step)]
        elif isinstance(caller, TransformedTargetRegressor):
            found += _fitted(caller.transformer or FunctionTransformer(caller.func))
    return tuple(dict.fromkeys(found))


def private_instead_of(name: str) -> str:
    """What may stand in a pipeline where a transformer of this class costs the certificate."""
    if name != FunctionTransformer.__name__:
        return f"a {name} that was not fitted on these rows"
    return (
        "FrozenEstimator(FunctionTransformer(f)) where f takes each row by itself (or a ufunc as "
        "the function)"
    )


def _fitted(transformer: Any) -> Iterator[str]:
    """The classes in a transformer that learn from rows; those of a frozen one learnt before."""
    if transformer is None or isinstance(transformer, str | FrozenEstimator):
        return  # "passthrough" or "drop"
    if _told_its_levels(transformer):
        return
    if isinstance(transformer, Pipeline):
        parts = [step for _, step in transformer.steps]
    elif isinstance(transformer, FeatureUnion):
        parts = [part for _, part in transformer.transformer_list]
    elif isinstance(transformer, ColumnTransformer):
        parts = [part for _, part, _ in transformer.transformers]
        parts.append(transformer.remainder)
    elif isinstance(transformer, FunctionTransformer):
        # It needs no fit, and its function is given the whole batch: means of it are within reach.
        if not _cell_by_cell(transformer.func):
            yield FunctionTransformer.__name__
        return
    else:
        # One without tags declares nothing, so it may have learnt.
        if not hasattr(transformer, "__sklearn_tags__") or get_tags(transformer).requires_fit:
            yield type(transformer).__name__
        return
    for part in parts:
        yield from _fitted(part)


def _told_its_levels(encoder: Any) -> bool:
    """Whether an encoder was given all levels, counts none of them and refuses no other."""
    return (
        type(encoder) in (OneHotEncoder, OrdinalEncoder)
        and not isinstance(encoder.categories, str)
        and encoder.handle_unknown in ("ignore", "use_encoded_value")
        and encoder.min_frequency is None
        and encoder.max_categories is None
    )


def _cell_by_cell(function: Any) -> bool:
    """Whether a function takes every cell by itself for sure: none, or a ufunc of one argument."""
    if function is None:
        return True
    return isinstance(function, np.ufunc) and function.nin == 1 and function.signature is None


class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Columns to [0, 1] by public bounds, or by the range of public rows: the right way to scale.

    Fitting it looks at no row, so in a pipeline before a private estimator it costs neither a
    warning nor the certificate, unlike a scaler that learns from the data.

    >>> scaler = PublicScaler(bounds=(0, 10))
    >>> scaler.fit([[100.0]]).transform([[5.0], [20.0]]).ravel()
    array([0.5, 2. ])
    """

    def __init__(self, bounds: Any = None, *, public_X: Any = None) -> None:
        self.bounds = bounds
        self.public_X = public_X

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Nothing is learnt; the columns are counted."""
        if (self.bounds is None) == (self.public_X is None):
            raise ConfigurationError("PublicScaler needs bounds or public_X, one of them")
        if X is not None:
            self.n_features_in_ = as_matrix(X, "X").shape[1]
        return self

    def transform(self, X: Any) -> FloatArray:
        """``(x - low) / (high - low)``, beyond [0, 1] where a value is beyond its bounds."""
        self.fit()
        rows = as_matrix(X, "X")
        if self.bounds is not None:
            low, high = checked_bounds("bounds", self.bounds, rows.shape[1])
        else:
            public = as_matrix(self.public_X, "public_X")
            low, high = np.nanmin(public, axis=0), np.nanmax(public, axis=0)
            high = np.where(high > low, high, low + 1.0)
        with np.errstate(all="ignore"):
            return np.asarray((rows - low) / (high - low))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags
