"""Test vectors of the wire format: cases that every client must answer alike.

``python tests/local/vectors.py`` writes ``clients/vectors/*.json`` anew. Every operation is a
function from JSON to JSON; docs/reference/wire.md says what each means and how exactly
answers must agree.
"""

import copy
import json
import random
import struct
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from hashlib import sha256
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from devices import (
    ACTIONS,
    BUDGET,
    late_aggregator,
    put_together,
    sealed,
    signed,
    small_aggregator,
    take_apart,
)

import capri
from capri.errors import BudgetError, BundleError, DataError
from capri.files import canonical
from capri.kernels import from_dict
from capri.kernels.evaluate import steady
from capri.local import tickets, wire
from capri.local.bundle import open_bundle
from capri.local.device import Device, DeviceRandomness
from capri.local.reports import EpochReports, judge
from capri.local.stores import MemoryStore
from capri.local.tickets import Tickets
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.sphere import (
    COIN,
    Sphere,
    _exponential_from_below,
    direction_sum,
    directions,
    positive_cells,
    randomized,
    sphere,
)

FOLDER = Path(__file__).parents[2] / "clients" / "vectors"
Case = dict[str, Any]


# -- bundles, and those made from them ------------------------------------------------------------


@lru_cache(maxsize=1)
def stored_bundles() -> dict[str, bytes]:
    """Those in the file: every client reads the same."""
    texts = json.loads((FOLDER / "bundles.json").read_text())["bundles"]
    return {name: b64decode(text) for name, text in texts.items()}


def spliced(case: Case) -> bytes:
    """A bundle with some bytes replaced, from the last place to the first, and signed anew."""
    data = bytearray(stored_bundles()[case["bundle"]])
    splices = case.get("splices", [])
    if case.get("sign"):
        del data[-32:]
    for start, removed, text in reversed(splices):
        data[start : start + removed] = bytes.fromhex(text)
    data += bytes(case.get("pad", 0))
    return signed(bytes(data)) if case.get("sign") else bytes(data)


def as_splices(name: str, wanted: bytes) -> Case:
    """The case whose bundle is ``wanted``."""
    base = stored_bundles()[name]
    signed_right = len(wanted) >= 32 and sha256(wanted[:-32]).digest() == wanted[-32:]
    old, new = (base[:-32], wanted[:-32]) if signed_right else (base, wanted)
    splices: list[list[Any]] = []
    cuts = [(0, 0), (14, 14), (18, 18), *zip(_split(old), _split(new), strict=True)]
    cuts.append((len(old), len(new)))
    for (here, there), (next_here, next_there) in pairwise(cuts):
        one, two = old[here:next_here], new[there:next_there]
        start = end = 0
        while start < min(len(one), len(two)) and one[start] == two[start]:
            start += 1
        while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
            end += 1
        if len(one) > start + end or len(two) > start + end:
            replaced = two[start : len(two) - end].hex()
            splices.append([here + start, len(one) - end - start, replaced])
    return {"bundle": name, "splices": splices, "sign": signed_right}


def _split(body: bytes) -> list[int]:
    """Where the header ends."""
    length = int.from_bytes(body[14:18], "little")
    return [min(18 + length, len(body))]


# -- operations -----------------------------------------------------------------------------------


class Draws(DeviceRandomness):
    """The draws of a case."""

    private = False

    def __init__(self, draws: Case) -> None:
        self._draws = draws

    def action(self, count: int) -> Any:
        return np.array([self._draws["action"]])

    def seeds(self, count: int) -> Any:
        token = bytes.fromhex(self._draws["token"])
        return np.frombuffer(token, "<u8").reshape(1, 2).astype(np.uint64)

    def rounding(self, count: int) -> Any:
        return np.array([self._draws["rounding"]])

    def coin(self, count: int, chance: int) -> Any:
        return np.array([int(self._draws["coin"]) < chance])

    def below(self, limits: Any) -> Any:
        return np.array([self._draws["pick"] % int(limits[0])])


def tokens(texts: list[str]) -> Any:
    data = b"".join(bytes.fromhex(text) for text in texts)
    return np.frombuffer(data, "<u8").reshape(-1, 2).astype(np.uint64)


def sphere_of(parts: list[Any]) -> Sphere:
    dimension, candidates, near, chance = parts
    return Sphere(dimension=dimension, candidates=candidates, near=near, chance=int(chance))


def op_table(case: Case) -> Any:
    return [int(positive_cells()[place]) for place in case["places"]]


def op_direction(case: Case) -> Any:
    found = directions(tokens([case["token"]]), np.array([case["row"]]), case["dimension"])
    return found[0].tolist()


def op_direction_sum(case: Case) -> Any:
    numbers = np.array(case["numbers"])
    total = direction_sum(
        tokens(case["tokens"]), numbers // 2, 1 - 2 * (numbers % 2), case["dimension"]
    )
    return total.tolist()


def op_exponential(case: Case) -> Any:
    return str(int(_exponential_from_below(case["epsilon"]) * 2**128))


def op_keeps(case: Case) -> Any:
    return sphere_of(case["sphere"]).keeps(case["epsilon"])


def op_randomize(case: Case) -> Any:
    vector = np.array([case["vector"]], dtype=np.int64)
    _, number = randomized(vector, case["limit"], sphere_of(case["sphere"]), Draws(case["draws"]))
    return int(number[0])


def op_pack(case: Case) -> Any:
    message = wire.pack(
        bytes.fromhex(case["digest"]),
        tokens([case["token"]]),
        np.array([case["number"]]),
    )
    return message[0].tobytes().hex()


