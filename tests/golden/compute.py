"""Hashes of small seeded results, one per named case: ``python tests/golden/compute.py [PATTERN]``.

Code may move, merge and change its names; no number may change. ``test_golden.py`` compares what
this script prints with ``expected.json``.

``--pin`` writes ``expected.json`` anew, with patterns for the cases that match alone. Re-pin only
what you mean to change, one commit each, saying why.

Sums, exponentials and logarithms differ in their last bits between processors and numbers of
threads. The script therefore starts itself again with one BLAS thread, the kernels of one processor
type in every OpenBLAS, and without the AVX512 loops of NumPy.

Only public names are used, and the few of :func:`unexported`.
"""

import argparse
import io
import json
import os
import platform
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import capri
from capri_lab import surfaces

EXPECTED = Path(__file__).with_name("expected.json")
ENVIRONMENT = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
PACKAGES = ("dask", "dp-accounting", "numpy", "opendp", "scikit-learn", "scipy")
CLOCK = ("seconds", "plan_seconds", "peak_memory_bytes")
# What guard rails say and remember: functions of the numbers pinned here, tested by themselves.
WORDS = ("notices", "fit")

Case = Callable[[], tuple[Any, ...]]


def unexported(name: str) -> Any:
    """What `capri simulate` builds players from, and seeded randomness of devices."""
    homes = {
        "DeviceSimulator": "capri.local.simulator",
        "RIVAL_NAMES": "capri_lab.rivals",
        "SimulatedRandomness": "capri.local.device",
        "rival": "capri_lab.rivals",
    }
    return getattr(import_module(homes[name]), name)


# -- hashing --------------------------------------------------------------------------------------


def digest(parts: tuple[Any, ...]) -> str:
    """SHA-256 over arrays (shape, float64 or int64 bytes), bytes, and anything else as JSON."""
    found = sha256()
    for part in parts:
        if isinstance(part, bytes):
            kind, data = "bytes", part
        elif isinstance(part, np.ndarray):
            plain = "<f8" if part.dtype.kind == "f" else "|u1" if part.dtype.kind == "b" else "<i8"
            if part.dtype.kind not in "fiub":
                raise TypeError(f"cannot hash an array of {part.dtype}")
            kind, data = f"{plain}{part.shape}", np.ascontiguousarray(part, dtype=plain).tobytes()
        else:
            kind, data = "json", json.dumps(part, sort_keys=True, default=_plain).encode()
        found.update(f"{kind}:{len(data)}:".encode() + data)
    return found.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot hash a {type(value).__name__}")


