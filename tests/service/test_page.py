"""The page in a real browser: live figures, by keyboard, in the dark, on a phone."""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import capri
from browser import Browser, find_browser
from capri.service.auth import add_key
from capri.service.figures import one_page
from memory import MEMORY
from service_process import PATIENT, Running
from waiting import PATIENCE, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "service"
PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no browser: run tools/install_browser.sh, or name one in CAPRI_BROWSER",
)
CONTRAST = Path(__file__).with_name("contrast.js")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def shop() -> Iterator[Running]:
    """The service of the example, with an action whose name looks like markup."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        shutil.copy(EXAMPLE / "public.csv", folder)
        text = (EXAMPLE / "policy.toml").read_text()
        if not os.environ.get("CAPRI_SCREENSHOT"):
            text = text.replace('"newsletter"', f'"{HOSTILE}"')
        text += f"\n[options]\nfirst_epoch = 150\n{PATIENT}"
        (folder / "policy.toml").write_text(text)
        running = Running(folder, ("--forecast",) if os.environ.get("CAPRI_SCREENSHOT") else ())
        running.key = add_key(folder / "policy.keys", "tests", ["admin"])
        running.start()
        try:
            seeds = count()
            while len(running.get("/v1/epochs")) < 2:  # until a line has two points
                shopping(running, 200, next(seeds))
            yield running
        finally:
            running.stop()


def shopping(shop: Running, visits: int, seed: int = 7) -> None:
    """Visits in lists, as the example's shop has them."""
    taste = dict(zip(("free shipping", "10 % off", "bundle"), (0.5, 0.35, 0.2), strict=True))
    draw = random.Random(seed)
    with capri.Client(shop.url, shop.key, timeout=PATIENCE) as client:
        for _ in range(0, visits, 50):
            people = [
                {
                    "hour": draw.randrange(24),
                    "device": draw.choice(["phone", "phone", "laptop", "tablet"]),
                    "basket": draw.expovariate(1 / 60),
                    "member": draw.random() < 0.4,
                }
                for _ in range(50)
            ]
            made = client.act_many(people)
            came = [each for each in made if draw.random() < 0.8]
            rewards = [
                float(draw.random() < taste.get(str(each.action_name), 0.05)) for each in came
            ]
            client.update_many(came, rewards)


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as browser:
        yield browser


@pytest.fixture
def browser(running: Browser, shop: Running) -> Iterator[Browser]:
    """The page with a key, drawn; nothing was asked of anybody else and nothing complained."""
    running.look(width=1280, height=1000)
    running.open(shop.url)
    running.run(f"sessionStorage.setItem('capri-key', '{shop.key}')")
    running.errors.clear()
    running.requests.clear()
    running.open(shop.url)
    await_page(running)
    yield running
    # The browser itself notes requests that were refused, where a test asks for that.
    noted = ("status of 401", "status of 403")
    assert [each for each in running.errors if not any(code in each for code in noted)] == []
    assert all(request.startswith(shop.url) for request in running.requests)


def await_page(browser: Browser) -> None:
    wait_for(browser, "document.querySelectorAll('.tile').length === 5")
    browser.settle()


def test_everything_is_drawn(browser: Browser, shop: Running) -> None:
    title = browser.run("document.getElementById('name').textContent")
    assert title == shop.get("/v1/policy")["name"]
    assert "joint privacy" in browser.run("document.getElementById('guarantee').textContent")
    rows = browser.run("[...document.querySelectorAll('#actions td.name')].map(e => e.textContent)")
    assert sorted(rows) == sorted(shop.get("/v1/policy")["actions"])
    for chart in ("forecast", "noise", "play"):
        lengths = browser.run(  # two releases may say the same: a line may be level
            f"[...document.querySelectorAll('#{chart} path.line')].map(e => e.getTotalLength())"
        )
        assert max(lengths) > 50, chart
    tiles = browser.run("[...document.querySelectorAll('.tile')].map(e => e.textContent)")
    assert any("Response rate" in tile and "%" in tile for tile in tiles)
    assert any("Closes in" in tile or "goes on" in tile or "planned" in tile for tile in tiles)
    eventually(lambda: alarms_agree(browser, shop))


def alarms_agree(browser: Browser, shop: Running) -> bool:
    """Whether the page shows the notices of the policy: one may come between two looks."""
    shown = "[...document.querySelectorAll('#alarms .alarm')].map(e => e.textContent)"
    notices = shop.get("/v1/policy")["notices"]
    said = browser.run("document.getElementById('alarms').textContent")
    return browser.run(shown) == [f"{each['kind']} {each['text']}" for each in notices] and (
        "What was released fits" in said
    ) == (not notices)


