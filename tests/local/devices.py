"""Small aggregators, bundles taken apart and signed anew, reports with a valid checksum."""

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import capri
from capri.epoch.storage import read_policy_file as read_file
from capri.local.bundle import _HEAD, MAGIC, VERSION
from capri.local.reports import EpochReports

CONTEXTS = np.linspace(0.0, 1.0, 6)[:, None]
ACTIONS = np.linspace(0.0, 1.0, 5)[:, None]
BUDGET = capri.Budget(epsilon=4.0)


def small_aggregator(**changes: Any) -> capri.LocalCapri:
    """Six contexts, five actions, epochs of 60, 90 and 50 reports; nobody waits; seeded."""
    settings: dict[str, Any] = {
        "kernel": capri.kernels.RBF(lengthscale=0.4),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": BUDGET,
        "horizon": 200,
        "first_epoch": 60,
        "public_seed": 3,
        "reward_wait": 0,
    }
    return capri.LocalCapri(**(settings | changes))


def one_report(
    bundle: bytes, budget: capri.Budget, user: int, *, seed: int = 5, reward: float | None = None
) -> bytes:
    """What simulated user number ``user`` uploads."""
    client = capri.LocalClient(bundle, budget, simulation=(seed, user))
    context = CONTEXTS[user % len(CONTEXTS)]
    decision = client.act(context)
    if reward is None:
        reward = reward_of(user, decision.action_index)
    return client.report(reward)


def reward_of(user: int, action: int) -> float:
    """A reward in [-1, 1] for everybody to agree on: peaks at the middle action."""
    return 1.0 - 0.5 * abs(action - 2) + 0.1 * ((user * 7919) % 11 - 5) / 5


def honest_reports(aggregator: capri.LocalCapri, count: int, *, first: int = 0) -> list[bytes]:
    """Reports of ``count`` users to the open epoch."""
    bundle = aggregator.bundle()
    return [one_report(bundle, BUDGET, user) for user in range(first, first + count)]


def fill(aggregator: capri.LocalCapri, *, first: int = 0) -> list[bytes]:
    """Close the open epoch with honest reports and return them."""
    reports = honest_reports(aggregator, aggregator.remaining, first=first)
    assert (aggregator.receive_many(reports) == capri.ReportStatus.ACCEPTED).all()
    return reports


def open_epochs(aggregator: capri.LocalCapri) -> list[EpochReports]:
    """Epochs that were not read to the last, oldest first, with the reports to them."""
    return list(aggregator._state.epochs)


def late_aggregator(**changes: Any) -> capri.LocalCapri:
    """In its second epoch: with a baseline, Thompson draws and all shares."""
    aggregator = small_aggregator(**changes)
    fill(aggregator)
    return aggregator


@cache
def late_bundle(**changes: Any) -> bytes:
    """What it gives out then: a seeded run makes it once for all tests."""
    return late_aggregator(**changes).bundle()


def snapshot(aggregator: capri.LocalCapri, folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """All that a save holds."""
    path = folder / "snapshot.capri"
    aggregator.save(path)
    values, arrays = read_file(path, "aggregator")
    return values, {
        name: str((array.dtype, array.shape)).encode() + array.tobytes()
        for name, array in arrays.items()
    }


# -- bundles --------------------------------------------------------------------------------------


def take_apart(bundle: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays."""
    _, _, length = _HEAD.unpack_from(bundle)
    header = json.loads(bundle[_HEAD.size : _HEAD.size + length])
    start, arrays = _HEAD.size + length, {}
    for name, shape, *form in header["arrays"]:
        count = int(np.prod(shape))
        if form:
            words = np.frombuffer(bundle, "<i2", count + shape[1], start).reshape(-1, shape[1])
            arrays[name] = words[1:] * 2.0 ** words[0]
            start += 2 * words.size
        else:
            arrays[name] = np.frombuffer(bundle, "<f8", count, start).reshape(shape).copy()
            start += 8 * count
    return header, arrays


# Arrays that come in 16 bits a number.
SHORT = ("law.draws", "whitening")


def put_together(
    header: Any, arrays: dict[str, np.ndarray], *, listed: bool = True, short: bool = True
) -> bytes:
    """A bundle with a digest that is right; ``listed`` writes the list of arrays anew.

    ``short``: those of :data:`SHORT` that fit come in 16 bits.
    """
    forms = {
        name: ["int16"] if short and name in SHORT and fits_16_bits(array) else []
        for name, array in arrays.items()
    }
    if listed:
        shapes = [[name, list(array.shape), *forms[name]] for name, array in arrays.items()]
        header = {**header, "arrays": shapes}
    text = json.dumps(header, separators=(",", ":"), default=_plain).encode()
    body = b"".join(
        short_bytes(array) if forms[name] else np.ascontiguousarray(array, "<f8").tobytes()
        for name, array in arrays.items()
    )
    return signed(_HEAD.pack(MAGIC, VERSION, len(text)) + text + body)


def fits_16_bits(array: np.ndarray) -> bool:
    """Whether nothing is lost."""
    sizes = np.abs(array)
    if (
        array.ndim != 2
        or not array.size
        or not ((sizes < 1e50) & ~((sizes > 0) & (sizes < 1e-60))).all()
    ):
        return False
    words = np.frombuffer(short_bytes(array), "<i2").reshape(-1, array.shape[1])
    return bool((words[1:] * 2.0 ** words[0] == array).all())


def short_bytes(array: np.ndarray) -> bytes:
    """Exponents of the columns, then numbers of 16 bits."""
    exponents = np.frexp(np.abs(array).max(axis=0, initial=0.0))[1] - 15
    numbers = np.rint(array * 2.0**-exponents).clip(-32767, 32767)
    return np.concatenate([exponents[None], numbers]).astype("<i2").tobytes()


def _plain(value: Any) -> Any:
    return value.item()


def signed(body: bytes) -> bytes:
    """With its SHA-256 behind."""
    return body + sha256(body).digest()


# -- reports --------------------------------------------------------------------------------------


def sealed(body: bytes) -> bytes:
    """A report with a checksum that is right."""
    return body + crc32(body).to_bytes(4, "little")
