"""How a run of an audit is played: one target among bystanders, in one of two worlds.

A scenario has two worlds that differ in nothing but the target. It plays the world that it is asked
for through the public interface alone, and gives what an attacker sees of it.
"""

import warnings
from collections.abc import Callable
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from capri.arrays import FloatArray
from capri.audit.attacker import Piece, Play, Reader, ShadowReader, Visit
from capri.audit.proof import Sighting
from capri.audit.run import PrivateRun, RehearsedStage
from capri.epoch.decisions import Decision
from capri.joint.policy import Capri
from capri.spaces import ContextPool

# What is said of bystanders in shadow mode.
_CERTAIN = {"chosen": 0, "chosen_propensity": 1.0}


class Scenario:
    """Two worlds on one stage; called with the world's sign, gives what an attacker sees."""

    # Whether every run has the same plan, so that the released vector itself may be looked at.
    whole = True

    def __init__(self, stage: RehearsedStage, low: Visit, high: Visit) -> None:
        self.stage, self.low, self.high = stage, low, high
        self._usual: list[object] | None = None

    def __call__(self, sign: float) -> Sighting:
        """One run in the world of this sign; a first one in the low world says what is usual."""
        if self._usual is None:
            self._usual = self.once(-1.0)[1]
        play, noticed = self.once(sign)
        return play.sighting(as_usual=noticed == self._usual, whole=self.whole)

    def once(self, sign: float) -> tuple[Play, list[object]]:
        """One run: what came of it, and what others noticed."""
        run = self.begin()
        return self.play(run, self.visit(sign)), run.noticed

    def begin(self) -> PrivateRun:
        """A private run in which nobody has come yet."""
        return PrivateRun(self.stage.begin(), self.stage.reader, self.stage.bystander)

    def visit(self, sign: float) -> Visit:
        """The target's in one of the worlds."""
        return self.high if sign > 0 else self.low

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """One epoch, or one report, of the target."""
        piece, decision = self.attacked(run, visit)
        return Play([piece], self._action(decision) if self._same_context else 0)

    @staticmethod
    def _action(decision: Decision | None) -> int:
        return 0 if decision is None else decision.action_index

    def attacked(
        self, run: PrivateRun, visit: Visit, *, user: str | None = None, last: bool = True
    ) -> tuple[Piece, Decision | None]:
        """What the target's epoch releases; in the local model, what the target reports."""
        reader = run.reader
        if self.stage.local:
            decision = run.act(visit, user)
            return self._reported(run, reader, visit, decision), decision
        seen, own = run.epoch([visit], user=user, last=last)
        return self.piece(reader, seen, own[0]), own[0]

    def _reported(
        self, run: PrivateRun, reader: Reader, visit: Visit, decision: Decision | None
    ) -> Piece:
        """The target's report, which is the first of its epoch: nobody else has come.

        Reports get their noise when their epoch closes: the attacker has it closed at once.
        """
        before = len(run.seen)
        if decision is not None:
            for _ in range(2):
                run.policy.update(decision.id, visit.reward)
            run.policy.close_epoch(early=True)
        reports = run.seen[before : before + 1]
        times = sqrt(len(reports))
        piece = self.piece(reader, reader.nothing, decision)
        seen = sum(reports, piece.seen) / (reader.plan.noise_scale * max(times, 1.0))
        return Piece(seen, piece.low * times, piece.high * times)

    def piece(self, reader: Reader, seen: FloatArray, decision: Decision | None) -> Piece:
        """The attacker knows the drawn action where it says nothing of the world."""
        if self._same_context:
            action = self._action(decision)
            worlds = reader.share(self.low, action), reader.share(self.high, action)
            return Piece(seen, *worlds, reader.norm)
        law = self.stage.law(self.high.context[None])[0]
        worlds = reader.mean_share(self.low, law), reader.mean_share(self.high, law)
        return Piece(seen, *worlds, reader.norm)

    def quiet(self, run: PrivateRun) -> FloatArray:
        """The noise of a release whose users are all known."""
        reader, visit = run.reader, Visit(self.low.context, 0.0)
        piece, decision = self.attacked(run, visit)
        return piece.seen - reader.share(visit, self._action(decision))

    @property
    def _same_context(self) -> bool:
        return self.low.context is self.high.context


class Users(Scenario):
    """A user who comes back once more than allowed, in every epoch and in all."""

    whole = False

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """Epochs until the user has contributed as often as allowed; one, in the local model."""
        limit = self.stage.problem.limit
        assert limit is not None
        targets = [visit] * (limit.per_epoch + 1)
        if self.stage.local:
            return Play([self.attacked(run, each, user="target")[0] for each in targets])
        left, pieces = limit.total, []
        while left:
            counted = min(left, limit.per_epoch)
            left -= counted
            reader = run.reader
            seen, own = run.epoch(targets, user="target", last=not left)
            # The attacker counts on the first visits: those beyond must add nothing.
            shares = [self.piece(reader, seen, decision) for decision in own[:counted]]
            low = np.sum([share.low for share in shares], axis=0)
            high = np.sum([share.high for share in shares], axis=0)
            pieces.append(Piece(seen, low, high, reader.norm))
        return Play(pieces)