def test_promise_does_not_look_used_up(browser: Browser, shop: Running) -> None:
    """Each user has a budget of their own: no bar, no "1 of 1", whatever was released."""
    ledger = shop.get("/v1/ledger")
    assert ledger["spent"]["epsilon"] == pytest.approx(ledger["budget"]["epsilon"], rel=1e-6)
    tile = "[...document.querySelectorAll('.tile')].find(e => e.textContent.includes('ε'))"
    said = browser.run(f"{tile}.textContent")
    assert said.startswith("Promised to each userε = 2 δ = 1e-6")
    assert "nothing runs out" in said
    assert browser.run(f"{tile}.querySelectorAll('.bar').length") == 0
    assert "Privacy loss" not in browser.run("document.body.textContent")


def test_alarms_of_private_counts_stand_in_the_dashed_frame(
    browser: Browser, shop: Running
) -> None:
    """For operators, with what acting on them means; names that were sent are text."""
    visits = [{"context": {"hour": 3, "<img src=y>": 1}} for _ in range(500)]
    for _ in range(6):
        shop.post("/v1/decisions:batch", visits)
    wait_for(browser, "document.querySelectorAll('#inside .alarm').length > 0")
    said = browser.run("document.getElementById('inside').textContent")
    assert "'<img src=y>'" in said
    assert "outside of the theorem" in said
    assert browser.run("document.querySelectorAll('#main img').length") == 0
    outside = "[...document.querySelectorAll('#main .alarm')].filter(e => !e.closest('#inside'))"
    assert browser.run(f"{outside}.some(e => e.textContent.includes('img src'))") is False
    eventually(lambda: alarms_agree(browser, shop))


def test_names_are_text(browser: Browser) -> None:
    """An action that looks like markup stays a name: no element of it, no request."""
    assert browser.run("document.querySelectorAll('#main img').length") == 0
    if not os.environ.get("CAPRI_SCREENSHOT"):
        assert HOSTILE in browser.run("document.getElementById('actions').textContent")


def test_figures_are_live(browser: Browser, shop: Running) -> None:
    figure = "document.querySelectorAll('.tile .figure')[1].textContent"
    before = browser.run(figure)
    with capri.Client(shop.url, shop.key, timeout=PATIENCE) as client:
        client.act({"hour": 3})
    eventually(lambda: browser.run(figure) != before)


def test_live_counts_are_for_operators_and_marked(browser: Browser, shop: Running) -> None:
    said = "document.getElementById('inside').textContent"
    wait_for(browser, f"{said}.includes('accepted')")
    assert "inside the trust boundary" in browser.run(said)
    reader = add_key(shop.folder / "policy.keys", "reader", ["read"])
    eventually(lambda: shop.ask("GET", "/v1/ledger", key=reader)[0] == 200)
    browser.run(f"sessionStorage.setItem('capri-key', '{reader}')")
    browser.open(shop.url)
    await_page(browser)
    wait_for(browser, "document.getElementById('stamp').textContent.startsWith('As of')")
    assert browser.run("document.getElementById('inside').hidden") is True
    assert "accepted" not in browser.run("document.body.textContent")


def test_by_keyboard_from_the_key_to_a_chart(browser: Browser, shop: Running) -> None:
    browser.run("document.getElementById('unlock').click()")
    assert browser.run("document.activeElement.id") == "key"
    browser.call("Input.insertText", text=shop.key or "")
    browser.key("Enter", 13, "\r")
    await_page(browser)
    wait_for(browser, "!document.getElementById('main').hidden")
    eventually(lambda: read_chart(browser, "forecast").startswith("Epoch "))


@pytest.mark.parametrize("width", [390, 820])
def test_nothing_is_cut_off(browser: Browser, width: int) -> None:
    browser.look(width=width, height=844, phone=True)
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") <= width
    cut = "e.clientWidth && e.scrollWidth > e.clientWidth + 1"
    listed = f"[...document.querySelectorAll('#main *')].filter(e => {cut})"
    assert browser.run(f"{listed}.map(e => e.tagName + e.textContent.slice(0, 40))") == []
    sizes = browser.run(
        "[...document.querySelectorAll('td, p, .label')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11
    browser.look(width=1280, height=1000)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, width: int, dark: bool
) -> None:
    browser.look(width=width, height=900, phone=width < 600, dark=dark)
    browser.settle()
    ratio, text, seen = browser.run(CONTRAST.read_text())
    browser.look(width=1280, height=1000)
    assert seen > 60
    assert ratio >= 4.5, text


