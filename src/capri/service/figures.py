"""What anybody with the role may read of a policy: functions of releases and of the file alone.

Heavy figures change with a release and with nothing else, so each is computed once a release. What
a policy is worth and who gets what are such figures, too, and all of them are a page as one file.
"""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from capri.arrays import FloatArray, IntArray
from capri.epoch.plan import Notice
from capri.errors import CapriError, ConfigurationError
from capri.files import json_values
from capri.local.aggregator import LocalCapri
from capri.schema import Boolean, Categorical, Numeric
from capri.schema.columns import Column
from capri.service.monitoring import released_alarms
from capri.spaces import ContextPool, FixedActions
from capri.version import VERSION

if TYPE_CHECKING:
    from capri.service.changes import PolicyFile

_POOL = 512  # rows of the pool that averages are taken over
_BRIEF = 0.5  # seconds for which progress is not asked for again


class Figures:
    """Public figures of one policy."""

    def __init__(
        self,
        served: Any,
        name: str,
        expected: Callable[[], Any] = lambda: None,
        file: "PolicyFile | None" = None,
    ) -> None:
        """``expected``: looks for a forecast, which may be on its way. ``file``: of the policy."""
        self._served, self._name, self._look_for, self._file = served, name, expected, file
        self._locks: dict[str, Lock] = {}
        self._known: dict[str, tuple[object, Any]] = {}

    @property
    def _policy(self) -> Any:
        """The policy, whichever it is now."""
        return self._served

    def _once(self, name: str, state: object, compute: Callable[[], Any]) -> Any:
        """One figure at a time by itself: who asks for progress does not wait for estimates."""
        with self._locks.setdefault(name, Lock()):
            known = self._known.get(name)
            if known is None or known[0] != state:
                known = self._known[name] = (state, json_values(compute()))
            return known[1]

    def progress(self) -> Any:
        """Decisions and epochs, at most twice a second from the store."""
        brief = int(time.monotonic() / _BRIEF)
        return self._once("progress", brief, lambda: self._policy.progress.to_dict())

    def check(self) -> None:
        """Raise where the store does not answer, or decisions are refused for another reason."""
        self.progress()
        self._policy.check()

    def forget(self) -> None:
        """Compute everything anew: an operator has changed something."""
        self._known.clear()

    @property
    def _state(self) -> object:
        """What changes with a release, of shadow visits alone, too, and with a new catalogue."""
        events = len(self._policy.ledger.events) if self._policy.budget is not None else 0
        return len(self._policy.epochs), events, id(self._policy.actions)

    def policy(self) -> Any:
        """What it is, and how far it has come."""
        fixed = self._once("policy", self._state, self._described)
        return fixed | {**self.mode(), "progress": self.progress()}

    def mode(self) -> dict[str, Any]:
        """Which system decides, and by which default."""
        return dict(self._policy.mode.to_dict())

    def shadow(self) -> Any:
        """What the policy would have been worth where another system decided, as released."""
        return [json_values(record.to_dict()) for record in self._policy.shadow]

    def forecast(self) -> Any:
        """What was expected before the first user; without a file of it, nothing."""
        return self._look_for() or {"functions": 0, "epochs": []}

    def _described(self) -> dict[str, Any]:
        policy, problem = self._policy, self._policy.problem
        actions, schema = policy.actions, policy.contexts.schema
        assert isinstance(actions, FixedActions)
        assert schema is not None
        limit, budget = problem.limit, problem.budget
        return {
            "name": self._name,
            "version": VERSION,
            "guarantee": policy.guarantee,
            "model": str(problem.model),
            "kernel": str(policy.kernel),
            "budget": None
            if budget is None
            else {"epsilon": budget.epsilon, "delta": budget.delta},
            "horizon": policy.horizon,
            "reward_bound": problem.reward_bound,
            "reward_range": [problem.scale.low, problem.scale.high],
            "rewards": problem.rewards.to_dict(),
            "users": None
            if limit is None
            else {"contributions": limit.total, "contributions_per_epoch": limit.per_epoch},
            "limits": None if problem.limits is None else problem.limits.to_dict(),
            "context": schema.to_dict()["columns"],
            "actions": list(actions.names or ()),
            "features": None if actions.schema is None else list(actions.schema.features),
            "notices": [
                notice.to_dict()
                for notice in (
                    *policy.notices,
                    *released_alarms(
                        problem.rewards, policy.epochs, self.progress().get("missed", 0)
                    ),
                    *self._differences(),
                )
            ],
        }

    def _differences(self) -> Iterator[Notice]:
        """What the policy file says, and the store does not."""
        if self._file is None:
            return
        try:
            found = self._file.differences()
        except CapriError as problem:
            yield Notice(kind="policy file", text=f"The policy file cannot be read: {problem}")
            return
        if found:
            said = "; ".join(map(str, found))
            text = f"The policy file is not what is played: {said}. See capri diff and capri apply."
            yield Notice(kind="policy file", text=text)

    def epochs(self) -> Any:
        """One record for each closed epoch, with the time at which it was due."""
        records = self._policy.epochs
        dates = getattr(self._policy, "dates", {})  # later: what is released is dated
        return [
            json_values({**record.to_dict(), "date": dates.get(record.epoch)}) for record in records
        ]

    def estimate(self) -> Any:
        """By action, over the public contexts: estimated reward, how often it is played now."""
        return self._once("estimate", self._state, self._estimated)

    def _estimated(self) -> dict[str, Any]:
        policy, contexts = self._policy, self._policy.contexts
        assert isinstance(contexts, ContextPool)
        rows, weights = contexts.rows, contexts.weights
        if len(rows) > _POOL:
            places = np.linspace(0, len(rows) - 1, _POOL).astype(int)
            rows, weights = rows[places], weights[places] / weights[places].sum()
        estimate, law = policy.estimate(rows), policy.probabilities(rows)
        mean = weights @ estimate
        spread = np.sqrt(np.maximum(weights @ (estimate - mean) ** 2, 0.0))
        records = policy.epochs
        error = records[-1].predicted_error if records else None
        width = records[-1].width if records else None
        in_play = weights @ policy.active(rows)
        entropy = -np.sum(law * np.log(np.maximum(law, 1e-300)), axis=1)
        return {
            "releases": len(records),
            "error": error,
            "width": width,
            "effective_actions": float(np.exp(weights @ entropy)),
            "actions": [
                {
                    "name": name,
                    "estimate": mean[place],
                    "spread": spread[place],
                    "error": error,
                    "played": (weights @ law)[place],
                    "in_play": in_play[place],
                }
                for place, name in enumerate(policy.actions.names or ())
            ],
        }

    def explanation(self) -> Any:
        """What the releases made it believe, of rewards and of those who come."""

        def told() -> Any:
            try:
                found = self._policy.explain()
            except CapriError:  # the preset of the paper believes in one kernel
                return None
            told = {"headline": found.headline, "facts": list(found.facts)}
            if hasattr(self._policy, "crowd"):  # an aggregator asks nobody
                told["who_comes"] = self._policy.crowd().to_dict()
            return found.to_dict() | told

        return self._once("explanation", self._state, told)

    def worth(self) -> Any:
        """What its law is worth beside others, and who gets what."""

        def told() -> Any:
            control = None if self._file is None else self._file.settings.control
            return worth(self._policy, control)

        return self._once("worth", self._state, told)

    def ledger(self) -> Any:
        """What was promised, what is spent, every release."""
        ledger = self._policy.ledger
        spent = ledger.spent
        return {
            "budget": {"epsilon": ledger.budget.epsilon, "delta": ledger.budget.delta},
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta, "mu": json_values(spent.mu)},
            "releases": [json_values(event.to_dict()) for event in ledger.events],
        }

    def certificate_page(self) -> str:
        """The same as two pages to be printed."""
        made = self._once(
            "certificate page", self._state, lambda: self._policy.certificate().to_html()
        )
        return str(made)

    def certificate(self) -> Any:
        """The guarantee with its assumptions, mechanism and noise."""
        return self._once("certificate", self._state, lambda: self._policy.certificate().to_dict())


