"""A client of the service: the same calls and types as the policy itself, from any process.

Only the standard library is needed. A connection is kept and used again; what may be sent again
without harm is: decisions with a key, and every reward. The client follows no redirect, so its key
goes to the address it was given for and nowhere else.
"""

import http.client
import json
import secrets
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import copysign, isfinite
from threading import local
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np

from capri.cells import number_or_missing, plain
from capri.epoch.decisions import Decision, VisitStatus
from capri.epoch.rewards import RewardStatus
from capri.errors import (
    AwayError,
    CapriError,
    ConfigurationError,
    HorizonError,
    InDoubtError,
    StorageError,
)

Found = TypeVar("Found")
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Answers after which the same request may be sent again.
_AGAIN = (429, 502, 503, 504)
_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class ServiceError(CapriError, RuntimeError):
    """A service refused a request; ``status`` is that of HTTP, ``field`` what it was about."""

    def __init__(
        self,
        status: int,
        problem: str,
        field: str = "",
        outcomes: Sequence[Decision | RewardStatus | None] = (),
    ) -> None:
        """``outcomes``: of a list, what became of the others; None where one was refused."""
        super().__init__(f"{field}: {problem}" if field else problem)
        self.status, self.field, self.outcomes = status, field, tuple(outcomes)


class Client:
    """Decisions and rewards of a service.

    Parameters
    ----------
    url:
        Where it is, such as "https://bandit.example.org" or "http://127.0.0.1:8017".
    key:
        A key of the service; None for one that runs with --insecure-local.
    timeout:
        Seconds for one attempt.
    retries:
        How often a request is sent again when the service is away or busy.
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout: float = 10.0, retries: int = 5
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("url must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigurationError("url must hold neither a password nor a query: give a key")
        if key is not None and parts.scheme == "http" and parts.hostname not in _LOCAL:
            raise ConfigurationError("a key goes over https only, or to this very machine")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._key, self._timeout, self._retries = key, timeout, retries
        self._mine = local()  # a connection for each thread

    def __repr__(self) -> str:
        return f"Client({self._host!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give this thread's connection back."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None:
            connection.close()
            self._mine.connection = None

    # -- decisions and rewards --------------------------------------------------------------------

    def act(
        self,
        context: Mapping[str, Any],
        *,
        user: str | int | None = None,
        key: str | None = None,
        actions: Sequence[str] | None = None,
        chosen: str | None = None,
        chosen_propensity: float | None = None,
    ) -> Decision:
        """Decide for one context. Without a key one is made, so that an attempt may be repeated.

        ``actions``: those that are available to this visitor. ``chosen`` and ``chosen_propensity``:
        what another system did and how probable that was, of use in mode "shadow" alone.
        """
        visit = _visit(context, user, key, actions, chosen, chosen_propensity)
        return _decision(self._post("/v1/decisions", visit))

    def act_many(
        self,
        contexts: Sequence[Mapping[str, Any]],
        *,
        users: Sequence[str | int] | None = None,
        keys: Sequence[str] | None = None,
        actions: Sequence[Sequence[str] | None] | None = None,
        chosen: Sequence[str | None] | None = None,
        chosen_propensities: Sequence[float | None] | None = None,
    ) -> list[Decision]:
        """Decide for many. Where an item is refused the error has what the others got."""
        nothing = [None] * len(contexts)
        given = (users, keys, actions, chosen, chosen_propensities)
        columns = [nothing if each is None else each for each in given]
        visits = [_visit(*visit) for visit in zip(contexts, *columns, strict=True)]
        return _each(self._post("/v1/decisions:batch", visits), _decision)

    def update(
        self, decision: Decision | str, reward: float | None, *, key: str | None = None
    ) -> RewardStatus:
        """Bring the reward of a decision, given as such or by its id. Late and unknown are one."""
        return _status(self._post("/v1/rewards", _reward(decision, reward, key)))

    def update_many(
        self,
        decisions: Sequence[Decision | str],
        rewards: Sequence[float | None],
        *,
        keys: Sequence[str] | None = None,
    ) -> list[RewardStatus]:
        """Bring many rewards, each judged by itself. Errors are those of ``act_many``."""
        items = [
            _reward(decision, reward, None if keys is None else keys[place])
            for place, (decision, reward) in enumerate(zip(decisions, rewards, strict=True))
        ]
        return _each(self._post("/v1/rewards", items), _status)

    # -- figures ----------------------------------------------------------------------------------

    def policy(self) -> dict[str, Any]:
        """What the policy is, and how far it has come."""
        return dict(self._ask("GET", "/v1/policy"))

    def epochs(self) -> list[dict[str, Any]]:
        """The records of closed epochs."""
        return list(self._ask("GET", "/v1/epochs"))

    def estimate(self) -> dict[str, Any]:
        """Estimated reward by action, over the public contexts."""
        return dict(self._ask("GET", "/v1/estimate"))

    def shadow(self) -> list[dict[str, Any]]:
        """What the policy would have been worth where another system decided, as released."""
        return list(self._ask("GET", "/v1/shadow"))

    def ledger(self) -> dict[str, Any]:
        """What was promised and spent."""
        return dict(self._ask("GET", "/v1/ledger"))

    def figure(self, name: str) -> Any:
        """What is read at ``/v1/`` and a name, such as ``"worth"``."""
        return self._ask("GET", f"/v1/{name}")

    def certificate(self) -> dict[str, Any]:
        """The certificate, as JSON has it."""
        return dict(self._ask("GET", "/v1/certificate"))

    # -- the wire ---------------------------------------------------------------------------------

    def _post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, json.dumps(body, default=_plain).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Accept": "application/json", "User-Agent": "capri"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                connection = self._connection()
                connection.request(method, self._path + path, body, headers)
                response = connection.getresponse()
                said, wait = response.read(), response.headers.get("Retry-After", "")
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                if last:
                    raise StorageError(
                        f"{self._host} does not answer ({type(problem).__name__}): what was not "
                        "acknowledged may be sent again, with the same key"
                    ) from None
            else:
                if response.status == 200:
                    return json.loads(said)
                if response.status not in _AGAIN or last:
                    raise _refusal(response.status, said)
                if wait.isdigit():
                    time.sleep(min(int(wait), _LONGEST_PAUSE))
                    continue
            # Doubled each time, and never the same for two clients.
            spread = 0.5 + secrets.randbelow(1024) / 2046
            time.sleep(min(_PAUSE * 2**attempt, _LONGEST_PAUSE) * spread)
        raise AssertionError("unreachable")

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            if self._secure:
                connection = http.client.HTTPSConnection(
                    self._host,
                    self._port,
                    timeout=self._timeout,
                    context=ssl.create_default_context(),
                )
            else:
                connection = http.client.HTTPConnection(
                    self._host, self._port, timeout=self._timeout
                )
            self._mine.connection = connection
        return connection


def _visit(
    context: Mapping[str, Any],
    user: str | int | None,
    key: str | None,
    actions: Sequence[str] | None,
    chosen: str | None,
    propensity: float | None,
) -> dict[str, Any]:
    made = key or secrets.token_urlsafe(18)
    visit: dict[str, Any] = {"context": _record(context), "key": made, "detail": True}
    if user is not None:
        visit["user"] = user
    if actions is not None:
        visit["actions"] = _set(actions)
    if chosen is not None:
        visit |= {"chosen": _cell(chosen), "chosen_propensity": _cell(propensity)}
    return visit


def _record(context: Any) -> dict[str, Any] | None:
    """A context as JSON has it; None, which the service serves by its default, for what is none."""
    try:
        return {str(name): _cell(cell) for name, cell in dict(context).items()}
    except Exception:  # whatever an object says of itself when it is asked for its cells
        return None


def _set(actions: Any) -> list[Any]:
    """A set of actions as JSON has it; an empty one for what is none."""
    try:
        some = islice(actions, 0 if isinstance(actions, str | bytes) else _MOST)
        return [_cell(name) for name in some]
    except Exception:  # as above
        return []


def _cell(cell: Any) -> Any:
    """A cell as JSON has it: one that it has no form of is a list, which no column can read."""
    known = plain(cell, ...)
    number = number_or_missing(cell)
    if known is ... and number == number:
        known = number
    if isinstance(known, int | float):  # beyond any float: at the end of any range
        known = known if abs(number) <= _LARGEST else copysign(_LARGEST, number)
    return [] if known is ... else known[:_MOST] if isinstance(known, str) else known


def _reward(decision: Decision | str, reward: float | None, key: str | None) -> dict[str, Any]:
    item: dict[str, Any] = {
        "id": decision.id if isinstance(decision, Decision) else decision,
        "reward": number if isfinite(number := number_or_missing(reward)) else None,
    }
    return item if key is None else item | {"key": key}


_LARGEST = sys.float_info.max
_MOST = 10_000  # characters of a text, entries of a set: no level and no name needs more
_VISITS = {str(status): status for status in VisitStatus}
_REWARDS = {str(status): status for status in RewardStatus}


def _decision(item: dict[str, Any]) -> Decision:
    _raise_refused(item)
    return Decision(
        item["id"],
        item["epoch"],
        item["index"],
        np.array(item["features"]),
        item["propensity"],
        _VISITS[item["status"]],
        action_name=item["action"],
    )


def _status(item: dict[str, Any]) -> RewardStatus:
    _raise_refused(item)
    return _REWARDS[item["status"]]


def _each(items: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], Found]) -> list[Found]:
    """What every item became; the first refusal, with the others, where there is one."""
    refused = next((item["error"] for item in items if "error" in item), None)
    if refused is None:
        return [read(item) for item in items]
    outcomes: list[Any] = [None if "error" in item else read(item) for item in items]
    raise ServiceError(422, refused["problem"], refused.get("field", ""), outcomes)


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy, as Python has them; anything else is not for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ConfigurationError(f"a request holds a {type(value).__name__}, which JSON has no form of")


def _raise_refused(item: dict[str, Any]) -> None:
    if "error" in item:
        raise ServiceError(422, item["error"]["problem"], item["error"].get("field", ""))


def _refusal(status: int, body: bytes) -> CapriError:
    try:
        error = json.loads(body)["error"]
        problem, field = str(error["problem"]), str(error.get("field", ""))
    except (ValueError, LookupError, TypeError):
        problem, field = f"the service answered with status {status}", ""
    if status == 409:
        return HorizonError(problem)
    if status in _AGAIN:
        return {503: AwayError, 504: InDoubtError}.get(status, StorageError)(problem)
    return ServiceError(status, problem, field)
