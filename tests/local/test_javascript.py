"""The JavaScript client beside this one: the same refusals, the same bytes, the same sums."""

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vectors
from devices import BUDGET, CONTEXTS, late_bundle, one_report, reward_of, small_aggregator
from mutants import mutants

import capri
from browser import Browser, find_browser
from capri.errors import BundleError
from capri.local.reports import ReportStatus
from capri.local.simulator import DeviceSimulator
from node import PACKAGE, Clients, built, find_node, run_node

NODE = find_node()
pytestmark = pytest.mark.skipif(NODE is None, reason="no Node: see tools/install_node.sh")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    assert NODE is not None
    program = tmp_path_factory.mktemp("node") / "pipe.mjs"
    with Clients(NODE, built(NODE, "test/pipe.ts", program, platform="node")) as running:
        yield running


@pytest.fixture(scope="module")
def package() -> str:
    """The package as it is published, in ``dist``: what building it said."""
    assert NODE is not None
    return run_node(NODE, "build.mjs")


def test_package_is_small_and_typed(package: str) -> None:
    assert NODE is not None
    run_node(NODE, "node_modules/typescript/bin/tsc", "--noEmit", "-p", ".")
    (size,) = re.findall(r"index.js: (\d+) bytes minified and gzipped", package)
    assert int(size) < 16 << 10
    assert "dependencies" not in json.loads((PACKAGE / "package.json").read_text())


PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "local.md"]
COMPILERS = ["typescript-5.6", "typescript-5.9", "typescript-6.0", "typescript"]


