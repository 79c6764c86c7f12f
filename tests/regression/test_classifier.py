"""PrivateKernelClassifier: one release, probabilities, classes that are public."""

import warnings
from typing import Any

import numpy as np
import pytest

from capri import (
    ConfigurationError,
    PrivacyLeakWarning,
    PrivateKernelClassifier,
    PrivateKernelRidge,
)
from capri.errors import DataError, KernelWarning
from capri.regression.classifier import _mean_of_clipped


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three classes whose probabilities are known."""
    generator = np.random.default_rng(seed)
    X = generator.random((count, 1))
    scores = np.stack([4 * X[:, 0], np.ones(count), 4 - 4 * X[:, 0]], axis=1)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    draws = (generator.random((count, 1)) > np.cumsum(chances, axis=1)).sum(axis=1)
    return X, np.array(["a", "b", "c"])[draws], chances


def quiet(model: PrivateKernelClassifier, *data: Any) -> PrivateKernelClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return model.fit(*data)


def test_probabilities_are_close_to_the_true_ones() -> None:
    """A seeded fit of 5,000 rows; guessing the shares of the classes is 0.25 off."""
    X, y, _ = rows(5_000)
    test, _, chances = rows(300, seed=1)
    model = PrivateKernelClassifier(classes="abc", X_bounds=(0, 1), random_state=0)
    found = quiet(model, X, y).predict_proba(test)
    assert np.sqrt(np.mean((found - chances) ** 2)) < 0.08
    assert np.allclose(found.sum(axis=1), 1.0)
    assert (found > 0).all()
    assert model.decision_function(test).shape == (300, 3)
    assert len(model.ridge_.stages_) == 1
    assert [event.stage for event in model.ridge_.ledger_.events] == [0, 1]  # counts of columns
    agree = np.mean(model.predict(test) == np.array(["a", "b", "c"])[chances.argmax(axis=1)])
    assert agree > 0.8


def test_two_classes_cost_one_target() -> None:
    X, y, _ = rows(300)
    model = quiet(
        PrivateKernelClassifier(classes=["c", "a"], X_bounds=(0, 1), random_state=0), X, y
    )
    plan = model.ridge_._engine.readings[0].result.plan
    assert plan.layout.targets == 1
    assert model.decision_function(X[:4]).shape == (4,)
    assert model.predict_proba(X[:4]).shape == (4, 2)
    assert set(model.predict(X)) <= {"a", "c"}
    assert list(model.classes_) == ["c", "a"]


def test_classes_are_public_or_cost_the_certificate() -> None:
    X, y, _ = rows(200)
    told = PrivateKernelClassifier(classes=["a", "b", "c"], X_bounds=(0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
        told.fit(X, y)
    assert told.certificate().epsilon == 1.0
    guessed = PrivateKernelClassifier(X_bounds=(0, 1))
    with pytest.warns(PrivacyLeakWarning, match="classes not given"):
        guessed.fit(X, y)
    with pytest.raises(ConfigurationError, match="classes were taken from the data"):
        guessed.certificate()
    with pytest.warns(PrivacyLeakWarning, match="fit 2 of one estimator"):
        told.fit(X, y)


def test_no_label_is_refused() -> None:
    """One that was not declared, or is missing, or cannot be compared counts for nothing."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("secret")

        __hash__ = None  # type: ignore[assignment]

    X, y, _ = rows(200)
    labels = y.astype(object)
    labels[:4] = "z", None, np.nan, Odd()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", KernelWarning)  # of noise, by chance
        model = PrivateKernelClassifier(classes="abc", X_bounds=(0, 1)).fit(X, labels)
    assert model.ridge_.n_rows_ == 200
    assert np.isnan(model.predict_proba([[np.nan]])).all()
    with pytest.raises(ConfigurationError, match="each once"):
        quiet(PrivateKernelClassifier(classes=["a", "a"], X_bounds=(0, 1)), X, y)
    with pytest.raises(DataError, match="one class per row"):
        quiet(PrivateKernelClassifier(classes=["a"], X_bounds=(0, 1)), X, np.zeros((200, 2)))


def test_mean_of_a_clipped_gaussian() -> None:
    """Against two million draws: five standard errors are 0.0018."""
    draws = np.random.default_rng(0).standard_normal(2_000_000)
    for mean, width in ((0.5, 0.1), (0.95, 0.2), (-0.3, 0.4), (1.7, 0.5)):
        found = _mean_of_clipped(np.array([mean]), np.array([width]))[0]
        assert found == pytest.approx(np.clip(mean + width * draws, 0, 1).mean(), abs=0.0018)


@pytest.mark.filterwarnings("ignore")
def test_probabilities_of_even_classes_are_not_stretched() -> None:
    """Where noise is as wide as the range, residuals would exceed it: later stages take targets as
    they are. Cut at the range without a tail, the slope of this seeded fit is 1.18."""
    generator = np.random.default_rng(0)
    X = generator.random((20_000, 2))
    chances = 0.5 + 0.4 * np.sin(4 * X[:, 0] + 2 * X[:, 1])
    y = (generator.random(len(X)) < chances).astype(int)
    ridge = PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(0, 1), epsilon=4.0, random_state=0).fit(
        X, y
    )
    assert len(ridge.stages_) > 1
    model = PrivateKernelClassifier([0, 1], X_bounds=(0, 1), epsilon=4.0, random_state=0)
    model.fit(X, y)
    assert len(model.ridge_.stages_) == 1  # classes have no smaller residuals
    for found in (ridge.predict(X[:2_000]), model.predict_proba(X[:2_000])[:, 1]):
        assert abs(np.polyfit(chances[:2_000], found, 1)[0] - 1) < 0.05
