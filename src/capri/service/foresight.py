"""What to expect of a policy file, computed once beside the service and kept beside the file.

    python -m capri.service.foresight policy.toml

Plays made-up functions: neither users nor the store are touched. The page shows it against what
happened.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from capri.epoch.notice import unsaid
from capri.files import write_atomically
from capri.service.settings import load_settings

_ROUNDS = 10_000
_FUNCTIONS = 3


def forecast_file(path: Path) -> Path:
    """Where the forecast of a policy file is kept."""
    return path.with_suffix(".forecast.json")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_forecast(path: Path) -> dict[str, Any] | None:
    """The forecast of a policy file as it is now; None where there is none."""
    try:
        found = json.loads(forecast_file(path).read_text())
        if found["file"] != _digest(path):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {"functions": found["functions"], "epochs": found["epochs"]}


def start_forecast(path: Path) -> None:
    """Compute it in a process of its own that stands back, unless it is there."""
    if read_forecast(path) is None:
        subprocess.Popen(
            [sys.executable, "-m", "capri.service.foresight", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def main() -> None:
    """Compute and keep it."""
    os.nice(19)
    path = Path(sys.argv[1])
    settings = load_settings(path)
    with unsaid():
        policy = settings.policy(store=None)
        told = policy.forecast(horizons=(_ROUNDS,), functions=_FUNCTIONS, compare=False)
    budget = policy.budget
    epsilon = None if budget is None else budget.epsilon
    epochs = [epoch.to_dict() for epoch in told.epochs if epoch.epsilon == epsilon]
    text = json.dumps({"file": _digest(path), "functions": _FUNCTIONS, "epochs": epochs})
    write_atomically(forecast_file(path), text.encode())


if __name__ == "__main__":
    main()
