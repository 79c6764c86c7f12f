"""An estimator that was pickled before modules moved still predicts and goes on."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parent / "data" / "estimator-before-moves.pkl"


def test_estimator_pickled_before_the_moves_goes_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old paths, and noise that is repeatable
        ridge = pickle.loads(FILE.read_bytes())
        assert ridge.predict([[0.25], [0.75]]) == pytest.approx([0.5855666694, -0.652854201])
        ridge.partial_fit(np.array([[0.1], [0.2]]), np.array([0.1, 0.2]))
        ridge.release()
    assert ridge.n_rows_ == 62
    assert len(ridge.ledger_.events) == len({event.epoch for event in ridge.ledger_.events})
