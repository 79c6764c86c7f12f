"""The public side of a fit: parameters checked once, bounds, and rows that stand for the law of X.

What is not given is taken from the data, with a warning, and costs the fit its certificate.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from secrets import token_hex
from typing import Any

import numpy as np
from sklearn.utils import check_array, check_random_state

from capri.arrays import FloatArray, IntArray, one_blas_thread
from capri.checks import is_number, one_of, positive, whole
from capri.errors import ConfigurationError, steps_to_caller, warn_of_leak
from capri.features import spectral_basis
from capri.kernels import RBF, Kernel, Matern
from capri.privacy.budget import Budget, warn_of_large_delta
from capri.privacy.filters import Charge
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.pairs import CountLayout
from capri.regression.columns import TableColumns
from capri.regression.design import (
    SCHEDULES,
    SIGNAL,
    RowDistribution,
    choose_stages,
    matrix_root,
)
from capri.regression.engine import FitEngine, Setting
from capri.regression.family import RowBasis, table_family
from capri.regression.priors import FunctionPrior, family_prior, known_prior
from capri.regression.scikit_learn import (
    estimator_around,
    private_instead_of,
    transformers_fitted_on_the_data,
)
from capri.regression.sources import RowSource
from capri.regression.stage import MARGIN, Targets
from capri.regression.tables import (
    categories_of,
    checked_bounds,
    encoded,
    finite_rows,
    schema_of,
    schema_rows,
)
from capri.schema import Schema
from capri.store.reservation import Reservation, joined
from capri.streams import Streams

# Public rows that stand for the law of X: some for each row of the data, within limits.
_LAW_SHARE, _FEWEST_LAW, _MOST_LAW = 8, 2000, 1 << 13
# Share of the rows of a box with columns at the ends of their range.
_SNAPPED = 0.2
# Rows of the box beside public ones, where bounds are given too, as a share of these.
_BOX_SHARE = 0.2
# Without a rank, at most this many coordinates, found to this share of E[k(w, w)]; more of them
# for very many rows, as a share of the root of their number, up to an end.
_MAX_RANK, _TOLERANCE = 160, 1e-7
_RANK_OF_MANY, _LARGEST_RANK = 0.5, 400
# Noise leaves no more coordinates than about this many times the root of the number of rows.
_RANK_PER_ROOT = 2.0
# Rows of the public sample from which the basis is built, of a kernel that was told and of a table;
# the law takes all of them.
_BASIS_SAMPLE, _TABLE_SAMPLE = 2000, 3000
# Share of mu^2 that counts of columns cost: at least, and at most to have noise of so small a share
# of the rows on each.
LEAST_COUNTS, _MOST_COUNTS, _LEGIBLE = 0.06, 0.1, 0.125
# Parameters whose sense depends on the rows.
_UNCHECKED = ("kernel", "X_bounds", "y_bounds", "random_state")


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Checked parameters; bounds and kernel wait for the number of columns."""

    budget: Budget | None
    tau: float | None
    rank: int | None
    calibration: str
    stream_rows: int
    kernel: Any
    X_bounds: Any
    y_bounds: Any
    public_rows: Any
    random_state: Any
    schema: Schema | None = None
    weight_bound: float = 1.0
    called_by: str | None = None
    place: tuple[Any, Any] = (None, None)  # an organisation's ledger, and a population there

    @property
    def from_data(self) -> tuple[str, ...]:
        """Bounds that are not given, hence read off the rows: not private."""
        given = {
            "X_bounds or public_X": self.X_bounds is not None or self.public_rows is not None,
            "y_bounds": self.y_bounds is not None,
        }
        return tuple(name for name, known in given.items() if not known)

    @property
    def outputs(self) -> int:
        """Number of targets that the bounds of y speak of."""
        try:
            low, high = self.y_bounds
            return np.broadcast(np.atleast_1d(low), np.atleast_1d(high)).size
        except (TypeError, ValueError):
            raise ConfigurationError(
                "y_bounds must be (low, high), numbers or one per output of y, "
                f"got {self.y_bounds!r}"
            ) from None

    def ledger(self) -> Ledger | None:
        """A new account of the budget; none without privacy.

        Under an organisation's ledger every fit is a source of its own, held from its plan on.
        """
        place, held = joined(*self.place, self.budget, self.random_state is None, True), None
        if self.budget is None:
            return None
        if place is not None:
            charge = Charge.of(self.budget, gaussian=True, pure=False)
            held = Reservation(*place, f"fit-{token_hex(8)}", charge, kind="fit")
        return Ledger(self.budget, reservation=held)

    def going_on(self, ledger: Ledger | None) -> Ledger | None:
        """The account of further rows: there is none after reports, and no pickle reserves."""
        counted = ledger is not None and (ledger.reservation or self.place == (None, None))
        return ledger if counted else self.ledger()

    def streams(self, releases: int = 0) -> Streams:
        """Randomness; warns when it can be repeated, and when another estimator calls the fit.

        Every release of a simulation has noise of its own: ``releases`` were made before.
        """
        if self.budget is not None and self.called_by is not None:
            warn_of_leak(
                f"{self.called_by} calls this fit, so there is no certificate: every fit costs its "
                f"rows the full epsilon of {self.budget.epsilon} again, and neither scores on "
                "held-out rows nor n_rows_ of rows that were chosen by their labels are private"
            )
        if self.random_state is None:
            return Streams(None)
        if self.budget is not None:
            warn_of_leak(
                "random_state makes the noise repeatable: this is a simulation and protects nobody"
            )
        state = check_random_state(self.random_state)
        return Streams([int(state.randint(2**31 - 1)) for _ in range(releases + 1)][-1])

    def engine(
        self,
        streams: Streams,
        source: RowSource,
        rows: int,
        *,
        gate: Gate | None = None,
        staged: bool = False,
        noise: float | None = None,
    ) -> FitEngine:
        """Basis, law and stages for this many rows; ``noise`` overrides what the budget asks for.

        Of the source its shape is read, and its ranges where bounds are not given. With a gate, its
        columns are counted, and counts released; ``staged``: its rows can be told in stages.
        """
        if self.budget is not None and self.from_data:
            warn_of_leak(
                f"{' and '.join(self.from_data)} not given: taken from the data, which is not "
                "private. Give bounds that are known without looking at the data"
            )
        upstream = transformers_fitted_on_the_data()
        if self.budget is not None and upstream:
            warn_of_leak(
                f"{' and '.join(upstream)} of the pipeline learnt from the data before this fit, "
                "or may have, which is not private. Fit it on public data and freeze it "
                "(FrozenEstimator), which also declares that a FunctionTransformer takes each row "
                "by itself"
            )
        if self.budget is not None and noise is None:  # reports have a delta of 0
            warn_of_large_delta(self.budget, stacklevel=steps_to_caller())
        box, targets = self._ranges(source)
        public, near = self._public(streams.public, box, source.columns, rows)
        table, spent = None, 0.0
        if _is_auto(self.kernel):
            table = TableColumns.even(*box, categories_of(self.schema))
        every = self.coordinates(table, rows, source.outputs) if gate is not None else 0
        if gate is not None and self.budget is not None:  # all stages cost what one of these does
            whole = CountLayout(cells=(1,)).told_in_stages(self.budget, 1.0, every)
            gate.plan(whole, epoch=1, participants=rows, coordinates=every)
        if table is not None:
            if near is not None:
                table = table.seen(near)
            elif gate is not None:
                table, spent = self._counted(table, source, gate, every)
            if near is None:
                public = table.draw(streams.public, len(public))
        sample = public if near is None else near
        with one_blas_thread():
            basis, prior, few = self._basis(box, sample, rows, table)
            setting = Setting(
                basis=basis,
                law=RowDistribution.of(basis.coordinates(few)),
                box=outer_box(*box),
                targets=targets,
                budget=self.budget,
                calibration=self.calibration,
                tau=self.tau,
                prior=prior,
                shares=(1.0,),
                coordinates=every,
            )
        if self.budget is not None or self.rank is None:
            setting = self._allotted(setting, public, rows, staged=staged, noise=noise)
        setting = replace(setting, shares=tuple(each * (1 - spent) for each in setting.shares))
        needed = self.from_data + tuple(map(private_instead_of, upstream))
        found = FitEngine(setting, needed)
        found.called_by = self.called_by
        return found

    def coordinates(self, table: TableColumns | None, rows: int, outputs: int) -> int:
        """How many numbers are released of the same rows, at most."""
        size = self._most(rows) + 2 * outputs
        stages = max(map(len, SCHEDULES)) * size * (size + 1) // 2
        return stages if table is None else stages + sum(table.sizes)

    def _counted(
        self, table: TableColumns, source: RowSource, gate: Gate, every: int
    ) -> tuple[TableColumns, float]:
        """Columns by counts of their cells, and the share of ``mu^2`` that these cost.

        Nothing is counted where noise would hide even a cell that holds half of the rows.
        ``every``: coordinates of all releases of these rows.
        """
        layout = CountLayout(cells=table.sizes)
        share = 0.0
        if self.budget is not None:
            noise = layout.told_in_stages(self.budget, 1.0, every).deviation("counts")
            share = max(LEAST_COUNTS, (noise / (_LEGIBLE * max(source.rows, 1))) ** 2)
            if share > _MOST_COUNTS:
                return table, 0.0
            layout = layout.told_in_stages(self.budget, share, every)
        total = source.total(partial(count, table, layout))
        counts, _ = gate.release(total, layout, epoch=1, participants=source.rows)
        return table.counted(counts, layout.deviation("counts"), source.rows), share

    def _most(self, rows: int) -> int:
        """The largest rank for this many rows: noise leaves no more coordinates."""
        if self.rank is not None:
            return self.rank
        if _is_auto(self.kernel):
            return min(_LARGEST_RANK, max(16, int(_RANK_PER_ROOT * sqrt(rows))))
        many = min(_LARGEST_RANK, max(_MAX_RANK, int(_RANK_OF_MANY * sqrt(rows))))
        return min(many, max(16, int(_RANK_PER_ROOT * sqrt(rows))))

    def _basis(
        self,
        box: tuple[FloatArray, FloatArray],
        sample: FloatArray,
        rows: int,
        table: TableColumns | None,
    ) -> tuple[RowBasis, FunctionPrior, FloatArray]:
        """Coordinates, what is believed of their coefficients, and the rows they were found on."""
        wanted = self._most(rows)
        if table is not None:
            few = sample[: max(_TABLE_SAMPLE, 6 * wanted)]
            family = table_family(table, few, max_rank=wanted)
            return family.basis, family_prior(family), few
        few = sample[: max(_BASIS_SAMPLE, 2 * wanted)]
        tolerance = _TOLERANCE if self.rank is None else 0.0
        kernel = checked_kernel(self.kernel, *box)
        basis, spectrum = spectral_basis(kernel, few, tolerance=tolerance, max_rank=wanted)
        return basis, known_prior(basis.rank, SIGNAL / float(max(spectrum.sum(), 1e-300))), few

    def _allotted(
        self, setting: Setting, sample: FloatArray, rows: int, *, staged: bool, noise: float | None
    ) -> Setting:
        """Stages for this many rows, the rank worth keeping, and the law of the whole sample."""
        noise = setting.unit_noise if noise is None else noise
        with one_blas_thread():
            root = matrix_root(setting.prior.covariance(setting.prior.expected))
            shares, useful = choose_stages(setting.law, root, rows=rows, noise=noise)
        basis, prior = setting.basis, setting.prior
        if self.rank is None:
            transform = np.ascontiguousarray(basis.transform[:, :useful])
            basis, prior = replace(basis, transform=transform), prior.cut(useful)
        return replace(
            setting,
            basis=basis,
            prior=prior,
            law=RowDistribution.at(basis, sample),
            shares=shares if staged and self.budget is not None else (1.0,),
        )

    def _ranges(self, source: RowSource) -> tuple[tuple[FloatArray, FloatArray], Targets]:
        """The box of the numbers of a row, and the scale of y."""
        columns = source.columns
        low, high = np.zeros(columns), np.ones(columns)  # of declared columns
        if self.from_data:
            low, high, low_y, high_y = source.ranges()
            low_y, high_y = low_y[: source.outputs], high_y[: source.outputs]
        if self.schema is not None:
            low, high = np.zeros(columns), np.ones(columns)
        elif self.public_rows is not None:  # public rows say how far a column reaches
            public = _checked_rows(self.public_rows, columns)
            low, high = public.min(axis=0), public.max(axis=0)
        elif self.X_bounds is not None:  # bounds alone must
            low, high = checked_bounds("X_bounds", self.X_bounds, columns)
        if self.y_bounds is not None:
            low_y, high_y = checked_bounds("y_bounds", self.y_bounds, source.outputs)
        return (low, high), Targets(low=low_y, high=high_y)

    def _public(
        self,
        generator: np.random.Generator,
        box: tuple[FloatArray, FloatArray],
        columns: int,
        rows: int,
    ) -> tuple[FloatArray, FloatArray | None]:
        """The public sample, and the public rows of it that coordinates suit, if any."""
        wanted = max(_FEWEST_LAW, min(_MOST_LAW, _LAW_SHARE * rows))
        filled = _box_rows(generator, *box, wanted)
        if self.schema is not None:
            filled = schema_rows(self.schema, generator, wanted)
        if self.public_rows is None:
            return filled, None
        if self.schema is not None:
            public = encoded(self.public_rows, self.schema)
            public = public[np.isfinite(public).all(axis=1)]
        else:
            public = _checked_rows(self.public_rows, columns)
        near = generator.permutation(public)[:_MOST_LAW]
        if self.X_bounds is None and self.schema is None:
            return near, near
        # Rows may be where no public one is.
        if self.schema is None:
            filled = _box_rows(
                generator, *checked_bounds("X_bounds", self.X_bounds, columns), wanted
            )
        extra = filled[: max(1, int(_BOX_SHARE * len(near)))]
        return generator.permutation(np.concatenate([near, extra])), near


