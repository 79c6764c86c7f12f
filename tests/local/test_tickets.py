"""Tickets: one seed each, which nobody can search for; checked without being kept."""

import os
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from devices import BUDGET, small_aggregator

import capri
from capri.errors import ConfigurationError, DataError
from capri.local import tickets
from capri.local.durable import DurableClient
from capri.local.stores import MemoryStore
from capri.local.tickets import SIZE, Tickets
from capri.privacy.sphere import DIRECTION_UNITS, directions, sphere

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "sphere.md"
ISSUER = Tickets(bytes(range(32)))


def client(bundle: bytes, sent: list[bytes], **changes: object) -> DurableClient:
    settings: dict[str, object] = {
        "policy": "books", "allowance": capri.Allowance(epsilon=8, days=30), "store": MemoryStore(),
        "send": lambda upload: sent.append(upload) or "accepted", "ticket": ISSUER.issue,
    }  # fmt: skip
    return DurableClient(bundle, BUDGET, **(settings | changes))  # type: ignore[arg-type]


def test_a_report_with_a_ticket_counts_once() -> None:
    aggregator, sent = small_aggregator(), []
    device = client(aggregator.bundle(), sent)
    device.act([0.4])
    device.report(0.5)
    assert device.flush() == "accepted"
    (upload,) = sent
    assert len(upload) == SIZE == 48
    (report,) = ISSUER.reports([upload])
    assert aggregator.receive(report) is capri.ReportStatus.ACCEPTED
    assert aggregator.receive(*ISSUER.reports([upload])) is capri.ReportStatus.REPLAYED


def test_uploads_without_their_ticket_are_malformed() -> None:
    aggregator, sent = small_aggregator(), []
    device = client(aggregator.bundle(), sent)
    device.act([0.4])
    device.report(0.5)
    device.flush()
    good = sent[0]
    other = client(aggregator.bundle(), sent, ticket=Tickets(os.urandom(32)).issue)
    other.act([0.4])
    other.report(0.5)
    other.flush()
    wrong = [good[:32], good[:33], good + b"\0", b"", sent[1], good[:32] + sent[1][32:]]
    wrong += [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in (2, 12, 40)]
    assert ISSUER.reports(wrong) == [b""] * len(wrong)
    statuses = aggregator.receive_many(ISSUER.reports([*wrong, good]))
    assert [capri.ReportStatus(code).name for code in statuses] == (
        ["MALFORMED"] * len(wrong) + ["ACCEPTED"]
    )


def test_nobody_knows_a_token_beforehand() -> None:
    """It is a hash of a number of either side; a ticket is of one bundle and one secret."""
    secret, digest = os.urandom(16), os.urandom(32)
    shown = tickets.commitment(secret, digest)
    assert shown == sha256(secret + digest[:8]).digest()
    salt = ISSUER.issue(shown)
    made = tickets.token(secret, salt)
    others = {
        tickets.token(secret, Tickets(os.urandom(32)).issue(shown)),
        tickets.token(secret, ISSUER.issue(tickets.commitment(secret, os.urandom(32)))),
        tickets.token(os.urandom(16), salt),
    }
    assert made not in others
    assert len(others) == 3
    assert repr(ISSUER) == "Tickets()"
    for key in (b"short", "x" * 40, None):
        with pytest.raises(ConfigurationError, match="32 bytes"):
            Tickets(key)  # type: ignore[arg-type]


def test_a_decision_waits_for_its_ticket() -> None:
    """Offline, a portal, a later try; another bundle needs another ticket, another visit none."""
    aggregator, sent, store = small_aggregator(), [], MemoryStore()
    asked: list[bytes] = []

    def offline(commitment: bytes) -> bytes:
        asked.append(commitment)
        raise OSError

    def portal(commitment: bytes) -> bytes:
        return b"please log in"

    for ticket in (offline, portal):
        device = client(aggregator.bundle(), sent, store=store, ticket=ticket)
        device.act([0.4])
        with pytest.raises(DataError, match="no ticket yet"):
            device.report(0.5)
        assert device.status == "waiting"
    assert len({*asked}) == 1
    device = client(aggregator.bundle(), sent, store=store)
    assert device.report(0.5)
    assert device.flush() == "accepted"
    (report,) = ISSUER.reports(sent)
    assert aggregator.receive(report) is capri.ReportStatus.ACCEPTED


def test_leverage_with_tickets_is_as_the_page_says() -> None:
    """The nearest of ``M/2`` directions of one token, times one over the shrinkage."""
    rows = re.findall(r"^\| (\d+), with a ticket \| ([\d. |]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(m) for m, _ in rows] == [2, 5, 10, 20, 50, 100, 200]
    for m, cells in rows:
        for epsilon, cell in zip((0.5, 1, 2, 4, 8), cells.split("|"), strict=True):
            found = sphere(epsilon, int(m), ticketed=True).leverage
            assert float(cell) == pytest.approx(found, abs=0.051)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_leverage_is_that_of_the_best_direction_of_a_token(epsilon: float) -> None:
    """4,000 tokens, the best of all directions of each, within five standard errors."""
    found, generator = sphere(epsilon, 20, ticketed=True), np.random.default_rng(11)
    half = found.candidates // 2
    seeds = np.repeat(generator.integers(0, 2**64, (4000, 2), dtype=np.uint64), half, axis=0)
    along = directions(seeds, np.tile(np.arange(half), 4000), 20)[:, 3] / DIRECTION_UNITS
    best = np.abs(along).reshape(4000, half).max(axis=1) / found.shrinkage
    assert abs(best.mean() - found.leverage) < 5 * best.std() / np.sqrt(4000)


def test_plans_with_tickets_leave_a_forger_less_choice() -> None:
    """Half of the leverage at epsilon 1, for an eighth more variance; and never with mixing."""
    free, bound = (sphere(1.0, 20, ticketed=each) for each in (False, True))
    assert bound.leverage < free.leverage / 2
    assert 1 < (bound.deviation / free.deviation) ** 2 < 1.125
    aggregator = small_aggregator(tickets=True, budget=capri.Budget(1.0))
    for each in (aggregator, aggregator.again()):
        plan = capri.LocalClient(each.bundle(), capri.Budget(1.0)).opened_bundle.plan
        assert plan.sphere == sphere(1.0, plan.dimension, ticketed=True)
    mixing = {"shuffle": capri.Shuffle(), "budget": capri.Budget(1.0, 1e-6), "reward_wait": None}
    with pytest.raises(ConfigurationError, match="whose report is whose"):
        small_aggregator(tickets=True, **mixing)
    with pytest.raises(ConfigurationError, match="tickets must be True or False"):
        small_aggregator(tickets="yes")


def test_seeds_of_tickets_are_not_biased() -> None:
    """Reports of 4,000 devices with one datum: their mean is that of tokens drawn at random."""
    from capri.local.device import SimulatedRandomness, with_token
    from capri.privacy.sphere import randomized, unbiased_sum

    mechanism, count = sphere(4.0, 5), 4000
    vector = np.array([[600, -300, 0, 500, 100]])
    total = np.zeros(5)
    for user in range(count):
        secret = user.to_bytes(16, "little")
        made = tickets.token(secret, ISSUER.issue(tickets.commitment(secret, bytes(32))))
        draws = with_token(SimulatedRandomness(1, np.array([user])), made)
        total += unbiased_sum(*randomized(vector, 1000, mechanism, draws), mechanism)
    error = mechanism.deviation / np.sqrt(count)
    assert np.abs(total / count - vector[0] / 1000).max() < 5 * error
