"""The curator: decides, collects rewards, and lets one noisy vector per epoch out of the gate."""

import os
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta
from os import PathLike
from threading import RLock
from typing import Any, Self

from capri.arrays import one_blas_thread
from capri.epoch.decisions import DecisionIds
from capri.epoch.learning_loop import LearningLoop, PublicFace
from capri.epoch.limits import Limits
from capri.epoch.plan import Epochs
from capri.epoch.problem import Problem, checked_problem
from capri.epoch.rewards import checked_scale, checked_terms
from capri.epoch.storage import damage_as_storage_error
from capri.errors import ConfigurationError
from capri.joint.asking import Asking
from capri.joint.engine import (
    Engine,
    RepositoryUsers,
    checked_retention,
    in_memory,
    public_clock,
    shut,
)
from capri.joint.serving import Serving
from capri.kernels import Kernel
from capri.learners.presets import build, checked_horizon, checked_options, settled
from capri.learners.prior import Prior, checked_prior
from capri.privacy.budget import Budget, UserLimit
from capri.privacy.certificate import Certificate, Declaration
from capri.privacy.gate import Gate, Observer, noise_source
from capri.privacy.ledger import Ledger
from capri.spaces import Contexts
from capri.store.memory import MemoryRepository, rehearsed
from capri.store.organisation import OrganisationLedger
from capri.store.persistence import (
    Configuration,
    load_policy,
    open_store,
    save_policy,
    stored_settings,
)
from capri.store.repository import Repository
from capri.store.reservation import Reservation, joined
from capri.store.rollback import History
from capri.streams import Streams


