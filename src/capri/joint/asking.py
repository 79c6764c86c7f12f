"""What anybody may ask of a curator's policy: its promise, its account, what it believes."""

from threading import RLock
from typing import TYPE_CHECKING, Any, Self

from capri.epoch.problem import Problem
from capri.epoch.rewards import rescaled
from capri.epoch.storage import configuration_digest
from capri.errors import BudgetError, ConfigurationError
from capri.learners.crowd_report import CrowdReport, crowd_report
from capri.learners.explain import explain
from capri.learners.explanation import Explanation
from capri.learners.learner import PracticalLearner
from capri.learners.lift import Lift, lifts
from capri.learners.presets import Options, releases_prior
from capri.learners.prior import Prior
from capri.privacy.budget import NOTHING, PrivacyModel, Promise
from capri.privacy.certificate import Certificate, certify_policy
from capri.privacy.gate import Gate
from capri.privacy.layout import Norm
from capri.privacy.ledger import Ledger
from capri.store.persistence import Configuration
from capri.streams import Streams

if TYPE_CHECKING:
    from capri.forecast.result import Forecast
    from capri.joint.engine import Engine


class Asking:
    """The public side of :class:`capri.Capri`: nothing here knows of users."""

    _engine: "Engine"
    _configured: Configuration
    _streams: Streams
    _gate: Gate
    _ledger: Ledger | None
    _stored: bool
    _lock: RLock

    @property
    def problem(self) -> Problem:
        """Spaces, bounds and the promise; its actions may be new."""
        return self._engine.learning.learner.problem

    def _certify(self, **wanted: Any) -> Certificate:
        wanted = {"private": not self._streams.simulated} | wanted
        return certify_policy(
            model=self.problem.model,
            limit=self.problem.limit,
            composition=self.problem.composition,
            ledger=self._ledger,
            norms=(Norm.L2,) if self.preset == "paper" else self.problem.norms,
            **wanted,
        )

    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""
        return self._configured.described(self.problem)

    @property
    def horizon(self) -> int | None:
        """Decisions there may be; None for any number."""
        return self._configured.now(self._engine.state.latest(self._engine.state.view)).horizon

    @property
    def preset(self) -> str:
        """The preset it was built from."""
        return self._configured.preset

    @property
    def options(self) -> Options:
        """The choices of its preset."""
        return self._configured.now(self.problem).options

    @property
    def stored(self) -> bool:
        """Whether every answer is kept in a store before it is given."""
        return self._stored

    @property
    def guarantee(self) -> str:
        """In one line, what this policy promises to its users."""
        budget, model = self.problem.budget, self.model
        if budget is None:
            return "no privacy: runs without noise"
        promise = f"({budget.epsilon:g}, {budget.delta:g})-{model} privacy"
        if model is PrivacyModel.LOCAL:
            promise += " of reports"
        simulated = self._streams.simulated
        return f"simulation of {promise}: seeded noise, no privacy claim" if simulated else promise

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared; nothing for a run without budget."""
        if self.problem.budget is None:
            return NOTHING
        unit = "one round" if self.problem.limit is None else "one user"
        return Promise(model=self.model.value, kind="approximate", unit=unit)

    @property
    def model(self) -> PrivacyModel:
        """Joint or local."""
        return self.problem.model

    @property
    def private(self) -> bool:
        """Whether users are really protected: a budget, and noise that nobody can reproduce."""
        return self._gate.private

    @property
    def ledger(self) -> Ledger:
        """What was spent, by whom, under which model; by all processes of the store."""
        if self._ledger is None:
            raise BudgetError("this policy runs without privacy (budget=None): it has no ledger")
        self._engine.refresh()
        return self._ledger

    def terms(self) -> dict[str, Any] | None:
        """What a private run of this configuration certifies; None without a budget.

        Without what was spent and released, and hence no claim about this run.
        """
        if self._ledger is None:
            return None
        return self._certify(private=True, accounted=False).terms()

    def again(self, **changes: Any) -> Self:
        """A fresh policy of the same configuration, with some arguments changed.

        Nothing that this one has learnt goes with it.
        """
        if self._streams.simulated and "simulation_seed" not in changes:
            raise ConfigurationError(
                "a simulation is played again with a seed: give simulation_seed, or None for a "
                "private run"
            )
        return type(self)(**rescaled(self._configured.settings(self.problem), changes))

    def as_prior(self) -> Prior:
        """What its releases say, for ``prior=`` of another policy: post-processing of them.

        What this one was told beforehand does not go along: tell it to the other one yourself.
        """
        with self._lock:
            budget = None if self._streams.simulated else self.problem.budget
            digest = configuration_digest(*self._configuration())
            return releases_prior(self._engine.learning, budget, digest)

    def explain(self) -> Explanation:
        """What the releases made it believe: kernels, effects, columns that matter, noise.

        From public things alone, so it costs nothing and changes nothing.
        """
        with self._lock:
            return explain(self._engine.learning.learner)

    def crowd(self) -> CrowdReport:
        """Who comes, as learnt in private where nothing was public but ranges.

        Shares, middles and dependence of the columns with their errors: from releases alone.
        """
        with self._lock:
            learner = self._engine.learning.learner
            if not isinstance(learner, PracticalLearner):
                raise ConfigurationError("who comes is learnt by preset='practical' alone")
            return crowd_report(learner.known.crowd)

    @property
    def dates(self) -> dict[int, float]:
        """When each epoch of a store was due, in seconds since 1970, as far as that is known."""
        columns = ("number", "due")
        rows = self._engine.repository.read(lambda unit: unit.select("epochs", columns))
        return {number: due for number, due in rows if due is not None}

    def lifts(self, control: str | None = None) -> tuple[Lift, ...]:
        """What the law of now earns beyond uniform play, the best fixed action and ``control``.

        ``control``: the name of the action that was played before. From public things alone.
        """
        with self._lock:
            return lifts(self._engine.learning.learner, control)

    def forecast(self, **asked: Any) -> "Forecast":
        """What to expect of this configuration, from play against random functions.

        Touches neither users nor this policy. See :func:`capri.forecast.forecast` for what it
        takes, such as ``horizons``, ``epsilons`` and ``functions``.
        """
        from capri.forecast.run import forecast

        return forecast(self, **asked)