class DeviceFigures(Figures):
    """Public figures of an aggregator: all that it knows is public."""

    _policy: LocalCapri

    @property
    def _state(self) -> object:
        """What changes with a reading, and with a new catalogue."""
        return len(self._policy.epochs), id(self._policy.actions)

    def check(self) -> None:
        """Raise where the store does not serve."""
        self.progress()

    def progress(self) -> Any:
        """Reports and epochs."""
        aggregator = self._policy
        epoch, taken, length = aggregator.under_way
        under_way = {"epoch": epoch, "length": length, "taken": taken, "open": True}
        return {
            "decided": aggregator.reports,
            "released": len(aggregator.epochs),
            "under_way": [under_way] if aggregator.remaining else [],
        }

    def mode(self) -> dict[str, Any]:
        """Devices decide."""
        return {"mode": "active"}

    def ledger(self) -> Any:
        """What a device spends with its report: once, and on the device."""
        aggregator = self._policy
        epsilon = aggregator.budget.epsilon if aggregator.budget else 0.0
        reported = epsilon if aggregator.reports else 0.0
        return {
            "budget": {"epsilon": epsilon, "delta": 0.0},
            "spent": {"epsilon": reported, "delta": 0.0, "mu": None},
            "releases": [
                {"epoch": each.epoch, "participants": each.length} for each in aggregator.epochs
            ],
        }


# -- worth, and the page as one file ---------------------------------------------------------------


# What the page asks for; whoever serves none of the later ones leaves it out.
NEEDED = ("policy", "epochs", "estimate", "ledger")
FURTHER = ("explanation", "certificate", "forecast", "operations", "shadow", "worth")
_BINS = 4  # of a numeric column on the map
_LEVELS = 6
_PARTS = ("page.css", "chart.js", "charts.js", "page.js")


