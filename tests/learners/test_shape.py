"""Shapes of messages: what water-filling promises, against direct computations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capri.learners.belief import Posterior
from capri.learners.messages import water_filling


@dataclass(frozen=True)
class Case:
    """A support, a posterior and an epoch."""

    features: np.ndarray
    weights: np.ndarray
    posterior: Posterior
    length: int
    noise: float
    residual_variance: float

    @property
    def epoch(self) -> dict[str, float]:
        return {
            "length": self.length,
            "noise": self.noise,
            "residual_variance": self.residual_variance,
        }

    def water_filling(self, **changes: float) -> np.ndarray:
        return water_filling(
            self.features, self.weights, self.posterior.factor, **(self.epoch | changes)
        )

    def predicted(self, shape: np.ndarray, **changes: float) -> float:
        """Mean variance over the law after the epoch: ``tr(S (P^-1 + H^T R^-1 H)^-1)``."""
        length, noise, residual = (self.epoch | changes).values()
        psi = self.features @ shape
        weighted = psi * self.weights[:, None]
        design = length * weighted.T @ self.features
        covariance = noise**2 * np.eye(psi.shape[1]) + length * residual * weighted.T @ psi
        precision = np.linalg.inv(self.posterior.factor @ self.posterior.factor.T)
        precision = precision + design.T @ np.linalg.solve(covariance, design)
        spread = (self.features * self.weights[:, None]).T @ self.features
        return float(np.trace(np.linalg.solve(precision, spread)))

    def whitening(self, tau: float) -> np.ndarray:
        """The paper's shape ``(n E[v v^T] + tau I)^-1/2``, at its loudest."""
        gram = self.length * (self.features * self.weights[:, None]).T @ self.features
        values, vectors = np.linalg.eigh(gram + tau * np.eye(self.features.shape[1]))
        return self.scaled(vectors / np.sqrt(values))

    def norms(self, shape: np.ndarray) -> np.ndarray:
        return np.linalg.norm(self.features @ shape, axis=1)

    def scaled(self, shape: np.ndarray) -> np.ndarray:
        """The shape at its loudest: the largest message has norm 1."""
        return shape / self.norms(shape).max()


