"""What may be asked of a curator's policy: its promise, its certificate, its configuration."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Self

from capri.epoch.course import PublicFace
from capri.epoch.digests import configuration_digest
from capri.epoch.scale import rescaled
from capri.epoch.storage import problem_state
from capri.errors import BudgetError, ConfigurationError
from capri.forecast.result import Forecast
from capri.forecast.run import forecast
from capri.learners.explain import explain
from capri.learners.explanation import Explanation
from capri.learners.presets import Options
from capri.learners.start import Observed, Prior
from capri.learners.start.releases import releases_prior
from capri.privacy.certificate import Certificate, certify_policy
from capri.privacy.gate import Gate
from capri.privacy.ledger import Ledger
from capri.privacy.promise import NOTHING, PrivacyModel, Promise
from capri.privacy.randomness import Streams


class Configured(PublicFace):
    """The public side of :class:`capri.Capri`: nothing here knows of the open epoch."""

    _preset: str
    _options: Options
    _blocks: bool | None  # as it was asked for
    _observed: Observed | None  # what is known beforehand
    _streams: Streams
    _ledger: Ledger | None
    _gate: Gate

    @property
    def guarantee(self) -> str:
        """In one line, what this policy promises to its users."""
        budget = self._problem.budget
        if budget is None:
            return "no privacy: runs without noise"
        promise = f"({budget.epsilon:g}, {budget.delta:g})-{self._problem.model} privacy"
        if self._problem.model is PrivacyModel.LOCAL:
            promise += " of reports"
        if self._streams.simulated:
            return f"simulation of {promise}: seeded noise, no privacy claim"
        return promise

    @property
    def promise(self) -> Promise:
        """What a user is promised, to be compared; nothing for a run without budget."""
        if self._problem.budget is None:
            return NOTHING
        unit = "one round" if self._problem.limit is None else "one user"
        return Promise(model=self.model.value, kind="approximate", unit=unit)

    @property
    def model(self) -> PrivacyModel:
        """Joint or local."""
        return self._problem.model

    @property
    def private(self) -> bool:
        """Whether users are really protected: a budget, and noise that nobody can reproduce."""
        return self._gate.private

    @property
    def ledger(self) -> Ledger:
        """What was spent, by whom, under which model."""
        if self._ledger is None:
            raise BudgetError("this policy runs without privacy (budget=None): it has no ledger")
        return self._ledger

    def terms(self) -> dict[str, Any] | None:
        """What a private run of this configuration certifies; None without a budget.

        Without what was spent and released, and hence no claim about this run.
        """
        if self._ledger is None:
            return None
        return self._certify(private=True, accounted=False).terms()

    def _certify(self, **wanted: Any) -> Certificate:
        wanted = {"private": not self._streams.simulated} | wanted
        return certify_policy(
            model=self._problem.model,
            limit=self._problem.limit,
            composition=self._problem.composition,
            ledger=self._ledger,
            **wanted,
        )

    def _configuration(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it was built from, as its file says it."""
        values, arrays = problem_state(self._problem)
        configuration: dict[str, Any] = {
            "problem": values,
            "horizon": self._horizon,
            "preset": self._preset,
            "options": asdict(self._options),
        }
        if self._observed is not None:
            configuration["prior"], told = self._observed.state()
            arrays |= told
        return configuration, arrays

    @property
    def preset(self) -> str:
        """The preset it was built from."""
        return self._preset

    @property
    def options(self) -> Options:
        """The choices of its preset."""
        return self._options

    def again(self, **changes: Any) -> Self:
        """A fresh policy of the same configuration, with some arguments changed.

        Nothing that this one has learnt goes with it.
        """
        if self._streams.simulated and "simulation_seed" not in changes:
            raise ConfigurationError(
                "a simulation is played again with a seed: give simulation_seed, or None for a "
                "private run"
            )
        limit = self._problem.limit
        settings: dict[str, Any] = {
            "kernel": self._problem.kernel,
            "actions": self._problem.actions,
            "contexts": self._problem.contexts,
            "budget": self._problem.budget,
            "horizon": self._horizon,
            **self._problem.scale.arguments(),
            "model": str(self._problem.model),
            "preset": self._preset,
            "contributions_per_user": None if limit is None else limit.total,
            "contributions_per_epoch": None if limit is None else limit.per_epoch,
            "limits": self._problem.limits,
            "prior": self._observed,
            **self._problem.rewards.arguments(),
            **asdict(self._options),
        }
        if "blocks" in settings:  # as it was asked for: other actions may need the other learner
            settings["blocks"] = self._blocks
        return type(self)(**rescaled(settings, changes))

    def as_prior(self) -> Prior:
        """What its releases say, for ``prior=`` of another policy: post-processing of them.

        What this one was told beforehand does not go along: tell it to the other one yourself.
        """
        with self._lock:
            budget = None if self._streams.simulated else self._problem.budget
            digest = configuration_digest(*self._configuration())
            return releases_prior(self._course, budget, digest)

    def explain(self) -> Explanation:
        """What the releases made it believe: kernels, effects, columns that matter, noise.

        From public things alone, so it costs nothing and changes nothing.
        """
        with self._lock:
            return explain(self._course.learner)

    def forecast(
        self,
        *,
        horizons: Sequence[int] = (1_000, 10_000, 100_000),
        epsilons: Sequence[float] | None = None,
        functions: int = 10,
        noise: float = 0.1,
        seed: int = 0,
        kinds: Sequence[str] | None = None,
        compare: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Forecast:
        """What to expect of this configuration, from play against random functions.

        Touches neither users nor this policy. See :func:`capri.forecast.forecast`.
        """
        return forecast(
            self,
            horizons=horizons,
            epsilons=epsilons,
            functions=functions,
            noise=noise,
            seed=seed,
            kinds=kinds,
            compare=compare,
            progress=progress,
        )
