"""A device program for the tests: bytes in, bytes out, nothing shared with the aggregator.

Input: the length of a bundle and the bundle; then lines "seed user context", each answered by the
report of that user in hexadecimal. An empty bundle ends it.
"""

import sys

from devices import reward_of

import capri


def main() -> None:
    budget = capri.Budget(epsilon=float(sys.argv[1]), delta=float(sys.argv[2]))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while size := int(source.readline()):
        bundle = source.read(size)
        for _ in range(int(source.readline())):
            seed, user, context = source.readline().split()
            client = capri.LocalClient(bundle, budget, simulation=(int(seed), int(user)))
            decision = client.act([float.fromhex(context.decode())])
            report = client.report(reward_of(int(user), decision.action_index))
            target.write(report.hex().encode() + b"\n")
        target.flush()


if __name__ == "__main__":
    main()