class Next(Scenario):
    """The epoch after: rewards that come too late, sums that are not forgotten."""

    whole = False

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """Looks for the target in both epochs: in the second by its plan, and by the first's."""
        piece, decision = self.attacked(run, visit, last=False)
        reader = run.reader
        second, _ = run.epoch([], late=[(decision, visit.reward)])
        again = self.piece(reader, second, decision)
        return Play([piece, again], extra=piece.resized(second).projection)


class Restart(Scenario):
    """A run that is saved when the target has been rewarded, and goes on in two copies."""

    whole = False

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """Looks for the target in what either copy releases."""
        reader, decision = run.reader, run.policy.act(visit.context)
        run.policy.update(decision.id, visit.reward)
        contexts = self.stage.problem.contexts
        with TemporaryDirectory() as folder:
            path = Path(folder) / "policy.capri"
            run.policy.save(path)
            sampler = None if isinstance(contexts, ContextPool) else contexts
            copy = Capri.load(path, contexts=sampler, take_over=True)
        seen, _ = run.epoch([visit], decisions=[decision])
        sibling = PrivateRun(copy, None, self.stage.bystander)
        other, _ = sibling.epoch([])
        run.noticed += sibling.noticed
        return Play([self.piece(reader, each, decision) for each in (seen, other)])


class Offered(Scenario):
    """A target who may get one action alone, another one in either world."""

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """One epoch; what others would be played is theirs, whatever the target may get."""
        reader = run.reader
        seen, _ = run.epoch([visit])
        run.noticed.append(run.policy.probabilities(self.stage.bystander.context[None]).tolist())
        low, high = (reader.share(e, e.given["available"][0]) for e in (self.low, self.high))
        return Play([Piece(seen, low, high, reader.norm)])


class Shadow(Scenario):
    """Another system decides, and says how probable the target's action was."""

    def once(self, sign: float) -> tuple[Play, list[object]]:
        """One run in which nothing teaches: what is released is what the policy would be worth."""
        policy = self.stage.begin()
        policy.set_mode("shadow")
        bystander = Visit(self.low.context, self.stage.bystander.reward, _CERTAIN)
        law = self.stage.law(self.low.context[None])[0]
        reader = ShadowReader(policy.plan(), self.stage.problem, law)
        run = PrivateRun(policy, reader, bystander)
        seen, _ = run.epoch([self.visit(sign)])
        piece = Piece(seen, reader.share(self.low, 0), reader.share(self.high, 0), reader.norm)
        return Play([piece]), run.noticed


class Stored(Scenario):
    """A run on a store: the target comes again with its key, the process ends and another goes on,
    and rewards come again there, also when the epoch is out."""

    whole = False

    def once(self, sign: float) -> tuple[Play, list[object]]:
        """One store in a folder of its own."""
        with TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/store.db"
            run = PrivateRun(self.stage.stored(url), None, self.stage.bystander, stored=True)
            try:
                return self._on(run, url, self.visit(sign)), run.noticed
            finally:
                run.policy.close()

    def _on(self, run: PrivateRun, url: str, visit: Visit) -> Play:
        own = [run.act(visit, key="target") for _ in range(2)]
        for decision in own:
            if decision is not None:
                run.policy.update(decision.id, visit.reward)
        run.policy.close()
        run.goes_on(self.stage.stored(url))
        own += [run.act(visit, key="target")]
        reader = run.reader
        seen, _ = run.epoch([visit] * len(own), decisions=own, last=False)
        return Play([self.piece(reader, seen, own[0])], self._action(own[0]))


class Difference(Scenario):
    """Two releases subtracted, the target in the first alone: noise that is used twice cancels."""

    whole = False

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """Two epochs of one run, or two reports."""
        piece, _ = self.attacked(run, visit, last=False)
        return Play([piece.less(self.quiet(run))])


class Fork(Scenario):
    """Releases of two sibling processes subtracted."""

    whole = False

    def play(self, run: PrivateRun, visit: Visit) -> Play:
        """Each child starts a run of its own: a policy stays in its process."""
        seen, low, high = np.split(in_child(lambda: self._child(visit)), 3)
        noise = in_child(lambda: self.quiet(self.begin()))
        return Play([Piece(seen, low, high, self.stage.reader.norm).less(noise)])

    def _child(self, visit: Visit) -> FloatArray:
        piece, _ = self.attacked(self.begin(), visit)
        return np.concatenate([piece.seen, piece.low, piece.high])


def in_child(compute: Callable[[], FloatArray]) -> FloatArray:
    """Run in a forked child and bring the array back."""
    forks = get_context("fork")
    here, there = forks.Pipe(duplex=False)
    child = forks.Process(target=lambda: there.send(compute()))
    with warnings.catch_warnings():
        # Newer Pythons warn of forking with threads; the child only computes and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    there.close()
    try:
        return np.asarray(here.recv())
    except EOFError:
        raise RuntimeError("the forked half of the audit failed") from None
    finally:
        child.join()
