"""An explanation says what is true of the belief, from public things, and changes nothing."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import play_epoch, small_policy, snapshot
from capri.environments import TabularEnvironment
from capri.errors import ConfigurationError
from capri.features import greedy_basis
from capri.learners.explain import EFFECTS, PublicPairs, Size, column_sizes, effect_rows
from capri.learners.priors import EvidencePrior
from capri.schema import Categorical, Numeric, Schema
from capri.spaces import FixedActions

GENERATOR = np.random.default_rng(3)
CONTEXTS = GENERATOR.random((60, 3)) * [1.0, 100.0, 1.0]
ACTIONS = np.linspace(0, 1, 6)[:, None]


def configured(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": None,
        "simulation_seed": 5,
    }
    return capri.Capri(**(settings | changes))


@cache
def played(table: str, rounds: int = 3000, **changes: Any) -> capri.Capri:
    """A policy that has learnt a table; it is shared, and read only."""
    world = TabularEnvironment(
        name="known",
        contexts=CONTEXTS,
        weights=np.full(len(CONTEXTS), 1 / len(CONTEXTS)),
        actions=ACTIONS,
        means=TABLES[table],
        reward_bound=1.0,
        noise=0.1,
    )
    policy = configured(**changes)
    capri.simulate(policy, world, rounds, seed=1)
    return policy


MATTERS = CONTEXTS[:, 1] / 100 - 0.5
INTERACTION = MATTERS[:, None] * (2 * ACTIONS[:, 0] - 1)
CONTEXT_FREE = np.broadcast_to(0.6 * np.sin(5 * ACTIONS[:, 0]), INTERACTION.shape)
TABLES = {"interaction": INTERACTION, "context-free": CONTEXT_FREE}


def shares(found: capri.Explanation, field: str) -> dict[str, float]:
    return {each.name: getattr(each, field) for each in found.effects}


def test_the_column_that_matters_is_found() -> None:
    policy = played("interaction")
    found = policy.explain()
    first, second, _ = found.largest_columns
    assert first.name == "column 1"
    assert first.clear
    assert first.effect > 4 * second.effect
    # A linear effect changes by as much as an exchange does over one deviation of the column.
    assert first.lengthscale == pytest.approx(CONTEXTS[:, 1].std(), rel=0.35)
    truth = math.sqrt(float((INTERACTION**2).mean()))
    assert first.effect == pytest.approx(truth, rel=0.25)
    assert shares(found, "estimate")["interaction"] > 0.8
    assert found.releases == len(policy.epochs) > 3
    assert found.resolved > 0.8
    assert found.noise == pytest.approx(0.1 / math.sqrt(3), abs=0.04)


def test_a_world_without_contexts_is_told_from_one_with_them() -> None:
    without, with_them = (played(name).explain() for name in ("context-free", "interaction"))
    assert shares(without, "estimate")["action"] > 0.8
    assert shares(without, "share")["action"] > 2 * shares(with_them, "share")["action"]
    assert shares(without, "share")["interaction"] < 0.3 < shares(with_them, "share")["interaction"]
    for found in (without, with_them):
        for field in ("expected", "share", "estimate"):
            assert sum(shares(found, field).values()) == pytest.approx(1)


def test_shares_are_those_of_the_weights() -> None:
    policy = played("interaction")
    known = policy._learning.learner.known  # type: ignore[attr-defined]
    assert isinstance(known.prior, EvidencePrior)
    weights = np.exp(known.posterior.weights) * known.prior.covariances.trace(axis1=1, axis2=2)
    names = [part.name for part in known.prior.family.parts]
    expected = dict(zip(names, weights / weights.sum(), strict=True))
    found = policy.explain()
    assert {each.name: each.share for each in found.kernels} == pytest.approx(expected)
    ordered = [each.share for each in found.kernels]
    assert ordered == sorted(ordered, reverse=True)
    covariance = known.posterior.factor @ known.posterior.factor.T
    trace = float(np.trace(known.belief.information @ covariance))
    assert found.effective_dimension == pytest.approx(trace)
    for side in ("context", "action"):
        mixture = [each for each in found.smoothness if each.side == side]
        assert sum(each.share for each in mixture) == pytest.approx(1)
        assert sum(each.expected for each in mixture) == pytest.approx(1)


def test_effects_add_up_to_the_function() -> None:
    """``E f^2`` is the sum over the effects, for any weights of the contexts."""
    generator = np.random.default_rng(1)
    features, weights = generator.normal(size=(7, 4, 5)), generator.dirichlet(np.ones(7))
    mean, root = generator.normal(size=5), generator.normal(size=(5, 5))
    rows = effect_rows(features, weights)
    assert tuple(rows) == EFFECTS
    sizes = [Size.of(*rows[name], mean, root) for name in EFFECTS]
    flat, every = features.reshape(-1, 5), np.repeat(weights, 4) / 4
    assert sum(size.known for size in sizes) == pytest.approx(every @ (flat @ mean) ** 2)
    covariance = root @ root.T
    spread = every @ np.einsum("ij,jk,ik->i", flat, covariance, flat)
    assert sum(size.unknown for size in sizes) == pytest.approx(spread)


def test_a_gaussian_kernel_has_its_own_lengthscale() -> None:
    """Of its Gaussian process, where rows are far apart: ``E f'^2 = 1 / lengthscale^2``."""
    contexts = capri.ContextPool(np.linspace(0, 8, 400)[:, None])
    actions = FixedActions([[0.0], [1.0]])
    kernel = capri.kernels.RBF(lengthscale=(0.4, 1.0))
    points = np.concatenate([contexts.rows, np.zeros((400, 1))], axis=1)
    basis = greedy_basis(kernel, points, tolerance=1e-6, max_rank=100)
    generator = np.random.default_rng(2)
    pairs = PublicPairs.draw(contexts, actions, generator)
    nothing = np.zeros(basis.rank), np.eye(basis.rank)
    (column,) = column_sizes(
        basis.coordinates,
        pairs,
        None,
        lambda rows, weights: Size.of(rows, weights, *nothing),
        generator,
    )
    assert column.change.known == 0
    assert column.lengthscale == pytest.approx(0.4, rel=0.1)


