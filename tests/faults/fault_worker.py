"""A worker of the fault harness: a real process that decides and rewards until it is killed.

Before every call it says what it is about to do, and after the call has returned what was answered.
Whoever reads the pipe therefore knows of everything that may have been committed, and of everything
that was acknowledged.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import capri
from capri.store.persistence import stored_now
from waiting import PATIENCE

# Actions that every catalogue has, and so may be a default at any time.
BASE = [{"name": "base0", "place": 0.0}, {"name": "base1", "place": 1.0}]
ACTIONS = [*BASE, {"name": "c0", "place": 0.5}]
USERS = 200_000
LIMIT = 3  # contributions of a user in all, one in an epoch
POOL = np.linspace(0.0, 1.0, 5)[:, None]
GRAIN = 1 << 10  # rewards are multiples of 1 / GRAIN: their sums are exact in any order
REPORT_EVERY = 12  # calls between two looks at what is published


CHANGES = ("mode", "settings")
# What the other system of shadow mode does.
CHOSEN, CHOSEN_PROPENSITY = "base0", 0.5


@dataclass(frozen=True)
class Setting:
    """What all workers of a run share."""

    url: str
    private: bool
    store_key: bytes | None = None
    first_epoch: int = 60
    growth: float = 1.02
    wait: int | timedelta = 30
    epoch_time: timedelta | None = None
    file: Path | None = None  # of a service, which says what the policy is
    rollback_guard: Path | None = None

    def open(self, clock: Callable[[], datetime] | None = None) -> capri.Capri:
        """The policy on the store. Without a budget releases are exact and can be recounted."""
        key: dict[str, Any] = {} if self.store_key is None else {"store_key": self.store_key}
        if self.rollback_guard is not None:
            key["rollback_guard"] = str(self.rollback_guard)
        if self.file is not None:
            from capri.service.changes import PolicyFile

            arguments = PolicyFile(self.file, self.url).arguments()
            arguments["budget"] = arguments["budget"] if self.private else None
            return capri.Capri(**arguments, clock=clock, store=self.url, **key)
        found = stored_now(self.url)  # as operators have left it
        return capri.Capri(
            kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.5),
            actions=ACTIONS,
            contexts=capri.ContextPool(POOL),
            budget=capri.Budget(epsilon=1.0, delta=1e-5) if self.private else None,
            first_epoch=self.first_epoch,
            growth=self.growth if found is None else found[0]["growth"],
            reward_wait=self.wait,
            reward_rule="sum",
            contributions_per_user=LIMIT,
            key_retention=timedelta(days=30),
            epoch_time=self.epoch_time,
            clock=clock,
            store=self.url,
            **key,
        )


def answered(decision: capri.Decision) -> dict[str, Any]:
    """What a caller learns from a decision."""
    return {
        "id": decision.id,
        "number": decision.number,
        "epoch": decision.epoch,
        "action": decision.action_index,
        "name": decision.action_name,
        "propensity": decision.propensity,
        "status": int(decision.status),
    }


def published(policy: capri.Capri) -> dict[int, Any]:
    """What is public of every closed epoch, its date among it: it must never change."""
    records = policy.epochs
    dates = policy.dates
    return by_epoch([record.to_dict() | {"date": dates[record.epoch]} for record in records])


def by_epoch(records: list[dict[str, Any]]) -> dict[int, Any]:
    """Records of epochs, however they came."""
    return {each["epoch"]: each for each in json.loads(json.dumps(records))}


def opened(setting: Setting, clock: Callable[[], datetime] | None = None) -> capri.Capri:
    """The policy, as soon as its server is there: it may be on its way up from a crash."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return setting.open(clock)
        except capri.StorageError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def change(policy: capri.Capri, call: dict[str, Any]) -> None:
    """What an operator asks for."""
    if call["op"] == "mode":
        policy.set_mode(call["mode"], action=call.get("action"))
    else:
        policy.change(actions=call["actions"], growth=call["growth"])


