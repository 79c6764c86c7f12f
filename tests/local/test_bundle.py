"""Bundles: what is written is read, and whatever a hostile server sends is refused or harmless."""

import json
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import (
    ACTIONS,
    BUDGET,
    CONTEXTS,
    SHORT,
    late_aggregator,
    late_bundle,
    open_epochs,
    put_together,
    signed,
    small_aggregator,
    take_apart,
)
from mutants import STRANGE, mutants

import capri
from capri.errors import BundleError
from capri.local.bundle import _HEAD, MAGIC, VERSION, open_bundle
from capri.local.client import check_promise
from capri.privacy.sphere import COIN, Sphere, sphere

# Kinds of bundle: with Thompson draws and a baseline, without one, and in products of factors
# instead of one kernel.
LATER: list[dict[str, Any]] = [
    {},
    {"residual": False},
    {"kernel": "auto"},
]


@cache
def early() -> bytes:
    """A bundle of a first epoch: made when a test first asks, not while tests are collected."""
    return small_aggregator().bundle()


@cache
def late() -> tuple[bytes, ...]:
    """Bundles of a second epoch, one of each kind."""
    return tuple(late_bundle(**kind) for kind in LATER)


def all_of() -> tuple[bytes, ...]:
    return (early(), *late())


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A bundle that keeps a device busy is as bad as one that crashes it."""

    def stop(*_: object) -> None:
        raise AssertionError("took too long")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(900)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# -- honest bundles -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [{}, {"limits": capri.Limits(floor={0: 0.1}, share={1: 0.3})}], ids=["free", "limits"]
)
def test_round_trip(kind: dict[str, Any]) -> None:
    """What a device reads is what the aggregator planned, to the bit."""
    aggregator = late_aggregator(**kind)
    bundle = open_bundle(aggregator.bundle(), aggregator.digest)
    plan = open_epochs(aggregator)[-1].plan
    assert bundle.digest == aggregator.digest
    assert bundle.reward_bound == 1.0
    for name in ("epoch", "length", "tau", "value_bound", "clip_norm", "dimension", "noise_scale"):
        assert getattr(bundle.plan, name) == getattr(plan, name)
    assert bundle.plan.layout == plan.layout
    law = bundle.behaviour.probabilities(CONTEXTS)
    assert law.tobytes() == aggregator.probabilities(CONTEXTS).tobytes()
    pairs = bundle.actions.pairs(CONTEXTS).reshape(-1, 2)
    assert bundle.plan.features.whitened(pairs).tobytes() == plan.features.whitened(pairs).tobytes()
    if plan.baseline is not None:
        assert bundle.plan.baseline is not None
        assert bundle.plan.baseline(pairs).tobytes() == plan.baseline(pairs).tobytes()


def test_same_bytes_for_everybody() -> None:
    assert small_aggregator().bundle() == early()
    aggregator = small_aggregator()
    assert aggregator.bundle() is aggregator.bundle()
    header, arrays = take_apart(early())
    assert put_together(header, arrays) == early()  # the helpers of these tests are right


def test_varying_actions() -> None:
    contexts = np.random.default_rng(0).random((8, 1 + 3 * 2))
    aggregator = small_aggregator(
        actions=capri.VaryingActions(3, 2), contexts=capri.ContextPool(contexts)
    )
    client = capri.LocalClient(aggregator.bundle(), BUDGET)
    decision = client.act(contexts[0])
    assert decision.action.shape == (2,)
    assert aggregator.receive(client.report(0.5)) == capri.ReportStatus.ACCEPTED


def test_accepts_any_kind_of_bytes() -> None:
    for kind in (bytes, bytearray, memoryview):
        open_bundle(kind(early()))  # type: ignore[arg-type]


def test_a_late_bundle_is_small() -> None:
    """A megabyte is the limit; with fifty contexts and actions, at rank 150."""
    rows = np.linspace(0, 1, 50)[:, None]
    aggregator = small_aggregator(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        actions=rows,
        contexts=capri.ContextPool(rows),
    )
    assert len(aggregator.bundle()) < 1 << 20


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [None, "text", 7, [1, 2], MAGIC.hex()])
def test_only_bytes(thing: Any) -> None:
    with pytest.raises(BundleError, match="bytes"):
        capri.LocalClient(thing, BUDGET)


def test_every_kind_of_damage_has_its_message() -> None:
    data = early()
    flipped = bytearray(data)
    flipped[200] ^= 1
    length = _HEAD.unpack_from(data)[2]
    others = {
        version: signed(_HEAD.pack(MAGIC, version, length) + data[_HEAD.size : -32])
        for version in (1, 2, 3, VERSION + 1)
    }
    for bad, text in (
        (b"", "not a capri bundle"),
        (data[:40], "not a capri bundle"),
        (b"X" + data[1:], "not a capri bundle"),
        (bytes(flipped), "digest does not match"),
        (data[:-1], "digest does not match"),
        (data + b"\0", "digest does not match"),
        *((other, f"has format version {version}, ") for version, other in others.items()),
        (bytes((1 << 26) + 1), "at most"),
    ):
        with pytest.raises(BundleError, match=text):
            open_bundle(bad)


def test_another_bundle_than_the_published_one() -> None:
    """A server that hands out a bundle of its own to one user is found out."""
    other = small_aggregator(reward_bound=2.0).bundle()
    with pytest.raises(BundleError, match="digests differ"):
        capri.LocalClient(other, BUDGET, digest=early()[-32:])
    with pytest.raises(BundleError, match="digests differ"):
        capri.LocalClient(other, BUDGET, digest=b"")


# -- weaker than the budget -----------------------------------------------------------------------


def changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    header, arrays = take_apart(data)
    change(header)
    return put_together(header, arrays)


@pytest.mark.parametrize("kind", range(1 + len(LATER)))
def test_sphere_bundle_weaker_than_the_budget(kind: int) -> None:
    data = all_of()[kind]
    budget = BUDGET
    capri.LocalClient(data, budget)
    for smaller in (budget.epsilon * (1 - 1e-9), 3.9, 1.0, 1e-3, 1e-9):
        with pytest.raises(BundleError, match="costs epsilon"):
            capri.LocalClient(data, capri.Budget(epsilon=smaller, delta=0.5))
    generous = capri.LocalClient(data, capri.Budget(epsilon=8.0))
    generous.act(CONTEXTS[0])
    generous.report(1.0)

    def one_more(header: dict[str, Any]) -> None:
        header["sphere"][3] = str(int(header["sphere"][3]) + 1)

    def surely(header: dict[str, Any]) -> None:
        header["sphere"][3] = str(COIN - 1)

    def fewer_near(header: dict[str, Any]) -> None:
        header["sphere"][2] -= 1

    def more_candidates(header: dict[str, Any]) -> None:
        header["sphere"][1] += 2

    for change in (one_more, surely, fewer_near, more_candidates):
        with pytest.raises(BundleError, match="costs epsilon"):
            capri.LocalClient(changed(data, change), budget)


def test_clip_norm_and_noise_must_fit_the_grid() -> None:
    """A grid on which all contributions round to 0, or leave it, is refused."""
    for factor in (1e-3, 0.4, 1.1, 1e6):

        def change(header: dict[str, Any], factor: float = factor) -> None:
            header["plan"]["clip_norm"] *= factor

        with pytest.raises(BundleError, match="grid"):
            capri.LocalClient(changed(early(), change), BUDGET)


@pytest.mark.parametrize(
    "kernel",
    [
        {"type": "RBF", "lengthscale": 1e-308},
        {"type": "RBF", "lengthscale": [1e-250, 1.0]},
        {"type": "Matern", "nu": 2.5, "lengthscale": 1e-308},
        {"type": "Matern", "nu": 1e12},
        {"type": "Matern", "nu": 0.7},
        {"type": "RationalQuadratic", "alpha": 1e-300},
        {"type": "RBF", "variance": 1e300},
        {"type": "Linear", "variance": 1e300},
        {"type": "Linear", "bias": 1e300},
        {
            "type": "Product",
            "left": {"type": "RBF"},
            "right": {"type": "RBF", "lengthscale": 1e-305},
        },
        {"type": "Product", "left": {"type": "Linear"}, "right": {"type": "Linear"}},
        {
            "type": "ContextAction",
            "context": {"type": "RBF", "lengthscale": 1e-300},
            "action": {"type": "RBF"},
            "context_dimension": 1,
        },
    ],
)
def test_whether_a_report_is_made_does_not_depend_on_the_context(kernel: dict[str, Any]) -> None:
    """A kernel that overflows for some contexts must not tell the server which: all report."""
    originals = all_of()
    for data in (changed(data, lambda header: header.update(kernel=kernel)) for data in originals):
        try:
            open_bundle(data)
        except BundleError:
            continue
        for context in (0.0, 5e-324, 1.0, -2.0, 1e10, 1e100, -1e100):
            for reward in (0.0, 1e308, None):
                client = capri.LocalClient(data, BUDGET, simulation=(1, 1))
                client.act([context])
                client.report(reward)


# -- hostile sizes: in a process with little memory -----------------------------------------------


def hostile(kind: str) -> bytes:
    """Small bundles that would ask for gigabytes or minutes."""
    header, arrays = take_apart(early())
    width = 2 + sum(header["plan"][name] > 0 for name in ("moment_share", "tail_share"))
    single = Sphere(dimension=width, candidates=2, near=1, chance=sphere(4.0, width).chance)
    odds = Sphere(dimension=width, candidates=2, near=1, chance=int(COIN * 0.98))
    header["sphere"] = [width, 2, 1, str(odds.chance)]
    header["conduct"] = {"law": {"kind": "uniform"}}
    arrays = {
        "pivots": np.zeros((2, 2)),
        "transform": np.eye(2),
        "whitening": np.eye(2),
        "actions": ACTIONS,
    }
    assert single.near == 1
    if kind == "wide transform":
        arrays["pivots"], arrays["transform"] = np.zeros((1 << 16, 2)), np.ones((1 << 16, 1))
        arrays["whitening"] = np.ones((1, (1 << 16) - 2))
        header["sphere"][0] = 1 << 16
    elif kind == "many actions":
        arrays["pivots"], arrays["transform"] = np.zeros((1 << 15, 2)), np.ones((1 << 15, 1))
        arrays["whitening"], arrays["actions"] = np.ones((1, 2)), np.zeros((1 << 16, 1))
        arrays["law.draws"] = np.ones((1, 1))
        header["conduct"]["law"] = {"kind": "thompson"}
    elif kind == "many draws":
        arrays["law.draws"], arrays["actions"] = np.ones((2, 1 << 16)), np.zeros((1 << 16, 1))
        header["conduct"]["law"] = {"kind": "thompson"}
    elif kind == "many directions":
        arrays["whitening"] = np.ones((2, (1 << 16) - width + 2))
        header["sphere"] = [1 << 16, 4096, 300, str(int(COIN * 0.8))]
    elif kind == "kernel tree":
        tree: dict[str, Any] = {"type": "RBF"}
        for _ in range(13):
            tree = {"type": "Product", "left": tree, "right": tree}
        header["kernel"] = tree
        arrays["pivots"], arrays["transform"] = np.zeros((1000, 2)), np.ones((1000, 1))
        arrays["whitening"], arrays["actions"] = np.ones((1, 2)), np.zeros((1 << 12, 1))
        arrays["law.draws"] = np.ones((1, 1))
        header["conduct"]["law"] = {"kind": "thompson"}
    elif kind == "varying":
        header["varying_actions"] = [1 << 16, 1 << 16]
        header["context_dimension"] = 1 << 24
        del arrays["actions"]
    return put_together(header, arrays)


KINDS = (
    "wide transform",
    "many actions",
    "many draws",
    "many directions",
    "kernel tree",
    "varying",
)


def test_hostile_sizes_are_refused_or_cheap(tmp_path: Path) -> None:
    """All of them in one process with 1.5 GB of address space and 20 seconds for each."""
    for kind in KINDS:
        (tmp_path / kind).write_bytes(hostile(kind))
    code = """