def test_before_any_release_it_says_so() -> None:
    found = configured().explain()
    assert found.headline.startswith("No release yet: nothing is known of f")
    assert found.releases == 0
    assert found.resolved == pytest.approx(0, abs=1e-9)
    assert found.effective_dimension == 0
    assert not found.noise_measured
    assert all(each.estimate is None for each in found.effects)
    assert all(each.effect == 0 < each.standard_error for each in found.columns)
    assert shares(found, "share") == shares(found, "expected")
    assert "by evidence" not in str(found).replace("weighed by evidence", "")


def test_columns_have_their_names_and_units() -> None:
    schema = Schema([Numeric("age", 20, 70), Categorical("<b>plan</b>", ["free", "pro"])])
    generator = np.random.default_rng(8)
    ages, plans = generator.uniform(20, 70, 80), generator.choice(["free", "pro"], 80)
    table = {"age": ages, "<b>plan</b>": plans}
    pool = capri.ContextPool(table, schema=schema)  # type: ignore[arg-type]
    named = configured(contexts=pool).explain()
    plain = configured(contexts=capri.ContextPool(pool.rows)).explain()
    assert [each.name for each in named.columns] == ["age", "<b>plan</b>"]
    age, plan = named.columns
    assert plan.lengthscale is None
    assert plan.standard_error > 0
    assert plain.columns[0].lengthscale is not None
    assert age.lengthscale == pytest.approx(50 * plain.columns[0].lengthscale)
    html = named._repr_html_()
    assert "&lt;b&gt;plan&lt;/b&gt;" in html
    assert "<b>plan" not in html


