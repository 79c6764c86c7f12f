"""Play a world and write down everything that anybody but the users themselves could see."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

import capri
from builders import CONTEXTS
from capri.epoch.storage import plan_digest, read_policy_file
from oracle.worlds import SHARED, VISITS, World

# Visits by batch; epochs of 8, 16 and more begin within and between them. A batch of one is `act`.
BATCHES = (1, 5, 2, 1, 1, 9, 5, 1, 5)
assert sum(BATCHES) == VISITS
Transcript = list[tuple[str, Any]]


@contextmanager
def overheard(transcript: Transcript) -> Iterator[None]:
    """Write down warnings, log records, printed text, and the error that ended it if one did."""
    records: list[str] = []
    handler = logging.Handler(logging.NOTSET)
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        # Said of a configuration when it is built, before any user.
        warnings.filterwarnings("ignore", "this policy counts users' contributions in memory")
        # Blind sums hold nobody's cells, and it is said so; notices are compared by themselves.
        warnings.filterwarnings("ignore", "unreadable: ")
        try:
            yield
        except Exception as error:
            transcript.append(("error", f"{type(error).__name__}: {error}"))
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            transcript.append(("warnings", [str(warning.message) for warning in caught]))
            transcript.append(("log", records))
            transcript.append(("printed", printed.getvalue()))


def public_file(policy: capri.Capri, path: Path) -> Any:
    """What a saved file holds, without who took part, which is confidential.

    A file of a policy that keeps no ids is public as it is, to the last byte.
    """
    path.unlink(missing_ok=True)
    policy.save(path)
    values, arrays = read_policy_file(path)
    if values["repository"].pop("users") is None:
        return path.read_bytes()
    return json.dumps(values, sort_keys=True), {
        name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()
    }


def certified(policy: Any) -> tuple[str, str, str]:
    """The certificate in its three forms. Building one takes longer than all other questions."""
    with warnings.catch_warnings():  # of the configuration, before anybody came
        warnings.filterwarnings("ignore", message="this policy counts users' contributions")
        certificate = policy.certificate()
    return certificate.to_json(), certificate.to_html(), str(certificate)


def face(policy: Any, questions: np.ndarray) -> Transcript:
    """What anybody may ask a policy."""
    return [
        ("shown", (repr(policy), str(policy), policy.guarantee)),
        ("estimate", policy.estimate(questions).tobytes()),
        ("active", policy.active(questions).tobytes()),
        ("law", policy.probabilities(questions).tobytes()),
        ("remaining", policy.remaining),
        ("records", json.dumps([record.to_dict() for record in policy.epochs])),
        ("records shown", (repr(policy.epochs), policy.epochs._repr_html_())),
        ("explained", explained(policy)),
        ("notices", [notice.to_dict() for notice in policy.notices]),
    ]


def explained(policy: Any) -> str | None:
    """What it believes, also of who comes; the paper's algorithm has no belief."""
    if policy.preset != "practical":
        return None
    who = policy.crowd().to_dict() if hasattr(policy, "crowd") else {}
    return json.dumps(policy.explain().to_dict() | {"who comes": who})


def account(policy: capri.Capri) -> Transcript:
    """The ledger, and what objects inside would print."""
    ledger = policy.ledger
    return [
        ("ledger", (repr(ledger), str(ledger.events), str(ledger.spent))),
        ("spent in", [str(ledger.spent_in(epoch)) for epoch in range(4)]),
        ("pending", policy.pending),
        (
            "inside",
            [
                repr(each)
                for each in (policy._engine, policy._engine.repository.rows, policy._users)
            ],
        ),
    ]


def played(
    world: World, settings: dict[str, Any], folder: Path, *, restart_after: int | None = None
) -> Transcript:
    """Everything public of a run in which the batches of visits come one after the other.

    Rewards come between batches, in the order and number that the world says. After batch
    ``restart_after`` the policy is saved, thrown away and loaded.
    """
    transcript: Transcript = []
    with overheard(transcript):
        policy = capri.Capri(**settings)
        dimension = policy.problem.contexts.dimension
        questions = np.repeat(CONTEXTS, dimension, axis=1)
        decisions: list[capri.Decision] = []
        for batch, size in enumerate(BATCHES):
            start = len(decisions)
            visits = world[start : start + size]
            rows = [[visit.context] * dimension for visit in visits]
            users: list[str] | None = [visit.user for visit in visits]
            if policy._users is None:
                users = None
            new: list[capri.Decision] = []
            while len(new) < size:  # a public event may come within a batch
                part = slice(len(new), min(size, len(new) + policy.remaining))
                sets: Any = [visit.available for visit in visits][part]
                if "limits" not in settings:  # else every visit comes with a set
                    sets = None
                if size == 1:
                    own = None if sets is None else sets[0]
                    new = [policy.act(rows[0], user=users[0] if users else None, available=own)]
                else:
                    given = users and users[part]
                    new += policy.act_many(rows[part], users=given, available=sets)
            decisions += new
            transcript.append(("ids", [(each.id, each.epoch, repr(each)) for each in new]))
            for place, each in enumerate(new, start):
                if place in SHARED:
                    seen = (each.action_index, each.action.tobytes(), each.propensity, each.status)
                    transcript.append(("action of a shared visit", seen))
            _answer(policy, world, decisions, batch)
            transcript += account(policy)
            transcript += face(policy, questions)
            transcript.append(("plan", policy.playing and plan_digest(policy.playing[0])))
            if batch == len(BATCHES) // 2:
                transcript.append(("certificate", certified(policy)))
            if batch == restart_after:
                path = folder / "restart.capri"
                transcript.append(("file before the restart", public_file(policy, path)))
                policy = capri.Capri.load(path, take_over=True)
        policy.close_full_epoch()
        transcript.append(("certificate", certified(policy)))
        transcript.append(("file", public_file(policy, folder / "policy.capri")))
        transcript += account(policy)
        transcript += face(policy, questions)
    return transcript


def _answer(policy: capri.Capri, world: World, decisions: list[capri.Decision], batch: int) -> None:
    """Give the rewards that are due after this batch; what comes back is their callers'."""
    ends = np.cumsum(BATCHES)
    due = []
    for place, decision in enumerate(decisions):
        came = int(np.searchsorted(ends, place, side="right"))
        for delay, value, by_id in world[place].rewards:
            if came + delay == batch:
                due.append((decision.id if by_id else decision, value))
    keyed = policy.problem.rewards.rule.keyed
    for decision, value in due[:1]:
        policy.update(decision, value, key="first" if keyed else None)
    if due[1:]:
        keys = [f"{batch} {place % 3}" for place in range(len(due) - 1)] if keyed else None
        sent = [each for each, _ in due[1:]]
        policy.update_many(sent, [value for _, value in due[1:]], keys=keys)


def assert_same(first: Transcript, second: Transcript) -> None:
    """Byte for byte, entry for entry; and nothing was refused, said or printed."""
    told = told_apart_by(first, second)
    assert not told, f"the worlds are told apart by: {told}"
    for kind, found in first:
        if kind in ("error", "warnings", "log", "printed"):
            assert not found, f"{kind}: {found}"


def told_apart_by(first: Transcript, second: Transcript) -> str:
    """The kind of the first entry that differs; empty where none does.

    Only its name: two files side by side would take a minute to print.
    """
    for one, other in zip(first, second, strict=False):
        if one != other:
            return one[0] if one[0] == other[0] else f"{one[0]} or {other[0]}"
    return "" if len(first) == len(second) else "length"