def op_kernel(case: Case) -> Any:
    points = np.array(case["points"])
    return steady(from_dict(case["kernel"]))(points, points).tolist()


def op_schema(case: Case) -> Any:
    row = capri.Schema.from_dict(case["schema"]).row(case["record"])
    return [None if number != number else number for number in row.tolist()]


def opened(case: Case) -> Any:
    return open_bundle(stored_bundles()[case["bundle"]])


def row_of(case: Case) -> Any:
    """A context of a case: null stands for a number that is none."""
    bundle = opened(case)
    context = case["context"]
    if isinstance(context, dict):
        return np.asarray(bundle.encoded(context, single=True))[None]
    return np.array([[nan if number is None else number for number in context]])


def op_law(case: Case) -> Any:
    return opened(case).behaviour.probabilities(row_of(case))[0].tolist()


def op_encode(case: Case) -> Any:
    reward = np.array([nan if case["reward"] is None else case["reward"]])
    return Device(opened(case)).encode(row_of(case), np.array([case["action"]]), reward)[0].tolist()


def op_report(case: Case) -> Any:
    device = Device(opened(case))
    draws = Draws(case["draws"])
    row = row_of(case)
    action, _ = device.decide(row, draws.action(1))
    reward = np.array([nan if case["reward"] is None else case["reward"]])
    gate = Gate(draws, Ledger(capri.Budget(epsilon=case["epsilon"]), tolerance=0.0))
    message = device.report(row, action, reward, gate)
    return {
        "action": int(action[0]),
        "report": message[0].tobytes().hex(),
    }


def op_open(case: Case) -> Any:
    digest = bytes.fromhex(case["digest"]) if "digest" in case else None
    try:
        capri.LocalClient(spliced(case), capri.Budget(epsilon=case["epsilon"]), digest=digest)
    except BundleError as problem:
        return problem.reason
    return "ok"


def op_renew(case: Case) -> Any:
    bundles = stored_bundles()
    client = capri.LocalClient(bundles[case["bundle"]], capri.Budget(epsilon=case["epsilon"]))
    try:
        client.renew(bundles[case["next"]])
    except BundleError as problem:
        return problem.reason
    return "ok"


def op_judge(case: Case) -> Any:
    bundle = open_bundle(stored_bundles()[case["bundle"]])
    epoch = EpochReports(bundle.plan, bundle.digest[:8])
    epoch.tokens = {bytes.fromhex(text) for text in case["seen"]}
    data = bytes.fromhex(case["report"])
    if len(data) != wire.SIZE:
        return "malformed"
    rows = np.frombuffer(data, dtype=np.uint8)[None]
    digests = [bundle.digest[:8], *(bytes.fromhex(text) for text in case["closed"])]
    verdict = judge(rows, wire.are_reports(rows), [epoch], digests)
    return str(capri.ReportStatus(int(verdict.status[0])))


def op_device(case: Case) -> Any:
    """A device that is opened anew for every step: what came of each, and all that is kept."""
    store, bundles = MemoryStore(case.get("kept", {})), stored_bundles()
    outcomes: list[Any] = []
    for step in case["steps"]:
        try:
            client = capri.DurableClient(
                bundles[step["bundle"]],
                capri.Budget(epsilon=case["epsilon"]),
                policy=step["policy"],
                person=step.get("person", ""),
                allowance=capri.Allowance(**case["allowance"]),
                store=store,
                send=lambda _, told=step: told["says"],
                log=None if "log" not in step else partial(_log, step["log"]),
                ticket=None if "key" not in case else partial(_salt, case["key"], step),
                consent=lambda told=step: told.get("consent", True),
                share=step.get("share", 1.0),
                delay=timedelta(seconds=step.get("delay", 0)),
                clock=lambda now=step["now"]: datetime.fromtimestamp(now / 1000, UTC),
                randomness=Draws(case["draws"] | step.get("draws", {})),
            )
            outcomes.append(_stepped(client, step))
        except (BudgetError, BundleError, DataError) as problem:
            outcomes.append(type(problem).__name__)
    return [outcomes, {name: _shown(store.texts[name]) for name in sorted(store.texts)}]


def _salt(key: str, step: Case, commitment: bytes) -> bytes:
    if step.get("offline"):
        raise OSError
    return Tickets(bytes.fromhex(key)).issue(commitment)


def _log(entries: Any) -> Any:
    """Digests of bundles by name; what is no list is what a portal would say."""
    if not isinstance(entries, list):
        return entries
    return [stored_bundles()[name][-32:].hex() for name in entries]


def op_redeem(case: Case) -> Any:
    """The report in an upload; null where it has no ticket."""
    (report,) = Tickets(bytes.fromhex(case["key"])).reports([bytes.fromhex(case["upload"])])
    return report.hex() or None


def _stepped(client: capri.DurableClient, step: Case) -> Any:
    match step["do"]:
        case "act":
            return client.act([nan if x is None else x for x in step["context"]]).action_index
        case "report":
            return client.report(step["reward"])
        case "flush":
            return client.flush(again=step.get("again", False))
        case "spending":
            return client.spending()
    return client.status


def _shown(text: str) -> Any:
    """What is kept of a person, with sorted names; of the bytes of a bundle their digest."""
    try:
        return json.loads(canonical(json.loads(text)))
    except ValueError:
        return sha256(b64decode(text)).hexdigest() if len(text) > 50 else text


