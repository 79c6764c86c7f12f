"""What was spent, by whom, under which model. Releases are immutable events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any

from capri.errors import BudgetError
from capri.files import html_table, text_table
from capri.privacy.budget import Budget, PrivacyModel, UserId
from capri.privacy.calibration import delivered_by_integers, laplace_epsilon
from capri.privacy.layout import MECHANISMS, Norm

if TYPE_CHECKING:
    from capri.store.reservation import Reservation

# What the calibration may exceed the budget by: rounding of its own search, nothing else.
_TOLERANCE = 1e-9
_NOISES = {each.name: norm for norm, each in MECHANISMS.items()}
_MECHANISMS = (*_NOISES, "sphere")
# What a release is for. An epoch has at most one for each purpose. Only these two are known to be
# over disjoint visits: under any other name the same visits could be released again.
LEARNING, SHADOW = PURPOSES = "learning", "shadow"


@dataclass(frozen=True, kw_only=True)
class ReleaseEvent:
    """One use of the gate, whatever passed it.

    ``mechanism`` "gaussian" or "laplace": discrete noise on integers, once on a sum or on each
    report. ``sensitivity`` is the diameter of the layout in its ``norm``, and ``noise_scale`` that
    of the noise, in the same unit; ``mu`` is their ratio, and ``rank`` the number of coordinates.
    "sphere": a report of pure ``epsilon``.
    ``participants`` is the number of decisions, reports or rows, which is public. ``purpose``: what
    the release is for, "learning" or, in the joint model, "shadow". Every visit is in the release
    of one purpose; which one was public before it came. ``stage``: an epoch may tell the same
    visits in several stages of Gaussian noise, which compose to what the budget covers.
    """

    epoch: int
    model: str
    calibration: str
    participants: int
    rank: int
    sensitivity: float
    noise_scale: float
    mechanism: str = "gaussian"
    norm: Norm = Norm.L2
    epsilon: float | None = None
    purpose: str = LEARNING
    stage: int = 0

    def __post_init__(self) -> None:
        numbers = (self.sensitivity, self.noise_scale)
        sphere = self.epsilon is not None
        if not all(isfinite(number) and number >= 0 for number in numbers):
            raise BudgetError("an event needs a finite sensitivity and noise of 0 or more")
        if self.model not in tuple(PrivacyModel):
            raise BudgetError(f"no account is known for a release in the {self.model!r} model")
        if self.purpose not in PURPOSES:
            raise BudgetError(
                f"purpose must be one of {', '.join(PURPOSES)}, got {self.purpose!r}: a further "
                "release of the same visits would spend their budget twice"
            )
        if self.purpose == SHADOW and self.model != PrivacyModel.JOINT:
            raise BudgetError("a release for shadow is of the joint model")
        if sphere != (self.mechanism == "sphere"):
            raise BudgetError("an event states its epsilon if and only if it is a sphere's")
        object.__setattr__(self, "norm", Norm(self.norm))
        if _NOISES.get(self.mechanism, self.norm) is not self.norm:
            raise BudgetError(f"noise of mechanism {self.mechanism!r} hides nothing in {self.norm}")
        if self.epsilon is not None and not (isfinite(self.epsilon) and self.epsilon > 0):
            raise BudgetError(f"the epsilon of an event must be positive, got {self.epsilon}")
        if self.stage and self.mechanism != "gaussian":
            raise BudgetError("only Gaussian releases of the same visits compose in stages")

    @property
    def mu(self) -> float:
        """``sensitivity / noise_scale``: Gaussian-DP parameter or epsilon of one contribution."""
        return self.sensitivity / self.noise_scale if self.noise_scale > 0 else inf

    def pure(self, contributions: int) -> float | None:
        """Epsilon of so many contributions at delta 0, rounded up; None of Gaussian noise."""
        if self.epsilon is not None:
            return contributions * self.epsilon
        if self.norm is Norm.L1:
            return laplace_epsilon(self.sensitivity, self.noise_scale, contributions)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what only some events have is left out."""
        own: dict[str, Any] = {"epsilon": None, "purpose": LEARNING, "stage": 0}
        return {name: value for name, value in asdict(self).items() if own.get(name, ...) != value}


