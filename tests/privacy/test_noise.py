"""Noise of a private run: exact, unpredictable, never from a NumPy generator, fresh after fork."""

import ast
import os
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
import capri_lab
from builders import BUDGET, play_epoch, small_policy
from capri.errors import ConfigurationError
from capri.privacy.gate import Gate, noise_source
from capri.privacy.layout import Norm
from capri.privacy.noise import SecureNoise, SimulatedNoise
from capri.streams import Streams

SOURCE, LABORATORY = Path(capri.__file__).parent, Path(capri_lab.__file__).parent


def in_child(compute: Callable[[], Any]) -> Any:
    """Result of a computation in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(pickle.dumps(compute()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


# -- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "reports"), [(1.0, 1), (1000.0, 1), (float(1 << 24), 1), (50.0, 4)]
)
def test_moments_are_those_of_the_discrete_gaussian(scale: float, reports: int) -> None:
    """Mean, variance and fourth moment of 20,000 draws.

    At scale 1 and above the discrete Gaussian has the moments of the continuous one to 2e-7. Each
    check is at five standard errors: false alarm 6e-7 for the mean, 7e-7 for the variance and 1e-6
    for the fourth moment, whose law leans (skewness 0.07), so 1e-5 for all scales. Noise off by a
    factor 0.95 or 1.05 is 9 standard errors of the variance away.
    """
    count = 20_000
    value = 12_345
    draws = SecureNoise().add(np.full(count, value), scale, reports=reports) - value
    assert draws.dtype == np.int64
    unit = draws / (scale * sqrt(reports))
    assert abs(unit.mean()) < 5 / sqrt(count)
    assert abs((unit**2).mean() - 1) < 5 * sqrt(2 / count)
    assert abs((unit**4).mean() - 3) < 5 * sqrt(96 / count)


def test_probabilities_at_a_small_scale() -> None:
    """Scale 1: P(0) = 0.39894, P(+-1) = 0.24197, P(+-2) = 0.05399 (p(k) ~ e^{-k^2/2}).

    20,000 draws, five standard errors, five cells: false alarm below 3e-6. Rounding a continuous
    Gaussian instead gives P(0) = 0.3829, 4.6 standard errors away, and P(1) = 0.2417.
    """
    count = 20_000
    draws = SecureNoise().add(np.zeros(count, dtype=np.int64), 1.0)
    weights = {k: np.exp(-k * k / 2) for k in range(-12, 13)}
    total = sum(weights.values())
    for k in (-2, -1, 0, 1, 2):
        expected = weights[k] / total
        error = sqrt(expected * (1 - expected) / count)
        assert abs((draws == k).mean() - expected) < 5 * error


def test_noise_is_integer_and_new_each_time() -> None:
    """Two vectors of 8 draws at scale 2^24 agree with probability below 2^-190."""
    zeros = np.zeros(8, dtype=np.int64)
    first, second = (SecureNoise().add(zeros, float(1 << 24)) for _ in range(2))
    assert first.dtype == second.dtype == np.int64
    assert (first != second).any()
    assert len(set(first.tolist())) > 1, "every coordinate has noise of its own"


def test_input_is_left_alone() -> None:
    values = np.arange(5)
    SecureNoise().add(values, 1000.0)
    SimulatedNoise(np.random.default_rng(0)).add(values, 1000.0)
    np.testing.assert_array_equal(values, np.arange(5))


def test_no_report_no_noise() -> None:
    values = np.arange(5)
    np.testing.assert_array_equal(SecureNoise().add(values, 1000.0, reports=0), values)


def test_large_sums_are_exact() -> None:
    """No detour through floats: at scale 1 noise on 2^61 moves it by a few units, not by 512."""
    values = np.full(50, (1 << 61) + 1)
    assert np.abs(SecureNoise().add(values, 1.0) - values).max() < 20


def test_simulated_noise_has_the_same_law_and_a_seed() -> None:
    """Five standard errors of 20,000 draws: false alarm below 6e-7, and seeded anyway."""
    zeros = np.zeros(20_000, dtype=np.int64)
    draws = [
        SimulatedNoise(np.random.default_rng(3)).add(zeros, 1000.0, reports=4) for _ in range(2)
    ]
    np.testing.assert_array_equal(*draws)
    unit = draws[0] / 2000.0
    assert abs(unit.mean()) < 5 / sqrt(len(unit))
    assert abs((unit**2).mean() - 1) < 5 * sqrt(2 / len(unit))
    assert not SimulatedNoise.private
    assert SecureNoise.private


# -- forks ----------------------------------------------------------------------------------------


def test_noise_differs_between_forked_children_and_their_parent() -> None:
    """A buffer of randomness filled before the fork would repeat: three vectors of 8, 2^-190."""
    zeros = np.zeros(8, dtype=np.int64)
    source = SecureNoise()
    source.add(zeros, float(1 << 24))  # fill any buffer

    def draw() -> tuple[int, ...]:
        return tuple(source.add(zeros, float(1 << 24)).tolist())

    draws = [in_child(draw), in_child(draw), draw()]
    for position in range(8):
        assert len({vector[position] for vector in draws}) > 1
    assert len(set(draws)) == 3


@pytest.mark.parametrize("stream", ["public", "actions"])
def test_private_streams_are_fresh_after_a_fork(stream: str) -> None:
    streams = Streams(None)
    getattr(streams, stream).random()

    def draw() -> float:
        return float(getattr(streams, stream).random())

    assert len({in_child(draw), in_child(draw), draw()}) == 3


def test_private_streams_of_one_process_go_on() -> None:
    """Reseeding at every draw would hide a broken fork check."""
    streams = Streams(None)
    assert streams.public is streams.public
    assert streams.actions is streams.actions
    assert streams.public is not streams.actions


@pytest.mark.parametrize("stream", ["public", "actions"])
def test_simulation_is_not_reseeded_by_a_fork(stream: str) -> None:
    streams = Streams(5)

    def draw() -> float:
        return float(getattr(streams, stream).random())

    assert in_child(draw) == in_child(draw) == draw()


def test_private_policies_of_forked_children_differ() -> None:
    """Built after the fork: 3 actions over 36 uniform decisions agree with probability 3^-36."""

    def play() -> list[float]:
        policy = small_policy(simulation_seed=None, horizon=1296)
        decisions = play_epoch(policy)
        return [*decisions.action_index.tolist(), *policy.estimate([[0.3]])[0].tolist()]

    first, second = in_child(play), in_child(play)
    assert first[:36] != second[:36]
    assert first[36:] != second[36:]


def test_private_policy_stays_in_its_process() -> None:
    """A forked copy would give out the same decision numbers and count users a second time."""
    policy = small_policy(simulation_seed=None)

    def refused() -> list[float]:
        try:
            policy.act([0.3])
        except capri.BudgetError:
            return [1.0]
        return [0.0]

    assert in_child(refused) == [1.0]
    policy.act([0.3])


# -- where noise comes from, statically -----------------------------------------------------------


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the product and of its laboratory, read once for all tests."""
    return {
        str(path.relative_to(start)): ast.parse(path.read_text(encoding="utf-8"))
        for package, start in ((SOURCE, SOURCE), (LABORATORY, LABORATORY.parent))
        for path in sorted(package.rglob("*.py"))
    }


