"""The JavaScript client beside this one: the same refusals, the same bytes, the same sums."""

import gzip
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
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
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the package is installed as it is published."""
    assert NODE is not None
    folder = tmp_path_factory.mktemp("app")
    run_node(NODE, "build.mjs", str(folder / "node_modules" / "capri-device"))
    return folder


def test_package_is_small_and_typed(app: Path) -> None:
    assert NODE is not None
    run_node(NODE, "node_modules/typescript/bin/tsc", "--noEmit", "-p", ".")
    package = app / "node_modules" / "capri-device"
    module = (package / "dist" / "index.js").read_bytes()
    assert len(gzip.compress(module, 9)) < 16 << 10
    described = json.loads((package / "package.json").read_text())
    assert "dependencies" not in described
    assert described["license"] == "Apache-2.0"
    assert (package / "dist" / "LICENSE").read_text().lstrip().startswith("Apache License")
    maps = json.loads((package / "dist" / "index.js.map").read_text())
    assert len(maps["sources"]) == len(maps["sourcesContent"]) > 10


def test_package_is_imported_and_required(app: Path) -> None:
    assert NODE is not None
    bundle = b64encode(small_aggregator().bundle()).decode()
    use = (
        "const data = Uint8Array.from(Buffer.from(process.argv[2], 'base64'));"
        "LocalClient.open(data, { epsilon: 4 }).then(async (device) => { device.act([0.5]);"
        " console.log((await device.report(1)).length, openBundle(data).epoch, typeof folderStore);"
        "});"
    )
    names = {"": "LocalClient", "/node": "folderStore", "/inspect": "openBundle"}
    imported = [f'import {{ {it} }} from "capri-device{at}";' for at, it in names.items()]
    required = [f'const {{ {it} }} = require("capri-device{at}");' for at, it in names.items()]
    for name, lines in (("app.mjs", imported), ("app.cjs", required)):
        (app / name).write_text("\n".join([*lines, use]))
        assert run_node(NODE, str(app / name), bundle).split() == ["32", "1", "function"]


PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs" / "howto" / "devices.md"]
COMPILERS = ["typescript-5.6", "typescript-5.9", "typescript-6.0", "typescript"]


@pytest.mark.parametrize(
    ("compiler", "resolution"),
    [
        *[(compiler, "bundler") for compiler in COMPILERS],
        *[(compiler, "node16") for compiler in (COMPILERS[0], COMPILERS[-1])],
    ],
)
def test_code_of_the_pages_compiles(
    compiler: str, resolution: str, app: Path, tmp_path: Path
) -> None:
    """As in an app that has the package installed: its types alone, checked strictly."""
    assert NODE is not None
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```ts\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) == 3
    blocks.append(
        'import { folderStore } from "capri-device/node";\n'
        'import { DurableClient, type Store, uploadTo } from "capri-device";\n'
        "const own: Store = { change: async (names, step) => step(names.map(() => null)) };\n"
        "const allowance = { epsilon: 4, days: 30 };\n"
        "export const opened = [own, folderStore('here')].map((store) =>\n"
        "  DurableClient.open(new Uint8Array(50),\n"
        "    { epsilon: 1, policy: 'p', allowance, store, send: uploadTo('/') }));\n"
    )
    (tmp_path / "node_modules").symlink_to(app / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.ts").write_text(block)
    if resolution == "node16":  # for require, too
        (tmp_path / "required.cts").write_text(
            'import { LocalClient, memoryStore } from "capri-device";\n'
            "export const both = [LocalClient, memoryStore];\n"
        )
    options = {
        "target": "ES2022", "lib": ["ES2022", "DOM", "DOM.Iterable"], "types": [], "strict": True,
        "module": "ESNext" if resolution == "bundler" else "node16", "noEmit": True,
        "moduleResolution": resolution, "exactOptionalPropertyTypes": True, "skipLibCheck": False,
        "noUncheckedIndexedAccess": True,
    }  # fmt: skip
    config = tmp_path / "tsconfig.json"
    config.write_text(json.dumps({"compilerOptions": options, "include": ["*.ts", "*.cts"]}))
    run_node(NODE, f"node_modules/{compiler}/bin/tsc", "-p", str(config))


def test_vectors_and_properties_in_node() -> None:
    assert NODE is not None
    run_node(NODE, "node_modules/vitest/vitest.mjs", "run")


def test_lock_file_has_no_address_of_a_registry() -> None:
    lock = json.loads((PACKAGE / "package-lock.json").read_text())
    assert not [name for name, each in lock["packages"].items() if "resolved" in each]
    whole = [each for name, each in lock["packages"].items() if name and "optional" not in each]
    assert all("integrity" in each for each in whole)


def test_conformance_kit_scores_a_client(tmp_path: Path) -> None:
    """Full marks but for what an aggregator does; none wrong. Of a client that guesses, many."""
    assert NODE is not None
    kit = PACKAGE.parent / "vectors" / "conformance.py"
    program = built(NODE, "test/pipe.ts", tmp_path / "pipe.mjs", platform="node")

    def score(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(kit), *command], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    code, told = score(NODE, str(program))
    assert code == 0, told[-3000:]
    assert "judge: 0 right, 0 wrong, 32 unsupported" in told
    assert "redeem: 0 right, 0 wrong, 8 unsupported" in told
    right, total = map(int, re.findall(r"score: (\d+) of (\d+)", told)[0])
    assert total - right == 40
    guess = tmp_path / "guess.py"
    guess.write_text(
        "import sys\nfor line in sys.stdin:\n"
        "    if 'operation' in line: print('\"ok\"', flush=True)\n"
    )
    code, told = score(sys.executable, str(guess))
    assert code == 1
    right, total = map(int, re.findall(r"score: (\d+) of (\d+)", told)[0])
    assert 0 < right < total / 4


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
    assert len(seen) >= (3 if count < 5000 else 4)  # one in 400 is too costly; vectors have all


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


# -- a device that forgets nothing ----------------------------------------------------------------


class Service:
    """An aggregator behind HTTP, for devices of any origin."""

    def __init__(self) -> None:
        self.aggregator = small_aggregator(reward_wait=10**6, horizon=None)
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, body: bytes) -> None:
                self.send_response(200)
                for name in ("Origin", "Headers"):
                    self.send_header(f"Access-Control-Allow-{name}", "*")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer(service.aggregator.bundle())

            def do_OPTIONS(self) -> None:
                self.answer(b"")

            def do_POST(self) -> None:
                report = self.rfile.read(int(self.headers["Content-Length"]))
                status = str(service.aggregator.receive(report))
                self.answer(json.dumps({"status": status}).encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


def check_outcome(told: dict[str, Any], count: int) -> None:
    """Nothing lost, nothing twice, nothing beyond the allowance; and all of it was tried."""
    assert told["wrong"] == []
    assert told["made"] == told["accepted"] > count / 2
    assert told["crashes"] > count
    assert told["refused"] > count / 4
    assert told["uploads"] > 1.2 * told["made"]


def run_schedules(service: Service, folder: Path, count: int) -> None:
    assert NODE is not None
    program = built(NODE, "test/fleet.ts", folder / "fleet.mjs", platform="node")
    asked = [str(program), str(folder / "kept"), service.address, "1", str(count)]
    outcomes = json.loads(run_node(NODE, *asked))
    for told in outcomes:
        check_outcome(told, count)
    assert service.aggregator.reports == sum(told["accepted"] for told in outcomes)


def test_schedules_of_reloads_crashes_tabs_and_clocks(service: Service, tmp_path: Path) -> None:
    run_schedules(service, tmp_path, 25)


@pytest.mark.slow
def test_a_thousand_schedules(service: Service, tmp_path: Path) -> None:
    run_schedules(service, tmp_path, 500)  # on each of two stores


# -- a browser ------------------------------------------------------------------------------------

BROWSER = find_browser()


def page_of(folder: Path) -> Path:
    """A page whose ``capriTest`` answers."""
    assert NODE is not None
    built(NODE, "test/page.ts", folder / "page.js", platform="browser")
    page = folder / "page.html"
    page.write_text("<!doctype html><meta charset=utf-8><script src=page.js></script>")
    return page


@pytest.mark.skipif(BROWSER is None, reason="no browser: see tools/install_browser.sh")
def test_a_decision_survives_reloads_in_a_browser(tmp_path: Path, service: Service) -> None:
    """Decide; reload; report, by two tabs at once; reload; upload: one report counts."""
    assert BROWSER is not None
    page, device = page_of(tmp_path), f"capriTest.device('{service.address}')"
    with Browser(BROWSER) as running:
        running.open(page)
        assert running.run(f"{device}.then(it => it.act([0.4])).then(it => it.epoch)") == 1
        running.open(page)
        assert running.run(f"{device}.then(it => it.status())") == "waiting"
        assert running.run(f"capriTest.race('{service.address}')") == ["BudgetError", "true"]
        running.open(page)
        assert running.run(f"{device}.then(it => it.status())") == "made"
        assert running.run(f"{device}.then(it => it.flush())") == "accepted"
        running.open(page)
        assert running.run(f"{device}.then(it => it.status())") == "accepted"
        assert "1 private report (page: 4)" in running.run(f"{device}.then(it => it.spending())")
        assert service.aggregator.reports == 1
        check_outcome(running.run(f"capriTest.schedules(9, 12, '{service.address}')"), 12)
        assert running.errors == []


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser: see tools/install_browser.sh")
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_schedules_in_a_browser(tmp_path: Path, service: Service, part: int) -> None:
    """A hundred each; the page is loaded anew after ten, and its devices stay."""
    assert BROWSER is not None
    page, all_of_them = page_of(tmp_path), Counter[str]()
    with Browser(BROWSER) as running:
        for first in range(1000 + 100 * part, 1100 + 100 * part, 10):
            running.open(page)
            told = running.run(f"capriTest.schedules({first}, 10, '{service.address}')")
            assert told.pop("wrong") == []
            all_of_them.update(told)
            kept = running.run("indexedDB.databases().then(all => all.map(each => each.name))")
            assert {f"device-{seed}" for seed in range(1000 + 100 * part, first + 10)} <= {*kept}
        assert running.errors == []
    check_outcome({"wrong": [], **all_of_them}, 100)
    assert service.aggregator.reports == all_of_them["accepted"]


@pytest.mark.skipif(BROWSER is None, reason="no browser: see tools/install_browser.sh")
def test_vectors_and_time_in_a_browser(tmp_path: Path) -> None:
    """All vectors to the bit where bits are asked for, and the clock."""
    page = page_of(tmp_path)
    rows = np.linspace(0, 1, 50)[:, None]
    fleet = DeviceSimulator.build(
        budget=BUDGET, simulation_seed=1, kernel="auto", actions=rows,
        contexts=capri.ContextPool(rows), first_epoch=200,
    )  # fmt: skip
    decisions = fleet.act_many(rows[np.arange(fleet.remaining) % 50])
    fleet.update_many(decisions, np.sin(5 * decisions.action[:, 0]))
    data = b64encode(fleet.aggregator.bundle()).decode()
    assert BROWSER is not None
    with Browser(BROWSER) as running:
        running.open(page)
        told = running.run("capriTest.vectors()")
        assert told["wrong"] == []
        assert told["tried"] > 700
        times = np.array(running.run(f"capriTest.times('{data}', 15)"))
        assert running.errors == []
    # 10 ms is the promise; on a busy machine the quickest of fifteen says whether it is kept.
    assert times[:, 1].min() < 10
