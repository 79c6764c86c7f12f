"""One person's device at one policy, across restarts, processes and years.

All that must not be torn apart is one text of a store: the decision that waits, the report that was
made, whether it was answered, and what all policies have cost. Each step reads it, changes it and
keeps it, or does nothing. docs/reference/wire.md has its form, which the JavaScript client shares.

Time is what the device has seen pass: a clock that goes back frees nothing when it comes again, and
one that jumps ahead a quarter of the period at most. Costs are whole millionths, so that every
client adds them up alike.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from math import ceil, floor, isfinite, nan
from typing import Any, TypeVar
from urllib.request import Request, urlopen

import numpy as np

from capri.checks import between, positive
from capri.epoch.decisions import Decision
from capri.errors import BudgetError, BundleError, ConfigurationError, DataError
from capri.local import tickets
from capri.local.client import Datum, affordable, decided, gate_of, newer, spent
from capri.local.device import Device, DeviceRandomness, SystemRandomness, with_token
from capri.local.stores import DeviceStore, Texts
from capri.privacy.budget import Budget
from capri.privacy.sphere import Sphere

Result = TypeVar("Result")
_DAY = 86_400_000.0
# Longest time between two uploads, about an hour: 2^12 seconds.
_MOST_DOUBLINGS = 12
_STATUSES = ("accepted", "replayed", "stale", "unknown", "malformed")
_MILLION = 1_000_000
# Far below a millionth and far above a rounding error: where a logarithm is nearly a whole number.
_SLACK = 1e-3


@dataclass(frozen=True)
class Allowance:
    """What a person allows for all policies of a device together, in any period of so many days."""

    epsilon: float
    days: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "days"):
            positive(name, getattr(self, name))

    @property
    def millionths(self) -> int:
        """Of epsilon, rounded down."""
        return floor(_MILLION * self.epsilon + _SLACK)

    @property
    def period(self) -> float:
        """In milliseconds."""
        return _DAY * self.days


def cost_of(sphere: Sphere) -> int:
    """What a report costs in millionths, rounded up."""
    return ceil(_MILLION * sphere.epsilon - _SLACK)


def upload_to(address: str, seconds: float = 30.0) -> Callable[[bytes], object]:
    """Uploads by POST to ``/v1/reports`` of a service, for ``send=`` of :class:`DurableClient`."""

    def send(report: bytes) -> object:
        kind = {"Content-Type": "application/octet-stream"}
        with urlopen(Request(address, report, kind), timeout=seconds) as answer:
            return json.load(answer)["status"]

    return send


class DurableClient:
    """A device that forgets nothing: decides, reports once, uploads until it is answered.

    Two processes, or two threads, are one device; one that ends between two steps goes on with the
    next.

    Parameters
    ----------
    bundle, budget, digest:
        As in :class:`~capri.LocalClient`: what one report may cost.
    policy:
        Who is reported to, a name of the app's: a device reports once for each policy and person.
    allowance:
        What all policies together may cost. A report beyond it is not made.
    store:
        Where the device keeps things: a ``FolderStore`` or ``MemoryStore`` of
        :mod:`capri.local.stores`.
    send:
        Uploads a report and tells its status; anything else, and whatever it raises, is no answer.
        :func:`capri.local.durable.upload_to` makes one.
    ticket:
        Where the aggregator asks for tickets: gets the salt for a commitment from whoever issues
        them (:mod:`capri.local.tickets`); whatever it raises is none yet.
    log:
        Digests of all bundles, oldest first, in hexadecimals: ``/v1/digests`` as somebody else
        keeps it. No report is made to a bundle that is not there, or by a log that lost an entry
        since this device has seen it; whatever it raises is no log yet.
    person:
        Where several people share a device.
    consent:
        Asked before a report is made; where it says no the decision is forgotten.
    share:
        The share of devices that report at all, drawn once on each.
    delay:
        How long after a decision its report stays here, so that its time tells nothing.
    clock:
        A function without arguments that gives a :class:`datetime.datetime`.
    randomness:
        Draws of the caller's, for tests and simulations: anything but None protects nobody.
    """

    def __init__(
        self,
        bundle: bytes,
        budget: Budget,
        *,
        policy: str,
        allowance: Allowance,
        store: DeviceStore,
        send: Callable[[bytes], object],
        ticket: Callable[[bytes], bytes] | None = None,
        log: Callable[[], Sequence[str]] | None = None,
        person: str = "",
        digest: bytes | None = None,
        consent: Callable[[], bool] | None = None,
        share: float = 1.0,
        delay: timedelta = timedelta(0),
        clock: Callable[[], datetime] | None = None,
        randomness: DeviceRandomness | None = None,
    ) -> None:
        if not isinstance(allowance, Allowance):
            raise ConfigurationError("allowance must be a capri.Allowance")
        between("share", share, 0, 1)
        self._device = Device(affordable(bundle, budget, digest))
        self._data, self._budget, self._policy = bytes(bundle), budget, policy
        self._allowance, self._store, self._send = allowance, store, send
        self._ticket, self._log = ticket, log
        self._consent, self._share = consent, share
        self._clock = partial(datetime.now, UTC) if clock is None else clock
        self._delay = 1000 * delay.total_seconds()
        self._randomness = SystemRandomness() if randomness is None else randomness
        scope = _text([person, policy])
        self._scope, self._names = f"{scope}0", (_text(person), f"{scope}0", f"{scope}1")
        self._last: str | None = None
        self._step(lambda *_: None)

    def __repr__(self) -> str:
        return f"DurableClient(policy={self._policy!r}, epoch={self.epoch})"

    @property
    def epoch(self) -> int:
        """The epoch of the bundle that decides."""
        return self._device.bundle.plan.epoch

    @property
    def status(self) -> str:
        """Where the report stands.

        "none", "waiting" for its reward, "made", or what the service said of it.
        """
        return self._step(lambda course, *_: _status(course))

    # -- a visit ----------------------------------------------------------------------------------

    def act(self, context: object, *, available: object = None) -> Decision:
        """Decide, and keep the decision with its bundle until :meth:`report`.

        As :meth:`LocalClient.act`. A newer decision takes its place.
        """
        decision, datum = decided(self._device, context, available, self._randomness)
        self._step(partial(self._keep, datum))
        self._fetch_salt()
        return decision

    def _fetch_salt(self) -> None:
        """Ask for the ticket of the decision that waits, if it has none yet."""
        if self._ticket is None:
            return
        found = self._step(lambda course, *_: course.get("ticket"))
        if found is None or found[1] is not None:
            return
        secret, _, digest = found
        try:
            salt = self._ticket(tickets.commitment(bytes.fromhex(secret), bytes.fromhex(digest)))
        except Exception:  # whatever a network can do: asked for again with the report
            return
        if isinstance(salt, bytes) and len(salt) == tickets.SALT:
            self._step(partial(_salted, secret, salt.hex()))

    def _keep(self, datum: Datum, course: dict[str, Any], _: dict[str, Any], texts: Texts) -> None:
        if not course["takesPart"] or "report" in course or "answer" in course:
            return
        digest = datum.device.bundle.digest.hex()
        if course.get("digest") != digest:
            course.pop("ticket", None)  # it is for one bundle
            # Into the slot that no decision needs: a store that was interrupted has the other one.
            course["slot"] = 1 - course["slot"]
            texts[1 + course["slot"]] = b64encode(self._data).decode()
        numbers = [each if isfinite(each) else None for each in datum.context[0].tolist()]
        course |= {"digest": digest, "context": numbers, "action": int(datum.action[0])}
        course["first"] = self._now() + self._delay
        if self._ticket is not None and "ticket" not in course:
            secret = self._randomness.seeds(1).astype("<u8").tobytes()
            course["ticket"] = [secret.hex(), None, digest]

    def report(self, reward: float | None) -> bool:
        """Make the report on the decision that waits, and keep it for :meth:`flush`.

        None where no reward was seen. False where there is no consent or the device takes no part.
        Nothing is made that would exceed the allowance.
        """
        agreed = self._consent is None or bool(self._consent())
        self._fetch_salt()
        listed = None if self._log is None else _listed(self._log)
        return self._step(partial(self._make, reward, agreed, listed))

    def _make(
        self,
        reward: float | None,
        agreed: bool,
        listed: list[str] | None,
        course: dict[str, Any],
        kept: dict[str, Any],
        texts: Texts,
    ) -> bool:
        if "report" in course or "answer" in course:
            raise spent()
        if not course["takesPart"]:
            return False
        if "digest" not in course:
            raise DataError("there is nothing to report: act comes first")
        if listed is not None:
            _compare(listed, course)
        if agreed:
            datum = self._datum(course, texts[1 + course["slot"]])
            sphere = datum.device.bundle.plan.sphere
            assert sphere is not None  # of every bundle
            self._charge(kept, cost_of(sphere))
            randomness, secret = self._randomness, b""
            if self._ticket is not None:
                secret, salt = self._paid(course)
                randomness = with_token(randomness, tickets.token(secret, salt))
            made = datum.reported(reward, gate_of(randomness, self._budget))
            course["report"] = (made + secret).hex()
        for name in ("digest", "context", "action", "ticket"):
            course.pop(name, None)
        texts[1] = texts[2] = None
        return agreed

    def _paid(self, course: dict[str, Any]) -> tuple[bytes, bytes]:
        """Secret and salt of the ticket."""
        secret, salt, _ = course.get("ticket") or ("", None, "")
        if salt is None:
            raise DataError("there is no ticket yet: nothing was reported. Report again later")
        return bytes.fromhex(secret), bytes.fromhex(salt)

    def _datum(self, course: dict[str, Any], kept: str | None) -> Datum:
        """The decision that waits, on a device with its own bundle."""
        device, digest = self._device, bytes.fromhex(course["digest"])
        if digest != device.bundle.digest:
            if kept is None:
                raise DataError("the bundle of this decision is gone: decide again")
            device = Device(affordable(b64decode(kept), self._budget, digest))
        row = [[nan if each is None else each for each in course["context"]]]
        return Datum(device, np.array(row, dtype=np.float64), np.array([course["action"]]))

    def flush(self, *, again: bool = False) -> str | None:
        """Upload the report if one waits and its time has come.

        Its status once the service has answered, None before. Call it as often as you like: the
        same bytes leave each time, and a service counts them once. ``again``: do not wait for the
        time of the next try, which doubles up to an hour.
        """
        report, answer = self._step(partial(self._next_try, again))
        if report is None:
            return answer
        try:
            said = self._send(bytes.fromhex(report))
        except Exception:  # whatever a network can do: the same bytes again later
            return None
        if str(said) not in _STATUSES:
            return None
        return self._step(partial(_answered, report, str(said)))

    def _next_try(
        self, again: bool, course: dict[str, Any], *_: object
    ) -> tuple[str | None, str | None]:
        """The report that is due, and what is known of its fate."""
        now = self._now()
        # A clock may have been set back: never longer than what was meant.
        course["due"] = min(course["due"], now + 1500 * 2**_MOST_DOUBLINGS)
        course["first"] = min(course["first"], now + self._delay)
        if "report" not in course:
            return None, course.get("answer")
        if max(course["first"], 0 if again else course["due"]) > now:
            return None, None
        jitter = 0.5 + float(self._randomness.rounding(1)[0])
        course["due"] = now + 1000 * 2 ** min(course["tries"], _MOST_DOUBLINGS) * jitter
        course["tries"] += 1
        return course["report"], None

    def renew(self, bundle: bytes, *, digest: bytes | None = None) -> None:
        """Decide by the bundle of a later epoch; what waits is reported under its own."""
        renewed = affordable(bundle, self._budget, digest)
        self._device = Device(newer(self._device.bundle, renewed))
        self._data = bytes(bundle)

    # -- the ledger -------------------------------------------------------------------------------

    def spending(self) -> str:
        """What this device has spent, in words for the person whose device it is."""
        recent = self._step(lambda _, kept, __: self._recent(kept))
        who = ", ".join(f"{policy}: {_plain(cost)}" for _, cost, policy in recent)
        reports = "1 private report" if len(recent) == 1 else f"{len(recent)} private reports"
        cost = _plain(sum(cost for _, cost, _ in recent))
        return (
            f"In the last {self._allowance.days:g} days this device has made {reports}"
            f"{f' ({who})' if who else ''}, at a cost of {cost} of the "
            f"{_plain(self._allowance.millionths)} that you allow."
        )

    def _recent(self, kept: dict[str, Any]) -> list[tuple[float, int, str]]:
        now, period = kept["time"], self._allowance.period
        return [(then, cost, whose) for then, cost, whose in kept["spent"] if now - then < period]

    def _charge(self, kept: dict[str, Any], cost: int) -> None:
        already = sum(cost for _, cost, _ in self._recent(kept))
        if already + cost > self._allowance.millionths:
            raise BudgetError(
                f"a report costs {_plain(cost)}, and {_plain(already)} of "
                f"{self._allowance.epsilon:g} are spent in {self._allowance.days:g} days: nothing "
                "was reported"
            )
        kept["spent"].append([kept["time"], cost, self._policy])

    # -- what is kept -----------------------------------------------------------------------------

    def _now(self) -> float:
        return 1000 * self._clock().timestamp()

    def _step(self, change: Callable[[dict[str, Any], dict[str, Any], Texts], Result]) -> Result:
        """One step on all that is kept: takes up, changes, keeps."""

        def step(texts: Texts) -> tuple[Result, str]:
            # Gone while this process runs: it remembers, and a second report is not made.
            kept = _read(self._last if texts[0] is None else texts[0])
            now = self._now()
            seen = now if kept["seen"] is None else kept["seen"]
            kept["time"] += min(max(now - seen, 0), self._allowance.period / 4)
            kept["seen"] = max(seen, now)
            course = kept["policies"].get(self._scope) or self._new_course()
            kept["policies"][self._scope] = course
            result = change(course, kept, texts)
            texts[0] = text = _text(kept)
            return result, text

        result, self._last = self._store.change(self._names, step)
        return result

    def _new_course(self) -> dict[str, Any]:
        part = bool(self._randomness.action(1)[0] < self._share)
        return {"takesPart": part, "slot": 0, "first": 0, "tries": 0, "due": 0}


def _text(value: object) -> str:
    """As JavaScript writes it: names must agree."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _read(text: str | None) -> dict[str, Any]:
    """What a store holds of a person.

    A text that is none of ours may hide a report, so nothing is made beside it.
    """
    if text is None:
        return {"time": 0, "seen": None, "spent": [], "policies": {}}
    try:
        kept: dict[str, Any] = json.loads(text)
        numbers = isinstance(kept["time"], int | float) and isinstance(kept["seen"], int | float)
        if numbers and isinstance(kept["spent"], list) and isinstance(kept["policies"], dict):
            return kept
    except (ValueError, TypeError, LookupError):
        pass
    raise DataError(
        "what this device has kept is damaged: it reports no more, until its store is deleted"
    )


