"""``result.plot()``: the numbers of the run, in a form that a notebook shows."""

import numpy as np
import pytest

import capri
from capri.simulation import UniformPlay
from capri_lab.surfaces import branin


def played(budget: capri.Budget | None) -> capri.SimulationResult:
    world = branin(contexts=6, actions=5, seed=0)
    policy = capri.Capri(
        kernel=capri.kernels.RBF(lengthscale=0.3),
        actions=world.actions,
        contexts=capri.ContextPool(world.contexts),
        budget=budget,
        horizon=200,
        simulation_seed=0,
    )
    return capri.simulate(policy, world, 200)


@pytest.mark.parametrize("private", [True, False])
def test_the_picture_holds_the_run(private: bool) -> None:
    result = played(capri.Budget(epsilon=4.0, delta=1e-5) if private else None)
    figure = result.plot()
    left, right = figure.axes
    uniform, run = left.lines
    np.testing.assert_allclose(uniform.get_ydata(), [0, 200 * result.uniform_regret_per_round])
    np.testing.assert_array_equal(run.get_ydata()[1:], result.regret)
    ends = np.cumsum([epoch.length for epoch in result.epochs])
    np.testing.assert_array_equal(right.lines[0].get_xdata(), ends)
    np.testing.assert_array_equal(
        right.lines[0].get_ydata(), [epoch.width for epoch in result.epochs]
    )
    # Without privacy there is no noise to draw.
    assert len(right.lines) == (3 if private else 2)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_policy_without_epochs_has_one_panel() -> None:
    world = branin(contexts=6, actions=5, seed=0)
    player = UniformPlay(actions=world.actions, horizon=50, simulation_seed=0)
    (panel,) = capri.simulate(player, world, 50).plot().axes
    assert panel.lines[1].get_ydata()[0] == 0.0
