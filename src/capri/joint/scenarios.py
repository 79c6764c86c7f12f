"""What two worlds may differ in: the scenarios that an audit plays.

One target comes among bystanders, in one of two worlds that differ in nothing but the target; then
the attacker looks for it in everything public.
"""

from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.decide import Decision
from capri.joint.attacker import Piece, Play, Reader, ShadowReader, Visit
from capri.joint.policy import Capri
from capri.joint.stage import Run, Stage
from capri.privacy.attack import Sighting, in_child
from capri.spaces import ContextPool

# What is said of bystanders in shadow mode, and of a target whose weight is the largest there is.
_CERTAIN = {"chosen": 0, "chosen_propensity": 1.0}
RARE = {"chosen": 0, "chosen_propensity": 1e-9}


class Scenario:
    """Two worlds on one stage; called with the world's sign, gives what an attacker sees."""

    # Whether every run has the same plan, so that the released vector itself may be looked at.
    whole = True

    def __init__(self, stage: Stage, low: Visit, high: Visit) -> None:
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
        run = Run(self.stage.begin(), self.stage.reader, self.stage.bystander)
        return self.play(run, self.high if sign > 0 else self.low), run.noticed

    def play(self, run: Run, visit: Visit) -> Play:
        """One epoch, or one report, of the target."""
        piece, decision = self.attacked(run, visit)
        return Play([piece], self._action(decision) if self._same_context else 0)

    @staticmethod
    def _action(decision: Decision | None) -> int:
        return 0 if decision is None else decision.action_index

    def attacked(
        self, run: Run, visit: Visit, *, user: str | None = None, last: bool = True
    ) -> tuple[Piece, Decision | None]:
        """What the target's epoch releases; in the local model, what the target reports."""
        reader = run.reader
        if self.stage.local:
            decision = run.act(visit, user)
            return self._reported(run, reader, visit, decision, user), decision
        seen, own = run.epoch([visit], user=user, last=last)
        return self.piece(reader, seen, own[0]), own[0]

    def _reported(
        self,
        run: Run,
        reader: Reader,
        visit: Visit,
        decision: Decision | None,
        user: str | None,
    ) -> Piece:
        """The target's report, which is the first of its epoch: nobody else has come yet."""
        before = len(run.seen)
        run.epoch([visit], decisions=[decision], user=user, last=False)
        reports = run.seen[before : before + (decision is not None)]
        times = sqrt(len(reports))
        piece = self.piece(reader, reader.nothing, decision)
        seen = sum(reports, piece.seen) / (reader.plan.noise_scale * max(times, 1.0))
        return Piece(seen, piece.low * times, piece.high * times)

    def piece(self, reader: Reader, seen: FloatArray, decision: Decision | None) -> Piece:
        """The attacker knows the drawn action where it says nothing of the world."""
        if self._same_context:
            action = self._action(decision)
            return Piece(seen, reader.share(self.low, action), reader.share(self.high, action))
        law = self.stage.law(self.high.context[None])[0]
        return Piece(seen, reader.mean_share(self.low, law), reader.mean_share(self.high, law))

    @property
    def _same_context(self) -> bool:
        return self.low.context is self.high.context


class Users(Scenario):
    """A user who comes back once more than allowed, in every epoch and in all."""

    whole = False

    def play(self, run: Run, visit: Visit) -> Play:
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
            pieces.append(Piece(seen, low, np.sum([share.high for share in shares], axis=0)))
        return Play(pieces)


class Next(Scenario):
    """The epoch after: rewards that come too late, sums that are not forgotten."""

    whole = False

    def play(self, run: Run, visit: Visit) -> Play:
        """Looks for the target in both epochs: in the second by its plan, and by the first's."""
        piece, decision = self.attacked(run, visit, last=False)
        reader = run.reader
        second, _ = run.epoch([], late=[(decision, visit.reward)])
        again = self.piece(reader, second, decision)
        return Play([piece, again], extra=piece.resized(second).projection)