OPERATIONS: dict[str, Callable[[Case], Any]] = {
    name.removeprefix("op_"): function
    for name, function in list(globals().items())
    if name.startswith("op_")
}
# How an answer may differ: not at all, by so much of the largest number, or by whole units.
EXACT, RELATIVE, UNITS = "exact", "1e-9", "1 unit"
AGREEMENT = dict.fromkeys(OPERATIONS, EXACT) | {
    "kernel": RELATIVE,
    "law": RELATIVE,
    "encode": UNITS,
}
SIDES = dict.fromkeys(OPERATIONS, "device") | {
    "judge": "aggregator",
    "redeem": "aggregator",
    "direction_sum": "aggregator",
}


def agree(operation: str, found: Any, wanted: Any) -> bool:
    """Whether an answer is right, by the rule of its operation."""
    if AGREEMENT[operation] == EXACT:
        return bool(found == wanted)
    one, two = np.array(found, dtype=np.float64), np.array(wanted, dtype=np.float64)
    if one.shape != two.shape:
        return False
    allowed = 1.0 if AGREEMENT[operation] == UNITS else 1e-9 * max(1e-300, np.abs(two).max())
    return bool((np.abs(one - two) <= allowed).all())


# -- inputs ---------------------------------------------------------------------------------------


# Floors, ceilings that are reached, a price, and an action that not everybody is offered.
LIMITS = capri.Limits(
    floor={0: 0.05, 3: 0.1},
    ceiling={1: 0.3, 2: 0.35},
    share={4: 0.25},
    allowed={3: {0: (None, 0.5)}},
)


def make_bundles() -> dict[str, bytes]:
    """Laws, kernels and spans of all kinds, as small as they come."""
    few = {"contexts": capri.ContextPool(np.linspace(0, 1, 4)[:, None]), "actions": ACTIONS[::2]}
    people = capri.Schema(
        [
            capri.schema.Numeric("age", 0, 100, missing="own"),
            capri.schema.Categorical("plan", ["free", "pro", 7], missing="free"),
            capri.schema.Boolean("member"),
        ]
    )
    crowd = [
        {"age": age, "plan": plan, "member": member}
        for age in (20, 70, None)
        for plan in ("free", "gold", 7)
        for member in (True, False)
    ]
    varied = np.random.default_rng(0).random((6, 1 + 3 * 2))
    wide = np.random.default_rng(1).random((8, 14))
    kernels = capri.kernels
    return {
        "first": small_aggregator(**few).bundle(),
        "thompson": late_aggregator().bundle(),
        "products": late_aggregator(kernel="auto").bundle(),
        "unrelated": small_aggregator(
            kernel="auto", actions=np.eye(3), contexts=few["contexts"]
        ).bundle(),
        "varying": small_aggregator(
            actions=capri.VaryingActions(3, 2), contexts=capri.ContextPool(varied)
        ).bundle(),
        "schema": small_aggregator(
            kernel=kernels.ContextAction(
                kernels.Columns(kernels.Matern(nu=1.5, lengthscale=0.5), (0, 1))
                * kernels.Columns(kernels.Categories(0.25), (2, 3, 4, 5))
                + kernels.Constant(0.125),
                kernels.RationalQuadratic(alpha=0.75, lengthscale=0.5, variance=0.5),
                7,
            ),
            actions=capri.FixedActions(ACTIONS[::2], ("left", "middle", "right")),
            contexts=capri.ContextPool(crowd, schema=people),
            missing_reward=0.25,
        ).bundle(),
        "limits": late_aggregator(limits=LIMITS).bundle(),
        "limits-products": late_aggregator(limits=LIMITS, kernel="auto").bundle(),
        "rules": late_aggregator(
            limits=capri.Limits(allowed={2: {0: (0.25, None)}, 3: {0: (0.1, 0.7)}})
        ).bundle(),
        "range": late_aggregator(reward_range=(-3.0, 0.5), missing_reward=-1.0).bundle(),
        "sqrt": small_aggregator(
            reward_range=(0.0, 99.0), reward_transform="sqrt", missing_reward=10.0, **few
        ).bundle(),
        "log1p": small_aggregator(
            reward_range=(2.0, 30.0), reward_transform="log1p", missing_reward=2.0, **few
        ).bundle(),
        "axes": small_aggregator(
            kernel="auto", actions=ACTIONS[::2], contexts=capri.ContextPool(wide)
        ).bundle(),
        "varying-products": small_aggregator(
            kernel="auto", actions=capri.VaryingActions(3, 2), contexts=capri.ContextPool(varied)
        ).bundle(),
        "constant": small_aggregator(
            kernel="auto",
            actions=capri.VaryingActions(3, 2),
            contexts=capri.ContextPool(varied[:, 1:]),
        ).bundle(),
    }


SPHERES = [sphere(epsilon, m) for epsilon, m in ((0.5, 2), (1.0, 7), (4.0, 12), (8.0, 50))]


def parts_of(mechanism: Sphere) -> list[Any]:
    return [mechanism.dimension, mechanism.candidates, mechanism.near, str(mechanism.chance)]


def draws_of(chooser: random.Random, pick: int | None = None) -> Case:
    return {
        "action": chooser.randrange(1 << 53) * 2.0**-53,
        "token": chooser.randbytes(16).hex(),
        "rounding": chooser.randrange(1 << 53) * 2.0**-53,
        "coin": str(chooser.randrange(1 << 63)),
        "pick": chooser.randrange(1 << 20) if pick is None else pick,
    }


