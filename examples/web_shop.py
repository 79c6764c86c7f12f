"""A web shop that asks the service what to offer, and tells it later who bought.

Start `make serve`, then run this, and look at http://127.0.0.1:8017/ meanwhile:

    python examples/web_shop.py [--visits 5000] [--url http://127.0.0.1:8017] [--key capri_...]
"""

import argparse
import random
from collections import deque

import capri

# What nobody knows: how likely a visitor buys, by what was offered.
TASTE = {"free shipping": 0.5, "10 % off": 0.35, "bundle": 0.2, "newsletter": 0.05}


def buys(visitor: dict[str, object], offer: str) -> bool:
    """Whether somebody buys."""
    chance = TASTE[offer] + (0.3 if offer == "bundle" and visitor["member"] else 0.0)
    return random.random() < chance - (0.2 if visitor["device"] == "phone" else 0.0)


parser = argparse.ArgumentParser()
parser.add_argument("--visits", type=int, default=5000)
parser.add_argument("--url", default="http://127.0.0.1:8017")
parser.add_argument("--key")
options = parser.parse_args()
carts: deque[tuple[capri.Decision, bool]] = deque()
with capri.Client(options.url, options.key) as client:
    for visit in range(options.visits):
        device = random.choice(["phone", "phone", "laptop", "tablet"])
        visitor = {"hour": visit % 24, "device": device, "member": random.random() < 0.4}
        decision = client.act({**visitor, "basket": random.expovariate(1 / 60)})
        carts.append((decision, buys(visitor, str(decision.action_name))))
        if len(carts) > 50:  # people think before they buy
            decided, bought = carts.popleft()
            client.update(decided, 1.0 if bought else 0.0)
    print("offered most:", max(client.estimate()["actions"], key=lambda row: row["played"])["name"])