def make_case(
    seed: int, pairs: int = 40, rank: int = 6, noise: float | None = None, length: int = 300
) -> Case:
    """Features with a decaying spectrum, a correlated posterior, an uneven law."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(pairs, rank)) * 0.7 ** np.arange(rank)
    features /= np.linalg.norm(features, axis=1).max()
    weights = rng.dirichlet(np.full(pairs, 0.5))
    root = rng.normal(size=(rank, rank)) / np.sqrt(rank)
    return Case(
        features=features,
        weights=weights,
        posterior=Posterior(mean=np.zeros(rank), factor=root, scale=1.0),
        length=length,
        noise=float(10 ** rng.uniform(-0.5, 2.5)) if noise is None else noise,
        residual_variance=float(rng.uniform(0.01, 0.5)),
    )


def seeds(test: Callable[..., None]) -> Callable[..., None]:
    """A property of every random problem: 40 of them, shrunk to a small number if one fails."""
    return settings(max_examples=40)(given(seed=st.integers(0, 10**6))(test))


@seeds
def test_largest_message_has_norm_one(seed: int) -> None:
    case = make_case(seed)
    assert case.norms(case.water_filling()).max() == pytest.approx(1.0, rel=1e-10)


# -- the prediction -------------------------------------------------------------------------------


@seeds
def test_prediction_falls_with_length_and_rises_with_noise(seed: int) -> None:
    case = make_case(seed)
    shape = case.water_filling()
    before = case.predicted(shape, noise=1e12)
    assert case.predicted(shape, length=2 * case.length) < case.predicted(shape) < before
    assert case.predicted(shape) < case.predicted(shape, noise=2 * case.noise)
    assert case.predicted(shape) < case.predicted(
        shape, residual_variance=2 * case.residual_variance
    )


# -- the optimum ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), logarithm=st.floats(-1.0, 3.0), rank=st.integers(2, 12))
def test_water_filling_predicts_less_than_random_shapes(
    seed: int, logarithm: float, rank: int
) -> None:
    """Over random problems and noises: better than most of them, and nowhere near beaten by the
    best of 20, which may be lucky where two or three coordinates are all there is."""
    case = make_case(seed, rank=rank, noise=10**logarithm)
    rng = np.random.default_rng(seed)
    rivals = [case.scaled(rng.normal(size=(rank, rank))) for _ in range(20)]
    predictions = np.array([case.predicted(rival) for rival in rivals])
    ours = case.predicted(case.water_filling())
    assert ours <= np.median(predictions)
    assert ours <= 1.25 * predictions.min()


def best_whitening(case: Case) -> float:
    return min(
        case.predicted(case.whitening(float(tau))) for tau in 10.0 ** np.arange(-2.0, 7.0, 0.5)
    )


def test_water_filling_is_better_on_average_than_the_best_whitening() -> None:
    """Random laws and posteriors, 200 problems: the mean of the ratio."""
    ratios = [
        case.predicted(case.water_filling()) / best_whitening(case)
        for case in (make_case(seed) for seed in range(200))
    ]
    assert np.mean(ratios) < 1.0


def closed_form(spread: np.ndarray, value: np.ndarray, multiplier: float) -> np.ndarray:
    """``a_j = (sqrt(b_j g) - 1)_+ / b_j``, from the docstring."""
    return np.maximum(np.sqrt(value * multiplier) - 1.0, 0.0) / value


@seeds
@pytest.mark.parametrize("multiplier", [1.0, 3.0, 100.0])
def test_closed_form_is_the_minimum_on_the_simplex_it_is_derived_on(
    seed: int, multiplier: float
) -> None:
    """``sum l_j / (1 + b_j a_j)`` under ``sum a_j l_j`` fixed and ``a >= 0`` is convex: moving any
    feasible way, however far, does not lower it, and the first-order change is zero inside."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.01, 1.0, size=8)
    value = (200 * spread / 10 ** rng.uniform(0, 2)) ** 2
    multiplier *= 1.01 / value.max()  # at 1.01 just the most informative direction is asked about
    best = closed_form(spread, value, multiplier)

    def objective(shares: np.ndarray) -> float:
        return float(np.sum(spread / (1 + value * shares)))

    total = best @ spread
    for _ in range(200):
        other = rng.dirichlet(np.full(8, 0.4)) * total / spread
        step = 10 ** rng.uniform(-6, 0)
        assert objective(best + step * (other - best)) >= objective(best) * (1 - 1e-12)
    used = best > 0
    slope = -value[used] / (1 + value[used] * best[used]) ** 2  # per unit of a_j l_j
    np.testing.assert_allclose(slope, slope[0], rtol=1e-8)
    assert (-value[~used] >= slope[0] * (1 + 1e-9)).all()


@seeds
def test_shape_returned_is_a_closed_form_of_some_multiplier(seed: int) -> None:
    """Squared column norms, in coordinates where the posterior is white and the law's covariance
    diagonal, follow ``(sqrt(b_j g) - 1)_+ / b_j`` for one ``g``, up to one common factor."""
    case = make_case(seed)
    shape = case.water_filling()
    white = case.features @ case.posterior.factor
    spread, vectors = np.linalg.eigh((white * case.weights[:, None]).T @ white)
    mixing = np.linalg.solve(case.posterior.factor, shape)  # vectors * sqrt(shares)
    inner = vectors.T @ mixing @ mixing.T @ vectors
    shares = np.diag(inner)
    np.testing.assert_allclose(inner, np.diag(shares), atol=1e-9 * shares.max())
    value = (case.length * spread / case.noise) ** 2
    candidates = []
    for multiplier in 2.0 ** np.arange(0.5, 24.0, 1.5) / value.max():
        ideal = closed_form(spread, value, multiplier)
        candidates.append(np.abs(shares / shares.sum() - ideal / ideal.sum()).max())
    assert min(candidates) < 1e-8


# -- what it drops --------------------------------------------------------------------------------


def even_case(seed: int) -> Case:
    """Eight directions whose prior deviations are within a factor of two."""
    factor = np.diag(np.geomspace(1.0, 0.5, 8))
    posterior = Posterior(mean=np.zeros(8), factor=factor, scale=1.0)
    return replace(make_case(seed, rank=8), posterior=posterior)


