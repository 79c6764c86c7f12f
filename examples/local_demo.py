"""The local model over HTTP: one aggregator process, and processes full of users' devices.

    python examples/local_demo.py [--users 8000] [--epsilon 4] [--processes 6]

The aggregator serves ``GET /bundle`` and takes ``POST /report`` on the loopback interface. Every
user is a fresh LocalClient with randomness from the operating system: it fetches the bundle,
decides, sees a reward (or none), and uploads 32 bytes. Nothing else crosses the wire. The table
shows how the aggregator's estimate converges all the same. Exit code 0 only if all went well.

Imports stand where they are used: a process of devices loads no more than a device needs.
"""

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from typing import Any

CONTEXTS, ACTIONS, LENGTHSCALE, NOISE = 20, 20, 0.6, 0.1
NO_REWARD = 0.1  # share of users who never see a reward: their reports look like all others
MOST_EPOCHS = 64
LARGEST_UPLOAD = 1 << 16


# -- the aggregator: sees reports, nothing else ---------------------------------------------------


def aggregate(epsilon: float, users: int, contexts: Any, actions: Any, news: Any, end: Any) -> None:
    """Serve bundles and take reports until ``end``; tell ``news`` the port, then every epoch."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Lock, Thread

    import capri

    aggregator = capri.LocalCapri(
        actions=actions,
        contexts=capri.ContextPool(contexts),
        budget=capri.Budget(epsilon=epsilon),
        horizon=users,
    )
    codes = {
        capri.ReportStatus.ACCEPTED: 202,
        capri.ReportStatus.STALE: 410,
        capri.ReportStatus.REPLAYED: 409,
    }
    lock = Lock()
    received = 0  # bytes of accepted reports

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            """The bundle of the open epoch, unless the caller has it already."""
            if self.path != "/bundle":
                self.answer(404)
                return
            with lock:
                bundle = aggregator.bundle() if aggregator.remaining else None
            if bundle is None:
                self.answer(410)  # the horizon is reached
                return
            tag = bundle[-32:].hex()
            if self.headers.get("If-None-Match") == tag:
                self.answer(304, tag=tag)
            else:
                self.answer(200, bundle, tag=tag)

        def do_POST(self) -> None:
            """One report."""
            nonlocal received
            length = self.headers.get("Content-Length", "")
            if self.path != "/report" or not length.isdecimal() or int(length) > LARGEST_UPLOAD:
                self.close_connection = True
                self.answer(400)
                return
            report = self.rfile.read(int(length))
            with lock:
                closed = len(aggregator.epochs)
                status = aggregator.receive(report)
                if status is capri.ReportStatus.ACCEPTED:
                    received += len(report)
                if len(aggregator.epochs) > closed:
                    estimate = aggregator.estimate(contexts)
                    law = aggregator.probabilities(contexts)
                    news.put((aggregator.epochs[-1], received, estimate, law))
            self.answer(codes.get(status, 400), str(status).encode())

        def answer(self, code: int, body: bytes = b"", *, tag: str | None = None) -> None:
            """Status, length and body."""
            self.send_response(code)
            if tag is not None:
                self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """When somebody reported is nobody's business."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        news.put(server.server_port)
        end.wait()
        server.shutdown()


# -- the devices: see their own user, nobody else -------------------------------------------------


def devices(port: int, epsilon: float, contexts: Any, means: Any, tally: Any, loaded: Any) -> None:
    """User after user, each with a device of its own, until the aggregator needs no more.

    ``means`` is the world that users live in. ``tally`` lets the demo measure regret by looking
    over their shoulders: ``[users, regret, dropped]`` of every epoch. It never reaches the
    aggregator.
    """
    from http.client import HTTPConnection

    import numpy as np

    import capri

    rng = np.random.default_rng()
    budget = capri.Budget(epsilon=epsilon)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(method: str, path: str, body: bytes | None = None, tag: str = "") -> tuple[int, bytes]:
        connection.request(method, path, body, {"If-None-Match": tag} if tag else {})
        response = connection.getresponse()
        return response.status, response.read()

    bundle = b""
    while True:
        # A bundle is the same for everybody, so that users may share a cache.
        code, fetched = ask("GET", "/bundle", tag=bundle[-32:].hex())
        if code == 410:
            break
        if code == 200:
            bundle = fetched
        elif code != 304:
            raise RuntimeError(f"the aggregator answered {code} to a request for its bundle")

        device = capri.LocalClient(bundle, budget)
        user = int(rng.integers(len(contexts)))
        action = device.act(contexts[user]).action_index
        reward = means[user, action] + rng.uniform(-NOISE, NOISE)
        report = device.report(None if rng.random() < NO_REWARD else reward)

        code, _ = ask("POST", "/report", report)
        if code not in (202, 410):  # 410: the epoch has closed meanwhile, the datum is dropped
            raise RuntimeError(f"the aggregator answered {code} to a report")
        place = 3 * min(device.epoch, MOST_EPOCHS - 1)
        with tally.get_lock():
            tally[place] += 1
            tally[place + 1] += means[user].max() - means[user, action]
            tally[place + 2] += code == 410
    connection.close()
    heavy = {"scipy", "opendp", "matplotlib", "pandas", "sklearn"} & set(sys.modules)
    loaded.put(sorted(heavy))