class Capri(Asking, Serving, PublicFace):
    """A differentially private contextual kernel bandit.

    Parameters
    ----------
    kernel:
        Kernel on pairs (context, action), with ``k(w, w) <= 1``; "auto", the default, weighs a
        family of kernels by the releases.
    actions:
        Feature rows of the actions, ``(n_actions, d)``; names or a number, for actions that have
        nothing to do with each other; a table whose column ``name`` names them; or
        :class:`VaryingActions` where every context brings its own.
    contexts:
        The public law of contexts: a :class:`ContextPool` or a :class:`ContextSampler`. With a
        :class:`Schema` in it, contexts are records with named columns.
    reward_bound:
        ``B``, 1 by default: rewards beyond ``[-B, B]`` are clipped. Also the bound on the RKHS norm
        of ``f``. It is the short form of ``reward_range=(-B, B)``.
    reward_range:
        ``(low, high)``: rewards beyond are clipped. The privacy noise goes with its width, so give
        the range that is needed: ``(0, 1)`` for clicks has half the noise of ``reward_bound=1``.
    reward_transform:
        "log1p" or "sqrt": rewards are clipped to their range and learnt by this public transform,
        for counts and durations. Estimates are then of the transformed reward.
    budget:
        What each user is promised, or None to run without privacy.
    horizon:
        Number of decisions. None for a run without end, which preset "paper" cannot do.
    model:
        "joint": a trusted curator adds noise once per epoch. "local", of preset "paper" alone:
        noise is added to every single report before it is summed. This class sees contexts and
        rewards either way; where nobody is trusted, :class:`~capri.LocalCapri` takes its place.
    preset:
        "practical", which learns at horizons people run, or "paper", Algorithm 1 with its printed
        constants.
    contributions_per_user, contributions_per_epoch:
        None: each user comes once, no ids are kept. A number: users carry ids, contribute at most
        so often in all and per epoch (once by default), and the noise covers all of a user's
        contributions together.
    reward_wait:
        How long an epoch that has taken its decisions stays open for rewards while later epochs
        already play: a number of decisions, or a :class:`datetime.timedelta`. Rewards that come
        later are lost.
    missing_reward:
        What a reward that never comes counts as: a number, or "as-estimated" for what the last
        estimate expected; the rate of rewards that come is then measured in private.
    reward_rule:
        What several rewards for one decision make together: "first", "last", "sum" or "max". All
        but the first need a key with every reward; the same key counts once.
    epoch_time:
        An epoch also ends when this much time has passed since its first decision.
    clock:
        The public clock, a function without arguments that gives a :class:`datetime.datetime`.
    store:
        None: the policy lives in the memory of this process. "sqlite:///file.db" or
        "postgresql://...": what was answered is durable, and any number of processes that open the
        same store are one policy. See :meth:`open` and :meth:`close`.
    store_key:
        32 bytes that seal the secret columns of the store, kept elsewhere.
    key_retention:
        How long the decision of a key is kept; None for the wait plus 30 days.
    after:
        A certificate of this store: a copy of the store that is older is refused.
    limits:
        Public :class:`Limits` that every decision keeps: floors, ceilings and shares of actions,
        rules on who is offered them, and which sets of available actions are to be expected.
    rollback_guard:
        Where, outside of the store, is noted how far it has come: a file, or the address of another
        database. An older copy of the store is then refused by every process and machine.
    new_rollback_guard:
        The guard may know nothing of a store that has published something. Else it is refused: it
        may be the wrong one, or lost. Give it once, if the store is certainly the newest copy.
    prior:
        What is known beforehand, a :class:`Prior`: public rows, a fitted model, another policy's
        releases. Believed as far as releases bear it out.
    ledger, population:
        An :class:`OrganisationLedger`, or its address, and the name of a population there: what
        this policy may cost a person is reserved beside all else that is done with these people.
    simulation_seed:
        None for a private run on operating-system entropy. A number makes a reproducible
        simulation, which carries no privacy claim.
    options:
        What the preset leaves open, as keywords: see :class:`~capri.PracticalOptions` and
        :class:`~capri.PaperOptions`.
    """

    def __init__(
        self,
        *,
        actions: object,
        contexts: Contexts,
        kernel: Kernel | str = "auto",
        budget: Budget | None,
        horizon: int | None = None,
        reward_bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        reward_transform: str | None = None,
        model: str = "joint",
        preset: str = "practical",
        contributions_per_user: int | None = None,
        contributions_per_epoch: int | None = None,
        reward_wait: int | timedelta = 0,
        missing_reward: float | str = 0.0,
        reward_rule: str = "first",
        epoch_time: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
        simulation_seed: int | None = None,
        store: str | None = None,
        store_key: bytes | None = None,
        key_retention: timedelta | None = None,
        after: Certificate | None = None,
        limits: Limits | None = None,
        rollback_guard: str | None = None,
        new_rollback_guard: bool = False,
        prior: Prior | None = None,
        ledger: OrganisationLedger | str | None = None,
        population: str | None = None,
        **options: Any,
    ) -> None:
        limit = None
        if contributions_per_user is not None:
            limit = UserLimit(total=contributions_per_user, per_epoch=contributions_per_epoch or 1)
        elif contributions_per_epoch is not None:
            raise ConfigurationError(
                "contributions_per_epoch needs contributions_per_user: without user ids every user "
                "comes once"
            )
        scale = checked_scale(reward_bound, reward_range, reward_transform)
        problem = checked_problem(
            kernel=kernel,
            actions=actions,
            contexts=contexts,
            scale=scale,
            budget=budget,
            model=model,
            limit=limit,
            limits=limits,
            noise=options.get("noise"),
            rewards=checked_terms(
                reward_wait=reward_wait,
                missing_reward=missing_reward,
                reward_rule=reward_rule,
                epoch_time=epoch_time,
                scale=scale,
            ),
        )
        self._clock = public_clock(clock)
        self._retention = checked_retention(key_retention, problem.rewards.wait)
        self._configured = Configuration(
            horizon=checked_horizon(horizon),
            preset=preset,
            options=settled(problem, checked_options(preset, options)),
            blocks=options.get("blocks"),
            observed=checked_prior(prior, problem),
            joined=joined(ledger, population, budget, simulation_seed is None, store is not None),
        )
        # Servers call from many threads.
        self._lock = RLock()
        self._stored = store is not None
        streams = Streams(simulation_seed)
        learning = self._begun(problem, streams)
        if store is not None:
            described = self._configured.described(problem)
            repository = open_store(
                store,
                described,
                learning,
                streams,
                store_key=store_key,
                after=after,
                rollback_guard=rollback_guard,
                new_rollback_guard=new_rollback_guard,
            )
            held = self._configured.reserved(problem, repository)
            self._assemble(problem, streams, learning, repository, held)
            # A policy that is dropped without close() gives its connections back all the same.
            weakref.finalize(self, shut, self._engine, os.getpid())
        elif (
            store_key is not None
            or after is not None
            or rollback_guard is not None
            or new_rollback_guard
        ):
            raise ConfigurationError(
                "store_key, after and rollback_guard are of use with a store only"
            )
        else:
            self._assemble(problem, streams, learning, in_memory(problem, streams, learning))

    def _begun(self, problem: Problem, streams: Streams) -> LearningLoop:
        """What is known before the first user."""
        configured = self._configured
        with one_blas_thread():
            schedule, learner = build(
                problem, configured.options, configured.horizon, streams.public, configured.observed
            )
        return LearningLoop(schedule, learner, streams, timed=streams.simulated)

    def _assemble(
        self,
        problem: Problem,
        streams: Streams,
        learning: LearningLoop,
        repository: Repository,
        reservation: Reservation | None = None,
    ) -> None:
        """Put the parts together that serve users, over a repository."""
        self._streams, self._users = streams, None
        self._contexts = problem.contexts
        if problem.limit is not None:
            self._users = RepositoryUsers(repository.rows)
        self._ledger: Ledger | None = None
        if problem.budget is not None:
            observed = self._configured.observed
            self._ledger = Ledger(
                problem.budget,
                composition=problem.composition,
                contributions=problem.contributions,
                epochs_of=None if self._users is None else self._users.epochs_of,
                prior=None if observed is None else observed.event,
                reservation=reservation,
            )
        self._gate = Gate(noise_source(streams.noise), self._ledger)
        self._history = History.new() if self.private and not self._stored else None
        self._process = os.getpid() if self.private or self._stored else None
        self._engine = Engine(
            repository,
            problem=problem,
            learning=learning,
            streams=streams,
            gate=self._gate,
            ledger=self._ledger,
            horizon=self._configured.horizon,
            retention=self._retention,
            clock=self._clock,
        )
        self._ids = self._engine.ids

    def observe(self, observer: Observer) -> None:
        """Show this function every vector that leaves the gate in this process from now on.

        It is given copies of what the theorem calls public, once the release is committed: for
        audits, and for whoever wants to check a release by other means. What it raises ends the
        call that released. Not kept in files and copies.
        """
        self._gate.observe(observer)

    def __repr__(self) -> str:
        return f"Capri({self.guarantee}; epoch {len(self._learning.records) + 1})"

    @property
    def _problem(self) -> Problem:  # type: ignore[override]
        return self.problem

    @property
    def _learning(self) -> LearningLoop:  # type: ignore[override]
        return self._engine.learning

    # -- what may be asked of it ------------------------------------------------------------------

    @property
    def epochs(self) -> Epochs:
        """One record per closed epoch, shown as a table."""
        self._engine.refresh()
        return super().epochs

    def certificate(
        self, *, declaration: Declaration | None = None, audit: Any = None
    ) -> Certificate:
        """The guarantee, its assumptions, mechanism and noise; of a store also its checkpoint."""
        self._engine.refresh()
        return super().certificate(declaration=declaration, audit=audit)

    def _checkpoint(self) -> dict[str, Any] | None:
        """How far the store has come, for the certificate."""
        found = self._engine.repository.certified()
        return None if found is None else found | {"missed": self.progress.missed}

    def go_live(self) -> Self:
        """A private run that starts where this simulation stands, as often as one likes.

        It takes over what the simulation learnt, its epochs and the plan of an epoch that nobody
        has come to yet. Noise, draws, ids, keys, ledger and users are its own, and the simulation
        stays as it is. What a simulation learnt is taken for public here: it must have served
        made-up users, not recorded ones.
        """
        if self.private or self.budget is None:
            raise ConfigurationError(
                "only a simulation with a budget can go live: give the policy both a budget and a "
                "simulation_seed"
            )
        if self.pending:
            raise ConfigurationError(
                f"an epoch of this simulation is under way: fill it with {self.remaining} more "
                "decisions and call close_epoch() before it goes live"
            )
        repository = self._engine.repository
        if not isinstance(repository, MemoryRepository):
            raise ConfigurationError("a simulation on a store cannot go live: build it without one")
        run, streams = type(self).__new__(type(self)), Streams(None)
        vars(run).update(vars(self))
        run._lock = RLock()
        heir = rehearsed(repository, DecisionIds())
        run._assemble(self.problem, streams, self._learning.branch(streams), heir)
        run._engine.state.recall(self._engine.state)
        return run

    # -- files and stores -------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        url: str,
        *,
        contexts: Contexts | None = None,
        store_key: bytes | None = None,
        key_retention: timedelta | None = None,
        after: Certificate | None = None,
        rollback_guard: str | None = None,
        new_rollback_guard: bool = False,
        clock: Callable[[], datetime] | None = None,
        ledger: OrganisationLedger | str | None = None,
    ) -> Self:
        """The policy that lives in a store. A sampler and a clock are code: give them again."""
        return cls(
            **stored_settings(url, contexts, ledger),
            store=url,
            store_key=store_key,
            key_retention=key_retention,
            after=after,
            rollback_guard=rollback_guard,
            new_rollback_guard=new_rollback_guard,
            clock=clock,
        )

    def close(self) -> None:
        """Release the connections to the store and stop planning; without a store, nothing."""
        if self._stored and os.getpid() == self._process:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to one file; a policy on a store refuses, since it is kept there.

        A simulation is stored whole and continues bit for bit. A private run stores only what is
        public: the rows of open epochs, decisions and rewards, are dropped and contribute nothing.
        Save when an epoch has just closed to lose nothing.
        A private policy writes over the file it wrote or read last, and over no other policy's.
        """
        with self._lock:
            self._engine.refresh()
            described, streams = self._configuration(), self._streams
            repository = self._engine.repository
            self._history = save_policy(path, described, streams, repository, self._history)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        contexts: Contexts | None = None,
        clock: Callable[[], datetime] | None = None,
        key_retention: timedelta | None = None,
        take_over: bool = False,
    ) -> Self:
        """Read a saved policy. A context sampler and a clock are code and must be given again.

        The file of a private run is loaded once by a process, unless ``take_over`` says that the
        first copy is gone: two that both go on would count users twice.
        """
        found = load_policy(path, contexts)
        with damage_as_storage_error(path):
            policy = cls(**found.settings, clock=clock, key_retention=key_retention)
            problem, streams = policy.problem, policy._streams
            learning, repository = found.restored(
                policy._learning, policy._engine.repository, streams
            )
            policy._assemble(problem, streams, learning, repository)
            policy._engine.check_plans()
            if policy.private:
                policy._history = found.history(take_over=take_over)
        return policy

    def __getstate__(self) -> dict[str, Any]:
        """Let simulations be copied and pickled; two copies of private data would both release."""
        if self._stored:
            raise TypeError("a policy on a store is neither pickled nor copied: use Capri.open")
        if self.private:
            raise TypeError(
                "a private policy is neither pickled nor copied: use policy.save and Capri.load"
            )
        return super().__getstate__()