def dotted(node: ast.AST) -> str:
    """``np.random.default_rng`` for the expression that says so."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def called(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == name
    ]


def test_global_random_state_is_never_used() -> None:
    """``np.random.normal`` and friends, ``np.random.seed``, and Python's own ``random``."""
    allowed = {"default_rng", "Generator", "SeedSequence"}
    seen = set()
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and dotted(node.value) in (
                "np.random",
                "numpy.random",
            ):
                assert node.attr in allowed, f"{name}:{node.lineno} uses np.random.{node.attr}"
                seen.add(node.attr)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.split(".")[0] != "random", f"{name} imports random"
                    assert alias.name != "numpy.random", f"{name} imports numpy.random"
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert module != "random", f"{name} imports from random"
                assert not module.startswith("numpy.random"), f"{name} imports from {module}"
    assert seen == allowed, "the scan finds what is there"


def test_secure_noise_knows_no_generator() -> None:
    """Nothing of NumPy's random module, no scipy.stats, no seed in the class that protects."""
    tree = trees()[os.path.join("privacy", "noise.py")]
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    words = {
        name: {
            part
            for node in ast.walk(body)
            for part in (
                [node.id] if isinstance(node, ast.Name)
                else [node.attr] if isinstance(node, ast.Attribute)
                else [node.arg] if isinstance(node, ast.arg)
                else []
            )
        }
        for name, body in classes.items()
    }  # fmt: skip
    forbidden = {"random", "generator", "normal", "standard_normal", "default_rng", "seed", "stats"}
    assert not words["SecureNoise"] & forbidden
    assert words["SimulatedNoise"] & forbidden, "the scan would find a generator"
    assert "make_gaussian" in {
        alias.name
        for node in ast.walk(classes["SecureNoise"])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } | {
        alias.name
        for node in tree.body
        for child in ast.walk(node)
        if isinstance(child, ast.ImportFrom)
        for alias in child.names
    }


