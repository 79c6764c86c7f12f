"""What every policy and environment of one's own must do, tried on small problems.

A check is a function that raises where something is missing; its docstring says what it asks for.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chisquare

from capri.environments import Environment, random_rkhs
from capri.errors import CapriError, ConfigurationError
from capri.kernels import RBF
from capri.privacy.budget import Budget
from capri.simulation import simulate
from capri_lab.experiments.worlds import own_environment, own_world
from capri_lab.own import in_line, load
from capri_lab.rivals import Rival, kind_of, rival

_KERNEL = RBF(lengthscale=0.3)
_ROUNDS, _SEEDS = 200, 400
# An honest policy or environment fails a statistical check this often.
_FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Finding:
    """A check, in words, and what was found missing; nothing where it passed."""

    check: str
    missing: str = ""


def contract(name: str) -> Iterator[Finding]:
    """Every check of what a name stands for; the first that fails on its form is the last."""
    thing = load(name)
    if isinstance(thing, type):
        yield from _tried(name, _POLICY)
    else:
        yield from _tried(name, _ENVIRONMENT)


def _tried(name: str, checks: tuple[Callable[[str], None], ...]) -> Iterator[Finding]:
    for number, check in enumerate(checks):
        said = (inspect.getdoc(check) or "").rstrip(".")
        try:
            check(name)
        except CapriError as problem:
            yield Finding(said, str(problem))
        except AssertionError as problem:
            yield Finding(said, str(problem) or "it does not hold")
        except Exception as problem:
            yield Finding(said, in_line(problem, load(name)))
        else:
            yield Finding(said)
            continue
        if number == 0:  # nothing else can be tried
            return


# -- policies -------------------------------------------------------------------------------------


def _has_form(name: str) -> None:
    """It derives from Rival and says what it is called, needs and reaches."""
    if kind_of(name) is None:
        raise ConfigurationError(f"{name} is no class")


def _builds(name: str) -> None:
    """It is built for a problem, with a budget if it promises something, and without."""
    _built(name, 0)
    if _kind(name).promise.model not in ("none", "perfect"):
        _built(name, 0, Budget(epsilon=1.0, delta=1e-5))


def playable(name: str, options: dict[str, Any]) -> None:
    """Refuse a policy that cannot play a small problem, before a study plays anything."""
    try:
        _plays(name, **options)
    except CapriError:
        raise
    except Exception as problem:
        raise ConfigurationError(f"{name}: {in_line(problem, load(name))}") from None


def _plays(name: str, **options: Any) -> None:
    """It plays to the horizon, with actions that exist and propensities that are probabilities."""
    policy, world = _built(name, 0, **options), _world()
    rng = np.random.default_rng(0)
    while policy.remaining:
        context = world.draw_contexts(rng, policy.remaining)
        decisions = policy.act_many(world.contexts[context])
        actions, chances = decisions.action_index, decisions.propensity
        assert ((actions >= 0) & (actions < len(world.actions))).all(), "an action does not exist"
        assert ((chances > 0) & (chances <= 1)).all(), "a propensity is no probability above 0"
        policy.update_many(decisions, world.rewards(rng, context, actions))


def _repeats(name: str) -> None:
    """The same seed plays the same run."""
    first, second = (simulate(_built(name, 7), _world(), _ROUNDS, seed=7) for _ in range(2))
    assert np.array_equal(first.regret, second.regret), (
        "two runs with one seed differ: draw from self._draws only"
    )


def _tells_propensities(name: str) -> None:
    """Propensities are how often actions are played."""
    world = _world()
    seen = [_built(name, seed).act(world.contexts[0]) for seed in range(_SEEDS)]
    chance: dict[int, list[float]] = {}
    for each in seen:
        chance.setdefault(each.action_index, []).append(each.propensity)
    expected = np.array([np.mean(each) for each in chance.values()])
    counts = np.array([len(each) for each in chance.values()])
    rest = 1.0 - expected.sum()
    assert rest > -1e-9, "the propensities of one context sum to more than 1"
    if rest > 1e-9:
        expected, counts = np.append(expected, rest), np.append(counts, 0)
    if len(counts) > 1:
        found = chisquare(counts, _SEEDS * expected / expected.sum()).pvalue
        assert found > _FALSE_ALARM, f"first actions do not follow them: p = {found:.1g}"
    else:
        assert expected[0] > 1 - 1e-9, "one action is always played, with a propensity below 1"


def _kind(name: str) -> type[Rival]:
    kind = kind_of(name)
    assert kind is not None
    return kind


def _world() -> Environment:
    return random_rkhs(_KERNEL, contexts=6, actions=5)


def _built(name: str, seed: int, budget: Budget | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "kernel": _KERNEL,
        "horizon": _ROUNDS,
        "simulation_seed": seed,
        "budget": budget,
    }
    return rival(name, _world(), **given, **options)


# -- environments ---------------------------------------------------------------------------------


def _is_environment(name: str) -> None:
    """It is a function of a seed that returns an environment."""
    own_environment(name)
    _made(name)


def _has_shapes(name: str) -> None:
    """Contexts and actions are rows of numbers, weights are probabilities."""
    made = _made(name)
    for rows in (made.contexts, made.actions):
        table = np.asarray(rows)
        assert table.ndim == 2, f"rows must have two axes, got shape {table.shape}"
        assert np.isfinite(table).all(), "rows must be finite"
    weights = np.asarray(made.weights)
    assert weights.shape == (len(made.contexts),), "there must be one weight for each context"
    assert (weights >= 0).all(), "weights must not be negative"
    assert abs(float(weights.sum()) - 1.0) < 1e-9, "weights must sum to 1"


def _is_bounded(name: str) -> None:
    """No reward exceeds the bound, and their mean is the mean."""
    made, rng = _made(name), np.random.default_rng(0)
    for context, action in ((0, 0), (len(made.contexts) - 1, len(made.actions) - 1)):
        places = np.full(4_000, context), np.full(4_000, action)
        rewards, mean = made.rewards(rng, *places), made.mean(*places)[0]
        assert (np.abs(rewards) <= made.reward_bound).all(), "a reward exceeds reward_bound"
        wide = 6.0 * max(float(rewards.std()), 1e-9 * made.reward_bound) / np.sqrt(len(rewards))
        assert abs(float(rewards.mean()) - mean) <= wide, "rewards are not mean() on average"


def _knows_the_best(name: str) -> None:
    """best() is the largest mean, and uniform_regret() the regret of playing at random."""
    made = _made(name)
    context, action = np.indices((len(made.contexts), len(made.actions)))
    means = made.mean(context.ravel(), action.ravel()).reshape(context.shape)
    best = made.best(np.arange(len(made.contexts)))
    assert np.allclose(best, means.max(axis=1)), "best() is not the largest mean()"
    regret = float(np.asarray(made.weights) @ (best - means.mean(axis=1)))
    assert np.isclose(made.uniform_regret(), regret), "uniform_regret() is another number"


def _follows_weights(name: str) -> None:
    """Contexts come as often as their weights say."""
    made = _made(name)
    drawn = made.draw_contexts(np.random.default_rng(0), 20_000)
    weights = np.asarray(made.weights)
    counts = np.bincount(drawn, minlength=len(weights))
    assert not counts[weights == 0].any(), "a context of weight 0 came"
    come = weights > 0
    found = chisquare(counts[come], 20_000 * weights[come] / weights[come].sum()).pvalue
    assert found > _FALSE_ALARM, f"draws do not follow the weights: p = {found:.1g}"


def _is_reproducible(name: str) -> None:
    """The same seed makes the same environment, told by values that JSON can hold."""
    first, second = _made(name), _made(name)
    context, action = np.indices((len(first.contexts), len(first.actions)))
    places = context.ravel(), action.ravel()
    assert np.array_equal(first.mean(*places), second.mean(*places)), "one seed, two functions"
    json.dumps(first.parameters())


def _made(name: str) -> Environment:
    return own_world(name, 3, {})


_POLICY = (_has_form, _builds, _plays, _repeats, _tells_propensities)
_ENVIRONMENT = (
    _is_environment,
    _has_shapes,
    _is_bounded,
    _knows_the_best,
    _follows_weights,
    _is_reproducible,
)
