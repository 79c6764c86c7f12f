"""The planner: learning and planning on public values, in a process of its own where that is long.

A plan result is computed from a branch of the learning loop and changes nothing: it says what a
step will publish. So it may be made in another process, and thrown away if somebody was faster.
While it is computed there, requests keep the interpreter.

A thread would do for small problems, and does until a result has taken longer than :data:`LONG`.
The process is then started, and not waited for any longer than that result took: users play an old
law meanwhile. Only public values cross the pipe: a learning loop, a release, and the result that
comes back. The process ends when its input does, so it does not outlive a policy that was killed by
more than a result.

A problem may hold code of the caller, such as a sampler of contexts, which is pickled by its name.
Where the other process does not find it, every later result is made here. Any other failure there
is met by making that one result here, where a failure that is real shows itself.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import thread_time
from typing import Any

from capri.epoch.decide import Chooser
from capri.epoch.learning_loop import LearningLoop
from capri.epoch.plan import EpochPlan, Release, Segment
from capri.epoch.problem import Problem
from capri.epoch.storage import plan_state, segment_state
from capri.errors import StorageError
from capri.store.codec import BytesCodec, Codec
from capri.streams import Streams

# Seconds of computing in this process after which another one is worth its start. Of its own
# computing: on a busy machine everything takes long, and one more process does not help.
LONG = 0.1
# How far the other process stands back for requests: where all compute, it has a tenth of a share.
_NICE = 10
Parts = list[bytes | bytearray | memoryview]
# What the other process says where it has no result: it cannot read the order, or it failed at it.
_UNREAD: Parts = [b"unread"]
_FAILED: Parts = [b"failed"]
_THERE: Parts = [b"there"]
# Under no name of ours: a sampler of the caller's __main__ must not be found as another function.
_COMMAND = "__import__('capri.joint.planner', fromlist=['main']).main({})"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What to compute: learn from a release, turn the newest epoch, plan the next, in this order.

    ``learn`` is the number of an epoch; its ``release`` is None where none of its slots was used.
    ``plan`` is the number of an epoch and the slot it begins at, ``endless`` whether it may lie
    beyond the horizon; ``renewed`` the problem in the version that it begins with, where that is
    new. ``catalogue`` is the version that is known afterwards.
    """

    learn: int | None = None
    release: Release | None = None
    turn: bool = False
    plan: tuple[int, int] | None = None
    endless: bool = False
    renewed: Problem | None = None
    catalogue: int = 0
    codec: Codec = field(default_factory=BytesCodec)


@dataclass(frozen=True, eq=False)
class PlanResult:
    """The learning afterwards, and what is to be published of it, as it is kept."""

    learning: LearningLoop
    played: int  # releases behind the newest law that is played
    law: Any
    mark: bytes  # digest of the law
    chooser: Chooser | None = None
    segment: Segment | None = None
    kept_segment: Any = None
    plan: EpochPlan | None = None
    kept_plan: Any = None


def planned(learning: LearningLoop, request: PlanRequest, played: int) -> PlanResult:
    """Carry a request out on a learning loop that is ours to change."""
    segment = plan = None
    if request.release is not None:
        learning.close(request.release)
    elif request.learn is not None:
        learning.learner.drop(request.learn)
    if request.turn:
        segment = learning.turn()
    if request.renewed is not None:
        learning.adopt(request.renewed)
    if request.plan is not None:
        plan = learning.plan(*request.plan, endless=request.endless)
        segment = None if plan is None else plan.opening
    chooser = None
    if request.turn or plan is not None:
        played = len(learning.records)
    if segment is not None:
        # Learners replace what they know piece by piece: a copy keeps the law of now.
        learner = copy(learning.learner)
        chooser = Chooser(learner.problem, learner.probabilities, learner.pool_law())
    values, arrays = learning.state()
    head = {"learning": values, "plan_seconds": learning.plan_seconds, "played": played}
    if request.catalogue:
        head["catalogue"] = request.catalogue
    codec = request.codec
    law = codec.pack(head, arrays)
    return PlanResult(
        learning,
        played,
        law,
        codec.mark(law),
        chooser,
        segment,
        None if segment is None else codec.pack(*segment_state(segment)),
        plan,
        None if plan is None else codec.pack(*plan_state(plan)),
    )