def test_simulated_noise_is_made_only_for_a_seed() -> None:
    """One constructor call in the package, at the gate, for the generator of a simulation."""
    places = [
        (name, call) for name, tree in trees().items() for call in called(tree, "SimulatedNoise")
    ]
    assert [name for name, _ in places] == [os.path.join("privacy", "gate.py")]
    assert isinstance(noise_source(None), SecureNoise)
    assert isinstance(noise_source(Streams(0).noise), SimulatedNoise)
    assert Streams(None).noise is None


def test_generators_with_a_constant_seed_are_known_by_name() -> None:
    """A constant seed is harmless in exactly these places; another one must be looked at.

    The audits: probes of
    the attacker, who may be as predictable as he likes.
    """
    known = {
        (os.path.join("audit", "attacker.py"), ""): "probes of the attacker",
        (os.path.join("audit", "run.py"), "RehearsedStage"): "made-up users of a simulation",
        (os.path.join("kernels", "__init__.py"), ""): "rows that a kernel is tried on",
        (os.path.join("learners", "boundary.py"), ""): "public pairs that notices look at",
        (os.path.join("epoch", "limits.py"), "Limits"): "public sets that plans expect",
        (os.path.join("family", "evidence.py"), ""): "draws from a released posterior",
        (os.path.join("learners", "model.py"), ""): "public contexts for prices",
        (os.path.join("learners", "prior.py"), ""): "public pairs of a prior",
        (os.path.join("learners", "context_support.py"), "ContextSupport"): "public rows of a law",
        (os.path.join("capri_lab", "experiments", "contract.py"), ""): "tries of a contract",
        (os.path.join("regression", "summary.py"), ""): "public pairs of a prior",
        (os.path.join("regression", "decode.py"), "Model"): "draws from a released posterior",
        (
            os.path.join("regression", "design.py"),
            "RowDistribution",
        ): "public rows that stand for the box",
        (os.path.join("learners", "copula.py"), ""): "how much of normal products a cut leaves",
        (os.path.join("regression", "design.py"), "RowSupport"): "public rows of a law",
        (os.path.join("audit", "fit.py"), "_FitTarget"): "probes of the attacker",
        (os.path.join("capri_lab", "report", "summary.py"), ""): "flips of a permutation test",
        (os.path.join("capri_lab", "rivals", "features.py"), ""): "features of a simulated rival",
    }
    found = set()
    for name, tree in trees().items():
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.ClassDef | ast.Module):
                continue
            inner = [n for n in scope.body if not isinstance(n, ast.ClassDef)]
            for call in [call for node in inner for call in called(node, "default_rng")]:
                arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
                if any(isinstance(argument, ast.Constant) for argument in arguments):
                    found.add((name, getattr(scope, "name", "")))
    assert found == set(known)


