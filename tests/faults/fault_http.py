"""A real service as the worker of a simulation: `capri serve` behind a socket, and its clients.

Calls become requests of :class:`capri.Client`, which asks for decisions again by itself where a
service is gone for a moment; so nothing that was asked dies with a process. Rewards are asked again
by the simulation, and changes of operators are sent once.
"""

import os
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

import capri
from capri.service.auth import add_key
from fault_driver import Answer, Driver
from fault_worker import ACTIONS, CHANGES, CHOSEN, CHOSEN_PROPENSITY, LIMIT, POOL, Setting, by_epoch
from service_process import workers_of

HERE = Path(__file__).parent
POLICY = """
name = "faults"
actions = [
{actions}
]
kernel = "matern52"
lengthscale = 0.5
public = "public.csv"
[budget]
epsilon = 1.0
delta = 1e-5
[reward]
range = [-1, 1]
rule = "sum"
wait = {wait}
[users]
contributions = {limit}
[[context]]
name = "x"
kind = "numeric"
low = 0
high = 1
[options]
first_epoch = {first}
growth = 1.02
"""
# Seconds for one attempt, and how often a client tries: a service takes seconds to start.
ATTEMPT, RETRIES, ONCE = 20.0, 8, 60.0


def write_policy(folder: Path, first_epoch: int) -> Path:
    """The policy file of a service in a folder, with its public rows."""
    listed = ",\n".join(
        f'  {{ name = "{each["name"]}", place = {each["place"]} }}' for each in ACTIONS
    )
    file = folder / "policy.toml"
    file.write_text(
        POLICY.format(actions=listed, wait=first_epoch // 2, limit=LIMIT, first=first_epoch)
    )
    rows = "".join(f"{value}\n" for value in POOL[:, 0].tolist())
    (folder / "public.csv").write_text(f"x\n{rows}")
    return file


class HttpDriver(Driver):
    """One service with so many workers, on a policy file."""

    count = 1
    loses = False

    def __init__(self, setting: Setting, workers: int, seed: int) -> None:
        super().__init__()
        assert setting.file is not None
        self._setting, self._workers = setting, workers
        self._rng = np.random.default_rng([seed, workers])
        self._key = add_key(setting.file.parent / "policy.keys", "faults", ["admin"])
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: SimpleQueue[Answer] = SimpleQueue()
        self._stopping = False
        self._pool = ThreadPoolExecutor(16)
        self._url = f"http://127.0.0.1:{self._port}"
        self.surprises: list[str] = []  # answers that no schedule excuses
        self.log = setting.file.parent / "said"

    # -- processes --------------------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        if self._process is not None and self._process.poll() is None:
            return  # one of several workers is gone, and the service sees to it
        assert self._setting.file is not None
        rollback_guard = self._setting.rollback_guard
        path = os.pathsep.join([str(HERE / "in_service"), str(HERE), *sys.path])
        told = {"PYTHONPATH": path, "CAPRI_FAULT_CONTROL": str(self._controls[worker].path)}
        if not self._setting.private:
            told["CAPRI_FAULT_EXACT"] = "yes"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "capri", "serve", str(self._setting.file)),
                    *("--store", self._setting.url, "--port", str(self._port)),
                    *("--workers", str(self._workers)),
                    *(() if rollback_guard is None else ("--rollback-guard", str(rollback_guard))),
                ],
                env=os.environ | told,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _processes_of(self, worker: int) -> list[int]:
        """The service and all that it has started: they share a session."""
        if self._process is None:
            return []
        return [number for number, group in _groups() if group == self._process.pid]

    def kill(self, worker: int) -> None:
        """The whole service or, where it has several workers, often one of them alone."""
        if self._process is None or self._process.poll() is not None:
            return
        serving = workers_of(self._process.pid)
        if self._workers > 1 and serving and self._rng.random() < 0.5:
            os.kill(int(self._rng.choice(serving)), signal.SIGKILL)
            self._told.put(Answer(worker, dead=True))
            return
        os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Asked to end, as an operator would."""
        self._stopping = True
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """Leave nobody behind."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    # -- calls ------------------------------------------------------------------------------------

    def send(self, worker: int, request: int, call: dict[str, Any]) -> None:
        """By a thread of its own, which waits for the answer."""
        self._pool.submit(self._ask, worker, request, call)

    def _ask(self, worker: int, request: int, call: dict[str, Any]) -> None:
        patience = {"timeout": ATTEMPT, "retries": RETRIES}
        if call["op"] in ("close", *CHANGES):
            patience = {"timeout": ONCE, "retries": 0}
        elif call["op"] == "reward":
            # The journal must know of each try: when the last one comes late, the first may count.
            patience["retries"] = 0
        try:
            with capri.Client(self._url, self._key, **patience) as client:  # type: ignore[arg-type]
                answer = _CALLS[call["op"]](client, call)
        except capri.StorageError as problem:
            answer = {"failed": str(problem)}
        except BaseException as problem:
            self.surprises.append(f"{call['op']}: {type(problem).__name__}: {problem}")
            answer = {"failed": "unexpected"}
        self._told.put(Answer(worker, request, answer))

    def answers(self, patience: float) -> list[Answer]:
        """What came back, and whether a process is gone."""
        assert not self.surprises, f"{self.surprises[:3]}\n{self.said()}"
        found = []
        with suppress(Empty):
            found.append(self._told.get(timeout=min(patience, 0.05)) if patience else None)
        with suppress(Empty):
            while True:
                found.append(self._told.get_nowait())
        told = [each for each in found if each is not None]
        point, who = self._controls[0].died()
        gone = self._process is None or self._process.poll() is not None
        if self._process is not None and who == self._process.pid:
            self._process.wait()
            gone = True
        if gone and self._process is not None:
            self._process = None
            told = [each for each in told if not each.dead]
            told.append(Answer(0, dead=True, point=point))
        elif point:
            told.append(Answer(0, dead=True, point=point))
        return told

    def said(self) -> str:
        """The service's log; from where a failure shows, if one does."""
        said = self.log.read_text(errors="replace")
        return said[max(0, said.find("Traceback")) :] if "Traceback" in said else said[-3000:]


