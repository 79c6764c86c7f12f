"""Services that are killed, restarted and joined by others: what was acknowledged is there."""

import os
import signal
import threading
from pathlib import Path

import pytest

import capri
from service_process import SOMEBODY, Running, service, workers_of
from waiting import PATIENCE, eventually


class Shoppers:
    """Callers who note what was acknowledged, until they are stopped."""

    def __init__(self, running: Running, count: int) -> None:
        self._running = running
        self.made: dict[str, capri.Decision] = {}
        self.rewarded: dict[str, capri.RewardStatus] = {}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._shop, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _shop(self, number: int) -> None:
        with capri.Client(
            self._running.url, self._running.key, retries=100, timeout=PATIENCE
        ) as client:
            for visit in range(100_000):
                if self._ended.is_set():
                    return
                order = f"{number}-{visit}"
                self.made[order] = decision = client.act(SOMEBODY, key=order)
                self.rewarded[decision.id] = client.update(decision, 1.0)

    def reach(self, count: int) -> None:
        """Wait until so many more decisions were acknowledged."""
        wanted = len(self.made) + count
        eventually(lambda: len(self.made) >= wanted)

    def stop(self) -> None:
        """Wait for the calls under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def check(running: Running, shoppers: Shoppers) -> None:
    """Every decision is read back by its key, every reward is a duplicate, each id is one."""
    with capri.Client(running.url, running.key) as client:
        keys = list(shoppers.made)
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            again = client.act_many([{}] * len(part), keys=part)
            assert [shoppers.made[key] for key in part] == again
            told = client.update_many([each.id for each in again], [0.0] * len(part))
            assert set(told) <= {capri.RewardStatus.DUPLICATE, capri.RewardStatus.LATE}
    assert len({decision.id for decision in shoppers.made.values()}) == len(keys)
    # One that was stored before a kill and sent again has met itself.
    assert set(shoppers.rewarded.values()) <= {
        capri.RewardStatus.ACCEPTED, capri.RewardStatus.DUPLICATE, capri.RewardStatus.LATE,
    }  # fmt: skip


def agreed(shop: Running) -> bool:
    """Whether ledger and epochs tell of the same releases: one may come between two looks."""
    epochs = [epoch["epoch"] for epoch in shop.get("/v1/epochs")]
    assert len(set(epochs)) == len(epochs)
    return epochs != [] and epochs == [
        event["epoch"] for event in shop.get("/v1/ledger")["releases"]
    ]


@pytest.mark.slow  # a bad day of a service, in tests/faults, is the short form of it
def test_nothing_acknowledged_is_lost_by_kills(folder: Path) -> None:
    with service(folder, first=150, reward="wait = 100") as shop:
        shoppers = Shoppers(shop, 4)
        try:
            for _ in range(2):
                shoppers.reach(100)
                shop.kill()
                shop.start()
            shoppers.reach(50)
        finally:
            shoppers.stop()
        check(shop, shoppers)
        taken = shop.decided()
        assert taken >= len(shoppers.made)
        released = sum(epoch["length"] for epoch in shop.get("/v1/epochs"))
        assert released <= taken


def test_two_workers_on_postgres_are_one_policy(folder: Path, postgres_url: str) -> None:
    with service(
        folder, "--workers", "2", first=64, environment={"CAPRI_STORE": postgres_url}
    ) as shop:
        shoppers = Shoppers(shop, 6)
        try:
            shoppers.reach(30)
            worker = workers_of(shop.process.pid)[0]
            os.kill(worker, signal.SIGKILL)  # the supervisor starts another
            shoppers.reach(100)
        finally:
            shoppers.stop()
        check(shop, shoppers)
        eventually(lambda: agreed(shop))  # by a thread beside the requests
        os.kill(shop.process.pid, signal.SIGKILL)  # workers end with their supervisor
        eventually(lambda: shop.ask("GET", "/healthz")[0] == 0)


@pytest.mark.slow
def test_a_store_that_is_gone_is_told_and_comes_back(folder: Path) -> None:
    from postgres_server import NoServerError, PostgresServer, unavailable

    try:
        server = PostgresServer()
        server.__enter__()
    except (NoServerError, OSError, ImportError) as missing:
        unavailable(str(missing))
    try:
        with (
            server.database() as url,
            service(
                folder,
                environment={"CAPRI_STORE": url},
            ) as shop,
        ):
            first = shop.post("/v1/decisions", {"context": SOMEBODY, "key": "before"})
            server.crash()
            status, said = shop.ask("POST", "/v1/decisions", {"context": SOMEBODY})
            assert status == 503, said
            assert "nothing acknowledged is lost" in said["error"]["problem"]
            eventually(lambda: shop.ask("GET", "/readyz")[0] == 503)
            assert shop.ask("GET", "/healthz")[0] == 200
            server.start()
            with capri.Client(shop.url, shop.key, retries=100, timeout=PATIENCE) as client:
                assert client.act({}, key="before").id == first["id"]
            shop.stop()
            assert "before" not in "".join(shop.said)
    finally:
        server.__exit__()