def test_what_it_is_worth_and_who_gets_what(browser: Browser, shop: Running) -> None:
    told = shop.get("/v1/worth")
    rows = browser.run("[...document.querySelectorAll('#worth td.name')].map(e => e.textContent)")
    assert rows == [each["against"] for each in told["lifts"]]
    assert rows[0] == "uniform play"
    assert "95 %" in browser.run("document.getElementById('worth-note').textContent")
    cells = browser.run("[...document.querySelectorAll('#map td b')].map(e => e.textContent)")
    found = [cell["action"] for row in told["map"]["cells"] for cell in row if cell]
    assert cells == found
    assert set(cells) <= set(shop.get("/v1/policy")["actions"])


def test_a_page_that_was_kept_says_the_same_and_asks_nobody(
    browser: Browser, shop: Running, tmp_path: Path
) -> None:
    """One file for who has no key: no request leaves it, and names stay names."""
    with capri.Client(shop.url, shop.key, timeout=PATIENCE) as client:
        page = one_page(client.figure)
    file = tmp_path / "report.html"
    file.write_bytes(page)
    estimates = "[...document.querySelectorAll('#actions td.name')].map(e => e.textContent)"
    lifts = "document.getElementById('worth').textContent"
    shown = browser.run(estimates), browser.run(lifts)
    browser.requests.clear()
    browser.open(file.as_uri())
    await_page(browser)
    assert (browser.run(estimates), browser.run(lifts)) == shown
    assert browser.run("document.querySelectorAll('#main img').length") == 0
    assert browser.run("document.getElementById('inside').hidden") is True
    assert "Kept on" in browser.run("document.getElementById('stamp').textContent")
    assert all(request.startswith(file.as_uri()) for request in browser.requests)
    browser.requests.clear()
    assert shop.key is not None
    assert shop.key.encode() not in page


def test_dark_is_dark(browser: Browser) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.look(width=1280, height=1000, dark=True)
    dark = browser.run(colour)
    browser.look(width=1280, height=1000)

    def level(text: str) -> int:
        return sum(int(part) for part in text[4:-1].split(","))

    assert level(light) > 600 > 200 > level(dark)


def test_interface_is_shown_from_our_own_files(browser: Browser, shop: Running) -> None:
    browser.open(f"{shop.url}/v1/docs")
    wait_for(browser, "document.querySelectorAll('.endpoint').length > 10")
    assert "POST /v1/decisions" in browser.run("document.getElementById('list').textContent")


def test_screenshot(browser: Browser, shop: Running) -> None:
    """As README shows it; written when CAPRI_SCREENSHOT names a file."""
    target = os.environ.get("CAPRI_SCREENSHOT")
    browser.look(width=1280, height=1400)
    if target:
        for seed in range(6):
            shopping(shop, 700, seed)
            time.sleep(1)  # a pace that looks well; nothing is asserted of it
        eventually(lambda: shop.get("/v1/forecast")["epochs"])
        browser.open(shop.url)
        await_page(browser)
        for seed in range(10, 24):  # so that there is a pace to see
            shopping(shop, random.Random(seed).randrange(50, 150), seed)
            browser.settle()
            time.sleep(1.2)
    picture = browser.picture()
    assert picture.startswith(b"\x89PNG")
    if target:
        Path(target).write_bytes(picture)


def test_what_the_policy_would_be_worth(browser: Browser, shop: Running) -> None:
    """In shadow mode: a panel of released estimates with widths, and nothing before a release."""
    assert browser.run("document.getElementById('shadow-card').hidden") is True
    shop.post("/v1/admin/mode", {"mode": "shadow"})
    visits = [
        {"context": {"hour": 3}, "chosen": "bundle", "chosen_propensity": 0.25} for _ in range(200)
    ]
    made = shop.post("/v1/decisions:batch", visits)
    shop.post("/v1/rewards", [{"id": item["id"], "reward": 1.0} for item in made])
    said = "document.getElementById('shadow-note').textContent"
    wait_for(browser, f"{said}.includes('Another system decides')")
    shop.post("/v1/admin/close", {"early": True})
    shop.post("/v1/admin/mode", {"mode": "active"})
    wait_for(browser, f"{said}.includes('would earn')")
    assert "±" in browser.run(said)
    eventually(lambda: "the other system earned" in read_chart(browser, "shadow"))
    wait_for(browser, "document.getElementById('history').textContent.includes('shadow')")


def read_chart(browser: Browser, name: str) -> str:
    """A point of a chart by keyboard; nothing where it is drawn anew meanwhile."""
    browser.run(f"document.querySelector('#{name} svg').focus()")
    browser.key("ArrowRight", 39)
    return str(browser.run(f"document.querySelector('#{name} .readout').textContent"))


def wait_for(browser: Browser, truth: str) -> None:
    eventually(lambda: browser.run(truth))
