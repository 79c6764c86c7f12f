"""What the wait that `capri init` writes is worth where rewards come 2,000 decisions late.

    python benchmarks/service_wait.py [--seeds 6] [--rounds 18000] [--first 8300]

The policy file is what `init` makes of public rows, in one process; the line that says how long
rewards are awaited is changed, nothing else. Every reward comes when 2,000 more decisions have been
made. Printed for each wait: regret relative to uniform play, the mean of the same seeds.
"""

import argparse
import sys
import tempfile
import warnings
from collections import deque
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve()
sys.path.append(str(HERE.parents[1] / "tests"))

import common  # noqa: E402, F401  (sets BLAS threads)
import numpy as np  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from capri import KernelWarning, RewardIgnoredWarning  # noqa: E402
from capri.cli import app  # noqa: E402
from capri.service.settings import load_settings  # noqa: E402

LATE, BATCH = 2000, 50
ACTIONS = ("mail", "call", "letter", "nothing")
WAITS = (0, 500, 1000, 2000, 4000, 8000)


def made_file(folder: Path, rows: np.ndarray, wait: int | None) -> Path:
    """What `init` makes of ages and plans; with its own wait where none is given."""
    lines = [f"{age:.1f},{('free', 'pro')[int(plan)]}" for age, plan in rows]
    (folder / "rows.csv").write_text("\n".join(["age,plan", *lines]))
    file = folder / "policy.toml"
    command = ["init", str(folder / "rows.csv"), "--actions", ",".join(ACTIONS)]
    command += ["--output", str(file), *([] if wait is None else ["--reward-wait", str(wait)])]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return file


def chances(rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """How likely each action brings a reward: smooth in age, another level for each plan."""
    age = (rows[:, 0] - 20) / 60
    phases, levels = generator.uniform(0, 6, len(ACTIONS)), generator.uniform(0.1, 0.4, (2, 4))
    waves = 0.1 * (1 + np.sin(phases + 4 * age[:, None]))
    return waves + levels[rows[:, 1].astype(int)]


def regret(seed: int, rounds: int, wait: int | None) -> float:
    """Of one run, relative to uniform play."""
    generator = np.random.default_rng(seed)
    rows = np.column_stack((generator.uniform(20, 80, 200), generator.integers(0, 2, 200)))
    means = chances(rows, generator)
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(made_file(Path(folder), rows, wait))
        policy = settings.policy(store=None, simulation_seed=seed)
    visitors = generator.integers(0, len(rows), rounds)
    noise = generator.random(rounds)
    waiting: deque[tuple[int, object, np.ndarray]] = deque()
    lost, done = 0.0, 0
    while done < rounds:
        count = min(BATCH, rounds - done, policy.remaining)
        part = slice(done, done + count)
        own = visitors[part]
        made = policy.act_many(
            [{"age": rows[each, 0], "plan": ("free", "pro")[int(rows[each, 1])]} for each in own]
        )
        chosen = means[own, made.action_index]
        lost += float((means[own].max(axis=1) - chosen).sum())
        done += count
        waiting.append((done, made, (noise[part] < chosen).astype(float)))
        while waiting and waiting[0][0] <= done - LATE:
            _, earlier, rewards = waiting.popleft()
            policy.update_many(earlier, rewards)  # type: ignore[arg-type]
    return lost / float((means.max(axis=1) - means.mean(axis=1))[visitors].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=18_000)
    parser.add_argument("--first", type=int, default=8300, help="the first seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RewardIgnoredWarning)
    warnings.simplefilter("ignore", KernelWarning)
    seeds = range(options.first, options.first + options.seeds)
    for wait in (None, *WAITS):
        found = [regret(seed, options.rounds, wait) for seed in seeds]
        name = "as init has it" if wait is None else f"{wait}"
        error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
        print(f"wait {name:>14s}: regret {mean(found):.3f} +- {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
