"""Playing by a public law: what every practical learner does alike."""

from dataclasses import replace

from capri.arrays import BoolArray, FloatArray
from capri.epoch import play
from capri.epoch.learner import Learner
from capri.learners.support import Stage


class PlayingLearner(Learner):
    """Holds the conduct of the open epoch, and the contexts that the coming one is planned on."""

    _conduct: play.Conduct
    _stage: Stage

    def conduct(self) -> play.Conduct:
        """The law of the open epoch and the tests in force."""
        return self._conduct

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that no test has ruled out."""
        return self._conduct.active(contexts)

    def probabilities(self, contexts: FloatArray) -> FloatArray:
        """The law of the open epoch."""
        return self._conduct.probabilities(contexts)

    def _stage_law(self) -> FloatArray:
        """The law at the contexts the coming epoch is planned on, computed once."""
        law = self._stage.law
        if law is None:
            law = self.probabilities(self._stage.contexts)
            self._stage = replace(self._stage, law=law)
        return law

    def pool_law(self) -> FloatArray | None:
        """The law for every context of a pool that fits in a table."""
        return self._stage_law() if self._stage.is_pool else None
