"""The policies that simulations play: CAPRI under each privacy model, and uniform play."""

from typing import Any

from capri.checks import one_of
from capri.environments import Environment, public_pool
from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.kernels import Kernel
from capri.local.simulator import DeviceSimulator
from capri.privacy.budget import Budget
from capri.privacy.mixing import Shuffle
from capri.simulation import UniformPlay

CAPRI, UNIFORM = "capri", UniformPlay.name


def make_capri(
    *,
    model: str,
    preset: str,
    budget: Budget | None,
    shuffle: Shuffle | None = None,
    **settings: Any,
) -> Capri | DeviceSimulator:
    """CAPRI with a curator, or devices and an aggregator; the paper has its own local form."""
    if (model, preset) == ("local", "practical"):
        if budget is not None:
            return DeviceSimulator.build(budget=budget, **settings)
        model = "joint"  # without a budget nothing has to be hidden from a curator
    if model == "shuffle":
        if budget is None or preset != "practical":
            raise ConfigurationError("model shuffle needs preset practical and a finite epsilon")
        return DeviceSimulator.build(budget=budget, shuffle=shuffle or Shuffle(), **settings)
    return Capri(budget=budget, model=model, preset=preset, **settings)


def make_player(
    name: str,
    environment: Environment,
    *,
    kernel: Kernel,
    budget: Budget | None,
    rounds: int,
    seed: int,
    **settings: Any,
) -> Capri | DeviceSimulator | UniformPlay:
    """A policy for an environment, with a seed; ``settings`` are those of :func:`make_capri`."""
    one_of("policy", name, (CAPRI, UNIFORM))
    if name == UNIFORM:
        return UniformPlay(actions=environment.actions, horizon=rounds, simulation_seed=seed)
    return make_capri(
        kernel=kernel,
        actions=environment.actions,
        contexts=public_pool(environment),
        reward_bound=environment.reward_bound,
        budget=budget,
        horizon=rounds,
        simulation_seed=seed,
        **settings,
    )