def without_clock(value: Any) -> Any:
    """JSON values without what a clock, a memory meter or a guard rail said."""
    if isinstance(value, dict):
        left_out = CLOCK + WORDS
        return {key: without_clock(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return [without_clock(each) for each in value]
    return value


def records(policy: Any) -> list[Any]:
    return [without_clock(record.to_dict()) for record in policy.epochs]


def contents(path: Path) -> Iterator[Any]:
    """A saved policy: its JSON, and its arrays by name."""
    with zipfile.ZipFile(path) as bundle:
        yield sorted(bundle.namelist())
        state = without_clock(json.loads(bundle.read("state.json")))
        kept = state.get("repository", {})
        if kept.get("users") is not None:
            # Digests of users have a salt of real entropy, simulation or not: counts remain.
            kept["users"] = list(kept["users"]["counts"].values())
        # Digests of plans: the numbers of records and of the open plan are pinned themselves.
        for law in kept.get("laws", {}).values():
            law["learning"].pop("plans", None)
        # Digests of plans: the numbers of records and of the open plan are pinned themselves.
        state.pop("plans", None)
        yield state
        for name in sorted(bundle.namelist()):
            if name.endswith(".npy"):
                array = np.lib.format.read_array(io.BytesIO(bundle.read(name)), allow_pickle=False)
                yield [name, str(array.dtype)]
                yield array


# -- playing --------------------------------------------------------------------------------------

KERNEL = capri.kernels.Matern(nu=2.5, lengthscale=0.4)
BUDGET = capri.Budget(epsilon=8.0, delta=1e-5)
PURE = capri.Budget(epsilon=8.0)


class Recorded:
    """A policy, and every decision it made."""

    def __init__(self, policy: Any, users: int | None, first: int) -> None:
        self.policy = policy
        self.users = users
        self.seen: list[tuple[Any, ...]] = []
        self.played = first

    @property
    def remaining(self) -> int:
        return self.policy.remaining

    @property
    def epochs(self) -> Any:
        return self.policy.epochs

    def act_many(self, contexts: Any) -> Any:
        given: dict[str, Any] = {}
        if self.users is not None:
            given["users"] = [(self.played + i) % self.users for i in range(len(contexts))]
        decisions = self.policy.act_many(contexts, **given)
        self.played += len(contexts)
        self.seen.append(
            (decisions.epoch, decisions.action_index, decisions.action, decisions.propensity)
        )
        return decisions

    def close_full_epoch(self) -> None:
        """A run ends with a decision that never comes: epochs are closed by calls, too."""
        close = getattr(self.policy, "close_full_epoch", None)
        if close is not None:
            close()

    def update_many(self, decisions: Any, rewards: Any) -> Any:
        status = self.policy.update_many(decisions, rewards)
        told = None if status is None else np.asarray(status, dtype=np.int64)
        self.seen.append((told, np.asarray(rewards)))
        return status

    def parts(self) -> Iterator[Any]:
        for batch in self.seen:
            yield from batch


def world(**changes: Any) -> Any:
    return capri.environments.random_rkhs(KERNEL, **({"contexts": 8, "actions": 6} | changes))


def played(
    policy: Any,
    environment: Any,
    rounds: int,
    *,
    users: int | None = None,
    first: int = 0,
    beliefs: tuple[str, ...] = ("estimate", "active", "probabilities"),
) -> tuple[Any, ...]:
    """Regret, decisions, records, and what the policy believes in the end.

    With ``users``, so many take turns; ``first`` rounds were played before.
    """
    recorded = Recorded(policy, users, first)
    result = capri.simulate(recorded, environment, rounds, seed=3 + first)
    believed = [getattr(policy, name)(environment.contexts) for name in beliefs]
    uniform = result.uniform_regret_per_round
    return (result.regret, uniform, records(result), *recorded.parts(), *believed)


def curator(environment: Any, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": environment.actions,
        "contexts": capri.ContextPool(environment.contexts, weights=environment.weights),
        "budget": BUDGET,
        "horizon": 1200,
        "simulation_seed": 7,
    }
    if changes.get("preset") != "paper":
        settings["first_epoch"] = 150
    return capri.Capri(**(settings | changes))


# -- joint ----------------------------------------------------------------------------------------


def joint(users: int | None = None, **changes: Any) -> tuple[Any, ...]:
    environment = world()
    return played(curator(environment, **changes), environment, 1200, users=users)


def joint_sampler(**changes: Any) -> tuple[Any, ...]:
    sampler = capri.ContextSampler(lambda generator, count: generator.random((count, 1)), 1)
    return joint(contexts=sampler, **changes)


def joint_varying(**changes: Any) -> tuple[Any, ...]:
    """Contexts of one number that bring four actions of one number each."""
    rows = np.random.default_rng(5).random((8, 1 + 4))
    centres = np.random.default_rng(6).random((10, 2))
    pairs = np.array([[row[0], action] for row in rows for action in row[1:]])
    environment = capri.environments.TabularEnvironment(
        name="varying",
        contexts=rows,
        weights=np.full(8, 1 / 8),
        actions=np.arange(4.0)[:, None],
        means=KERNEL(pairs, centres).mean(axis=1).reshape(8, 4),
        reward_bound=1.0,
        noise=0.1,
    )
    actions = capri.VaryingActions(count=4, dimension=1)
    return played(curator(environment, actions=actions, **changes), environment, 1200)


def forecast(**changes: Any) -> tuple[Any, ...]:
    policy = curator(world(), horizon=None, **changes)
    found = policy.forecast(horizons=(200, 600), epsilons=(4.0, 16.0), functions=2, seed=1)
    return (found.to_dict(), str(found))


def joint_cases() -> dict[str, Case]:
    options: dict[str, dict[str, Any]] = {
        "practical": {},
        "no-budget": {"budget": None},
        "endless": {"horizon": None},
        "reward-bound": {"reward_bound": 2.0},
        "floors": {"limits": capri.Limits(floor={1: 0.05, 2: 0.1}, share={0: 0.2})},
        "no-residual": {"residual": False},
        "norm-bound": {"norm_bound": 3.0, "smoothness": 1.0},
        "max-rank": {"max_rank": 5},
        "first-epoch-auto": {"first_epoch": None, "budget": capri.Budget(epsilon=64, delta=1e-5)},
        "users": {"contributions_per_user": 3, "users": 550},
        "rbf": {"kernel": capri.kernels.RBF(lengthscale=0.3)},
        "product": {
            "kernel": capri.kernels.ContextAction(
                capri.kernels.RBF(lengthscale=0.3), capri.kernels.Linear(), 1
            )
        },
        "paper": {"preset": "paper"},
        "paper-analytic": {"preset": "paper", "calibration": "analytic"},
        "paper-dense": {"preset": "paper", "features": "dense", "calibration": "analytic"},
        "paper-no-budget": {"preset": "paper", "budget": None, "tau": 0.1},
        "paper-local": {"preset": "paper", "model": "local"},
        "paper-users": {"preset": "paper", "contributions_per_user": 2, "users": 1100},
    }
    cases: dict[str, Case] = {name: partial(joint, **each) for name, each in options.items()}
    return cases | {
        "sampler": joint_sampler,
        "sampler-paper": partial(joint_sampler, preset="paper"),
        "varying": joint_varying,
        "varying-paper": partial(joint_varying, preset="paper"),
        "forecast": forecast,
    }


# -- local ----------------------------------------------------------------------------------------


def aggregator(**changes: Any) -> Any:
    environment = world()
    settings: dict[str, Any] = {
        "kernel": KERNEL,
        "actions": environment.actions,
        "contexts": capri.ContextPool(environment.contexts),
        "budget": PURE,
        "horizon": 200,
        "first_epoch": 60,
        "public_seed": 3,
    }
    return capri.LocalCapri(**(settings | changes))


def reported(server: Any, users: range) -> Iterator[Any]:
    """Each user fetches the bundle, decides, and uploads a report."""
    contexts = world().contexts
    for user in users:
        client = capri.LocalClient(server.bundle(), PURE, simulation=(5, user))
        decision = client.act(contexts[user % len(contexts)])
        yield [decision.epoch, decision.action_index, decision.propensity]
        reward = 1.0 - 0.4 * abs(decision.action_index - 2) + 0.02 * ((user * 7919) % 11 - 5)
        report = client.report(None if user % 17 == 0 else reward)
        yield report
        yield int(server.receive(report))


def devices(**changes: Any) -> tuple[Any, ...]:
    server = aggregator(**changes)
    seen = list(reported(server, range(200)))
    contexts = world().contexts
    beliefs = (server.estimate(contexts), server.active(contexts), server.probabilities(contexts))
    return (*seen, records(server), *beliefs)


def fleet(**changes: Any) -> tuple[Any, ...]:
    server = aggregator(**({"horizon": 2000, "first_epoch": 300} | changes))
    users = unexported("DeviceSimulator")(server, PURE, simulation_seed=9)
    return played(users, world(), 2000, beliefs=("estimate",))


def forecast_of_devices() -> tuple[Any, ...]:
    users = unexported("DeviceSimulator")(aggregator(), PURE, simulation_seed=9)
    found = users.forecast(horizons=(200, 600), epsilons=(4.0, 16.0), functions=2, seed=1)
    return (found.to_dict(), str(found))


def bundles(**changes: Any) -> tuple[Any, ...]:
    """The bundle of each of two epochs."""
    server = aggregator(**changes)
    first = server.bundle()
    list(reported(server, range(60)))
    return (first, server.bundle(), server.digest)


def report() -> tuple[Any, ...]:
    """The first report to the first bundle, and one to the second."""
    seen = [part for part in reported(aggregator(), range(61)) if isinstance(part, bytes)]
    return (seen[0], seen[1], seen[60])


def local_cases() -> dict[str, Case]:
    return {"devices": devices, "fleet": fleet, "forecast": forecast_of_devices}


# -- rivals ---------------------------------------------------------------------------------------


def against(name: str, rounds: int = 400, **changes: Any) -> tuple[Any, ...]:
    environment = world()
    kernel = capri.kernels.RBF(lengthscale=0.4)  # some take no other
    settings: dict[str, Any] = {"kernel": kernel, "horizon": rounds, "simulation_seed": 7}
    policy = unexported("rival")(name, environment, **({"budget": BUDGET} | settings | changes))
    return played(policy, environment, rounds, beliefs=())


def rival_cases() -> dict[str, Case]:
    names = unexported("RIVAL_NAMES")
    cases: dict[str, Case] = {name: partial(against, name) for name in names}
    # Without noise decisions depend on every reward; those before spend no budget anyway.
    for name in names[names.index("shariff-sheffet") :]:
        cases[f"{name}-no-budget"] = partial(against, name, budget=None)
    for features in ("raw", "polynomial", "fourier"):
        cases[f"linucb-{features}"] = partial(against, "linucb", features=features)
        cases[f"shariff-sheffet-{features}"] = partial(
            against, "shariff-sheffet", features=features
        )
    return cases


# -- regression -----------------------------------------------------------------------------------


def rows(count: int = 3000, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    X = generator.random((count, columns))
    return X, 0.7 * np.sin(5 * X[:, 0]) * X[:, -1] + 0.1 * generator.standard_normal(count)


def ridge(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "epsilon": 4.0,
        "X_bounds": (0, 1),
        "y_bounds": (-1, 1),
        "random_state": 3,
        "rank": 30,
        "stream_rows": 3000,
    }
    return capri.PrivateKernelRidge(**(settings | changes))


def learnt(fitted: Any, columns: int = 2) -> tuple[Any, ...]:
    test = np.random.default_rng(1).random((40, columns))
    mean, width = fitted.predict(test, return_std=True)
    errors = (np.asarray(width), width.bias, width.sampling, width.privacy)
    taus = np.atleast_1d(fitted.tau_).tolist()
    return (mean, *errors, fitted.rank_, taus, fitted.n_rows_)


def fit_array(**changes: Any) -> tuple[Any, ...]:
    return learnt(ridge(**changes).fit(*rows()))


def fit_outputs() -> tuple[Any, ...]:
    X, y = rows()
    fitted = ridge(y_bounds=([-1, -2], [1, 2])).fit(X, np.column_stack([y, 2 * y**2]))
    return learnt(fitted)


def fit_chunks() -> tuple[Any, ...]:
    X, y = rows()
    return learnt(ridge().fit([(X[:1000], y[:1000]), (X[1000:], y[1000:])]))


def fit_iterator() -> tuple[Any, ...]:
    X, y = rows()
    return learnt(ridge().fit(iter([(X[:1000], y[:1000]), (X[1000:], y[1000:])])))


def fit_stream() -> tuple[Any, ...]:
    """Parts, a release, and more rows after it."""
    X, y = rows(6000)
    stream = ridge()
    for start in (0, 1000):
        stream.partial_fit(X[start : start + 1000], y[start : start + 1000])
    first = learnt(stream.release())
    stream.partial_fit(X[2000:], y[2000:])
    return (*first, *learnt(stream.release()))


def fit_dask() -> tuple[Any, ...]:
    import dask
    import dask.array

    X, y = rows()
    with dask.config.set(scheduler="synchronous"):
        fitted = ridge().fit(
            dask.array.from_array(X, chunks=(700, 2)), dask.array.from_array(y, chunks=700)
        )
    return learnt(fitted)


def fit_reports() -> tuple[Any, ...]:
    X, y = rows(2000, 1)
    local = ridge(rank="auto")
    plan = local.report_plan(1, reports=len(X))
    users = unexported("SimulatedRandomness")(5, np.arange(len(X)))
    reports = plan.reports(X, y, epsilon=4.0, randomness=users)
    local.fit_reports(plan, reports)
    return (plan.digest, *reports[:20], *learnt(local, 1))


def regression_cases() -> dict[str, Case]:
    return {
        "array": fit_array,
        "array-auto": partial(fit_array, rank="auto"),
        "array-data-bounds": partial(fit_array, X_bounds=None, y_bounds=None),
        "array-matern": partial(fit_array, kernel="matern"),
        "array-no-budget": partial(fit_array, epsilon=float("inf")),
        "array-paper": partial(fit_array, calibration="paper"),
        "array-public": partial(fit_array, X_bounds=None, public_X=rows(500)[0] ** 2),
        "array-tau": partial(fit_array, tau=0.5),
        "chunks": fit_chunks,
        "dask": fit_dask,
        "iterator": fit_iterator,
        "outputs": fit_outputs,
        "reports": fit_reports,
        "stream": fit_stream,
    }


# -- files ----------------------------------------------------------------------------------------


def saved(users: int | None = None, **changes: Any) -> tuple[Any, ...]:
    """Saved amid an epoch, loaded, and played to the end."""
    environment = world()
    policy = curator(environment, **changes)
    before = played(policy, environment, 500, users=users)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.capri"
        policy.save(path)
        stored = tuple(contents(path))
        again = capri.Capri.load(path)
    after = played(again, environment, 700, users=users, first=500)
    return (*before, *stored, *after)


def saved_aggregator() -> tuple[Any, ...]:
    server = aggregator()
    before = list(reported(server, range(90)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "aggregator.capri"
        server.save(path)
        stored = tuple(contents(path))
        again = capri.LocalCapri.load(path)
    after = list(reported(again, range(90, 200)))
    return (*before, *stored, *after, records(again), again.estimate(world().contexts))


def file_cases() -> dict[str, Case]:
    return {
        "policy-practical": saved,
        "policy-paper-local": partial(saved, preset="paper", model="local"),
        "policy-no-budget": partial(saved, budget=None),
        "policy-paper": partial(saved, preset="paper"),
        "policy-paper-dense": partial(saved, preset="paper", features="dense"),
        "policy-users": partial(saved, contributions_per_user=6, users=550),
        "aggregator": saved_aggregator,
        "bundle": bundles,
        "report": report,
    }


# -- worlds ---------------------------------------------------------------------------------------


def table(name: str) -> tuple[Any, ...]:
    """What an environment is made of, and a few of its rewards."""
    made = surfaces.environment_by_name(
        name,
        kernel=KERNEL,
        contexts=8,
        actions=6,
        context_dimension=None,
        action_dimension=None,
        noise=0.1,
        seed=2,
    )
    context, action = np.arange(48) % 8, np.arange(48) % 6
    drawn = made.draw_contexts(np.random.default_rng(0), 20)
    rewards = made.rewards(np.random.default_rng(1), context, action)
    arrays = (made.contexts, made.weights, made.actions, made.means, made.best(context))
    return (*arrays, drawn, rewards, made.uniform_regret(), made.parameters())


def matrix(kernel: Any) -> tuple[Any, ...]:
    points = np.random.default_rng(3).random((12, 2))
    again = capri.kernels.from_dict(kernel.to_dict())
    return (kernel(points, points[:5]), again(points, points), kernel.to_dict())


def world_cases() -> dict[str, Case]:
    kernels = capri.kernels
    composed = kernels.RBF(lengthscale=0.3) * kernels.Matern(nu=1.5, lengthscale=(0.5, 0.2))
    cases: dict[str, Case] = {
        f"environment-{name}": partial(table, name) for name in surfaces.ENVIRONMENT_NAMES
    }
    cases |= {
        f"kernel-{name}": partial(matrix, kernels.kernel_by_name(name, 0.3))
        for name in kernels.KERNEL_NAMES
    }
    return cases | {"kernel-product": partial(matrix, composed)}


# -- script ---------------------------------------------------------------------------------------

FAMILIES: dict[str, Callable[[], dict[str, Case]]] = {
    "files": file_cases,
    "joint": joint_cases,
    "local": local_cases,
    "regression": regression_cases,
    "rivals": rival_cases,
    "worlds": world_cases,
}


def versions() -> dict[str, str]:
    """What else the numbers depend on."""
    found = {name: version(name) for name in PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    return found | {"python": python, "machine": platform.machine()}


def computed(patterns: list[str], *, times: bool) -> dict[str, str]:
    hashes = {}
    for family, cases in FAMILIES.items():
        # Some imports take their time.
        if patterns and not any(fnmatch(family, each.split("/")[0]) for each in patterns):
            continue
        for name, case in cases().items():
            full = f"{family}/{name}"
            if patterns and not any(fnmatch(full, pattern) for pattern in patterns):
                continue
            started = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", capri.PrivacyLeakWarning)
                hashes[full] = digest(case())
            if times:
                print(f"{time.perf_counter() - started:7.2f} s  {full}", file=sys.stderr)
    return hashes


def pin(hashes: dict[str, str], *, some: bool) -> None:
    if some:
        stored = json.loads(EXPECTED.read_text())
        if stored["versions"] != versions():
            sys.exit(f"these versions are not those of the other hashes: {stored['versions']}")
        hashes = stored["cases"] | hashes
    text = json.dumps({"cases": hashes, "versions": versions()}, indent=1, sort_keys=True)
    EXPECTED.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Hashes of small seeded results.")
    parser.add_argument("patterns", nargs="*", help="names of cases, such as 'joint/*'")
    parser.add_argument("--pin", action="store_true", help="write expected.json")
    parser.add_argument("--times", action="store_true", help="say how long each case took")
    given = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # These are read when Python and the libraries start.
        command = [sys.executable, __file__, *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ENVIRONMENT)
    hashes = computed(given.patterns, times=given.times)
    if given.pin:
        pin(hashes, some=bool(given.patterns))
    else:
        print(json.dumps({"cases": hashes, "versions": versions()}, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
