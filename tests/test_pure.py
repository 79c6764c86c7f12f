"""A budget without a delta does all that one with a delta does: in cells, and it learns.

Every test plays the default preset at epsilon 1. Worlds are drawn from fixed seeds. A run that has
learnt has less than a stated share of uniform play's regret; that share leaves room for another
choice of cells, and is far below 1.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import PURE
from capri.epoch.shadow import ShadowSum
from capri.errors import ConfigurationError
from capri.privacy.layout import Layout, Norm

POOL = np.linspace(0.0, 1.0, 40)[:, None]
NAMES = ["walk", "bus", "train"]


def worth(contexts: Any, actions: Any) -> Any:
    """Walk below a third, train above two thirds: .8 for the right one, else 0 to .4."""
    best = np.clip(np.floor(3 * np.asarray(contexts)[:, 0]), 0, 2)
    return 0.8 - 0.4 * np.abs(best - np.asarray(actions))


def built(**changes: Any) -> capri.Capri:
    settings: dict[str, Any] = {
        "actions": NAMES,
        "contexts": capri.ContextPool(POOL),
        "budget": PURE,
        "simulation_seed": 4100,
    }
    return capri.Capri(**(settings | changes))


def play(
    policy: capri.Capri,
    count: int,
    *,
    seed: int = 4101,
    users: Callable[[int], Any] | None = None,
    answering: float = 1.0,
    value: Callable[[Any, Any], Any] = worth,
) -> float:
    """Visits and their rewards, in lists; the share of uniform regret in the last third."""
    rng, regret, usual, start = np.random.default_rng(seed), 0.0, 0.0, 0
    actions = range(policy.actions.count)
    while start < count:
        step = min(100, policy.remaining, count - start)
        contexts = POOL[rng.integers(len(POOL), size=step)]
        own = None if users is None else [users(start + place) for place in range(step)]
        made = policy.act_many(contexts, users=own)
        means = np.stack([value(contexts, np.full(step, a)) for a in actions], axis=1)
        got = value(contexts, made.action_index)
        told = np.clip(got + rng.normal(0, 0.1, step), -1, 1)
        came = np.flatnonzero((rng.random(step) < answering) & (made.status == 0))
        policy.update_many([str(made.id[place]) for place in came], told[came])
        start += step
        if start > 2 * count // 3:
            regret += float((means.max(axis=1) - got).sum())
            usual += float((means.max(axis=1) - means.mean(axis=1)).sum())
    return regret / usual


def assert_pure(policy: capri.Capri, least: int = 3) -> None:
    """Every release has Laplace noise, and nobody can have lost more than was promised."""
    events = policy.ledger.events
    assert len(events) >= least
    assert {(event.mechanism, str(event.norm)) for event in events} == {("laplace", "l1")}
    spent = policy.ledger.spent
    assert spent.delta == 0.0
    assert spent.epsilon <= PURE.epsilon


KINDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "known kernel": {"kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.4),
                    "actions": np.linspace(0, 1, 3)[:, None]},
    "blocks": {"blocks": True, "actions": [*NAMES, *(f"{n}" for n in range(6))]},
    "late": {"reward_wait": 150},
    "as estimated": {"missing_reward": "as-estimated"},
    "late, as estimated": {"reward_wait": 150, "missing_reward": "as-estimated"},
    "range": {"reward_range": (-1.0, 1.0)},
    "memory": {"memory": 2_000.0},
    "limits": {"limits": capri.Limits(floor={"bus": 0.1}, ceiling={"walk": 0.9})},
    "sampler": {"contexts": capri.ContextSampler(lambda rng, n: POOL[rng.integers(40, size=n)], 1)},
    "prior": {"prior": capri.Prior.from_rows(
        np.repeat(POOL, 3, axis=0), NAMES * 40, worth(np.repeat(POOL, 3, axis=0), [0, 1, 2] * 40)
    )},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_policy_learns_from_cells(kind: str) -> None:
    answering = 0.6 if "estimated" in kind else 1.0
    changes = KINDS[kind]
    if kind == "blocks":  # nine actions, of which three are any good
        policy = built(**changes)

        def value(contexts: Any, actions: Any) -> Any:
            return np.where(np.asarray(actions) < 3, worth(contexts, actions), -0.5)

        assert play(policy, 6_000, value=value) < 0.7
    else:
        policy = built(**changes)
        assert play(policy, 4_500, answering=answering) < 0.5
    assert_pure(policy)
    policy.explain()
    assert np.isfinite(policy.estimate(POOL)).all()


def test_contexts_that_bring_their_actions() -> None:
    """The worth of an action is what it says of itself."""
    rng = np.random.default_rng(4102)
    pool = rng.random((200, 4))
    policy = built(
        actions=capri.VaryingActions(count=3, dimension=1),
        contexts=capri.ContextPool(pool),
        kernel=capri.kernels.RBF(lengthscale=0.5),
    )
    regret = usual = 0.0
    for turn in range(60):
        size = min(100, policy.remaining)
        contexts = pool[rng.integers(200, size=size)]
        made = policy.act_many(contexts)
        means = contexts[:, 1:] - 0.5
        got = means[np.arange(size), made.action_index]
        policy.update_many(made, got + rng.normal(0, 0.1, size))
        if turn >= 40:
            regret += float((means.max(axis=1) - got).sum())
            usual += float((means.max(axis=1) - means.mean(axis=1)).sum())
    assert regret < 0.5 * usual
    assert_pure(policy)


@pytest.mark.parametrize("blocks", [False, True])
def test_actions_come_and_go_within_an_epoch(blocks: bool) -> None:
    """One is retired and another added while an epoch is under way, and what is known stays."""
    names = [f"{number}" for number in range(9)] if blocks else ["0", "1", "2"]
    policy = built(actions=names, blocks=blocks or None)
    rng = np.random.default_rng(4103)

    def turns(count: int, worths: dict[str, float]) -> list[str]:
        played: list[str] = []
        for _ in range(count):
            made = policy.act_many(POOL[rng.integers(40, size=min(50, policy.remaining))])
            chosen = [each.action_name for each in made]
            policy.update_many(made, [worths.get(str(name), -0.5) for name in chosen])
            played += map(str, chosen)
        return played

    first = turns(60, {"1": 0.5})
    assert first[-500:].count("1") > 300
    policy.act_many(POOL[:7])  # an epoch is under way
    before = policy.pending
    policy.replace_actions([name for name in names if name != "0"] + ["new"])
    assert before
    second = turns(100, {"1": 0.5, "new": 0.9})
    assert "0" not in second
    assert second[-500:].count("new") > 300
    assert_pure(policy)


def test_a_change_of_the_world_is_found() -> None:
    """Right becomes wrong: what was learnt is given up, in cells alone."""
    policy = built()
    assert play(policy, 4_000) < 0.5
    turned = play(policy, 12_000, seed=4104, value=lambda c, a: worth(1 - np.asarray(c), a))
    assert turned < 0.6
    assert_pure(policy)


@pytest.mark.parametrize("total", [2, 4])
def test_users_who_come_back(total: int) -> None:
    """The noise covers all contributions, and each user's own account stays within the promise."""
    policy = built(contributions_per_user=total, contributions_per_epoch=2)
    play(policy, 3_000, users=lambda place: place // (2 * total))
    assert_pure(policy)
    scales = [event.noise_scale / event.sensitivity for event in policy.ledger.events]
    assert min(scales) >= total / PURE.epsilon * (1 - 1e-12)
    spent = [policy.ledger.spent_by(user) for user in range(3_000 // (2 * total))]
    assert max(each.epsilon for each in spent) <= PURE.epsilon
    assert {each.delta for each in spent} == {0.0}


def test_a_file_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    one = built(reward_wait=30, missing_reward="as-estimated")
    play(one, 1_000, answering=0.8)
    one.save(tmp_path / "policy.capri")
    other = capri.Capri.load(tmp_path / "policy.capri")
    assert other.ledger.events == one.ledger.events
    assert play(one, 2_000, seed=4105) == play(other, 2_000, seed=4105)
    assert one.ledger.events == other.ledger.events
    np.testing.assert_array_equal(one.estimate(POOL), other.estimate(POOL))
    assert_pure(other)


def test_a_private_file_keeps_its_plan_of_cells(tmp_path: Path) -> None:
    policy = built(simulation_seed=None)
    play(policy, 600)
    policy.close_epoch(early=True)
    policy.save(tmp_path / "policy.capri")
    found = capri.Capri.load(tmp_path / "policy.capri", take_over=True)
    assert found.ledger.events == policy.ledger.events
    play(found, 600, seed=4106)
    assert_pure(found)
    told = found.certificate()
    assert (told.epsilon, told.delta, told.spent["delta"]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e60, 1e300], ids=str)
@pytest.mark.parametrize(
    "changes",
    [{}, {"actions": 9}, {"missing_reward": "as-estimated"}, KINDS["known kernel"]],
    ids=["auto", "blocks", "as-estimated", "known kernel"],
)
def test_an_odd_context_is_served_and_moves_a_release_by_no_more_than_stated(
    odd: float, changes: dict[str, Any]
) -> None:
    """In no cell, or in that of the nearest centre. Others are given the same, bit by bit.

    Two simulations of one seed differ in one visit, so releases of one noise differ by messages.
    """
    worlds = []
    with np.errstate(all="raise"):  # whatever the caller set, no value may raise
        for context, reward in ((0.5, 1e9), (odd, -1e9)):
            policy = built(**changes)
            layout, seen, given = policy.plan().layout, [], []
            policy.observe(lambda vector, event, seen=seen: seen.append(vector))
            while len(policy.epochs) < 1:
                rows = POOL[(np.arange(min(30, policy.remaining)) * 7) % 40].copy()
                rewards = np.sin(np.arange(len(rows)))
                if not given:
                    rows[3], rewards[3] = context, reward
                made = policy.act_many(rows)
                sound = np.flatnonzero(made.status == 0)
                policy.update_many([str(made.id[n]) for n in sound], rewards[sound])
                given.append(np.delete(made.action_index, 3).tolist())
                policy.close_full_epoch()
            worlds.append((given, np.rint(seen[0] * layout._worth).astype(np.int64)))
    (given, low), (same, high) = worlds
    assert given == same
    assert 0 < np.abs(high - low).sum() <= layout.diameter


def message_layout(policy: capri.Capri, mode: str) -> Layout:
    """What messages of the first epoch are, in this mode."""
    plan = policy.plan()
    if mode == "active":
        return plan.layout
    return ShadowSum(policy.problem, plan.layout.norm, plan.epoch, plan.capacity).layout


def apart(layout: Layout, numbers: Any) -> float:
    """The distance of two releases in the norm of their layout, in integers."""
    parts = [
        float(np.sqrt(float(block.share_squared)) * block.worth) * numbers[block.part]
        for block in layout.blocks.values()
    ]
    whole = np.concatenate(parts)
    return float(np.abs(whole).sum() if layout.norm is Norm.L1 else np.linalg.norm(whole))


# Values that a search tries beside numbers within their ranges.
_REWARDS = (1.0, -1.0, 0.0, 0.3, 1e9, -1e9, np.nan, np.inf, None)
_CONTEXTS = (0.0, 0.49, 0.51, 1.0, 7.0, -1e60, np.nan, np.inf)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("mode", ["active", "shadow"])
@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 1),
        ({"actions": 9}, 1),
        ({"missing_reward": "as-estimated"}, 1),
        ({"contributions_per_user": 3, "contributions_per_epoch": 3}, 3),
    ],
    ids=["auto", "blocks", "as-estimated", "users"],
)
def test_no_user_moves_a_release_by_more_than_its_noise_is_made_for(
    noise: str, mode: str, changes: dict[str, Any], times: int
) -> None:
    """Any two lives of one user, through the whole policy: simulations of one seed have one noise,
    so two releases differ by what the user sent. The best of the search comes near the bound."""
    rng, bystanders = np.random.default_rng(4107), np.linspace(0.05, 0.95, 8)
    budget, counted = capri.Budget(1.0, 1e-5), "contributions_per_user" in changes

    def begun() -> capri.Capri:
        return built(budget=budget, noise=noise, first_epoch=12, **changes)

    def released(visits: list[tuple[float, float | None]]) -> tuple[Any, Any]:
        policy = begun()
        policy.set_mode(mode)
        seen: list[tuple[Any, Any]] = []
        policy.observe(lambda vector, event: seen.append((vector, event)))
        rows = [[context] for context, _ in visits] + [[each] for each in bystanders]
        given: dict[str, Any] = {}
        if mode == "shadow":
            first = 0 if policy.actions.names is None else NAMES[0]
            given = {"chosen": [first] * len(rows), "chosen_propensities": [1e-9] * len(rows)}
        users = [0] * len(visits) + list(range(1, 9)) if counted else None
        made = policy.act_many(np.array(rows), users=users, **given)
        told = [(str(made.id[n]), reward) for n, (_, reward) in enumerate(visits)]
        sent = [(name, reward) for name, reward in told if reward is not None]
        with warnings.catch_warnings():  # a simulation says what became of odd rewards
            warnings.simplefilter("ignore", capri.errors.RewardIgnoredWarning)
            policy.update_many([name for name, _ in sent], [value for _, value in sent])
        policy.close_epoch(early=True)
        return seen[0]

    def life() -> list[tuple[float, float | None]]:
        return [
            (
                float(rng.choice(_CONTEXTS) if rng.random() < 0.5 else rng.random()),
                _REWARDS[rng.integers(len(_REWARDS))] if rng.random() < 0.9 else rng.uniform(-1, 1),
            )
            for _ in range(times)
        ]

    layout = message_layout(begun(), mode)
    lives = [[(0.3, 1e9)] * times, [(0.3, -1e9)] * times, *(life() for _ in range(25))]
    found = []
    for visits in lives:
        vector, event = released(visits)
        assert event.mechanism == noise
        found.append(vector)
    far = max(
        apart(layout, one - other) for place, one in enumerate(found) for other in found[:place]
    )
    assert 0.8 * times * layout.diameter <= far <= times * layout.diameter * (1 + 1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_shadow_messages_raise_nothing(noise: str) -> None:
    """Whatever a visit brings, also where the caller has errors of arithmetic raised."""
    policy = built(budget=capri.Budget(1.0, 1e-5), noise=noise, first_epoch=40)
    policy.set_mode("shadow")
    odd = [np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, 1e-9]
    with np.errstate(all="raise"):
        for turn in range(10):
            rows = [[odd[(turn + place) % 8]] for place in range(8)]
            propensities = [odd[place] for place in range(8)]
            made = policy.act_many(rows, chosen=["bus"] * 8, chosen_propensities=propensities)
            good = np.flatnonzero(made.status == 0)  # a simulation warns of what changes nothing
            policy.update_many([str(made.id[place]) for place in good], np.roll(odd, turn)[good])
        policy.close_epoch(early=True)
    records = policy.shadow
    assert [record.visits for record in records] == [40, 40]
    assert {event.mechanism for event in policy.ledger.events} == {noise}
    assert all(np.isfinite([each.worth, each.earned, each.weight]).all() for each in records)


@pytest.mark.parametrize(
    "build",
    [
        lambda: built(preset="paper", kernel=capri.kernels.RBF(), horizon=100),
        lambda: built(noise="gaussian"),
        lambda: capri.LocalCapri(
            actions=3,
            contexts=capri.ContextPool(POOL),
            budget=PURE,
            shuffle=capri.Shuffle(most=4.0),
        ),
    ],
    ids=["paper", "gaussian", "shuffle"],
)
def test_what_has_no_pure_form_names_a_delta(build: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"delta.*1e-"):
        build()
