"""The estimator: scikit-learn's manners around the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from capri.arrays import BoolArray, FloatArray
from capri.checks import between
from capri.errors import BudgetError, ConfigurationError, StorageError, warn_of_leak
from capri.learners.prior import Prior
from capri.privacy.certificate import Certificate, Declaration, certify_fit
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.sphere import sphere
from capri.regression.decode import PARTS, ErrorWidth, Model
from capri.regression.engine import FitEngine, OpenRows, ReportPlan, read_reports
from capri.regression.options import Options, checked
from capri.regression.scikit_learn import SharedParameters
from capri.regression.sources import (
    RowSource,
    blocks_of,
    is_chunks,
    is_dask,
    is_path,
    one_block,
)
from capri.regression.summary import (
    ShownWithStages,
    earlier_events,
    fit_digests,
    fit_prior,
    labels_of,
    named_parts,
    warn_of_doubts,
)
from capri.regression.tables import (
    as_weights,
    checked_block,
    checked_features,
    checked_rows,
    finite_rows,
)

# The noise of sphere reports hardly depends on their length; this one stands for all.
_TYPICAL_DIMENSION = 32


@dataclass(eq=False, repr=False)
class PrivateKernelRidge(
    SharedParameters,
    ShownWithStages,
    MultiOutputMixin,  # type: ignore[misc]
    RegressorMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Kernel ridge regression with differential privacy.

    Everything learnt from ``X`` and ``y`` passes one gate with noise: replacing any one row
    changes what anybody can see by at most ``(epsilon, delta)``.

    Parameters
    ----------
    kernel : {"auto", "rbf", "matern"} or Kernel
        By default a family of kernels (linear, each column by itself, smooth and rough functions
        of all columns), weighed by the evidence of what was released. The other names take
        lengthscales of ``sqrt(d) / 2`` widths of the box.
    epsilon, delta : float
        The budget; a :class:`~capri.Budget` as ``epsilon`` brings its own delta.
        ``epsilon=float("inf")`` runs without privacy and equals kernel ridge regression on the
        span of the basis.
    tau : "auto" or float
        The ridge; by default the one of largest evidence.
    y_bounds : (low, high), optional
        Range of y, or of every output. Values outside are clipped.
    X_bounds : (low, high), list of pairs, mapping by name or Schema, optional
        The box from which the basis and the public law are drawn. A mapping declares named columns:
        ``{"age": (18, 98), "plan": ["free", "pro"], "member": bool}``.
    public_X : array or data frame, optional
        Public rows that look like those of X: better than a box. Named columns that are not all
        numbers declare levels and ranges.
    rank : "auto" or int
        Number of basis coordinates.
    calibration : {"analytic", "paper"}
        How much noise: what is needed, or the paper's formula where that is larger.
    random_state : int, RandomState or None
        For simulations only: a seed makes the noise repeatable and protects nobody.
    stream_rows : int
        Number of rows that ``partial_fit`` is planned for.
    weight_bound : float
        Largest ``sample_weight``; larger ones are cut. A row of this weight counts in full.
    ledger, population : OrganisationLedger or its address, and a name
        Every fit is counted there beside all else that is done with these people, and refused
        before its first sum where their budget does not allow it.

    Bounds that are not given are taken from the data, with a :class:`PrivacyLeakWarning` and
    without a certificate.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 500)[:, None]
    >>> ridge = PrivateKernelRidge(epsilon=4.0, X_bounds=(0, 1), y_bounds=(-1, 1))
    >>> ridge.fit(X, np.sin(6 * X[:, 0])).predict([[0.25]]).shape
    (1,)
    """

    kernel: Any = "auto"  # may be given by its place
    y_bounds: Any = field(default=None, kw_only=True)
    stream_rows: int = field(default=100_000, kw_only=True)

    # -- fitting ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit on arrays, Dask collections, a Parquet path (y names columns) or chunks ``(X, y)``.

        Rows are told in stages, each of all rows and with its share of the budget. An iterator can
        be read only once: its rows make a single stage. ``sample_weight`` is private like the rows,
        and goes with arrays and data frames.
        """
        # All or nothing: a fit that fails leaves what was fitted before as it was.
        fresh = type(self)(**self.get_params(deep=False))
        fresh._codes = self._codes
        if is_chunks(X, y) and isinstance(X, Iterator) and sample_weight is None:
            fresh._fit_stream(X)
        else:
            fresh._fit_stages(X, y, sample_weight)
        fresh.past_events_ = earlier_events(self, fresh)
        for name in filter(_is_fitted, [*vars(self)]):
            delattr(self, name)
        for name in filter(_is_fitted, vars(fresh)):
            setattr(self, name, getattr(fresh, name))
        return self

    def _fit_stages(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Stage after stage over rows that can be read again."""
        options = checked(self)
        source = self._source(X, y, sample_weight, options)
        streams = options.streams()
        ledger = options.ledger()
        gate = Gate(noise_source(streams.noise), ledger)
        engine = options.engine(streams, source, source.rows, gate=gate, staged=not self._codes)
        for share in engine.setting.shares:
            plan = engine.plan(source.rows, share=share)
            engine.learn(plan, source.total(plan.total), gate)
        self._adopt(engine, ledger, private=not streams.simulated)

    def _fit_stream(self, chunks: Iterator[tuple[Any, Any]]) -> None:
        """One pass, one release."""
        for X, y in chunks:
            self.partial_fit(X, y)
        if self._open is None:
            raise ConfigurationError("there are no rows: give at least one chunk (X, y)")
        self.release()

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows to the one open stage; :meth:`release`, or the first prediction, closes it."""
        options = checked(self)
        first = not self.__sklearn_is_fitted__()
        self._check_open()
        X, y = checked_rows(self, X, y, reset=first, schema=options.schema)
        if first:
            self._one_dimensional, self.schema_ = y.ndim == 1, options.schema
        y = y.reshape(len(y), -1)
        state = self._open or self._opened(options, X, y)
        state.engine.called_by = state.engine.called_by or options.called_by
        if y.shape[1] != state.engine.setting.outputs:
            raise ConfigurationError(
                f"y must have {state.engine.setting.outputs} outputs as before, got {y.shape[1]}"
            )
        if sample_weight is not None:
            y = np.hstack([y, as_weights(sample_weight, options.weight_bound, len(y))])
        if state.ledger is not None:
            state.ledger.hold()
        state.total = state.total + state.plan.total(X, y)
        state.rows += len(X)
        self._open = state
        return self

    def _opened(self, options: Options, X: FloatArray, y: FloatArray) -> OpenRows:
        """A stage for the rows to come: the first, or one more after a release."""
        if hasattr(self, "model_"):
            engine, ledger = self._engine, self.ledger_
            streams = options.streams(len(engine.readings))
            if options.budget != engine.setting.budget:
                raise BudgetError(
                    f"the rows so far were released under {engine.setting.budget}: "
                    "call fit to begin anew under another budget"
                )
            if options.budget is not None:
                ledger = options.going_on(ledger)
                warn_of_leak(
                    "rows after a release make a further one: the guarantee holds if they are of "
                    "other people than those before"
                )
        else:
            streams, ledger = options.streams(), options.ledger()
            engine = options.engine(streams, one_block(X, y), options.stream_rows)
        plan = engine.plan(options.stream_rows)
        gate = Gate(noise_source(streams.noise), ledger)
        gate.plan(plan.layout, epoch=plan.table, participants=options.stream_rows)
        return OpenRows(
            engine=engine,
            plan=plan,
            total=plan.layout.empty(),
            streams=streams,
            ledger=ledger,
        )

    def release(self) -> Self:
        """Close the rows of ``partial_fit``: one release. Nothing happens when none are open."""
        state = self._open
        if state is None:
            return self
        self._check_open()
        plan = replace(state.plan, rows=state.rows)
        gate = Gate(noise_source(state.streams.noise), state.ledger)
        state.engine.learn(plan, state.total, gate)
        self._open = None
        before = not hasattr(self, "model_") or self._private
        self._adopt(state.engine, state.ledger, private=before and not state.streams.simulated)
        return self

    def report_plan(
        self, columns: int, *, reports: int, noise_scale: float | None = None
    ) -> ReportPlan:
        """What devices need to report rows of ``columns`` features: the local model.

        Planned for this many reports whose randomizer has a standard deviation of ``noise_scale``
        on each coordinate of a message of norm 1; by default that of sphere reports.
        """
        options = checked(self)
        if options.budget is None:
            raise ConfigurationError("reports need a finite epsilon")
        if options.place != (None, None):
            raise ConfigurationError("a ledger cannot count reports here: use capri.LocalCapri")
        if options.from_data:
            raise ConfigurationError("reports need y_bounds, and X_bounds or public_X")
        if noise_scale is None:
            noise_scale = sphere(options.budget.epsilon, _TYPICAL_DIMENSION).deviation
        nobody = one_block(np.zeros((1, columns)), np.zeros((1, options.outputs)))
        noise = noise_scale * np.sqrt(reports * options.outputs)
        engine = options.engine(options.streams(), nobody, reports, noise=noise)
        stage = engine.plan(reports, noise=noise)
        plan = ReportPlan(stage=stage)
        self._awaited = engine, plan.digest, columns
        return plan

    def fit_reports(self, plan: ReportPlan, reports: Sequence[bytes]) -> Self:
        """Fit from sphere reports of :meth:`ReportPlan.reports`: privacy was spent there."""
        budget = checked(self).budget
        epsilon = self.epsilon if budget is None else budget.epsilon
        total, count, noise = plan.total(reports, epsilon=epsilon)
        return self.fit_sum(plan, total, count=count, noise_scale=noise)

    def fit_sum(self, plan: ReportPlan, total: Any, *, count: int, noise_scale: float) -> Self:
        """Fit from the sum of messages that any randomizer made private (`read_reports`)."""
        if self._awaited is None or self._awaited[1] != plan.digest:
            raise ConfigurationError("make a report_plan first, and fit what was reported under it")
        engine, _, columns = self._awaited
        result = read_reports(engine, plan, total, count=count, noise_scale=noise_scale)
        engine.learn_from(result)
        self._open, self._awaited = None, None
        self.n_features_in_ = columns
        self.__dict__.pop("feature_names_in_", None)  # of a fit on other rows
        self._one_dimensional = engine.setting.outputs == 1
        self._adopt(engine, None, private=False)
        return self

    def _source(self, X: Any, y: Any, sample_weight: Any, options: Options) -> RowSource:
        """Rows as a source, all of them checked before anything is released."""
        self.schema_ = options.schema
        if not (is_dask(X) or is_path(X) or is_chunks(X, y)):
            X, y = checked_rows(self, X, y, reset=True, schema=options.schema)
            self._one_dimensional = y.ndim == 1
            y = y.reshape(len(y), -1)
            if sample_weight is None:
                return one_block(X, y)
            weights = as_weights(sample_weight, options.weight_bound, len(y))
            return one_block(X, np.hstack([y, weights]), weighted=True)
        if sample_weight is not None:
            raise ConfigurationError("sample_weight goes with arrays and data frames in memory")
        source, names = blocks_of(X, y, partial(checked_block, schema=options.schema))
        self.n_features_in_ = source.columns
        if options.schema is not None:
            self.n_features_in_ = len(options.schema.columns)
        if names is not None and all(isinstance(name, str) for name in names):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        self._one_dimensional = source.outputs == 1
        return source

    def _adopt(self, engine: FitEngine, ledger: Ledger | None, *, private: bool) -> None:
        """Keep what was released, and nothing else."""
        setting = engine.setting
        self.model_ = Model(
            basis=setting.basis,
            box=setting.box,
            targets=setting.targets,
            estimates=tuple(engine.estimates),
            prior=setting.prior,
            support=engine.support(),
        )
        self.ledger_ = ledger
        if ledger is not None:
            ledger.settle()
        self._engine = engine
        self.kernel_ = setting.basis.kernel
        self.rank_ = setting.basis.rank
        tables = {
            reading.result.plan.table: reading.result.plan.rows for reading in engine.readings
        }
        self.n_rows_ = sum(tables.values())
        weights = [estimate.weights for estimate in engine.estimates]
        labels = labels_of(getattr(self, "schema_", None), getattr(self, "feature_names_in_", None))
        parts = [
            {} if each is None else named_parts(setting.prior.shares(each), labels)
            for each in weights
        ]
        self.parts_ = parts[0] if len(parts) == 1 else parts
        taus = np.array([estimate.tau for estimate in engine.estimates])
        self.tau_ = float(taus[0]) if len(taus) == 1 else taus
        self._private = private
        warn_of_doubts(engine, codes=self._codes)

    def _check_open(self) -> None:
        if self._open is not None:
            self._open.check(checked(self).budget)

    # -- using ------------------------------------------------------------------------------------

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions, and with ``return_std`` the width of their error.

        The width is an array of standard deviations with attributes ``bias``, ``sampling`` and
        ``privacy``, whose squares add up to its own. A row with a value that is missing or infinite
        is predicted as NaN: the rows of a batch may be several people's.
        """
        check_is_fitted(self)
        self.release()
        if is_dask(X):
            return self._predict_lazily(X, return_std)
        inside, known = self._known(X)
        mean = self._shown(self.model_.predict(inside), known)
        if not return_std:
            return mean
        width = self.model_.width(inside)
        parts = {name: self._shown(getattr(width, name), known) for name in PARTS}
        return mean, ErrorWidth.of(**parts)

    def predict_interval(
        self, X: Any, level: float = 0.95, *, simultaneous: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of what the mean of y at each row may be.

        At each row the true mean lies between them with probability ``level`` or more; with
        ``simultaneous``, at all rows like those of the fit at once. Ends stay within ``y_bounds``.
        """
        check_is_fitted(self)
        self.release()
        level = between("level", level, 0.0, 1.0)
        inside, known = self._known(X)
        mean, width = self.model_.predict(inside), np.asarray(self.model_.width(inside))
        with np.errstate(invalid="ignore"):  # all of the line at level 1
            reach = np.asarray(NormalDist().inv_cdf(0.5 + level / 2) if level < 1 else np.inf)
            if simultaneous and level < 1:
                reach = np.maximum(reach, np.quantile(self.model_.suprema, level, axis=0))
            low, high = self.model_.targets.low, self.model_.targets.high
            lower, upper = (np.clip(mean + sign * reach * width, low, high) for sign in (-1, 1))
        return self._shown(lower, known), self._shown(upper, known)

    def _known(self, X: Any) -> tuple[FloatArray, BoolArray]:
        """Rows of numbers, and which of them were."""
        X = checked_features(self, X, getattr(self, "schema_", None))
        known = finite_rows(X)[:, None]
        return np.where(known, X, 0.0), known

    def _shown(self, values: FloatArray, known: BoolArray) -> FloatArray:
        """NaN for rows that are not numbers; a vector where y was one."""
        values = np.where(known, values, np.nan)
        return values[:, 0] if self._one_dimensional else values

    def _predict_lazily(self, X: Any, return_std: bool) -> Any:
        """Block by block where the blocks are."""
        if return_std:
            raise ConfigurationError("return_std needs rows in memory: call X.compute() first")
        outputs = len(self.model_.estimates)
        if hasattr(X, "map_partitions"):
            shape = (0,) if self._one_dimensional else (0, outputs)
            return X.map_partitions(self.predict, meta=np.empty(shape))
        if self._one_dimensional:
            return X.map_blocks(self.predict, dtype=np.float64, drop_axis=1)
        return X.map_blocks(self.predict, dtype=np.float64, chunks=(X.chunks[0], (outputs,)))

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee on two pages; refused for simulations and without a budget.

        ``declaration`` says who promises and what for; ``audit`` is the result of an audit, or the
        values of its JSON.
        """
        check_is_fitted(self)
        self.release()
        return certify_fit(
            self.ledger_,
            private=self._private,
            from_data=self._engine.from_data,
            called_by=self._engine.called_by,
            declaration=declaration,
            audit=audit,
            digests=None if self.ledger_ is None else fit_digests(self._engine),
            earlier_fits=len(getattr(self, "past_events_", ())),
        )

    def as_prior(self) -> Prior:
        """What was released, for ``prior=`` of a policy whose pairs are rows like those of X.

        X must have been pairs: the columns of a context, then the features of an action.
        """
        check_is_fitted(self)
        self.release()
        unknown = not self._private or self._engine.from_data or self._engine.called_by
        return fit_prior(self.model_, None if unknown else self.ledger_, self._engine)

    # -- manners ----------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_") or self._open is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise at default epsilon hides toy data
        tags.input_tags.allow_nan = True  # a refusal would tell of the row
        return tags

    def __getstate__(self) -> Any:
        if self._open is not None:
            raise StorageError(
                "rows of partial_fit are open, and a copy could be released twice: "
                "call release first"
            )
        return super().__getstate__()


def _is_fitted(name: str) -> bool:
    """Whether a fit leaves this on an estimator; scikit-learn hangs things of its own on them."""
    return name in ShownWithStages.__annotations__ or name.endswith("_")