def count(table: TableColumns, layout: CountLayout, X: FloatArray, y: FloatArray) -> IntArray:
    """Counts of the cells of some rows; a row that is not made of numbers has none."""
    cells = table.cells(X)
    return layout.total(np.where(finite_rows(X, y)[:, None], cells, -1.0), y)


def _box_rows(
    generator: np.random.Generator, low: FloatArray, high: FloatArray, count: int
) -> FloatArray:
    """Rows that fill a box; some have columns at an end of their range, as indicators do."""
    draws = generator.random((count, len(low)))
    snapped = generator.random(draws.shape) < generator.random((count, 1))
    snapped &= generator.random((count, 1)) < _SNAPPED
    draws = np.where(snapped, np.rint(draws), draws)
    return np.asarray(low * (1 - draws) + high * draws)


def checked(estimator: Any) -> Options:
    """The parameters of an estimator; refuses what makes no sense.

    An infinite epsilon means no privacy. A fit has no pure form.
    """
    epsilon, tau, rank = estimator.epsilon, estimator.tau, estimator.rank
    if isinstance(epsilon, Budget):
        budget: Budget | None = epsilon
    else:
        no_budget = is_number(epsilon) and epsilon == inf
        budget = None if no_budget else Budget(epsilon=epsilon, delta=estimator.delta)
    if budget is not None and budget.delta == 0:
        raise ConfigurationError(
            "a fit adds Gaussian noise, which needs delta above 0: give one far below one over the "
            "number of rows, such as delta=1e-5"
        )
    return Options(
        budget=budget,
        tau=None if _is_auto(tau) else positive("tau, unless 'auto',", tau),
        rank=None if _is_auto(rank) else whole("rank", rank),
        calibration=one_of("calibration", estimator.calibration, ("analytic", "paper")),
        stream_rows=whole("stream_rows", estimator.stream_rows),
        public_rows=estimator.public_X,
        schema=schema_of(estimator.X_bounds, estimator.public_X),
        weight_bound=positive("weight_bound", estimator.weight_bound),
        called_by=estimator_around(),
        place=(estimator.ledger, estimator.population),
        **{name: getattr(estimator, name) for name in _UNCHECKED},
    )


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def checked_kernel(kernel: Any, low: FloatArray, high: FloatArray) -> Kernel:
    """A kernel as given, or by name with lengthscales of ``sqrt(d) / 2`` box widths."""
    if isinstance(kernel, Kernel):
        return kernel
    width = high - low
    scales = tuple((np.where(width > 0, width, 1.0) * sqrt(len(width)) / 2).tolist())
    if isinstance(kernel, str) and kernel == "rbf":
        return RBF(lengthscale=scales)
    if isinstance(kernel, str) and kernel == "matern":
        return Matern(nu=2.5, lengthscale=scales)
    raise ConfigurationError(
        f"kernel must be 'auto', 'rbf', 'matern' or a capri kernel, got {kernel!r}"
    )


def outer_box(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The box that rows are moved into: far outside, features would overflow and mean nothing."""
    width = np.maximum(high - low, np.maximum(np.abs(low), 1.0) * 1e-6)
    width = np.where(np.isinf(width), np.finfo(np.float64).max / 100, width)
    return low - MARGIN * width, high + MARGIN * width


def _checked_rows(public_rows: Any, columns: int) -> FloatArray:
    rows: FloatArray = check_array(public_rows, dtype=np.float64)
    if rows.shape[1] != columns:
        raise ConfigurationError(
            f"public_X must have {columns} columns like X, got {rows.shape[1]}"
        )
    return rows
