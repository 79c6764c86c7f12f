"""The interface as OpenAPI 3.1, written from the types that go over the wire."""

from typing import Any

import msgspec

from capri.service import messages
from capri.service.limits import Limits
from capri.version import VERSION

_KINDS = (
    messages.Visit,
    messages.RewardItem,
    messages.Decided,
    messages.Rewarded,
    messages.Report,
    messages.Reported,
    messages.Refused,
    messages.Problem,
    messages.Catalogue,
    messages.Mode,
    messages.Close,
)
_PLACE = "#/components/schemas/{name}"
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
_READS = {
    "/v1/policy": ("What the policy is, and how far it has come", "object"),
    "/v1/epochs": ("One record for each closed epoch", "array"),
    "/v1/estimate": ("Estimated reward by action, over the public contexts", "object"),
    "/v1/explanation": ("What the releases made it believe", "object"),
    "/v1/certificate": ("The certificate of differential privacy", "object"),
    "/v1/ledger": ("What was promised and spent, release by release", "object"),
    "/v1/shadow": ("What the policy would have been worth, as released", "array"),
    "/v1/forecast": ("What was expected before the first user", "object"),
    "/v1/operations": ("What operators did, one line each", "array"),
}


def document(limits: Limits) -> dict[str, Any]:
    """All endpoints, with the limits of this service."""
    _, schemas = msgspec.json.schema_components(_KINDS, ref_template=_PLACE)
    for schema in schemas.values():
        schema.pop("title", None)
    most = limits.largest_batch
    visits = {"type": "array", "items": _ref("Visit"), "maxItems": most}
    rewards = {"type": "array", "items": _ref("RewardItem"), "maxItems": most}
    decided = {"type": "array", "items": {"anyOf": [_ref("Decided"), _ref("Refused")]}}
    rewarded = {"type": "array", "items": {"anyOf": [_ref("Rewarded"), _ref("Refused")]}}
    reports = {"type": "array", "items": _ref("Report"), "maxItems": most}
    reported = {"type": "array", "items": {"anyOf": [_ref("Reported"), _ref("Refused")]}}
    accepted = {"type": "object"}
    paths: dict[str, Any] = {
        "/v1/decisions": _post("decide", "Decide for one visit", _ref("Visit"), _ref("Decided")),
        "/v1/decisions:batch": _post(
            "decide",
            "Decide for many visits, item by item, some perhaps `refused` or `in doubt`",
            visits,
            decided,
        ),
        "/v1/rewards": _post(
            "reward",
            "Bring one reward, or a list of them, judged item by item, some perhaps `refused` or "
            "`in doubt`",
            {"anyOf": [_ref("RewardItem"), rewards]},
            {"anyOf": [_ref("Rewarded"), rewarded]},
        ),
        "/v1/bundle": _bundle(),
        "/v1/reports": _open_post(
            "Bring reports of devices, one or many, judged one by one",
            {"anyOf": [_ref("Report"), reports]},
            {"anyOf": [_ref("Reported"), reported]},
            most,
        ),
        "/v1/admin/catalogue": _post(
            "admin", "Offer other actions from the next epoch on", _ref("Catalogue"), accepted
        ),
        "/v1/admin/mode": _post("admin", "Change who decides", _ref("Mode"), accepted),
        "/v1/admin/close": _post("admin", "Close what is due", _ref("Close"), accepted),
        "/v1/live": _get("operator", "Live counts, inside the trust boundary", "object"),
        "/metrics": _get("read", "Public figures for Prometheus", None),
        "/healthz": _get(None, "Whether the process lives", "object"),
        "/readyz": _get(None, "Whether the store serves", "object"),
    }
    paths |= {path: _get("read", text, kind) for path, (text, kind) in _READS.items()}
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
        "paths": paths,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _PLACE.format(name=name)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _refusals() -> dict[str, Any]:
    refusal = {"type": "object", "required": ["error"], "properties": {"error": _ref("Problem")}}
    return {code: {"description": text, **_json(refusal)} for code, text in _REFUSALS.items()}


def _post(role: str, text: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "summary": text,
            "description": f"Role `{role}`.",
            "requestBody": {"required": True, **_json(body)},
            "responses": {"200": {"description": text, **_json(answer)}, **_refusals()},
        }
    }


def _bundle() -> dict[str, Any]:
    """The bundle of docs/wire.md."""
    told = _get(None, "What devices of a local policy decide with", None)
    content = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
    told["get"]["responses"]["200"] |= content
    return told


def _open_post(
    text: str, body: dict[str, Any], answer: dict[str, Any], most: int
) -> dict[str, Any]:
    """A call that needs no key; as JSON, or as 32 bytes for each report."""
    told = _post("", text, body, answer)
    content = told["post"]["requestBody"]["content"]
    binary = {"type": "string", "format": "binary", "minLength": 32, "maxLength": 32 * most}
    content["application/octet-stream"] = {"schema": binary}
    told["post"] |= {"description": "No key; other sites may ask.", "security": []}
    return told


def _get(role: str | None, text: str, kind: str | None) -> dict[str, Any]:
    content = _json({"type": kind}) if kind else {"content": {"text/plain": {}}}
    told: dict[str, Any] = {"description": f"Role `{role}`."} if role else {"security": []}
    answers = {"200": {"description": text, **content}, **_refusals()}
    return {"get": {"summary": text, **told, "responses": answers}}
