"""What a fit has learnt, shown by column and by pair; and its model card."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from capri import ConfigurationError, PrivateKernelRidge
from capri.regression.explain import FitExplanation

ROWS = 5_000
BOUNDS = {"age": (18, 98), "plan": ["free", "pro", "gold"], "member": bool, "hours": (0, 1)}


@pytest.fixture(scope="module")
def fitted() -> PrivateKernelRidge:
    """Targets rise with age and plan; hours count for members and against others."""
    generator = np.random.default_rng(5)
    people = pd.DataFrame(
        {
            "age": generator.uniform(18, 98, ROWS),
            "plan": generator.choice(["free", "pro", "gold"], ROWS),
            "member": generator.random(ROWS) < 0.5,
            "hours": generator.random(ROWS),
        }
    )
    y = 0.5 * (people["age"] - 58) / 80 + 0.3 * (people["plan"] == "pro")
    y += 0.4 * np.where(people["member"], 1, -1) * (people["hours"] - 0.5)
    y += 0.05 * generator.standard_normal(ROWS)
    return PrivateKernelRidge(epsilon=4.0, X_bounds=BOUNDS, y_bounds=(-1, 1)).fit(people, y)


@pytest.fixture(scope="module")
def explanation(fitted: PrivateKernelRidge) -> FitExplanation:
    return fitted.explain(pairs=2)


def test_effects_of_columns(explanation: FitExplanation) -> None:
    effects = {each.name: each for each in explanation.columns}
    assert set(effects) == set(BOUNDS)
    age, plan = effects["age"], effects["plan"]
    assert plan.values == (("free", "pro", "gold"),)
    truth = 0.5 * (np.array(age.values[0]) - 58) / 80
    away = age.effect - truth
    assert np.abs(away).max() < 0.05
    # Effects have mean zero over the released law, whose mean age is told with noise: bands are of
    # how the prediction changes with age.
    assert np.mean(np.abs(away - away.mean()) <= (age.upper - age.lower) / 2) > 0.7
    assert np.allclose(plan.effect, [-0.1, 0.2, -0.1], atol=0.05)
    assert all((each.lower < each.upper).all() for each in explanation.columns)


def test_the_strongest_pair_is_what_acts_together(explanation: FitExplanation) -> None:
    """0.4 (member - 1/2) 2 (hours - 1/2) has no part of either column alone."""
    pair, other = explanation.pairs
    assert set(pair.columns) == {"member", "hours"}
    member, hours = (pair.columns.index(name) for name in ("member", "hours"))
    effect = pair.effect if member < hours else pair.effect.T
    signs = np.where(np.array(pair.values[member]) == True, 1, -1)  # noqa: E712 (of objects)
    truth = 0.4 * signs[:, None] * (np.array(pair.values[hours], dtype=float) - 0.5)
    assert np.abs(effect - truth).max() < 0.12
    assert other.strength < 0.3 * pair.strength


def test_it_shows_itself(explanation: FitExplanation, tmp_path: Path) -> None:
    assert "member x hours" in repr(explanation) or "hours x member" in repr(explanation)
    assert explanation._repr_html_().startswith("<table>")
    assert explanation.save(tmp_path / "shapes.png").read_bytes() == explanation._repr_png_()
    with pytest.raises(ConfigurationError, match=r"\.png, \.svg or \.pdf"):
        explanation.save(tmp_path / "shapes.txt")


def test_it_is_the_same_at_every_call_and_costs_nothing(fitted: PrivateKernelRidge) -> None:
    spent = fitted.ledger_.spent
    first, second = (fitted.explain(pairs=0) for _ in range(2))
    assert first.table() == second.table()
    assert first.pairs == ()
    assert fitted.ledger_.spent == spent


@pytest.mark.parametrize(("setting", "words"), [({"output": 1}, "output"), ({"level": 2}, "level")])
def test_refused(fitted: PrivateKernelRidge, setting: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fitted.explain(**setting)


def test_model_card(fitted: PrivateKernelRidge) -> None:
    card = fitted.model_card()
    assert card.startswith("# Model card: PrivateKernelRidge\n")
    assert fitted.certificate().statement in card
    for words in ("5,000 rows of 4 columns", "age (numeric)", "| stage | rows |", "| age |"):
        assert words in card


def test_a_card_without_a_certificate_says_why() -> None:
    X = np.linspace(0, 1, 300)[:, None]
    free = PrivateKernelRidge(epsilon=float("inf"), X_bounds=(0, 1), y_bounds=(0, 1), rank=8)
    card = free.fit(X, np.column_stack([X, 1 - X])).model_card()
    assert "None is stated: no certificate: this fit spent no budget" in card
    assert "0 to 1 and 0 to 1" in card
