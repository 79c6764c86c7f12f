"""A wait that is too short shows in the rates of short and long epochs."""

import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import capri
from capri.learners import words
from capri.learners.fit import Rates
from capri.privacy.histogram import histogram_layout


def _late(span: int) -> capri.Capri:
    """Half of the rewards are 1 and take up to ``span`` decisions, the others are 0 and quick."""
    contexts, generator = np.linspace(0, 1, 4), np.random.default_rng(5)
    policy = capri.Capri(
        actions=np.linspace(0, 1, 5)[:, None],
        contexts=capri.ContextPool(contexts[:, None]),
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.5),
        budget=capri.Budget(1.0, 1e-5),
        reward_range=(0, 1),
        reward_wait=1_000,
        missing_reward="as-estimated",
        first_epoch=300,  # short ones that tell a rate, and long ones are six times as long
        simulation_seed=5,
    )
    due: dict[int, list[tuple[str, float]]] = defaultdict(list)
    decided = 0
    while decided < 30_000:
        count = min(100, policy.remaining)
        decisions = policy.act_many(generator.choice(contexts, count)[:, None])
        rewards = (generator.random(count) < 0.5).astype(float)
        delays = np.where(rewards > 0, generator.uniform(0, span, count), 50).astype(int)
        for place, delay in enumerate(delays.tolist()):
            batch = (decided + place + delay) // 100 + 1
            due[batch].append((decisions[place].id, float(rewards[place])))
        decided += count
        for batch in [batch for batch in due if batch <= decided // 100]:
            ids, values = zip(*due.pop(batch), strict=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", capri.RewardIgnoredWarning)
                policy.update_many(list(ids), list(values))
    return policy


def test_nothing_is_said_of_constant_rates_and_all_of_a_rise() -> None:
    rates = Rates()
    for length in (300, 450, 2_000, 5_000):
        rates = rates.measured(0.7, 0.01, length)
    assert words.wait(rates) is None
    rising = Rates().measured(0.5, 0.01, 300).measured(0.9, 0.01, 5_000)
    notice = words.wait(rising)
    assert notice is not None
    assert notice.kind == "wait"
    assert notice.numbers["long"] == pytest.approx(0.9)


@pytest.mark.filterwarnings("ignore::capri.KernelWarning")
def test_delays_by_outcome_are_unbiased_where_the_wait_covers_them_and_said_where_not() -> None:
    """Rates of about .6 and .9 with deviations below .03: ten of them apart."""
    covered, cut = _late(900), _late(4_000)
    assert covered.estimate([[0.5]]).mean() == pytest.approx(0.5, abs=0.05)
    assert "wait" not in [notice.kind for notice in covered.notices]
    assert cut.estimate([[0.5]]).mean() < 0.45
    assert "wait" in [notice.kind for notice in cut.notices]


def test_rates_are_kept_in_files(tmp_path: Path) -> None:
    policy = _late(900)
    policy.save(tmp_path / "policy.npz")
    loaded = capri.Capri.load(tmp_path / "policy.npz")
    assert loaded._learning.learner.known.rates == policy._learning.learner.known.rates
    assert loaded._learning.learner.known.rates.rise is not None


def test_rates_are_read_from_cells_of_missing_users() -> None:
    """A message of one cell counts missing users by cell: their sum is what a rate needs."""
    layout = histogram_layout(cells=3, length=400, budget=capri.Budget(50.0), missing=True)
    told = np.zeros(layout.coordinates)
    told[layout.blocks["missing"].part] = [10.0, 20.0, 10.0]
    release = SimpleNamespace(plan=SimpleNamespace(asked=layout), participants=100, vector=told)
    rates = Rates().after(release)  # type: ignore[arg-type]
    assert rates.short / rates.short_precision == pytest.approx(0.6)
    silent = histogram_layout(cells=3, length=400, budget=capri.Budget(50.0))
    release.plan.asked, release.vector = silent, np.zeros(silent.coordinates)
    assert Rates().after(release) == Rates()  # type: ignore[arg-type]