@pytest.mark.parametrize(
    ("compiler", "resolution"),
    [
        *[(compiler, "bundler") for compiler in COMPILERS],
        *[(compiler, "node16") for compiler in (COMPILERS[0], COMPILERS[-1])],
    ],
)
def test_code_of_the_pages_compiles(
    compiler: str, resolution: str, package: str, tmp_path: Path
) -> None:
    """As in an app that has the package installed: its types alone, checked strictly."""
    assert NODE is not None
    assert package
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```ts\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) == 3
    blocks.append(
        'import { fileReceipt } from "capri-device/node";\n'
        'import { type Bytes, LocalClient, type Receipt } from "capri-device";\n'
        "const own: Receipt = { there: () => null, leave: async (report: Bytes) => !!report };\n"
        "export const opened = [own, fileReceipt('here')].map((receipt) =>\n"
        "  LocalClient.open(new Uint8Array(50), { epsilon: 1, receipt }));\n"
    )
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "capri-device").symlink_to(PACKAGE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.ts").write_text(block)
    options = {
        "target": "ES2022", "lib": ["ES2022", "DOM", "DOM.Iterable"], "types": [], "strict": True,
        "module": "ESNext" if resolution == "bundler" else "node16", "noEmit": True,
        "moduleResolution": resolution, "exactOptionalPropertyTypes": True, "skipLibCheck": False,
        "noUncheckedIndexedAccess": True,
    }  # fmt: skip
    config = tmp_path / "tsconfig.json"
    config.write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}))
    run_node(NODE, f"node_modules/{compiler}/bin/tsc", "-p", str(config))


def test_vectors_and_properties_in_node() -> None:
    assert NODE is not None
    run_node(NODE, "node_modules/vitest/vitest.mjs", "run")


def test_lock_file_has_no_address_of_a_registry() -> None:
    lock = json.loads((PACKAGE / "package-lock.json").read_text())
    assert not [name for name, each in lock["packages"].items() if "resolved" in each]
    whole = [each for name, each in lock["packages"].items() if name and "optional" not in each]
    assert all("integrity" in each for each in whole)


# -- refusals -------------------------------------------------------------------------------------


def reason(data: bytes, epsilon: float) -> str:
    try:
        capri.LocalClient(data, capri.Budget(epsilon=epsilon))
    except BundleError as problem:
        return problem.reason
    return "ok"


def compare_refusals(clients: Clients, count: int, seed: int) -> None:
    originals = list(vectors.stored_bundles().values())
    seen: Counter[str] = Counter()
    for number, data in enumerate(mutants(originals, count, seed)):
        expected = reason(data, 4.0)
        assert clients.reason(data, 4.0) == expected, number
        seen[expected] += 1
    # Both outcomes must be well represented, else the comparison shows little.
    assert count * 0.05 < seen["ok"] < count * 0.5
    assert len(seen) >= 4


def test_mutated_bundles_are_refused_for_the_same_reason(clients: Clients) -> None:
    compare_refusals(clients, 400, seed=14)


@pytest.mark.slow
def test_ten_thousand_mutated_bundles(clients: Clients) -> None:
    compare_refusals(clients, 10_000, seed=12)


# -- the same user in both languages --------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"kernel": "auto"}, {"limits": vectors.LIMITS}],
    ids=["thompson", "products", "limits"],
)
def test_the_same_users_report_the_same_bytes(clients: Clients, changes: dict[str, Any]) -> None:
    """Drawn alike, a user of either language decides alike and uploads the same 32 bytes."""
    bundle = late_bundle(**changes)
    clients.load(bundle)
    users = list(range(100))
    contexts = [CONTEXTS[user % len(CONTEXTS)].tolist() for user in users]
    actions = clients.act(5, users, contexts)
    rewards: list[float | None] = [
        None if user % 7 == 0 else reward_of(user, action)
        for user, action in zip(users, actions, strict=True)
    ]
    found = clients.report(5, users, contexts, actions, rewards)
    for user in users:
        client = capri.LocalClient(bundle, BUDGET, simulation=(5, user))
        assert client.act(contexts[user]).action_index == actions[user]
        assert client.report(rewards[user]) == found[user]


def test_languages_mixed_in_one_run(clients: Clients) -> None:
    """Every tenth report is JavaScript's: the aggregator ends with the same bundle, bit for bit."""
    alone, mixed = small_aggregator(), small_aggregator()
    for start in (0, 60):
        bundle = mixed.bundle()
        assert bundle == alone.bundle()
        clients.load(bundle)
        for user in range(start, start + mixed.remaining):
            report = one_report(bundle, BUDGET, user)
            assert alone.receive(report) is ReportStatus.ACCEPTED
            if user % 10 == 0:
                context = [CONTEXTS[user % len(CONTEXTS)].tolist()]
                action = clients.act(5, [user], context)
                reward = [reward_of(user, action[0])]
                (report,) = clients.report(5, [user], context, action, reward)
            assert mixed.receive(report) is ReportStatus.ACCEPTED
    assert mixed.bundle() == alone.bundle()


# -- a browser ------------------------------------------------------------------------------------

BROWSER = find_browser()


@pytest.mark.skipif(BROWSER is None, reason="no browser: see tools/install_browser.sh")
def test_vectors_receipts_and_time_in_a_browser(tmp_path: Path) -> None:
    """All vectors to the bit where bits are asked for, receipts of both kinds, and the clock."""
    assert NODE is not None
    assert BROWSER is not None
    built(NODE, "test/page.ts", tmp_path / "page.js", platform="browser")
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><meta charset=utf-8><script src=page.js></script>")
    rows = np.linspace(0, 1, 50)[:, None]
    fleet = DeviceSimulator.build(
        budget=BUDGET, simulation_seed=1, kernel="auto", actions=rows,
        contexts=capri.ContextPool(rows), first_epoch=200,
    )  # fmt: skip
    decisions = fleet.act_many(rows[np.arange(fleet.remaining) % 50])
    fleet.update_many(decisions, np.sin(5 * decisions.action[:, 0]))
    data = b64encode(fleet.aggregator.bundle()).decode()
    with Browser(BROWSER) as running:
        running.open(page)
        told = running.run("capriTest.vectors()")
        assert told["wrong"] == []
        assert told["tried"] > 700
        assert running.run("capriTest.receipts()") == [[True, True, True]] * 2
        times = np.array(running.run(f"capriTest.times('{data}', 15)"))
        assert running.errors == []
    # 10 ms is the promise; on a busy machine the quickest of fifteen says whether it is kept.
    assert times[:, 1].min() < 10