def _listed(log: Callable[[], Sequence[str]]) -> list[str]:
    try:
        listed = log()
        if isinstance(listed, list | tuple) and all(isinstance(each, str) for each in listed):
            return [*listed]
    except Exception:  # whatever a network can do: told below
        pass
    raise DataError("there is no log of bundles now: nothing was reported. Report again later")


def _compare(listed: list[str], course: dict[str, Any]) -> None:
    """Refuse a bundle that others are not shown; remember what the log has said."""
    count, seen = course.get("log", [0, _digest_of([])])
    same = len(listed) >= count and _digest_of(listed[:count]) == seen
    if not same or course["digest"] not in listed:
        raise BundleError(
            "the public log does not have this bundle, or has lost one that it had: others may be "
            "shown something else. Nothing was reported",
            "other-bundle",
        )
    course["log"] = [len(listed), _digest_of(listed)]


def _digest_of(listed: list[str]) -> str:
    return sha256("".join(listed).encode()).hexdigest()


def _status(course: dict[str, Any]) -> str:
    made = "made" if "report" in course else "waiting" if "digest" in course else "none"
    return str(course.get("answer", made))


def _salted(secret: str, salt: str, course: dict[str, Any], *_: object) -> None:
    if "ticket" in course and course["ticket"][0] == secret:
        course["ticket"][1] = salt


def _answered(report: str, status: str, course: dict[str, Any], *_: object) -> str | None:
    if course.get("report") == report:
        del course["report"]
        course["answer"] = status
    return course.get("answer")


def _plain(millionths: int) -> str:
    """An epsilon with two digits or fewer."""
    return f"{millionths / _MILLION:.2f}".rstrip("0").rstrip(".")