def test_streams_are_made_only_by_policies_and_the_estimator() -> None:
    """Nobody else decides where randomness comes from."""
    makers = {name for name, tree in trees().items() if called(tree, "Streams")}
    owners = {
        os.path.join("joint", "policy.py"),
        os.path.join("joint", "planner.py"),
        "simulation.py",
        os.path.join("regression", "options.py"),
        os.path.join("audit", "fit.py"),
    }
    assert makers <= owners
    assert os.path.join("joint", "policy.py") in makers


# -- where noise comes from, at run time ----------------------------------------------------------


@pytest.mark.parametrize("model", ["joint", "local"])
def test_gate_of_a_private_run_never_touches_a_generator(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Every generator of the run explodes when used inside the gate, where noise is added."""
    inside = False
    used: list[str] = []

    class Watched(np.random.Generator):
        def __getattribute__(self, name: str) -> Any:
            if inside:
                raise AssertionError(f"the gate used a NumPy generator: {name}")
            used.append(name)
            return super().__getattribute__(name)

    def watched(seed: Any = None) -> np.random.Generator:
        return Watched(np.random.PCG64(seed))

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal inside
            inside = True
            try:
                return original(*arguments, **keywords)
            finally:
                inside = False

        return call

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a private run used simulated noise")

    monkeypatch.setattr(np.random, "default_rng", watched)
    monkeypatch.setattr(SimulatedNoise, "add", refuse)
    monkeypatch.setattr(SimulatedNoise, "__init__", refuse)
    for name in ("normal", "standard_normal", "randn", "random"):  # and the global state
        monkeypatch.setattr(np.random, name, refuse)
    for name in ("release", "report"):
        monkeypatch.setattr(Gate, name, guard(getattr(Gate, name)))
    policy = small_policy(simulation_seed=None, model=model)
    rows = np.zeros((1, 1))
    while policy.remaining:
        count = policy.remaining
        decisions = policy.act_many(np.repeat(rows, count, axis=0))
        policy.update_many(decisions, np.linspace(-1, 1, count))
    policy.close_epoch()
    assert len(policy.epochs) == len(policy.ledger.events) == 4
    assert used, "the watch was on: public and action draws went through it"


def test_watch_sees_a_generator_in_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above fails for a policy whose noise is NumPy's."""

    def numpy_noise(
        self: SecureNoise, values: Any, scale: float, reports: int = 1, norm: Any = Norm.L2
    ) -> Any:
        return values + np.rint(np.random.default_rng().normal(0, scale, len(values))).astype(int)

    monkeypatch.setattr(SecureNoise, "add", numpy_noise)
    with pytest.raises(AssertionError, match="the gate used a NumPy generator"):
        test_gate_of_a_private_run_never_touches_a_generator(monkeypatch, "joint")


def test_private_run_takes_no_seed_and_stores_none(tmp_path: Path) -> None:
    policy = small_policy(simulation_seed=None)
    assert policy.private
    assert Streams(None).state() is None
    with pytest.raises(ConfigurationError, match="no stored randomness"):
        Streams(None).restore({})
    play_epoch(policy)
    policy.save(tmp_path / "policy")
    loaded = capri.Capri.load(tmp_path / "policy")
    assert loaded.private
    assert isinstance(loaded._gate._source, SecureNoise)


@pytest.mark.parametrize("seed", [-1, True, 1.5, "7", b"7"])
def test_seed_that_is_none_of_ours_is_refused(seed: object) -> None:
    with pytest.raises(ConfigurationError, match="simulation_seed"):
        small_policy(simulation_seed=seed)


def test_simulation_makes_no_claim() -> None:
    policy = small_policy(simulation_seed=0, budget=BUDGET)
    assert not policy.private
    assert "no privacy claim" in policy.guarantee
    assert "no privacy claim" in repr(policy)