@dataclass(frozen=True, kw_only=True)
class Spending:
    """A guarantee that holds: ``(epsilon, delta)``, and ``mu`` if a Gaussian is behind it."""

    epsilon: float
    delta: float
    mu: float | None


@dataclass(frozen=True, kw_only=True)
class PriorEvent:
    """What a policy was told before its first user, as its ledger and its certificate state it.

    Not a release of this policy, and not paid from its budget: that of others, or none at all.

    ``kind``: "rows" that are public, the releases of a "fit" or of a "policy". ``count``: of rows
    or of releases. ``epsilon`` and ``delta`` are what the people behind releases were promised;
    None where nothing was, as for public rows and simulations.
    """

    kind: str
    digest: str
    count: int
    epsilon: float | None = None
    delta: float | None = None

    @property
    def assumption(self) -> str:
        """What has to be true of it, in a sentence."""
        if self.kind == "rows":
            return (
                f"the {self.count} rows that the policy was told beforehand (SHA-256 "
                f"{self.digest[:12]}) are public, or of people who agreed: they are not protected"
            )
        if self.epsilon is None:
            return (
                f"the releases that the policy was told beforehand (SHA-256 {self.digest[:12]}) "
                "carry no promise: they are public, or made up"
            )
        return (
            f"the releases of another {self.kind} that the policy was told beforehand (SHA-256 "
            f"{self.digest[:12]}) are of other people; whoever is behind them and takes part here, "
            f"too, has spent that promise, epsilon {self.epsilon:g} at delta {self.delta:g}, in "
            "addition to this one (sequential composition)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class Ledger:
    """Append-only account of a policy.

    Without user ids each user is in one epoch, so the whole policy costs a user what the most
    expensive epoch costs (parallel composition). With ids, contributions compose; so do the stages
    of an epoch, which tell of the same users.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        composition: float = 1.0,
        contributions: int = 1,
        epochs_of: Callable[[UserId], Mapping[int, int]] | None = None,
        tolerance: float = _TOLERANCE,
        prior: PriorEvent | None = None,
        reservation: "Reservation | None" = None,
    ) -> None:
        """``composition``: the factor on Gaussian noise of ``contributions`` of one user.

        ``epochs_of``: a user's contributions by epoch, where the policy knows its users.
        ``tolerance``: 0 for a device, which did not make the calibration itself.
        ``reservation``: in an organisation's ledger, which counts all sources of its people.
        """
        self._tolerance = tolerance
        self._budget = budget
        self._composition = composition
        self._contributions = contributions
        # A user whose contributions compose to a factor c takes part in at most c^2 releases.
        self._releases = ceil(composition**2)
        self._epochs_of = epochs_of
        self._prior = prior
        self.reservation = reservation
        self._events: tuple[ReleaseEvent, ...] = ()

    def __repr__(self) -> str:
        said = f"Ledger({self._budget}, releases={len(self._events)}, spent={self.spent})"
        return f"{said}\n{text_table(self._rows())}" if self._events else said

    def _repr_html_(self) -> str:
        return html_table(self._rows()) if self._events else repr(self)

    def _rows(self) -> list[dict[str, Any]]:
        """What a table shows of every release."""
        shadows = any(event.purpose == SHADOW for event in self._events)
        return [
            {
                "epoch": event.epoch,
                "participants": event.participants,
                "mechanism": event.mechanism,
                "norm": str(event.norm),
                "sensitivity": event.sensitivity,
                "noise": event.noise_scale,
                "epsilon": self.spent_in(event.epoch).epsilon,
                "purpose": event.purpose if shadows else None,
            }
            for event in self._events
        ]

    @property
    def budget(self) -> Budget:
        """What was promised."""
        return self._budget

    @property
    def prior(self) -> PriorEvent | None:
        """What was told beforehand: another promise or none, never a part of this one."""
        return self._prior

    @property
    def tolerance(self) -> float:
        """What a release may exceed the budget, or fall short of its noise, by: rounding."""
        return self._tolerance

    @property
    def events(self) -> tuple[ReleaseEvent, ...]:
        """All releases so far, in order."""
        return self._events

    @property
    def together(self) -> tuple[ReleaseEvent, ...]:
        """The same with all stages over the same visits as one event."""
        return tuple(event for epoch in self._by_epoch().values() for event in epoch)

    def check(self, event: ReleaseEvent) -> None:
        """Refuse an event that the budget does not cover, or of a kind that is not known here."""
        if event.mechanism not in _MECHANISMS:
            raise BudgetError(
                f"no account is known for a release by {event.mechanism!r}: nothing was released"
            )
        self._check_kinds(event)
        told = [past for past in self._events if _same_visits(past, event)]
        if event.stage in (past.stage for past in told):
            raise BudgetError(
                f"epoch {event.epoch} was released before: its budget is spent, and a second "
                "release of the same data would spend it twice"
            )
        cost = self._cost(_together([*told, event]))
        if not cost.epsilon <= self._budget.epsilon * (1 + self._tolerance):
            raise BudgetError(
                f"a release at noise scale {event.noise_scale:g} and sensitivity "
                f"{event.sensitivity:g} costs epsilon {cost.epsilon:g}, the budget is "
                f"{self._budget.epsilon:g}: nothing was released"
            )

    def _check_kinds(self, event: ReleaseEvent) -> None:
        """Gaussian and Laplace noise mix where nobody is in two releases, but within no epoch.

        Noise for ``k`` contributions is ``sqrt k`` or ``k`` times as wide, and some of each kind
        cost more than ``k`` of one.
        """
        kinds = {past.mechanism for past in self._events} | {event.mechanism}
        once = self._contributions == 1 and self._composition == 1.0
        beside = {past.mechanism for past in self._events if past.epoch == event.epoch}
        mixed = bool(beside - {event.mechanism})  # of one epoch, which has one noise
        if mixed or (len(kinds) > 1 and not (once and kinds <= set(_NOISES))):
            raise BudgetError(
                f"releases by {' and by '.join(sorted(kinds))} need accounts of their own: nothing "
                "was released"
            )

    def _cost(self, event: ReleaseEvent) -> Spending:
        """What a user can lose by this event and others like it, up to the limit of their own."""
        if (pure := event.pure(self._contributions)) is not None:
            return Spending(epsilon=pure, delta=0.0, mu=None)
        return self._gaussian(event.mu * self._composition, event.rank * self._releases)

    def hold(self) -> None:
        """Have the organisation's ledger count this source in the period of now, or refuse it.

        Before data are taken. Free of cost until the period ends.
        """
        if self.reservation is not None:
            self.reservation.hold()

    def plan(self, event: ReleaseEvent) -> None:
        """Have the organisation's ledger note an event, before any of its data; refused there."""
        if self.reservation is not None:
            self.reservation.plan(event, self.together)

    def settle(self) -> None:
        """Have the organisation's ledger note what was released since the last plan."""
        if self.reservation is not None:
            self.reservation.release(self.together)

    def record(self, event: ReleaseEvent) -> None:
        """Add an event before its release, or stop the release: the budget is what it is."""
        self.check(event)
        self._events += (event,)

    def _gaussian(self, mu: float, coordinates: int) -> Spending:
        epsilon = delivered_by_integers(mu, self._budget, coordinates)
        return Spending(epsilon=epsilon, delta=self._budget.delta, mu=mu)

    @property
    def spent(self) -> Spending:
        """What any single user can have lost at most by all releases so far."""
        gaussian = [event for event in self.together if event.pure(1) is None]
        pure = [self._cost(event) for event in self.together if event.pure(1) is not None]
        dearest = self._gaussian(
            max((event.mu * self._composition for event in gaussian), default=0.0),
            max((event.rank * self._releases for event in gaussian), default=1),
        )
        if not pure:
            return dearest
        most = max(pure, key=lambda cost: cost.epsilon)
        if not gaussian:
            return most
        # Kinds mix where each user is in one release: whichever is dearer, at the larger delta.
        return Spending(epsilon=max(most.epsilon, dearest.epsilon), delta=dearest.delta, mu=None)

    def spent_in(self, epoch: int) -> Spending:
        """What one contribution to this epoch has cost its user; 0 before its release."""
        return self._composed({epoch: 1})

    def spent_by(self, user: UserId) -> Spending:
        """What this user has lost so far; needs user ids.

        For the user's own eyes: it tells whether and when the user took part, which no other
        figure here does. Never publish it.
        """
        if self._epochs_of is None:
            raise BudgetError(
                "this policy keeps no user ids: every user is in one epoch and has spent at most "
                "ledger.spent. Build it with contributions_per_user to account for each user"
            )
        return self._composed(self._epochs_of(user))

    def _composed(self, contributions: Mapping[int, int]) -> Spending:
        """``mu^2 = sum over releases``: group privacy within an epoch, composition across.

        An epoch with releases for two purposes has disjoint visits in them: however ``c`` visits
        of a user are split, ``m^2 mu_1^2 + s^2 mu_2^2 <= c^2 max(mu)^2``, so the dearer counts.
        Epsilons of pure releases add up, and to that of the Gaussian ones.
        """
        squared, coordinates, pure = 0.0, 0, 0.0
        for events in self._by_epoch().values():
            count = contributions.get(events[0].epoch, 0)
            event = max(events, key=self._once)
            if (epsilon := event.pure(count)) is not None:
                pure += epsilon
                continue
            # Same-epoch reports of the local model carry separate noise and compose instead.
            squared += event.mu**2 * (count**2 if event.model == "joint" else count)
            coordinates += count * max(each.rank for each in events)
        if squared == 0 and pure > 0:
            return Spending(epsilon=pure, delta=0.0, mu=None)
        gaussian = self._gaussian(sqrt(squared), coordinates)
        return replace(gaussian, epsilon=gaussian.epsilon + pure, mu=None) if pure else gaussian

    def _by_epoch(self) -> dict[int, list[ReleaseEvent]]:
        """What was told of the visits of each epoch: one event for each purpose."""
        told: dict[tuple[int, str], list[ReleaseEvent]] = {}
        for event in self._events:
            told.setdefault((event.epoch, event.purpose), []).append(event)
        found: dict[int, list[ReleaseEvent]] = {}
        for (epoch, _), events in told.items():
            found.setdefault(epoch, []).append(_together(events))
        return found

    def _once(self, event: ReleaseEvent) -> tuple[float, float]:
        """What one contribution costs, to be compared; of equal epsilons the larger mu."""
        pure = event.pure(1)
        once = self._gaussian(event.mu, event.rank).epsilon if pure is None else pure
        return once, event.mu


def _same_visits(one: ReleaseEvent, other: ReleaseEvent) -> bool:
    return (one.epoch, one.purpose) == (other.epoch, other.purpose)


def _together(stages: Sequence[ReleaseEvent]) -> ReleaseEvent:
    """Releases of the same visits as one: ``mu^2 = sum mu_i^2``, of all coordinates."""
    if len(stages) == 1:
        return stages[0]
    squared = sum(stage.mu**2 for stage in stages)
    if not isfinite(squared):
        raise BudgetError("a stage without noise spends any budget: nothing was released")
    rank = sum(stage.rank for stage in stages)
    return replace(stages[-1], sensitivity=sqrt(squared), noise_scale=1.0, rank=rank)
