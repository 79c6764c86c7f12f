"""The interface: one table of routes, and the OpenAPI 3.1 document that is generated from it.

Schemas come from the types that go over the wire (:mod:`capri.service.messages`).
"""

from typing import Any, NamedTuple

import msgspec

from capri.service import messages
from capri.service.auth import ADMIN, DECIDE, OPERATOR, READ, REWARD, ServiceLimits
from capri.service.messages import REPORT_SIZE
from capri.version import VERSION

_PLACE = "#/components/schemas/{name}"
_JSON, _BINARY = "application/json", "application/octet-stream"
_REFUSALS = {
    "400": "The body is no JSON, or nested too deeply.",
    "401": "No key that is known: `Authorization: Bearer ...`.",
    "403": "The key has not the role.",
    "405": "This method is not offered here.",
    "409": "The horizon is reached, an epoch cannot be closed yet, or the model is another.",
    "413": "The body or the list is too large.",
    "415": "The content type is not application/json.",
    "421": "The Host is none of this service's.",
    "422": "A field of the envelope is not as it must be; `field` names it.",
    "429": "Too many items a second for this key.",
    "503": "The store cannot be reached, or too much waits: this was not done. Try again.",
    "504": "The store was lost meanwhile: this was done or not. Ask again with the same key.",
}


class Route(NamedTuple):
    """What may be asked for at a path, by which role, with which types.

    ``body`` and ``answers`` are types of JSON values, of which any one may stand; a list of answers
    holds an item that was refused, too. ``devices``: without a key, from the pages of any site.
    ``anywhere``: by whatever name of the host, as those ask who look after machines.
    """

    method: str
    path: str
    role: str | None = None
    summary: str = ""
    body: tuple[Any, ...] = ()
    answers: tuple[Any, ...] = (dict,)
    devices: bool = False
    anywhere: bool = False


ROUTES = (
    Route(
        "POST", "/v1/decisions", DECIDE, "Decide for one visit",
        (messages.DecisionRequest,), (messages.DecisionAnswer,),
    ),
    Route(
        "POST", "/v1/decisions:batch", DECIDE,
        "Decide for many visits, item by item, some perhaps `refused` or `in doubt`",
        (list[messages.DecisionRequest],), (list[messages.DecisionAnswer],),
    ),
    Route(
        "POST", "/v1/rewards", REWARD,
        "Bring one reward, or a list of them, judged item by item, some perhaps `refused` or "
        "`in doubt`",
        (messages.RewardRequest, list[messages.RewardRequest]),
        (messages.RewardAnswer, list[messages.RewardAnswer]),
    ),
    Route(
        "GET", "/v1/bundle", None, "What devices of a local policy decide with",
        answers=(bytes,), devices=True,
    ),
    Route(
        "POST", "/v1/reports", None, "Bring reports of devices, one or many, judged one by one",
        (messages.ReportRequest, list[messages.ReportRequest]),
        (messages.ReportAnswer, list[messages.ReportAnswer]),
        devices=True,
    ),
    Route(
        "POST", "/v1/admin/catalogue", ADMIN, "Offer other actions from the next epoch on",
        (messages.CatalogueRequest,),
    ),
    Route("POST", "/v1/admin/mode", ADMIN, "Change who decides", (messages.ModeRequest,)),
    Route("POST", "/v1/admin/close", ADMIN, "Close what is due", (messages.CloseRequest,)),
    Route("GET", "/v1/live", OPERATOR, "Live counts, inside the trust boundary"),
    Route("GET", "/metrics", READ, "Public figures for Prometheus", answers=(str,)),
    Route("GET", "/healthz", None, "Whether the process lives", anywhere=True),
    Route("GET", "/readyz", None, "Whether the store serves", anywhere=True),
    Route("GET", "/v1/policy", READ, "What the policy is, and how far it has come"),
    Route("GET", "/v1/epochs", READ, "One record for each closed epoch", answers=(list,)),
    Route("GET", "/v1/estimate", READ, "Estimated reward by action, over the public contexts"),
    Route("GET", "/v1/explanation", READ, "What the releases made it believe"),
    Route("GET", "/v1/certificate", READ, "The certificate of differential privacy"),
    Route("GET", "/v1/ledger", READ, "What was promised and spent, release by release"),
    Route(
        "GET", "/v1/shadow", READ, "What the policy would have been worth, as released",
        answers=(list,),
    ),
    Route("GET", "/v1/forecast", READ, "What was expected before the first user"),
    Route("GET", "/v1/operations", READ, "What operators did, one line each", answers=(list,)),
)  # fmt: skip


def document(limits: ServiceLimits) -> dict[str, Any]:
    """All endpoints, with the limits of this service."""
    kinds = [each for route in ROUTES for each in (*route.body, *route.answers)]
    kinds += [messages.ErrorAnswer, messages.RefusedItem]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_PLACE)
    for schema in schemas.values():
        schema.pop("title", None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "capri",
            "version": VERSION,
            "description": (
                "A differentially private contextual bandit. Only the envelope of a request may "
                "be refused; whatever is in `context`, `actions`, `chosen` or `reward` is private, "
                "is served, and is never quoted."
            ),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": {
            route.path: {route.method.lower(): _operation(route, limits.largest_batch)}
            for route in ROUTES
        },
    }


def _operation(route: Route, most: int) -> dict[str, Any]:
    refusal = _content(_schema(messages.ErrorAnswer))
    told: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": route.summary, **_answer(route)},
            **{code: {"description": text, **refusal} for code, text in _REFUSALS.items()},
        },
    }
    if route.role is not None:
        told["description"] = f"Role `{route.role}`."
    else:
        told["security"] = []
    if route.devices:
        told["description"] = "No key; other sites may ask."
    if route.body:
        schemas = [_schema(kind, {"maxItems": most}) for kind in route.body]
        told["requestBody"] = {"required": True, **_content(_any_of(schemas))}
        if route.devices:
            longest = {"minLength": REPORT_SIZE, "maxLength": REPORT_SIZE * most}
            binary = {"type": "string", "format": "binary", **longest}
            told["requestBody"]["content"][_BINARY] = {"schema": binary}
    return told


def _answer(route: Route) -> dict[str, Any]:
    if route.answers == (str,):
        return {"content": {"text/plain": {}}}
    if route.answers == (bytes,):
        return _content({"type": "string"}, _BINARY)
    return _content(_any_of([_schema(kind, refused=True) for kind in route.answers]))


def _content(schema: dict[str, Any], kind: str = _JSON) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _schema(
    kind: Any, bounds: dict[str, int] | None = None, *, refused: bool = False
) -> dict[str, Any]:
    """A type as JSON Schema; ``refused``: items of a list may have been refused."""
    (found,), _ = msgspec.json.schema_components([kind], ref_template=_PLACE)
    schema: dict[str, Any] = found
    if "items" in schema:
        schema |= bounds or {}
        if refused:
            schema["items"] = {"anyOf": [schema["items"], _schema(messages.RefusedItem)]}
    return schema