class PlannerProcess:
    """Makes results, here or there."""

    def __init__(self, *, alone: bool = False) -> None:
        """``alone``: whoever waits for the result anyway makes it here."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._stopped = False
        self.apart = False  # whether results are worth a process
        self._portable = not alone  # whether the other process can read the problem, too
        self._answers = False  # whether it has said that it is there
        self._patience = inf  # seconds that the last result took here

    def make(
        self, learning: LearningLoop, request: PlanRequest, played: int, streams: Streams
    ) -> PlanResult:
        """A result from a branch of the learning loop."""
        if self.apart and self._portable and not streams.simulated:
            found = self._made_apart(learning, request, played)
            if found is not None:
                return _at_home(found, request.renewed or learning.learner.problem, streams)
            if self._stopped:
                raise StorageError("the policy was closed while it planned")
        started = thread_time()
        result = planned(learning, request, played)
        self._patience = thread_time() - started
        slow = self._patience > LONG and not streams.simulated
        if slow and self._portable and not self.apart:
            self.apart = True
            self._started()
        return result

    def _made_apart(
        self, learning: LearningLoop, request: PlanRequest, played: int
    ) -> PlanResult | None:
        """The same by the other process; None where that cannot be."""
        own, learning._draws = learning._draws, Streams(None)  # our own draws stay here
        try:
            order = _in_parts((learning, request, played))
        except Exception:  # whatever a sampler of contexts is made of
            self._portable = False
            self.close()
            return None
        finally:
            learning._draws = own
        try:
            pipe = self._started()
            if not self._is_there(pipe):
                return None
            send(pipe, order)
            answer = receive(pipe)
            result = None if answer in (_UNREAD, _FAILED) else _whole(answer)
        except Exception:  # it has ended, or what it sent cannot be read
            self.close()
            return None
        if answer == _UNREAD:
            self._portable = False
            self.close()
        return result

    def _is_there(self, pipe: Connection) -> bool:
        """Whether the process has started; whoever made a short result does not wait for it."""
        if not self._answers:
            if not pipe.poll(None if self._patience == inf else self._patience):
                return False
            self._answers = receive(pipe) == _THERE
        return self._answers

    def _started(self) -> Connection:
        if self._pipe is None:
            self._answers = False
            self._pipe, there = Pipe()
            home = str(Path(__file__).parents[2])
            paths = filter(None, [home, os.environ.get("PYTHONPATH")])
            limits = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND.format(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,
                    pass_fds=[there.fileno()],
                    env=os.environ | limits | {"PYTHONPATH": os.pathsep.join(paths)},
                    start_new_session=True,  # an interrupt at the terminal is for the policy
                )
            if self._stopped:  # while it was started
                self._process.kill()
        return self._pipe

    def stop(self) -> None:
        """Give up the result under way; asked by another thread than the one that waits for it."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the other process."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if process is not None:
            process.kill()
            process.wait()
        if pipe is not None:
            pipe.close()


def _at_home(result: PlanResult, problem: Problem, streams: Streams) -> PlanResult:
    """A result that came from elsewhere, with the problem and the draws of this process."""
    learning: Any = result.learning
    learning._draws, learning.learner = streams, learning.learner.on(problem)
    if result.chooser is not None:
        result.chooser._problem = problem
    return result


def _in_parts(content: Any) -> Parts:
    """A pickle, and apart from it the arrays: copying them would keep the interpreter busy."""
    arrays: list[pickle.PickleBuffer] = []
    parts: Parts = [pickle.dumps(content, protocol=5, buffer_callback=arrays.append)]
    return parts + [array.raw() for array in arrays]


def _whole(parts: Parts) -> Any:
    """The inverse of :func:`_in_parts`."""
    return pickle.loads(parts[0], buffers=parts[1:])


def send(pipe: Connection, parts: Parts) -> None:
    """Some bytes, after their number."""
    pipe.send_bytes(len(parts).to_bytes(8))
    for part in parts:
        pipe.send_bytes(part)


def receive(pipe: Connection) -> Parts:
    """The inverse of :func:`send`; the end of the pipe is an error."""
    count = int.from_bytes(pipe.recv_bytes())
    # Arrays that are made of a part may be written to.
    return [bytearray(pipe.recv_bytes()) for _ in range(count)]


def main(place: int) -> None:
    """Serve until the pipe ends, which is at a descriptor of this process."""
    pipe = Connection(place)
    os.nice(_NICE)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        send(pipe, _THERE)
        while True:
            send(pipe, _answered(receive(pipe)))


def _answered(order: Parts) -> Parts:
    """A result in bytes, or why there is none."""
    try:
        parts = _whole(order)
    except Exception:  # code of the caller that is not to be found here
        return _UNREAD
    try:
        return _in_parts(planned(*parts))
    except Exception:  # met again where it can be told, see above
        return _FAILED