def test_a_told_kernel_is_explained_by_projection() -> None:
    kernel = capri.kernels.Matern(nu=2.5, lengthscale=(0.5, 50.0, 0.5, 0.5))
    found = played("interaction", kernel=kernel).explain()
    assert found.kernels == found.smoothness == ()
    assert found.kernel.startswith("Matern(nu=2.5")
    assert found.largest_columns[0].name == "column 1"
    assert shares(found, "estimate")["interaction"] > 0.7
    assert sum(shares(found, "expected").values()) == pytest.approx(1)
    assert 0 < found.effective_dimension < found.rank


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": 5},
        {"actions": capri.VaryingActions(count=2, dimension=1)},
        {"contexts": capri.ContextSampler(lambda generator, n: generator.random((n, 2)), 2)},
        {"contexts": capri.ContextPool([[0.5]])},
        {"budget": capri.Budget(epsilon=1.0, delta=1e-5)},
    ],
)
def test_every_kind_of_problem_is_explained(changes: dict[str, Any]) -> None:
    found = configured(**changes).explain()
    assert sum(shares(found, "expected").values()) == pytest.approx(1)
    own = 1 if "actions" in changes and not isinstance(changes["actions"], int) else None
    columns = own or configured(**changes).contexts.dimension
    assert len(found.columns) == columns
    assert np.isfinite([each.standard_error for each in found.columns]).all()


def test_explaining_changes_nothing(tmp_path: Path) -> None:
    policy = small_policy(preset="practical", horizon=None, kernel="auto")
    play_epoch(policy)
    before = snapshot(policy, tmp_path)
    first, again = policy.explain(), policy.explain()
    assert first == again
    assert snapshot(policy, tmp_path) == before
    policy.save(tmp_path / "policy.capri")
    assert capri.Capri.load(tmp_path / "policy.capri").explain() == first


def test_an_aggregator_explains_itself() -> None:
    server = capri.LocalCapri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.5),
        actions=ACTIONS,
        contexts=capri.ContextPool(CONTEXTS[:, :1]),
        budget=capri.Budget(epsilon=4.0),
        public_seed=1,
    )
    digest = server.digest
    assert server.explain().releases == 0
    assert server.digest == digest


def test_what_was_known_beforehand_is_known() -> None:
    rows = np.random.default_rng(3).random((300, 2))
    rewards = np.sin(4 * rows[:, 0]) * rows[:, 1]
    prior = capri.Prior.from_rows(rows[:, :1], rows[:, 1:], rewards)
    told = configured(
        contexts=capri.ContextPool(rows[:40, :1]), actions=rows[:9, 1:], prior=prior
    ).explain()
    assert told.releases == 0
    assert told.resolved > 0.5
    assert told.headline.startswith("By what was known beforehand, ")
    assert "nothing is known" not in str(told)


def test_the_paper_has_nothing_to_explain() -> None:
    with pytest.raises(ConfigurationError, match="only preset 'practical' does"):
        small_policy().explain()


def test_text_fits_a_screen_and_numbers_are_plain() -> None:
    wide = capri.ContextPool(np.random.default_rng(4).random((90, 30)))
    found = configured(contexts=wide).explain()
    lines = str(found).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert "the first 8 of 30" in str(found)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["crowd"] is None
    assert len(plain["columns"]) == 30
    assert plain["effects"][0]["name"] == "constant"


def test_the_picture_shows_the_numbers() -> None:
    found = played("interaction").explain()
    figure = found.plot()
    effects, shapes, columns = figure.axes
    widths = [bar.get_width() for bar in effects.patches]
    fields = ("expected", "share", "estimate")
    assert widths == [value for field in fields for value in shares(found, field).values()]
    bars = [bar.get_width() for bar in shapes.patches]
    assert bars[len(bars) // 2 :] == [each.share for each in found.smoothness]
    drawn = [bar.get_width() for bar in columns.patches]
    assert drawn == [each.effect for each in found.largest_columns]
    assert figure.texts[0].get_text() == found.headline
    clear = sum(each.clear for each in found.columns)
    assert found.headline.endswith(f"Clear effects: {clear} of {len(found.columns)} columns.")
    told = configured(kernel=capri.kernels.RBF(lengthscale=0.5)).explain().plot()
    assert "The kernel is known" in told.axes[1].texts[0].get_text()