def direction_cases(chooser: random.Random) -> Iterator[Case]:
    yield {"operation": "table", "places": [*range(10), 1000, 2046, 2047]}
    for dimension in (2, 3, 4, 5, 50, 201):
        for token in (bytes(16), b"\xff" * 16, chooser.randbytes(16)):
            for row in (0, 1, chooser.randrange(2048)):
                yield {
                    "operation": "direction",
                    "token": token.hex(),
                    "row": row,
                    "dimension": dimension,
                }
    yield {
        "operation": "direction_sum",
        "tokens": [chooser.randbytes(16).hex() for _ in range(200)],
        "numbers": [chooser.randrange(64) for _ in range(200)],
        "dimension": 50,
    }
    for epsilon in (5e-324, 1e-3, 0.5, 1.0, 3.999999, 4.0, 8.0, 30.0, 63.9, 64.0, 1e6):
        yield {"operation": "exponential", "epsilon": epsilon}
    for mechanism, epsilon in zip(SPHERES, (0.5, 1.0, 4.0, 8.0), strict=True):
        more = Sphere(**(vars(mechanism) | {"chance": mechanism.chance + 1}))
        for each, asked in (
            (mechanism, epsilon), (more, epsilon), (mechanism, epsilon - 1e-12), (more, 100.0),
        ):  # fmt: skip
            yield {"operation": "keeps", "sphere": parts_of(each), "epsilon": asked}
    for mechanism in SPHERES:
        m = mechanism.dimension
        for place in range(12):
            vector = [chooser.randrange(-(2**26), 2**26) for _ in range(m)]
            if place < 3:  # nothing, an axis, and ties of all rows with equal entries
                vector = [[0] * m, [2**30] + [0] * (m - 1), [1, -1] + [0] * (m - 2)][place]
            yield {
                "operation": "randomize",
                "vector": vector,
                "limit": 1 << 30,
                "sphere": parts_of(mechanism),
                "draws": draws_of(chooser, place) | ({"coin": "0"} if place % 2 else {}),
            }
    for number in (0, 1, 63, 4095):
        yield {
            "operation": "pack",
            "digest": chooser.randbytes(32).hex(),
            "token": chooser.randbytes(16).hex(),
            "number": number,
        }


def number_cases(chooser: random.Random) -> Iterator[Case]:
    kernels = capri.kernels
    points = [[0.0, 0.0], [1e-9, 0.0], [0.5, -0.25], [3.0, 1.0], [40.0, 1e9], [1e100, -1e100]]
    for kernel in (
        kernels.RBF(lengthscale=0.4),
        kernels.RBF(lengthscale=[0.5, 2.0], variance=0.5),
        *(kernels.Matern(nu=nu, lengthscale=0.7) for nu in (0.5, 1.5, 2.5, 7.5, 19.5, inf)),
        kernels.RationalQuadratic(),
        kernels.RationalQuadratic(alpha=2.5, lengthscale=0.3),
        kernels.Linear(variance=0.5, bias=0.25),
        kernels.Constant(0.5),
        kernels.Categories(0.25),
        kernels.RBF() + kernels.Linear(),
        kernels.RBF() * kernels.Constant(0.5),
        kernels.ContextAction(kernels.RBF(), kernels.Matern(nu=1.5), 1),
        kernels.Columns(kernels.RBF(), (1,)),
    ):
        yield {"operation": "kernel", "kernel": kernel.to_dict(), "points": points}
    schema = capri.Schema(
        [
            capri.schema.Numeric("a", -1, 3),
            capri.schema.Numeric("b", 0, 1, missing="own"),
            capri.schema.Numeric("c", 0, 8, missing=2.0),
            capri.schema.Boolean("d", missing="own"),
            capri.schema.Boolean("e", missing=True),
            capri.schema.Categorical("f", ["x", "y", 3], missing="own"),
            capri.schema.Categorical("g", ["x", "é"], missing="x"),
        ]
    ).to_dict()
    for record in (
        {"a": 0.5, "b": 0.25, "c": 9, "d": True, "e": False, "f": "y", "g": "é"},
        {"a": -7, "b": None, "c": None, "d": None, "e": None, "f": None, "g": None},
        {"a": "no", "b": "1", "c": "2", "d": 2, "e": "x", "f": 3, "g": "z"},
        {"a": True, "b": 1e300, "c": [], "d": 1, "e": 0.0, "f": 3.5, "g": 1, "other": 5},
    ):
        yield {"operation": "schema", "schema": schema, "record": record}
    for name, data in stored_bundles().items():
        bundle = open_bundle(data)
        contexts: list[Any] = [
            [chooser.random() for _ in range(bundle.context_dimension)] for _ in range(3)
        ]
        if name == "schema":
            contexts += [
                {"age": None, "plan": "pro", "member": 1},
                {"age": 3, "plan": 1, "member": 0},
            ]
        contexts.append([0.0] * bundle.context_dimension)
        for context in contexts:
            yield {"operation": "law", "bundle": name, "context": context}
            for action, reward in ((0, 0.3), (bundle.actions.count - 1, -7.0), (1, None)):
                yield {
                    "operation": "encode",
                    "bundle": name,
                    "context": context,
                    "action": action,
                    "reward": reward,
                }
        contexts += [[None] * bundle.context_dimension, [1e101] * bundle.context_dimension]
        for context in contexts:
            for reward in (0.75, None, -1e300):
                yield {
                    "operation": "report",
                    "bundle": name,
                    "epsilon": 4.0,
                    "context": context,
                    "reward": reward,
                    "draws": draws_of(chooser),
                }


