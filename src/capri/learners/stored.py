"""A practical learner as JSON values and arrays, and back: everything here is public."""

from dataclasses import asdict, replace
from typing import Any

from capri.epoch import play
from capri.epoch.learner import State
from capri.epoch.storage import below, named
from capri.learners.active import Rehearsal
from capri.learners.belief import Belief
from capri.learners.catalogue import Catalogue
from capri.learners.crowds import Crowds
from capri.learners.drift import Drift
from capri.learners.guards.fit import Fit
from capri.learners.guards.pool import Comers
from capri.learners.guards.wait import Rates
from capri.learners.kept import (
    apart,
    design_from,
    flights_from,
    flights_state,
    prior_from,
    prior_state,
    response_from,
    response_state,
    stage_arrays,
    stage_from,
)
from capri.learners.law import ContextLaw
from capri.learners.response import Response
from capri.learners.squares import Squares
from capri.learners.start import HeadStart
from capri.learners.whereabouts import Reach


class StoredLearner(Catalogue):
    """Goes on where it was stored, to the bit."""

    _rates: Rates
    _context_law: ContextLaw
    _comers: Comers

    def state(self) -> State:
        """Basis, belief, law, and the legs of epochs that are not read yet."""
        plain, belief = apart("belief", self._belief)
        values: dict[str, Any] = {"belief": plain, "stage": {"is_pool": self._stage.is_pool}}
        _, rehearsal = apart("rehearsal", self._rehearsal)
        conduct_values, conduct = self._conduct.state()
        prior, arrays = prior_state(self._basis, self._prior, self._posterior)
        values |= prior
        arrays |= rehearsal | belief | conduct | stage_arrays(self._stage)
        arrays |= apart("crowds", self._crowds)[1]
        values["squares"], squares = apart("squares", self._squares)
        if not self._squares.cut_weight:  # said where tails are pooled, as before they were
            values["squares"] = {
                name: each for name, each in values["squares"].items() if name[:3] != "cut"
            }
        arrays |= squares
        values["flights"], flights = flights_state(self._flights)
        arrays |= flights
        if self._problem.rewards.measured:
            answers, response = response_state(self._response)
            values |= answers
            arrays |= response
            values["rates"] = asdict(self._rates)
        values["fit"] = asdict(self._fit)
        if self._head is not None:
            values["doubt"] = self._posterior.doubt
            arrays |= named("head", vars(self._head))
            arrays |= named(
                "mixed", {"mean": self._posterior.mean, "factor": self._posterior.factor}
            )
        if self._problem.sends_products:
            values["context_law"], law = self._context_law.state()
            values["comers"] = asdict(self._comers)
            arrays |= named("context_law", law)
        values["drift"] = asdict(self._drift)
        return values | conduct_values, arrays

    def restore(self, state: State) -> None:
        """Go on from :meth:`state`."""
        values, arrays = state
        problem = self._problem
        self._basis, self._prior, weights = prior_from(problem, self._prior, values, arrays)
        self._rehearsal = Rehearsal(**below("rehearsal", arrays))
        self._belief = Belief(**below("belief", arrays), **values["belief"])
        self._posterior = self._prior.again(self._belief, weights)
        if "doubt" in values:  # something was known before the first user
            self._head, doubt = HeadStart(**below("head", arrays)), values["doubt"]
            self._posterior = self._prior.again(self._head.added(self._belief, doubt), weights)
            self._posterior = replace(self._posterior, doubt=doubt, **below("mixed", arrays))
        if "squares" in values:
            self._crowds = Crowds(**below("crowds", arrays))
            self._squares = Squares(**below("squares", arrays), **values["squares"])
        else:  # a file from before they were kept
            self._crowds = Crowds.of(self._belief)
            self._squares = Squares.of(self._belief, self._posterior)
        self._conduct = play.Conduct.from_state(
            values, arrays, self._basis, problem.actions
        ).within(problem.bounds)
        self._stage = stage_from(problem, values["stage"], arrays)
        self._fit = Fit(**values.get("fit", {}))  # nothing in files from before it was kept
        self._rates = Rates(**values.get("rates", {}))
        if "context_law" in values:
            self._context_law = ContextLaw.from_state(
                values["context_law"], below("context_law", arrays)
            )
            comers = values["comers"]
            self._comers = Comers(**comers | {"fit": Fit(**comers["fit"])})
        else:  # a file from before the law was learnt, or a model that does not learn it
            self._context_law = ContextLaw.trusting(Reach.of(problem))
            self._comers = Comers()
        self._drift = Drift(**values.get("drift", {}))
        self._watch = self._watched()
        if "flights" in values:
            self._flights = flights_from(values["flights"], arrays, problem, self._basis)
        else:  # a file from before epochs overlapped: the design of the one that is open
            self._flights = {}
            if values["design"] is not None:
                design = design_from(values["design"], arrays)
                leg = self._leg(design.observation.baseline, design.value_bound)
                self._flights[self._belief.epochs + 1] = (replace(leg, design=design),)
        if "response" in values:
            self._response = response_from(values, arrays)
        else:
            self._response = Response.unknown(self._basis.rank)