# -- the demo -------------------------------------------------------------------------------------


def main() -> int:
    """Start everybody, print what happens, and say in one line how it ended."""
    parser = argparse.ArgumentParser(
        description="The local model over HTTP: an aggregator and many devices in processes of "
        "their own. Shows how estimates converge although nobody sees any data."
    )
    parser.add_argument("--users", type=int, default=8_000, help="reports to wait for")
    parser.add_argument("--epsilon", type=float, default=4.0, help="each user's budget, pure")
    parser.add_argument("--processes", type=int, default=6, help="processes full of devices")
    parser.add_argument(
        "--function", type=int, default=6, help="another number is another true function"
    )
    arguments = parser.parse_args()
    if arguments.users < 100 or arguments.processes < 1 or arguments.function < 0:
        parser.error("give at least 100 users, 1 process and function 0 or more")
    if not 0.001 <= arguments.epsilon <= 30:
        parser.error("epsilon must lie between 0.001 and 30")

    # Small matrices: threads of BLAS would only get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy as np

    import capri

    world = capri.environments.random_rkhs(
        capri.kernels.RBF(lengthscale=LENGTHSCALE),
        contexts=CONTEXTS,
        actions=ACTIONS,
        noise=NOISE,
        seed=arguments.function,
    )
    # What reports are about: the mean of rewards of which some are missing.
    truth, uniform = (1 - NO_REWARD) * world.means, world.uniform_regret()
    print(f"One aggregator, {arguments.processes} processes of devices, loopback HTTP.")
    print(
        f"{arguments.users:,} users report once, pure epsilon {arguments.epsilon:g}, no seeds; "
        f"{NO_REWARD:.0%} see no reward, which counts as 0."
    )
    print(
        f"{CONTEXTS} contexts x {ACTIONS} actions; the function to learn has a standard deviation "
        f"of {truth.std():.2f}.\n"
    )
    print("                     report   rms error of the estimate    regret per round")
    print("epoch    reports      bytes   everywhere   where played     / uniform play")

    context = multiprocessing.get_context("spawn")
    news, loaded, end = context.Queue(), context.Queue(), context.Event()
    tally = context.Array("d", 3 * MOST_EPOCHS)
    started = time.perf_counter()
    server = context.Process(
        target=aggregate,
        args=(arguments.epsilon, arguments.users, world.contexts, world.actions, news, end),
        daemon=True,
    )
    _start(server)
    everybody = [server]
    reports, size, ratio = 0, 0, 1.0
    try:
        port = _next(news, everybody)
        fleet = [
            context.Process(
                target=devices,
                args=(port, arguments.epsilon, world.contexts, world.means, tally, loaded),
                daemon=True,
            )
            for _ in range(arguments.processes)
        ]
        for process in fleet:
            _start(process)
        everybody += fleet
        while reports < arguments.users:
            record, size, estimate, law = _next(news, everybody)
            reports += record.length
            squares = (estimate - truth) ** 2
            everywhere = float(np.sqrt(squares.mean()))
            played = float(np.sqrt((law * squares).sum(axis=1).mean()))
            place = 3 * min(record.epoch, MOST_EPOCHS - 1)
            with tally.get_lock():
                users, regret = tally[place], tally[place + 1]
            ratio = regret / users / uniform
            print(
                f"{record.epoch:5}  {reports:9,}  {size:9,}   {everywhere:10.3f}   {played:12.3f}"
                f"     {ratio:6.3f}  {'#' * round(20 * min(ratio, 1.25))}",
                flush=True,
            )
        heavy = {name for _ in fleet for name in _next(loaded, everybody)}
        for process in fleet:
            process.join(30)
        end.set()
        server.join(30)
        codes = [process.exitcode for process in everybody]
        if any(codes):
            raise RuntimeError(f"processes ended with codes {codes}")
        if size != 32 * arguments.users:
            raise RuntimeError(f"{reports:,} reports should have 32 bytes each, got {size:,} bytes")
    except RuntimeError as problem:
        print(f"\nFAILED: {problem}")
        return 1
    finally:
        for process in everybody:
            if process.is_alive():
                process.terminate()
    dropped = int(sum(tally[2::3]))
    seconds = time.perf_counter() - started
    print(
        f"\n{dropped:,} reports came after their epoch had closed: dropped, not made twice. "
        f"Device processes loaded\nof SciPy, OpenDP, Matplotlib: {', '.join(heavy) or 'nothing'}."
    )
    print(
        f"Done in {seconds:.0f} s: from {size / 1000:,.0f} kB of private reports, regret of the "
        f"last epoch is {ratio:.1%} of uniform play."
    )
    return 0


def _start(process: Any) -> None:
    """Start a process that leaves Ctrl-C to this one, which then ends them all."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit what is ignored
    process.start()
    signal.signal(signal.SIGINT, before)


def _next(messages: Any, processes: list[Any]) -> Any:
    """The next message; an error if a process has failed or nothing happens for a minute."""
    for _ in range(240):
        try:
            return messages.get(timeout=0.25)
        except queue.Empty:
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed:
                raise RuntimeError(f"a process ended with code {failed[0]}") from None
    raise RuntimeError("nothing happened for a minute")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what shells expect of a program stopped by Ctrl-C