def changed(name: str, change: Callable[[Case, dict[str, Any]], object]) -> Case:
    """A bundle with another header or other arrays, and a digest that is right."""
    header, arrays = take_apart(stored_bundles()[name])
    header, arrays = copy.deepcopy(header), dict(arrays)
    change(header, arrays)
    return as_splices(name, put_together(header, arrays))


def listed_as(name: str, entry: list[Any]) -> tuple[Case, dict[str, Any]]:
    """A bundle whose list says something else of an array, or names one more."""
    header, arrays = take_apart(stored_bundles()[name])
    others = [each for each in header["arrays"] if each[0] != entry[0]]
    return header | {"arrays": [*others, entry]}, arrays


def open_cases(chooser: random.Random) -> Iterator[Case]:
    """Bundles that must be opened or refused, with the class of the reason."""

    def case(inner: Case, epsilon: float = 4.0, **more: Any) -> Case:
        return {"operation": "open", "epsilon": epsilon} | inner | more

    for name in stored_bundles():
        yield case({"bundle": name})
        yield case({"bundle": name}, 3.9999)
        yield case({"bundle": name}, 64.0, digest=stored_bundles()[name][-32:].hex())
        yield case({"bundle": name}, digest="00" * 32)
    base = stored_bundles()["first"]
    size = len(base)
    for splices in (
        [[0, size, ""]], [[40, size - 40, ""]], [[0, 1, "58"]], [[200, 1, "ff"]],
        [[size - 1, 1, ""]], [[size, 0, "00"]],
    ):  # fmt: skip
        yield case({"bundle": "first", "splices": splices})
    body = size - 32
    (length,) = struct.unpack_from("<I", base, 14)
    for splices in (
        [[12, 2, "0100"]], [[12, 2, "0200"]], [[12, 2, "0300"]], [[12, 2, "0500"]],
        [[14, 4, "00000000"]], [[14, 4, "ffffffff"]],
        [[14, 4, struct.pack("<I", length + 1).hex()]], [[body, 0, "00" * 8]],
        [[body - 8, 8, ""]], [[body - 8, 8, struct.pack("<d", nan).hex()]],
        [[body - 8, 8, struct.pack("<d", -inf).hex()]],
        [[body - 8, 8, struct.pack("<d", 1.1e15).hex()]],
        [[18, 0, "efbbbf"], ], [[18, 1, "5b"]], [[19, 1, "ff"]],
    ):  # fmt: skip
        yield case({"bundle": "first", "splices": splices, "sign": True})
    for path, values in (
        (("kernel",), [None, "RBF", {"type": "Nobody"}, {"type": "Auto"}, {"type": "RBF", "x": 1},
                       {"type": "Matern", "nu": 0.7}, {"type": "Matern", "nu": 20.5},
                       {"type": "RBF", "lengthscale": 1e-31}, {"type": "RBF", "lengthscale": []},
                       {"type": "RBF", "lengthscale": [1, 1, 1]}, {"type": "RBF", "variance": 0},
                       {"type": "Columns", "kernel": {"type": "RBF"}, "columns": [2]},
                       {"type": "Matern", "nu": "inf"}]),
        (("context_dimension",), [0, -1, 1.5, 2, 1 << 25, "1", None, True, 1.0]),
        (("reward_bound",), [0, 1e51, "1", 1e400, 0.01]),
        (("varying_actions",), [[3, 2], [3], [], {}, 3, [1 << 16, 1 << 16]]),
        (("plan", "epoch"), [0, 2**53 - 1, 2**53, 1.5, "1"]),
        (("plan", "value_bound"), [0, 2.0, 0.3]),
        (("plan", "moment_share"), [-0.1, 0.6, 0.0]),
        (("plan", "tail_share"), [0.6, "x"]),
        (("plan", "extra"), [1]),
        (("grid", 0), [0, 1e-300, 1e9]),
        (("grid", 1), [0, 1 << 31, 1.5]),
        (("grid",), [[1], [1, 2, 3], {}]),
        (("plan", "calibration"), ["exact"]),
        (("sphere",), [None, "sphere", [], [2, 2, 1, "5000000000000000000"]]),
        (("sphere", 3), [5000000000000000000, "x", "", "-1", "9223372036854775808",
                         "9223372036854775807", "00000000000000000000", "1e18", "٣"]),
        (("sphere", 2), [0, 33, 1]),
        (("sphere", 1), [3, 4098, 2]),
        (("sphere", 0), [1, 3, 65536]),
        (("conduct", "law"), [{"kind": "other"}, {}, [], {"kind": "thompson"}, {"kind": []}]),
        (("missing_reward",), [2.0, "0", 0.5]),
        (("action_names",), [["a", "b", "c"], ["a", "b"], ["a", "a", "b"], [1, 2, 3], "abc"]),
        (("schema",), [{}, {"format": "capri-schema", "version": True, "columns": []},
                       {"format": "capri-schema", "version": 1,
                        "columns": [{"kind": "numeric", "name": "a", "low": 0, "high": 1}]},
                       {"format": "capri-schema", "version": 1,
                        "columns": [{"kind": "boolean", "name": "a", "missing": "own"}]}]),
        (("span",), [{}, None, {"context": {"type": "RBF"}, "action": {"type": "RBF"}}]),
        (("shuffle",), [None, [], {}, "abc", 3, [1, 1e-6, 10], [1.5, 0, 1], [1, 1e-6, 60],
                        [1, 1e-6, 61], [1, 1e-6, 0], [1, 1e-6, 1.5], [1e4, 0, 1], [1, 2, 1],
                        [-1, 0, 1], ["1", 0, 1], [True, 0, 1], [1, 1e-6, 1, 1]]),
        (("unknown",), [1]),
    ):  # fmt: skip
        for value in values:

            def change(header: Case, _: Any, path: Any = path, value: Any = value) -> None:
                for key in path[:-1]:
                    header = header[key]
                header[path[-1]] = value  # type: ignore[index]

            yield case(changed("first", change))
    for path, values in (
        ((), [None, {}, [], 0, {"floor": [], "ceiling": [], "rules": []}]),
        (("floor",), [None, 0, [0] * 4, [0.2] * 5, [0.21] * 5, [-0.1, 0, 0, 0, 0], [0.5] * 5,
                      [True, 0, 0, 0, 0], ["0", 0, 0, 0, 0], [[0] * 5], [1e-70, 0, 0, 0, 0],
                      [0, 0.31, 0, 0, 0]]),
        (("ceiling",), [[1] * 5, [1.1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [1e-70, 1, 1, 1, 1],
                        [0.2, 0.2, 0.2, 1, 0.2], [0.25, 0.25, 0.25, 1, 0.25], {}]),
        (("rules",), [None, {}, "", [], [[3, [0], None, None]], [[5, [0], None, 1]],
                      [[-1, [0], None, 1]], [[0.5, [0], None, 1]], [[True, [0], None, 1]],
                      [[3, [], None, 1]], [[3, {}, None, 1]], [[3, [1], None, 1]],
                      [[3, [-1], None, 1]], [[3, ["0"], None, 1]], [[3, [0], "0", 1]],
                      [[3, [0], True, 1]], [[3, [0], -1e101, 1]], [[3, [0], 1, 0]], [[3, [0], 1]],
                      [[3, [0, 0], 0.2, 1.5], [3, [0], None, 0.5]],
                      [[i, [0], None, 1] for i in range(5)], [[3, [0], None, 1]] * 4097]),
        (("prices",), [None, [], [0] * 5, [1e16, 0, 0, 0, 0], ["1", 0, 0, 0, 0],
                       [False, 0, 0, 0, 0], [-1e15, 1e15, 0, 1e-70, 0], 1]),
        (("unknown",), [1]),
    ):  # fmt: skip
        for value in values:
            for name in ("limits", "first") if not path else ("limits", "limits-products"):

                def limit(header: Case, _: Any, path: Any = path, value: Any = value) -> None:
                    where = header["conduct"]["limits"] if path else header["conduct"]
                    where[path[0] if path else "limits"] = value

                yield case(changed(name, limit))
    for name, path, values in (
        ("range", "reward_range", [None, [-3.0, 0.4], [0.5, -3.0], [-3.0], [-3.0, "x"], {}, []]),
        ("range", "reward_transform", [None, "sqrt", "log1p", "exp", 1, []]),
        ("range", "missing_reward", [None, -3.0, 0.5, 0.6, -3.1, True]),
        ("sqrt", "reward_range", [None, [0.0, 99.0], [-1.0, 99.0], [0.0, 98.0]]),
        ("sqrt", "reward_transform", [None, "log1p", "sqrt", ""]),
        ("log1p", "reward_range", [[2.0, 30.0], [2.0, 30.000001]]),
        ("first", "reward_transform", [None, "sqrt", "nobody"]),
        *((("first", each, [None])) for each in ("reward_range", "missing_reward", "kernel")),
        *((("first", each, [None])) for each in ("context_dimension", "plan", "grid", "arrays")),
        *((("products", each, [None])) for each in ("kernel", "span", "action_names", "schema")),
        ("products", "kernel", [{"type": "RBF"}, {"type": "Nobody"}]),
        ("schema", "schema", [None]),
        ("schema", "action_names", [None, ["é", "è", "\U0001f4d6" * 3]]),
        ("varying", "action_names", [None, ["a", "b", "c"]]),
        ("varying", "varying_actions", [None, [3, 2], [2, 2], [3, 3], [4, 2]]),
        ("varying-products", "varying_actions", [[3, 2], [2, 3], [1, 2]]),
        ("constant", "context_dimension", [5, 6, 7]),
    ):

        def told(header: Case, _: Any, path: str = path, value: Any = None) -> None:
            header[path] = value

        for value in values:
            yield case(changed(name, partial(told, value=value)))
    for name, arrays in (
        ("axes", ["span.context.axes", "span.context.centre", "span.context.pivots", "span.more"]),
        ("products", ["span.context.more", "span.action.axes", "span.context.axes"]),
        ("constant", ["span.action.offset", "span.action.transform", "span.left"]),
        ("products", ["span.context.offset", "span.right", "span.action.pivots", "law.draws"]),
    ):
        for array in arrays:
            yield case(changed(name, lambda _, a, n=array: a.pop(n, None)))
            yield case(changed(name, lambda _, a, n=array: a.update({n: np.ones((2, 2))})))
            yield case(changed(name, lambda _, a, n=array: a.update({n: np.ones(3)})))
    # What a span may ask for: 2^23 numbers of features of the context x actions x draws.
    for features in (64, 65):

        def asking(header: Case, a: Any, features: int = features) -> None:
            many = 2048
            a.update(
                {"span.action.transform": np.ones((many, 1)), "span.action.offset": np.ones(1)}
            )
            a.update({"span.action.centre": np.zeros(many), "span.action.rate": np.ones(many)})
            a.update({"span.context.pivots": np.ones((1, 1)), "span.left": np.zeros(2)})
            a.update({"span.context.transform": np.ones((1, features)), "span.right": np.zeros(2)})
            a.update({"span.context.offset": np.ones(features), "whitening": np.ones((2, 2))})
            a.update({"law.draws": np.ones((2, 64))})
            header["conduct"] = {"law": {"kind": "thompson"}}
            header["plan"].update(moment_share=0.0, tail_share=0.0)
            header["sphere"][0] = 2

        yield case(changed("unrelated", asking))
    for entry in (
        ["law.draws", [2, 2], "int8"],
        ["law.draws", [4], "int16"],
        ["more", [1, 1], None],
    ):
        yield case(
            as_splices("thompson", put_together(*listed_as("thompson", entry), listed=False))
        )
    yield case({"bundle": "first", "pad": 1 << 26})
    for one, two in (("first", "thompson"), ("thompson", "first"), ("first", "first")):
        yield {"operation": "renew", "bundle": one, "next": two, "epsilon": 4.0}
    yield case(changed("limits", lambda header, _: header["conduct"].pop("limits")))
    yield case({"bundle": "limits", "splices": [[12, 2, "0300"]], "sign": True})

    def busy(header: Case, a: Any) -> None:
        """1,024 ceilings, and a law that is asked once for each."""
        many = 1024
        limits = {"floor": [0] * many, "ceiling": [0.5] * many, "rules": []}
        header["conduct"] = {"law": {"kind": "thompson"}, "limits": limits}
        header["plan"].update(moment_share=0.0, tail_share=0.0)
        header["sphere"][0] = 2
        a.update({"law.draws": np.ones((1, 128)), "transform": np.ones((1, 1))})
        a.update(pivots=np.zeros((1, 2)), whitening=np.ones((1, 2)))
        a.update(actions=np.zeros((many, 1)))

    yield case(changed("first", busy))
    for gone in ("kernel", "plan", "grid", "sphere", "conduct", "arrays"):
        yield case(changed("first", lambda header, _, gone=gone: header.pop(gone)))
    for name in ("thompson", "products"):
        for array in take_apart(stored_bundles()[name])[1]:
            turned = changed(name, lambda _, a, n=array: a.update({n: a[n].reshape(-1)[None]}))
            yield case(turned)
            yield case(changed(name, lambda _, a, n=array: a.pop(n)))
    wide = np.ones((1, 5000))
    yield case(
        changed(
            "first",
            lambda header, a: (
                a.update(pivots=np.zeros((1, 2)), transform=np.ones((1, 1)), whitening=wide),
                header["plan"].update(moment_share=0.0, tail_share=0.0),
                header["sphere"].__setitem__(0, 5000),
            ),
        )
    )
    deep: Any = {"type": "RBF"}
    for _ in range(11):
        deep = {"type": "Sum", "left": deep, "right": deep}
    yield case(changed("first", lambda header, _: header.update(kernel=deep)))
    chain: Any = {"type": "RBF"}
    for _ in range(64):
        chain = {"type": "Sum", "left": chain, "right": {"type": "RBF"}}
    yield case(changed("first", lambda header, _: header.update(kernel=chain)))


def judge_cases(chooser: random.Random) -> Iterator[Case]:
    """Reports that must be accepted or rejected, and uploads with tickets."""
    yield from ticket_cases(chooser)
    for name in ("first", "thompson"):
        bundle = open_bundle(stored_bundles()[name])
        assert bundle.plan.sphere is not None
        client = capri.LocalClient(stored_bundles()[name], BUDGET, simulation=(7, 1))
        client.act([0.5])
        good = client.report(0.5)
        token, stranger = good[10:26].hex(), chooser.randbytes(8)
        last = bundle.plan.sphere.candidates
        for report, seen, closed in (
            (good, [], []),
            (good, [token], []),
            (good[:-1], [], []),
            (good + b"\0", [], []),
            (b"", [], []),
            (good[:-1] + bytes([good[-1] ^ 1]), [], []),
            (good[:12] + bytes([good[12] ^ 1]) + good[13:], [], []),
            (sealed(b"\xcb" + good[1:-4]), [], []),
            (sealed(b"\xca\x11" + good[2:-4]), [], []),  # version 1
            (sealed(b"\xca\x21" + good[2:-4]), [], []),  # version 2
            (sealed(b"\xca\x05" + good[2:-4]), [], []),
            (sealed(good[:2] + stranger + good[10:-4]), [], []),
            (sealed(good[:2] + stranger + good[10:-4]), [], [stranger.hex()]),
            (sealed(good[:26] + last.to_bytes(2, "little")), [], []),
            (sealed(good[:26] + (last - 1).to_bytes(2, "little")), [], []),
            (sealed(good[:26] + b"\xff\xff"), [], []),
        ):
            yield {
                "operation": "judge",
                "bundle": name,
                "report": report.hex(),
                "seen": seen,
                "closed": closed,
            }


def device_cases(chooser: random.Random) -> Iterator[Case]:
    """Visits of one device: policies, people, reloads, clocks, answers, texts that are damaged."""
    day, start = 86_400_000, 1_700_000_000_000

    def case(*steps: Case, **changes: Any) -> Case:
        now, listed = start, []
        for step in steps:
            now += step.pop("later", 1000)
            listed.append({"now": now, "bundle": "first", "policy": "books", **step})
        allowance = {"epsilon": 8, "days": 30}
        told = {"operation": "device", "epsilon": 4.0, "allowance": allowance, "steps": listed}
        return {**told, "draws": draws_of(chooser), **changes}

    act, report = {"do": "act", "context": [0.4]}, {"do": "report", "reward": 0.5}
    flush, said = {"do": "flush", "says": "accepted"}, {"do": "spending"}
    status = {"do": "status"}
    books, films, songs = ([{**each, "policy": name} for each in (act, report)] for name in "abc")
    yield case(status, act, status, report, status, flush, status, report, said)
    yield case(report, {**act, "context": [None]}, {**report, "reward": None}, act, flush, flush)
    stale, portal = {**flush, "says": "stale"}, {**flush, "says": "please log in"}
    yield case(act, flush, report, portal, flush, {**flush, "again": True}, stale)
    later = {"bundle": "thompson"}
    yield case(act, {**report, **later}, flush)  # under the bundle that it was made with
    yield case(act, {**act, **later}, act, {**act, **later}, report, said)
    days = [{**status, "later": 8 * day} for _ in range(4)]
    yield case(*books, *films, *songs, {**said, "policy": "c"}, *days, songs[1], said)
    back, ahead = {**films[0], "later": -3 * day}, {**songs[0], "later": 900 * day}
    yield case(*books, back, films[1], ahead, songs[1], said)
    hers = {"person": 'sœur "x"\\'}
    yield case(act, report, {**act, **hers}, {**report, **hers}, {**said, **hers})
    yield case(act, {**report, "consent": False}, status, act, report, flush)
    yield case({**act, "share": 0.0}, {**report, "share": 1.0}, status)
    yield case({**act, "delay": 60}, {**report, "delay": 60}, {**flush, "delay": 60, "again": True},
               {**flush, "delay": 60, "later": 60_000})  # fmt: skip
    tries = [{**flush, "says": None, "later": 3_600_000} for _ in range(14)]
    yield case(act, report, *tries, flush, {**flush, "later": 10_000_000})
    yield case(act, report, said, allowance={"epsilon": 3.9, "days": 0.5})
    logs = [None, "portal", [], ["thompson"], ["thompson", "first"]]
    yield case(act, *[{**report, "log": each} for each in logs])
    first, both = {"log": ["first"]}, {"log": ["thompson", "first"]}
    films = [{**each, "policy": "films"} for each in (act, report, report)]
    other = [{**films[1], **both}, {**films[2], **first}]
    no = {**report, "consent": False, **first}
    yield case(act, no, act, {**report, **both}, status, films[0], *other)
    key = chooser.randbytes(32).hex()
    yield case(act, {**act, **later}, report, flush, status, key=key)
    yield case({**act, "offline": True}, {**report, "offline": True}, status, act, report, flush,
               key=key)  # fmt: skip
    for text in ("{", "{}", "[]", "7", '{"spent": 3}'):
        yield case(status, kept={'""': text})


def ticket_cases(chooser: random.Random) -> Iterator[Case]:
    """Uploads with the ticket that they need, with another's, and with none."""
    bundle, key, secret = stored_bundles()["first"], chooser.randbytes(32), chooser.randbytes(16)
    digest = bundle[-32:-24]
    salt = Tickets(key).issue(tickets.commitment(secret, digest))
    tail = bytes([3, 0])
    good = sealed(b"\xca\x04" + digest + tickets.token(secret, salt) + tail) + secret
    other = sealed(b"\xca\x04" + digest[::-1] + tickets.token(secret, salt) + tail) + secret
    free = sealed(b"\xca\x04" + digest + chooser.randbytes(16) + tail) + secret
    for upload in (good, good[:32], other, free, good[:-1] + b"\0", good + b"\0", b""):
        yield {"operation": "redeem", "key": key.hex(), "upload": upload.hex()}
    yield {"operation": "redeem", "key": chooser.randbytes(32).hex(), "upload": good.hex()}


GROUPS: dict[str, tuple[Callable[[random.Random], Iterator[Case]], int]] = {
    "directions": (direction_cases, 1),
    "numbers": (number_cases, 2),
    "open": (open_cases, 3),
    "judge": (judge_cases, 4),
    "device": (device_cases, 5),
}


def group(name: str) -> list[Case]:
    """The stored cases."""
    cases: list[Case] = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return cases


def write() -> None:
    """All files anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    bundles = {name: b64encode(data).decode() for name, data in make_bundles().items()}
    head = {"format": "capri-wire-vectors", "version": wire.VERSION}
    (FOLDER / "bundles.json").write_text(json.dumps(head | {"bundles": bundles}, indent=0) + "\n")
    stored_bundles.cache_clear()
    for name, (cases, seed) in GROUPS.items():
        found = []
        for case in cases(random.Random(seed)):
            plain = json.loads(json.dumps(case))
            found.append(json.dumps(plain | {"answer": OPERATIONS[case["operation"]](plain)}))
        used = sorted({json.loads(case)["operation"] for case in found})
        operations = {each: {"side": SIDES[each], "agreement": AGREEMENT[each]} for each in used}
        text = json.dumps(head | {"operations": operations})[:-1]
        (FOLDER / f"{name}.json").write_text(f'{text}, "cases": [\n' + ",\n".join(found) + "\n]}\n")


assert COIN == 1 << 63
if __name__ == "__main__":
    write()
