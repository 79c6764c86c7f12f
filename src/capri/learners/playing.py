"""Playing by a public law: what every practical learner does alike."""

from dataclasses import replace

import numpy as np

from capri.arrays import BoolArray, FloatArray
from capri.epoch import play
from capri.epoch.learner import Learner
from capri.epoch.prices import priced
from capri.epoch.problem import Problem
from capri.learners.belief import Belief
from capri.learners.reading import Leg
from capri.learners.support import Stage

# Laws of up to so many pairs are kept with their leg: 2 MB each.
_KEPT_LAW = 1 << 18
# Contexts of a sampler on which shares are priced.
_PRICED_CONTEXTS = 512


class PlayingLearner(Learner):
    """Holds the conduct of the open epoch, and the contexts that the coming one is planned on."""

    _problem: Problem
    _conduct: play.Conduct
    _stage: Stage
    _belief: Belief
    # The legs of every epoch that is planned and not yet read; only the newest takes decisions.
    _flights: dict[int, tuple[Leg, ...]]

    def conduct(self) -> play.Conduct:
        """The law of the open epoch."""
        return self._conduct

    def active(self, contexts: FloatArray) -> BoolArray:
        """Every action: nothing is ruled out for good."""
        return np.ones((len(contexts), self._problem.actions.count), dtype=np.bool_)

    def probabilities(self, contexts: FloatArray, available: BoolArray | None = None) -> FloatArray:
        """The law of the open epoch."""
        return self._conduct.probabilities(contexts, available)

    def _conducted(self, law: play.Law) -> play.Conduct:
        """A law within the limits of the problem."""
        problem = self._problem
        conduct = play.Conduct(problem.actions, law, problem.bounds)
        if problem.bounds is None or problem.bounds.shares is None:
            return conduct
        public = np.random.default_rng(0)  # no draw of others moves
        return priced(conduct, *problem.contexts.support(public, _PRICED_CONTEXTS))

    def _stage_law(self) -> FloatArray:
        """The law at the contexts the coming epoch is planned on, computed once."""
        law = self._stage.law
        if law is None:
            law = self._conduct.expected(self._stage.contexts)
            self._stage = replace(self._stage, law=law)
        return law

    def pool_law(self) -> FloatArray | None:
        """The law for every context of a pool that fits in a table.

        None where the plan expects sets of available actions: it is another law without them.
        """
        bounds = self._conduct.bounds
        expects = bounds is not None and bounds.masks is not None
        return self._stage_law() if self._stage.is_pool and not expects else None

    # -- epochs that are not read yet -------------------------------------------------------------

    def _leg(self, baseline: FloatArray, value_bound: float) -> Leg:
        """A segment that plays the law of now."""
        law, stage = self._stage_law(), self._stage
        if law.size > _KEPT_LAW:
            stage = replace(stage, law=None)  # computed again when the release is read
        return Leg(self._conduct, stage, baseline, value_bound, self._belief.epochs)

    def keep(self, epoch: int | None) -> None:
        """Await nothing of epochs that are lost, and of this one only what is still to come."""
        legs = self._flights.get(epoch or 0, ())
        lost = tuple(replace(leg, design=None, promised=None) for leg in legs)
        self._flights = {epoch: lost} if epoch is not None and lost else {}

    def drop(self, epoch: int) -> None:
        """Forget the legs of an epoch that will never be released."""
        self._flights = {number: legs for number, legs in self._flights.items() if number != epoch}