import resource, signal, sys
from pathlib import Path
import numpy as np
import capri, capri.local.client
import warnings
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
def stop(*_): raise SystemExit("took too long")
signal.signal(signal.SIGALRM, stop)
for path in sorted(Path(sys.argv[1]).iterdir()):
    signal.alarm(20)
    try:
        client = capri.LocalClient(path.read_bytes(), capri.Budget(epsilon=4.0))
        client.act(np.zeros(client._bundle.context_dimension))
        client.report(0.5)
        print(path.name, "works", flush=True)
    except capri.BundleError:
        print(path.name, "refused", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    finished = {line.rsplit(" ", 1)[0] for line in done.stdout.splitlines()}
    assert not done.stderr, (done.stderr[-500:], finished)
    assert finished == set(KINDS)


# -- fuzz -----------------------------------------------------------------------------------------


def refused_or_harmless(data: bytes, budget: capri.Budget) -> bool:
    """Whether a client was built; if so it works, and what it reports costs at most the budget.

    Anything but a :class:`BundleError` ends the test.
    """
    try:
        client = capri.LocalClient(data, budget, simulation=(1, 1))
    except BundleError:
        return False
    bundle = client._bundle
    check_promise(bundle, budget)
    assert bundle.plan.sphere is not None
    assert bundle.plan.sphere.keeps(budget.epsilon)
    dimension = bundle.context_dimension
    contexts = [np.zeros(dimension), np.full(dimension, 0.7), np.full(dimension, -1e100)]
    for context in contexts:
        decision = client.act(context)
        assert 0 <= decision.action_index < bundle.actions.count
    everyone = np.array(contexts)
    for action in (0, bundle.actions.count - 1):
        for reward in (0.0, 1e300, -1e300):
            units = client._device.encode(
                everyone, np.full(len(everyone), action), np.full(len(everyone), reward)
            )
            norms = [sum(int(unit) ** 2 for unit in row) for row in units]
            assert max(norms) <= bundle.plan.vector.norm_limit**2
    report = client.report(1e300)
    assert len(report) == 32
    return True


def fuzz(count: int, seed: int) -> None:
    originals = all_of()
    built = 0
    for data in mutants(originals, count, seed):
        built += refused_or_harmless(data, BUDGET)
    # Both outcomes must be well represented, else the fuzzing shows little.
    assert count * 0.02 < built < count * 0.5


def test_unchanged_bundles_are_the_control() -> None:
    for data in all_of():
        assert refused_or_harmless(data, BUDGET)


def test_mutated_bundles_are_refused_or_harmless() -> None:
    """3,000 in every run, 100,000 in the long one."""
    fuzz(3000, seed=1)


@pytest.mark.slow
def test_many_mutated_bundles() -> None:
    fuzz(100_000, seed=2)


def test_bytes_that_were_never_a_bundle() -> None:
    chooser = random.Random(3)
    for _ in range(500):
        text = chooser.choice(
            [
                b"[" * chooser.randrange(1, 200_000),
                b'{"arrays":' * 2000,
                json.dumps(chooser.choice(STRANGE)).encode(),
                chooser.randbytes(chooser.randrange(200)),
                b'{"arrays":[["pivots",[16777216,16777216]]]}',
                b'{"arrays":[["pivots",[-1,8]]]}',
                b"1" * 5000,
                b"",
            ]
        )
        length = chooser.choice((len(text), 0, len(text) + 1, 2**32 - 1))
        data = signed(_HEAD.pack(MAGIC, VERSION, length) + text)
        assert not refused_or_harmless(data, BUDGET)


@pytest.mark.parametrize("depth", [10, 200, 900, 5000])
def test_deep_kernels(depth: int) -> None:
    """Nested as deep as the header allows: refused, or a client that works."""
    header, arrays = take_apart(early())
    text = json.dumps(header["kernel"])
    nested = '{"type":"Product","right":{"type":"RBF"},"left":' * depth + text + "}" * depth
    raw = json.dumps({**header, "kernel": "HERE"}).replace('"HERE"', nested).encode()
    body = b"".join(array.astype("<f8").tobytes() for array in arrays.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused_or_harmless(signed(_HEAD.pack(MAGIC, VERSION, len(raw)) + raw + body), BUDGET)


# -- 16 bits a number ------------------------------------------------------------------------------


def test_16_bits_are_those_of_the_aggregator_and_its_devices() -> None:
    aggregator = late_aggregator(kernel="auto")
    header, arrays = take_apart(aggregator.bundle())
    short = [name for name, _, *form in header["arrays"] if form == ["int16"]]
    assert sorted(short) == [*SHORT]
    for name in short:
        largest = np.abs(arrays[name]).max(axis=0)
        steps = arrays[name] / 2.0 ** (np.frexp(largest)[1] - 15)
        assert (steps == np.rint(steps)).all()
    long = put_together(header, arrays, short=False)  # the same numbers as doubles: the same bundle
    assert len(long) > len(aggregator.bundle()) + 5 * sum(arrays[name].size for name in short)
    contexts = np.linspace(-1, 2, 200)[:, None]
    law = aggregator.probabilities(contexts)
    for data in (aggregator.bundle(), long):
        assert open_bundle(data).behaviour.probabilities(contexts).tobytes() == law.tobytes()


@pytest.mark.parametrize("exponent", [251, -251, 32767, -32768])
def test_exponents_out_of_range_are_refused(exponent: int) -> None:
    data = bytearray(late_bundle())
    header, arrays = take_apart(bytes(data))
    names = [each[0] for each in header["arrays"]]
    assert names[-1] != "law.draws"
    sizes = [2 * (a.size + a.shape[1]) if n in SHORT else 8 * a.size for n, a in arrays.items()]
    start = len(data) - 32 - sum(sizes[names.index("law.draws") :])
    data[start : start + 2] = exponent.to_bytes(2, "little", signed=True)
    with pytest.raises(BundleError, match="exponent"):
        open_bundle(signed(bytes(data[:-32])))


@pytest.mark.parametrize("form", ["int8", None, 7, ["int16"], ""])
def test_other_forms_are_refused(form: Any) -> None:
    header, arrays = take_apart(late_bundle())
    for each in header["arrays"]:
        if each[0] == "law.draws":
            each[2] = form
    with pytest.raises(BundleError, match="malformed"):
        open_bundle(put_together(header, arrays, listed=False))


def test_features_that_no_product_needs_stay_at_home() -> None:
    header, arrays = take_apart(late_aggregator(kernel="auto").bundle())
    for side, used in (("context", "span.left"), ("action", "span.right")):
        assert arrays[f"span.{side}.transform"].shape[1] == max(1, arrays[used].max())
    assert len(header["arrays"]) == len(arrays)
