"""PrivateKernelQuantiles: each row told once, quantiles that do not cross, public bounds."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from capri import ConfigurationError, PrivacyLeakWarning, PrivateKernelQuantiles
from capri.errors import DataError, KernelWarning
from capri.regression.quantiles import ResidualClasses, _parts

QUANTILES = np.array([0.1, 0.5, 0.9])


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets that spread more to the right, and their quantiles."""
    generator = np.random.default_rng(seed)
    X = generator.random((count, 1))
    middle, spread = np.sin(4 * X), 0.03 + 0.4 * X
    y = middle[:, 0] + spread[:, 0] * generator.standard_normal(count)
    return X, y, middle + spread * ndtri(QUANTILES)


def quantiles(*given: Any, **parameters: Any) -> PrivateKernelQuantiles:
    return PrivateKernelQuantiles(*given, **{"X_bounds": (0, 1), "y_bounds": (-3, 3)} | parameters)


def quiet(model: PrivateKernelQuantiles, *data: Any) -> PrivateKernelQuantiles:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return model.fit(*data)


def pinball(y: np.ndarray, found: np.ndarray) -> float:
    beyond = y[:, None] - found
    return float(np.mean(np.maximum(QUANTILES * beyond, (QUANTILES - 1) * beyond)))


def test_loss_is_close_to_that_of_the_true_quantiles() -> None:
    """A seeded fit: the true quantiles as 1, those of all targets together have 2.5."""
    X, y, _ = rows(4_000)
    test, later, truth = rows(4_000, seed=1)
    model = quiet(quantiles(epsilon=4.0, random_state=0), X, y)
    found = model.predict(test)
    best = pinball(later, truth)
    assert pinball(later, found) < 1.15 * best
    assert pinball(later, np.tile(np.quantile(later, QUANTILES), (len(test), 1))) > 2.4 * best
    low, high = model.predict_interval(test, level=0.8)
    assert np.array_equal(low, found[:, 0])
    assert np.array_equal(high, found[:, 2])
    assert abs(np.mean((low <= later) & (later <= high)) - 0.8) < 0.05
    assert model.score(test, later) > 0.5


def test_quantiles_never_cross_and_invert_the_distribution() -> None:
    """At any row, near or far, however much noise there is."""
    X, y, _ = rows(300)
    asked = np.linspace(0.01, 0.99, 50)
    model = quiet(quantiles(asked, epsilon=0.3, random_state=1), X, y)
    test = np.linspace(-1, 2, 60)[:, None]
    found = model.predict(test)
    assert (np.diff(found, axis=1) >= 0).all()
    assert ((found >= -3) & (found <= 3)).all()
    values = np.linspace(-2.9, 2.9, 30)
    chances = model.predict_cdf(test, values)
    assert (np.diff(chances, axis=1) >= 0).all()
    inside = (found > -2.99) & (found < 2.99)
    back = np.stack([np.diag(model.predict_cdf(test, column)) for column in found.T], axis=1)
    assert np.allclose(back[inside], np.broadcast_to(asked, found.shape)[inside], atol=1e-9)
    assert model.predict_cdf(test[:2], [-3.1, 3.0]).tolist() == [[0.0, 1.0]] * 2


def test_every_row_is_in_one_part() -> None:
    for count in (2, 3, 1_000):
        first, second = _parts(count, np.random.default_rng(0))
        assert sorted([*first, *second]) == list(range(count))
        assert min(len(first), len(second)) >= 1
    X, y, _ = rows(400)
    certificate = quantiles().fit(X, y).certificate()
    assert certificate.epsilon == 1.0
    parts = {each["table"]: each["rows"] for each in certificate.releases}
    assert parts == {1: 280, 2: 120}
    assert certificate.spent["epsilon"] == pytest.approx(1.0, rel=1e-6)


def test_classes_tell_the_share_of_residuals_below_each_edge() -> None:
    """Means of codes over rows give back the shares, exactly."""
    residuals = np.random.default_rng(0).standard_normal(1_000)
    classes = ResidualClasses(edges=np.linspace(-1.5, 1.5, 7))
    found = classes.below(classes.codes(residuals).mean(axis=0, keepdims=True))
    assert np.allclose(found, [(residuals <= edge).mean() for edge in classes.edges])


def test_no_value_is_refused() -> None:
    X, y, _ = rows(200)
    X[:3, 0] = np.nan, np.inf, 1e300
    targets = y.astype(object)
    targets[3:7] = None, np.nan, np.inf, 10**400
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
        model = quantiles().fit(X, targets)
        shown = model.predict([[np.nan], [0.5]])
        chances = model.predict_cdf([[np.nan], [0.5]], 0.0)
    assert model.ridge_.n_rows_ + model.spread_.n_rows_ == 200
    assert np.isnan(shown[0]).all()
    assert np.isfinite(shown[1]).all()
    assert np.isnan(chances[:, 0]).tolist() == [True, False]
    nothing = quantiles().fit(X, np.full(200, np.nan))
    assert np.isfinite(nothing.predict([[0.5]])).all()


def test_bounds_are_public_or_cost_the_certificate() -> None:
    X, y, _ = rows(200)
    guessed = quantiles(y_bounds=None)
    with pytest.warns(PrivacyLeakWarning, match="y_bounds not given"):
        guessed.fit(X, y)
    with pytest.raises(ConfigurationError, match="Give y_bounds, known without looking"):
        guessed.certificate()
    with pytest.raises(ConfigurationError, match="a simulation draws seeded noise"):
        quiet(quantiles(random_state=0), X, y).certificate()
    again = quantiles().fit(X, y)
    with pytest.warns(PrivacyLeakWarning, match="fit 2 of one estimator") as said:
        again.fit(X, y)
    assert len(said) == 1


def test_frames_weights_and_one_quantile() -> None:
    X, y, _ = rows(300)
    frame = pd.DataFrame({"age": 100 * X[:, 0], "plan": np.where(X[:, 0] > 0.5, "a", "b")})
    model = quantiles(0.5, X_bounds={"age": (0, 100), "plan": ["a", "b"]}, random_state=0)
    found = quiet(model, frame, y, np.linspace(0, 2, 300)).predict(frame[:9])
    assert found.shape == (9,)
    assert list(model.feature_names_in_) == ["age", "plan"]
    assert np.array_equal(quiet(model, frame, y, np.linspace(0, 2, 300)).predict(frame[:9]), found)


def test_what_is_wrong_is_said() -> None:
    X, y, _ = rows(20)
    for given, message in (
        ((0.5, 1.0), "quantiles must lie strictly between 0 and 1"),
        ((), "quantiles must be at least one"),
        ("half", "quantiles must lie strictly between 0 and 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            quantiles(given).fit(X, y)
    with pytest.raises(DataError, match="n_samples = 1"):
        quantiles().fit(X[:1], y[:1])
    with pytest.raises(DataError, match="one number per row"):
        quantiles().fit(X, np.zeros((20, 2)))
    with pytest.raises(ValueError, match="inconsistent"):
        quantiles().fit(X, y[:3])
    with pytest.raises(ConfigurationError, match="level must lie"):
        quantiles().fit(X, y).predict_interval(X, level=1.5)