def _act(client: capri.Client, call: dict[str, Any]) -> Any:
    contexts = [{"x": value} for value in call["contexts"]]
    chosen = {"chosen": CHOSEN, "chosen_propensity": CHOSEN_PROPENSITY}
    if len(contexts) == 1:
        made = client.act(contexts[0], user=call["users"][0], key=call["keys"][0], **chosen)
        return [_decision(made)]
    many = client.act_many(contexts, users=call["users"], keys=call["keys"])
    return [_decision(each) for each in many]


def _decision(decision: capri.Decision) -> dict[str, Any]:
    return {
        "id": decision.id,
        "number": int.from_bytes(urlsafe_b64decode(decision.id)[:6]),
        "epoch": decision.epoch,
        "action": decision.action_index,
        "name": decision.action_name,
        "propensity": decision.propensity,
        "status": int(decision.status),
    }


def _reward(client: capri.Client, call: dict[str, Any]) -> Any:
    return int(client.update(call["id"], call["value"], key=call["key"]))


def _change(client: capri.Client, call: dict[str, Any]) -> Any:
    body = {name: value for name, value in call.items() if name != "op"}
    if call["op"] == "settings":
        body = {"settings": {"actions": call["actions"], "options": {"growth": call["growth"]}}}
    client._post(f"/v1/admin/{call['op']}", body)
    return "changed"


def _close(client: capri.Client, call: dict[str, Any]) -> Any:
    client._post("/v1/admin/close", {"early": True})
    return "closed"


_CALLS: dict[str, Callable[[capri.Client, dict[str, Any]], Any]] = {
    "act": _act,
    "reward": _reward,
    "mode": _change,
    "settings": _change,
    "close": _close,
    "published": lambda client, _: by_epoch(client.epochs()),
}


def _groups() -> list[tuple[int, int]]:
    """Every process that may be looked at, and its group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
            found.append((int(folder.name), int(group)))
    return found


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