@seeds
def test_directions_are_dropped_as_the_noise_grows(seed: int) -> None:
    """Never regained, never all of them; and little noise keeps what is within a factor 1000."""
    case = even_case(seed)
    ranks = [case.water_filling(noise=noise).shape[1] for noise in 10.0 ** np.arange(-3, 7)]
    assert all(later <= earlier for earlier, later in pairwise(ranks))
    assert 1 <= ranks[-1] < ranks[0]
    white = case.features @ case.posterior.factor
    spread = np.linalg.eigvalsh((white * case.weights[:, None]).T @ white)
    assert ranks[0] >= np.sum(spread > spread[-1] / 1000)


def test_much_noise_leaves_few_directions() -> None:
    ranks = [even_case(seed).water_filling(noise=1e6).shape[1] for seed in range(20)]
    assert np.mean(ranks) < 2.5  # of eight


def test_directions_without_spread_are_left_out() -> None:
    """A coordinate that no pair of the support uses gets no message and no noise."""
    case = make_case(1)
    features = case.features.copy()
    features[:, 4] = 0.0
    factor = np.diag([1.0, 0.8, 0.6, 0.5, 0.4, 0.3])
    posterior = Posterior(mean=np.zeros(6), factor=factor, scale=1.0)
    shape = water_filling(features, case.weights, posterior.factor, **case.epoch | {"noise": 1e-6})
    assert shape.shape[1] == 5
    assert np.isfinite(shape).all()


def test_one_pair_gives_one_message() -> None:
    case = make_case(2, pairs=1)
    shape = case.water_filling()
    assert shape.shape == (6, 1)
    assert abs(float(case.features[0] @ shape[:, 0])) == pytest.approx(1.0)


# -- invariances ----------------------------------------------------------------------------------


@seeds
def test_units_of_the_rewards_do_not_change_the_message(seed: int) -> None:
    """Posterior deviation, noise and residual deviation in other units: the same shape."""
    case = make_case(seed)
    posterior = Posterior(mean=np.zeros(6), factor=7.0 * case.posterior.factor, scale=1.0)
    other = water_filling(
        case.features,
        case.weights,
        posterior.factor,
        length=case.length,
        noise=7.0 * case.noise,
        residual_variance=49.0 * case.residual_variance,
    )
    ours = case.water_filling()
    np.testing.assert_allclose(other @ other.T, ours @ ours.T, rtol=1e-7, atol=1e-9)


@seeds
def test_scale_of_the_features_does_not_change_the_message(seed: int) -> None:
    """``v`` five times larger and ``theta`` five times smaller are the same problem."""
    case = make_case(seed)
    posterior = Posterior(mean=np.zeros(6), factor=case.posterior.factor / 5, scale=1.0)
    other = water_filling(5 * case.features, case.weights, posterior.factor, **case.epoch)
    ours = case.water_filling()
    messages = case.features @ ours
    others = 5 * case.features @ other
    np.testing.assert_allclose(others @ others.T, messages @ messages.T, rtol=1e-7, atol=1e-9)


@seeds
def test_rotation_of_the_coordinates_rotates_the_message(seed: int) -> None:
    case = make_case(seed)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))
    posterior = Posterior(mean=np.zeros(6), factor=rotation.T @ case.posterior.factor, scale=1.0)
    other = water_filling(case.features @ rotation, case.weights, posterior.factor, **case.epoch)
    messages, others = case.features @ case.water_filling(), case.features @ rotation @ other
    np.testing.assert_allclose(others @ others.T, messages @ messages.T, rtol=1e-7, atol=1e-9)


@seeds
def test_order_and_splitting_of_pairs_do_not_matter(seed: int) -> None:
    case = make_case(seed)
    order = np.random.default_rng(seed).permutation(len(case.weights))
    doubled = np.concatenate([case.features[order], case.features[order]])
    halves = np.concatenate([case.weights[order], case.weights[order]]) / 2
    other = water_filling(doubled, halves, case.posterior.factor, **case.epoch)
    ours = case.water_filling()
    np.testing.assert_allclose(other @ other.T, ours @ ours.T, rtol=1e-7, atol=1e-9)
