"""Who calls a fit: what scikit-learn does around an estimator can undo its guarantee.

The stack tells, as far as it is of this process: a search that fits again and again, and
transformers that were fitted on the same rows before they came here.
"""

import sys
from collections.abc import Iterator
from traceback import walk_stack
from typing import Any

from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags


def steps_to_caller() -> int:
    """How far up the stack the line is that called this package, for ``stacklevel`` of a warning.

    Counted from whoever asks: 1 is its own line.
    """
    for steps, (frame, _) in enumerate(walk_stack(sys._getframe(1)), 1):
        if not str(frame.f_globals.get("__name__", "")).startswith("capri."):
            return steps
    return 1


def inside_model_selection() -> bool:
    """Whether a search or a cross-validation of scikit-learn is calling."""
    return any(
        str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection")
        for frame, _ in walk_stack(sys._getframe())
    )


def transformers_fitted_on_the_data() -> tuple[str, ...]:
    """Classes of the transformers that fitted the rows, or the targets, on their way here.

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
            found += _fitted(caller.transformer)
    return tuple(dict.fromkeys(found))


def _fitted(transformer: Any) -> Iterator[str]:
    """The classes in a transformer that learn from rows; those of a frozen one learnt before."""
    if transformer is None or isinstance(transformer, str | FrozenEstimator):
        return  # "passthrough" or "drop"
    if isinstance(transformer, Pipeline):
        parts = [step for _, step in transformer.steps]
    elif isinstance(transformer, FeatureUnion):
        parts = [part for _, part in transformer.transformer_list]
    elif isinstance(transformer, ColumnTransformer):
        parts = [part for _, part, _ in transformer.transformers]
        parts.append(transformer.remainder)
    else:
        # One without tags declares nothing, so it may have learnt.
        if not hasattr(transformer, "__sklearn_tags__") or get_tags(transformer).requires_fit:
            yield type(transformer).__name__
        return
    for part in parts:
        yield from _fitted(part)