class Restart(Scenario):
    """A run that is saved when the target has been rewarded, and goes on in two copies."""

    whole = False

    def play(self, run: Run, visit: Visit) -> Play:
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
        sibling = Run(copy, None, self.stage.bystander)
        other, _ = sibling.epoch([])
        run.noticed += sibling.noticed
        return Play([self.piece(reader, each, decision) for each in (seen, other)])


class Sets(Scenario):
    """A target who may get one action alone, another one in either world."""

    def play(self, run: Run, visit: Visit) -> Play:
        """One epoch; what others would be played is theirs, whatever the target may get."""
        reader = run.reader
        seen, _ = run.epoch([visit])
        run.noticed.append(run.policy.probabilities(self.stage.bystander.context[None]).tolist())
        worlds = self.low, self.high
        return Play([Piece(seen, *(reader.share(e, e.given["available"][0]) for e in worlds))])


class Shadow(Scenario):
    """Another system decides, and says how probable the target's action was."""

    def once(self, sign: float) -> tuple[Play, list[object]]:
        """One run in which nothing teaches: what is released is what the policy would be worth."""
        policy, visit = self.stage.begin(), self.high if sign > 0 else self.low
        policy.set_mode("shadow")
        bystander = Visit(self.low.context, self.stage.bystander.reward, _CERTAIN)
        law = self.stage.law(self.low.context[None])[0]
        reader = ShadowReader(policy.plan(), self.stage.problem, law)
        run = Run(policy, reader, bystander)
        seen, _ = run.epoch([visit])
        piece = Piece(seen, reader.share(self.low, 0), reader.share(self.high, 0))
        return Play([piece]), run.noticed


class Stored(Scenario):
    """A run on a store: the target comes again with its key, the process ends and another goes on,
    and rewards come again there, also when the epoch is out."""

    whole = False

    def once(self, sign: float) -> tuple[Play, list[object]]:
        """One store in a folder of its own."""
        with TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/store.db"
            run = Run(self.stage.stored(url), None, self.stage.bystander)
            try:
                return self._on(run, url, self.high if sign > 0 else self.low), run.noticed
            finally:
                run.policy.close()

    def _on(self, run: Run, url: str, visit: Visit) -> Play:
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

    def play(self, run: Run, visit: Visit) -> Play:
        """Two epochs of one run, or two reports."""
        piece, _ = self.attacked(run, visit, last=False)
        return self.apart(piece, self.quiet(run))

    def quiet(self, run: Run) -> FloatArray:
        """The noise of a release whose users are all known."""
        reader, visit = run.reader, Visit(self.low.context, 0.0)
        piece, decision = self.attacked(run, visit)
        return piece.seen - reader.share(visit, self._action(decision))

    @staticmethod
    def apart(piece: Piece, noise: FloatArray) -> Play:
        """``(x - x') / sqrt 2`` in the coordinates of both: noise of the same width again."""
        size = min(len(noise), len(piece.seen))
        parts = piece.seen[:size] - noise[:size], piece.low[:size], piece.high[:size]
        return Play([Piece(*(part / sqrt(2) for part in parts))])


class Fork(Difference):
    """Releases of two sibling processes subtracted."""

    def play(self, run: Run, visit: Visit) -> Play:
        """Each child starts a run of its own: a policy stays in its process."""
        parts = np.split(in_child(lambda: self._child(visit)), 3)
        noise = in_child(lambda: self.quiet(self._own_run()))
        return self.apart(Piece(*parts), noise)

    def _child(self, visit: Visit) -> FloatArray:
        piece, _ = self.attacked(self._own_run(), visit)
        return np.concatenate([piece.seen, piece.low, piece.high])

    def _own_run(self) -> Run:
        return Run(self.stage.begin(), self.stage.reader, self.stage.bystander)
