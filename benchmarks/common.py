"""What the benchmarks share: the problems, one run of the package, statistics, files.

Import this module before NumPy: it sets one BLAS thread per process, because the processes of a
benchmark already use all cores.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import capri
from capri import environments
from capri.environments import Environment
from capri.kernels import RBF, Kernel, Matern
from capri_lab import surfaces

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"
FIGURES = ROOT.parent / "docs" / "figures"
RESULTS_PAGE = ROOT.parent / "docs" / "results.md"
DELTA = 1e-5

# Okabe and Ito: distinguishable with any colour vision.
BLUE, ORANGE, GREEN, PINK, YELLOW, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#666666",
)


# -- problems -------------------------------------------------------------------------------------


class Coins:
    """An environment whose rewards are coins: ``low`` or ``high``, with mean linear in ``f``.

    ``P(high) = clip(base + slope f, 0, 1)``; the table it wraps keeps contexts, actions and ``f``.
    """

    def __init__(
        self, table: Environment, *, low: float, high: float, base: float, slope: float
    ) -> None:
        self._table = table
        self._low, self._high = low, high
        chance = np.clip(base + slope * table.means, 0.0, 1.0)  # type: ignore[attr-defined]
        self._chance = chance
        self.means = low + (high - low) * chance
        self.contexts, self.actions, self.weights = table.contexts, table.actions, table.weights
        self.name, self.reward_bound, self.noise = "coins", 1.0, 0.0

    def draw_contexts(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return self._table.draw_contexts(rng, n)

    def mean(self, context: np.ndarray, action: np.ndarray) -> np.ndarray:
        return self.means[context, action]

    def rewards(
        self, rng: np.random.Generator, context: np.ndarray, action: np.ndarray
    ) -> np.ndarray:
        up = rng.random(np.shape(action)) < self._chance[context, action]
        return np.where(up, self._high, self._low)

    def best(self, context: np.ndarray) -> np.ndarray:
        return self.means.max(axis=1)[context]

    def uniform_regret(self) -> float:
        gaps = self.means.max(axis=1) - self.means.mean(axis=1)
        return float(np.sum(self.weights * gaps))

    def parameters(self) -> dict[str, object]:
        return {"name": self.name}


@dataclass(frozen=True)
class Problem:
    """A family of environments, one per seed, and the kernel that the policy is told."""

    label: str
    make: Callable[[int], Any]
    kernel: Kernel


M52 = Matern(nu=2.5, lengthscale=0.3)
M52_WIDE = Matern(nu=2.5, lengthscale=0.8)
M52_HALF = Matern(nu=2.5, lengthscale=0.5)
M52_FINE = Matern(nu=2.5, lengthscale=0.1)
M32 = Matern(nu=1.5, lengthscale=0.2)
SMOOTH = RBF(lengthscale=0.3)
SMOOTH_WIDE = RBF(lengthscale=0.6)


def _many_contexts(seed: int) -> Any:
    return environments.random_rkhs(
        M52_WIDE, contexts=200, actions=20, context_dimension=4, action_dimension=2, seed=seed
    )


def _many_actions(seed: int) -> Any:
    return environments.random_rkhs(M52_FINE, contexts=20, actions=200, seed=seed)


def _five_dimensions(seed: int) -> Any:
    return environments.random_rkhs(
        SMOOTH_WIDE, contexts=100, actions=100, context_dimension=3, action_dimension=2, seed=seed
    )


def _matern(seed: int) -> Any:
    return environments.random_rkhs(M52, seed=seed)


def _smooth(seed: int) -> Any:
    return environments.random_rkhs(SMOOTH, seed=seed)


def _rough(seed: int) -> Any:
    return environments.random_rkhs(M32, seed=seed)


def _weak(seed: int) -> Any:
    return environments.random_rkhs(M52, norm=0.15, seed=seed)


def _hartmann(seed: int) -> Any:
    return surfaces.hartmann4(context_dimension=2, seed=seed)


def _camel(seed: int) -> Any:
    return surfaces.six_hump_camel(seed=seed)


def _michalewicz(seed: int) -> Any:
    return surfaces.michalewicz(seed=seed)


def _bernoulli(seed: int) -> Any:
    return Coins(_matern(seed), low=-1.0, high=1.0, base=0.5, slope=0.5)


def _clicks(seed: int) -> Any:
    return Coins(_matern(seed), low=0.0, high=1.0, base=0.05, slope=0.05)


PROBLEMS = {
    "matern": Problem("Matern-5/2", _matern, M52),
    "rbf": Problem("RBF", _smooth, SMOOTH),
    "contexts": Problem("200 contexts (d=4) x 20 actions (d=2)", _many_contexts, M52_WIDE),
    "hartmann": Problem("Hartmann-4, 2 context dimensions", _hartmann, M52_HALF),
    "bernoulli": Problem("Bernoulli rewards, -1 or 1", _bernoulli, M52),
    "rough": Problem("Matern-3/2, lengthscale 0.2", _rough, M32),
    "actions": Problem("lengthscale 0.1, 20 contexts x 200 actions", _many_actions, M52_FINE),
    "five": Problem("RBF, d=3+2, 100 x 100, lengthscale 0.6", _five_dimensions, SMOOTH_WIDE),
    "camel": Problem("six-hump camel", _camel, M52),
    "michalewicz": Problem("Michalewicz", _michalewicz, M52),
    "long": Problem("told lengthscale 0.6, truth 0.3", _matern, Matern(nu=2.5, lengthscale=0.6)),
    "short": Problem("told lengthscale 0.15, truth 0.3", _matern, Matern(nu=2.5, lengthscale=0.15)),
    "weak": Problem("weak signal, norm 0.15", _weak, M52),
    "clicks": Problem("rare clicks, P = 0.05 + 0.05 f", _clicks, M52),
}


# -- runs -----------------------------------------------------------------------------------------


def budget(epsilon: float | None) -> capri.Budget | None:
    return None if epsilon is None else capri.Budget(epsilon=epsilon, delta=DELTA)


def make_policy(
    kernel: Kernel, environment: Any, epsilon: float | None, seed: int | None, **options: Any
) -> capri.Capri:
    return capri.Capri(
        kernel=kernel,
        actions=environment.actions,
        contexts=capri.ContextPool(environment.contexts),
        budget=budget(epsilon),
        simulation_seed=seed,
        **options,
    )


def play(
    problem: str, rounds: int, epsilon: float | None, seed: int, options: dict[str, Any]
) -> dict[str, float]:
    """One function, one run: regret relative to uniform play, and seconds with set-up."""
    started = perf_counter()
    chosen = PROBLEMS[problem]
    environment = chosen.make(seed)
    policy = make_policy(chosen.kernel, environment, epsilon, seed, **options)
    result = capri.simulate(policy, environment, rounds, seed=seed)
    return {"ratio": result.ratio, "seconds": perf_counter() - started}


def in_parallel(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results in the order of the calls, one process for each core that this one may use."""
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(_call, [(function, call) for call in calls], chunksize=1))