def worth(policy: Any, control: str | None) -> dict[str, Any]:
    """Lift of the law of now over others, and a map of what it plays."""
    try:
        found = [lift.to_dict() for lift in policy.lifts(control)]
    except CapriError:  # the preset of the paper believes in one kernel
        return {"worth": None, "lifts": [], "control": control, "map": who_gets_what(policy)}
    first = found[0]
    now = first["worth"] + first["lift"]
    return {"worth": now, "lifts": found, "control": control, "map": who_gets_what(policy)}


def who_gets_what(policy: Any) -> dict[str, Any] | None:
    """The action that is played most, by the two columns that matter most, over public contexts.

    ``share``: how often that action is played in its cell; ``weight``: how many of the public
    contexts are there.
    """
    contexts, schema = policy.contexts, policy.contexts.schema
    if not isinstance(contexts, ContextPool) or schema is None:
        return None
    rows, weights, names = contexts.rows, contexts.weights, policy.actions.names
    columns = {column.name: column for column in schema.columns}
    axes = [
        (name, *_cells(columns[name], rows[:, schema.places(name)]))
        for name in _two_columns(policy)
    ]
    law = policy.probabilities(rows)
    down = axes[1] if len(axes) > 1 else ("", [""], np.zeros(len(rows), dtype=np.int64))
    table = []
    for row in range(len(down[1])):
        here = [(axes[0][2] == place) & (down[2] == row) for place in range(len(axes[0][1]))]
        table.append([_most(weights[mine], law[mine], names) for mine in here])
    across = {"name": axes[0][0], "values": axes[0][1]}
    return {"across": across, "down": {"name": down[0], "values": down[1]}, "cells": table}


def _most(weights: FloatArray, law: FloatArray, names: Any) -> dict[str, Any] | None:
    """What is played most in a cell; None where nobody is expected."""
    total = float(weights.sum())
    if total == 0:
        return None
    played = weights @ law / total
    place = int(played.argmax())
    return {"action": names[place], "share": float(played[place]), "weight": total}


def _two_columns(policy: Any) -> list[str]:
    """Those whose effect is largest; the first ones while nothing is known."""
    try:
        known = [(-each.effect, each.name) for each in policy.explain().columns]
    except CapriError:
        known = []
    listed = [name for _, name in sorted(known, key=lambda each: each[0])]
    return [*dict.fromkeys([*listed, *policy.contexts.schema.names])][:2]


def _cells(column: Column, numbers: FloatArray) -> tuple[list[str], IntArray]:
    """Values of a column for a person, and which of them each row has."""
    if isinstance(column, Numeric):
        inner = np.quantile(numbers[:, 0], np.arange(1, _BINS) / _BINS)
        edges = np.unique(inner[(inner > numbers[:, 0].min()) & (inner <= numbers[:, 0].max())])
        told = [f"{column.low + edge * (column.high - column.low):.3g}" for edge in edges]
        names = [f"below {told[0]}"] if told else ["any"]
        names += [f"{low} to {high}" for low, high in pairwise(told)]
        names += [f"from {told[-1]}"] if told else []
        return names, np.searchsorted(edges, numbers[:, 0], side="right")
    if isinstance(column, Boolean):
        return ["no", "yes"], (numbers[:, 0] > 1 / 2).astype(np.int64)
    assert isinstance(column, Categorical)
    found, most = numbers.argmax(axis=1), min(len(column.levels), _LEVELS)
    names = [*map(str, column.levels[:most]), "other"]
    return names[: int(found.max()) + 1], np.minimum(found, most)


# -- one page --------------------------------------------------------------------------------------


def one_page(ask: Callable[[str], Any]) -> bytes:
    """The page of a service with its figures inside: opens anywhere, and asks nobody.

    ``ask`` gives what is read at ``/v1/`` and a name, or raises where that is not served.
    """
    found = {f"/v1/{name}": ask(name) for name in NEEDED}
    for name in FURTHER:
        try:
            found[f"/v1/{name}"] = ask(name)
        except CapriError:
            continue
    if not found["/v1/policy"].get("name"):
        raise ConfigurationError("what answers there is no service of a policy")
    kept = json.dumps(json_values(found | {"made": time.time()})).replace("<", "\\u003c")
    folder = files("capri").joinpath("service", "page")
    parts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _PARTS}
    scripts = [_inline(parts[name]) for name in _PARTS[1:]]
    style, digest = _inline(parts["page.css"])
    policy = f"default-src 'none'; style-src {digest}; script-src "
    policy += " ".join(own for _, own in scripts)
    lines = []
    for line in folder.joinpath("index.html").read_text(encoding="utf-8").splitlines():
        if 'rel="stylesheet"' in line:
            lines.append(f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
            lines.append(f"<style>{style}</style>")
        elif "<script" not in line and 'rel="icon"' not in line:
            if line == "</body>":
                lines.append(f'<script type="application/json" id="kept">{kept}</script>')
                lines += [f"<script>{script}</script>" for script, _ in scripts]
            lines.append(line)
    return "\n".join(lines).encode()


def _inline(text: str) -> tuple[str, str]:
    """A text between its tags, and the digest by which a policy allows it."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"