class Worker:
    """Calls of one process, drawn at random; each is announced and then acknowledged."""

    def __init__(
        self,
        setting: Setting,
        name: str,
        seed: int,
        pipe: Connection,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._name, self._pipe = name, pipe
        self._policy = opened(setting, clock)
        self._count = 0
        self._recent: list[tuple[str, str]] = []  # key and id of decisions, newest last
        self._sent: list[dict[str, Any]] = []  # rewards that were answered
        self._again: list[dict[str, Any]] = []  # calls that failed and are in doubt

    def run(self, in_doubt: list[dict[str, Any]], recent: list[tuple[str, str]]) -> None:
        """Make up for what the last one left, then go on until told to stop.

        ``recent`` are keys and ids of decisions that any process made.
        """
        for call in in_doubt:
            self.call(call)
        self._recent = recent + self._recent
        while not self._pipe.poll():
            if self._again:
                self.call(self._again.pop(0))
            else:
                self.call(self._drawn())
        self._policy.close()
        self._pipe.send({"op": "end"})

    def call(self, call: dict[str, Any]) -> None:
        """Announce, call, acknowledge. A store that is away for a moment puts a call in doubt."""
        self._pipe.send({"op": "intent", "call": call})
        try:
            answer = self._answer(call)
        except capri.StorageError as problem:
            self._again.append(call)
            answer = {"failed": str(problem)}
        self._pipe.send({"op": "answer", "call": call, "answer": answer})
        self._count += 1
        if self._count % REPORT_EVERY == 0:
            self._pipe.send({"op": "published", "seen": published(self._policy)})

    def _answer(self, call: dict[str, Any]) -> Any:
        if call["op"] in CHANGES:
            change(self._policy, call)
            return "changed"
        if call["op"] == "act":
            count = len(call["keys"])
            decisions = self._policy.act_many(
                np.array(call["contexts"])[:, None],
                users=call["users"],
                keys=call["keys"],
                chosen=[CHOSEN] * count,  # of use in mode "shadow" alone
                chosen_propensities=[CHOSEN_PROPENSITY] * count,
            )
            answers = [answered(decision) for decision in decisions]
            self._recent += [
                (key, str(each["id"])) for key, each in zip(call["keys"], answers, strict=True)
            ]
            del self._recent[:-80]
            return answers
        status = self._policy.update(call["id"], call["value"], key=call["key"])
        if call not in self._sent:
            self._sent.append(call)
            del self._sent[:-40]
        return int(status)

    def _drawn(self) -> dict[str, Any]:
        """The next call: mostly a decision or a reward, now and then something told before."""
        kind = self._rng.random()
        if kind < 0.45 or not self._recent:
            return self._visit(1 if self._rng.random() < 0.8 else int(self._rng.integers(2, 7)))
        if kind < 0.50:  # a key again, with another context
            key = self._recent[int(self._rng.integers(len(self._recent)))][0]
            return {"op": "act", "keys": [key], "users": [0], "contexts": [0.25], "repeat": True}
        if kind < 0.60 and self._sent:  # a reward again, with another value
            sent = self._sent[int(self._rng.integers(len(self._sent)))]
            return sent | {"value": -sent["value"], "repeat": True}
        # Late ones among them: the oldest belong to epochs that were released.
        chosen = self._recent[-1 - int(self._rng.integers(len(self._recent)))]
        value = int(self._rng.integers(-GRAIN, GRAIN + 1)) / GRAIN
        key = f"{self._name}-{self._rng.integers(3)}"  # the key of a sender is no other's
        call = {"op": "reward", "id": chosen[1], "key": key, "value": value}
        if any(sent["id"] == call["id"] and sent["key"] == key for sent in self._sent):
            call["repeat"] = True
        return call

    def _visit(self, count: int) -> dict[str, Any]:
        contexts = self._rng.random(count)  # a double that occurs nowhere else
        pooled = self._rng.random(count) < 0.5
        contexts[pooled] = POOL[self._rng.integers(len(POOL), size=count), 0][pooled]
        # Few users for the many: processes often serve the same one at once.
        users = (USERS * self._rng.random(count) ** 3).astype(int).tolist()
        keys = [f"{self._name}-{self._count}-{place}" for place in range(count)]
        return {"op": "act", "keys": keys, "users": users, "contexts": contexts.tolist()}


def main(
    setting: Setting,
    name: str,
    seed: int,
    pipe: Connection,
    in_doubt: list[dict[str, Any]],
    recent: list[tuple[str, str]],
) -> None:
    """Where the process begins."""
    Worker(setting, name, seed, pipe).run(in_doubt, recent)