def _call(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = task
    return function(*arguments)


# -- numbers and files ----------------------------------------------------------------------------


def summary(values: Iterable[float]) -> dict[str, float]:
    array = np.array(list(values))
    return {
        "mean": float(array.mean()),
        "standard_error": float(array.std(ddof=1) / np.sqrt(len(array))),
        "median": float(np.median(array)),
        "max": float(array.max()),
    }


def power(value: float) -> str:
    """1e5 instead of 100000."""
    exponent = int(np.floor(np.log10(value)))
    lead = value / 10**exponent
    return f"1e{exponent}" if abs(lead - 1) < 1e-9 else f"{lead:g}e{exponent}"


def about() -> dict[str, Any]:
    """The software behind a result."""
    return {
        "capri": capri.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
    }


def commit() -> str:
    """Which code was played."""
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def last_results(name: str) -> dict[str, Any]:
    """What was saved under this name, empty where nothing was."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def save_json(name: str, values: object) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")


def publish(name: str, text: str) -> None:
    """Replace the table ``<!-- name -->`` of docs/results.md, and say the commit and the day."""
    before, opening, rest = RESULTS_PAGE.read_text().partition(f"<!-- {name} -->")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    if not (opening and closing):
        raise SystemExit(f"docs/results.md has no place for the table {name}")
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    stamp = f"*Commit `{commit.strip()}`, {datetime.now(UTC):%Y-%m-%d}.*"
    RESULTS_PAGE.write_text(f"{before}{opening}\n{stamp}\n\n{text.rstrip()}\n{closing}{after}")


def save_panels(figure: Any, name: str, *, columns: int = 3) -> None:
    """A figure of many panels with the legend of the first one below them all."""
    from capri.plots.style import to_bytes

    height = figure.get_figheight()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.subplots_adjust(left=0.05, right=0.98, wspace=0.25, hspace=0.75, bottom=1.75 / height,
                           top=1 - 1.1 / height)  # fmt: skip
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.35 / height),
                  ncol=columns, frameon=False, fontsize=9)  # fmt: skip
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / f"{name}.png").write_bytes(to_bytes(figure, "png"))


def save_figure(figure: Any, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=110)
