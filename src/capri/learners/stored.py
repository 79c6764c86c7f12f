"""A practical learner as JSON values and arrays, and back: everything here is public."""

from abc import abstractmethod
from dataclasses import asdict, replace
from typing import Any

from capri.arrays import FloatArray
from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.storage import below, named
from capri.learners.belief import Belief, Squares
from capri.learners.changing import ChangingLearner
from capri.learners.codec import (
    apart,
    flights_from,
    flights_state,
    response_from,
    response_state,
    stage_arrays,
    stage_from,
)
from capri.learners.drift import Drift
from capri.learners.fit import Fit
from capri.learners.overdispersion import Crowds
from capri.learners.response import Response
from capri.learners.start import HeadStart
from capri.learners.watch import Rates


class StoredLearner(ChangingLearner):
    """Goes on where it was stored, to the bit."""

    @abstractmethod
    def _own_state(self) -> State:
        """Coordinates, and what is believed of them before any release."""

    @abstractmethod
    def _restore_own(
        self, values: dict[str, Any], arrays: dict[str, FloatArray]
    ) -> FloatArray | None:
        """The inverse of :meth:`_own_state`; the weights of candidates."""

    def state(self) -> State:
        """Basis, belief, law, and the legs of epochs that are not read yet."""
        values, arrays = self._own_state()
        values["belief"], belief = apart("belief", self._belief)
        values["stage"] = {"is_pool": self._stage.is_pool}
        conduct_values, conduct = self._conduct.state()
        arrays |= belief | conduct | stage_arrays(self._stage)
        arrays |= apart("crowds", self._crowds)[1]
        values["squares"], squares = apart("squares", self._squares)
        values["flights"], flights = flights_state(self._flights)
        arrays |= squares | flights
        if self._problem.rewards.measured:
            answers, response = response_state(self._response)
            values |= answers | {"rates": asdict(self._rates)}
            arrays |= response
        if self._head is not None:
            values["doubt"] = self._posterior.doubt
            arrays |= named("head", vars(self._head)) | named("mixed", self._posterior.parts)
        values |= {"fit": asdict(self._fit), "drift": asdict(self._drift)}
        return values | conduct_values, arrays

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
        values, arrays = state
        problem, weights = self._problem, self._restore_own(values, arrays)
        self._belief = Belief(**below("belief", arrays), **values["belief"])
        self._posterior = self._prior.again(self._belief, weights)
        if "doubt" in values:  # something was known before the first user
            self._head, doubt = HeadStart(**below("head", arrays)), values["doubt"]
            self._posterior = self._prior.again(self._head.added(self._belief, doubt), weights)
            self._posterior = replace(self._posterior, doubt=doubt, **below("mixed", arrays))
        self._crowds = Crowds(**below("crowds", arrays))
        self._squares = Squares(**below("squares", arrays), **values["squares"])
        self._fit, self._drift = Fit(**values["fit"]), Drift(**values["drift"])
        self._conduct = play.Conduct.from_state(
            values, arrays, self._basis, problem.actions
        ).within(problem.bounds)
        self._stage = stage_from(problem, values["stage"], arrays)
        self._flights = flights_from(values["flights"], arrays, problem, self._basis)
        self._response, self._rates = Response.unknown(*self._belief.vector.shape), Rates()
        if "response" in values:
            self._response = response_from(values, arrays)
            self._rates = Rates(**values["rates"])
