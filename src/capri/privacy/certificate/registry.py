"""A certificate as an entry of the public Differential Privacy Deployments Registry.

The registry describes a deployment in fields of its own, in three tiers. A certificate knows most
of them; its organisation adds the name and the region. ``registry.schema.json`` says what stands
where, written from the registry's fields (github.com/opendp/deployments-registry-data, 2026): what
is exported is checked against it. JSON is YAML, so the entry can be handed in as it is.
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from capri.errors import ConfigurationError
from capri.privacy.certificate.document import Certificate
from capri.privacy.certificate.pages import promise
from capri.privacy.certificate.verify import check_schema

_MODELS = {"joint": "Central", "local": "Local", "shuffle": "Shuffle"}


@cache
def registry_schema() -> dict[str, Any]:
    """The schema of entries."""
    file = files("capri.privacy.certificate").joinpath("registry.schema.json")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema


def registry_entry(
    told: Certificate, *, name: str, region: str, sector: str | None = None
) -> dict[str, Any]:
    """The entry of a deployment, a draft: whoever hands it in reads it first.

    ``name``: of what is deployed; ``region``: whose people or laws; ``sector``: one of the
    registry's, such as "Healthcare".
    """
    declared = told.declaration
    missing = [each for each in ("organisation", "purpose", "date") if not declared[each]]
    if missing:
        raise ConfigurationError(
            f"the registry asks for {', '.join(missing)}: declare it on the certificate"
        )
    organisation, date = str(declared["organisation"]), str(declared["date"])
    entry = {
        "url_slug": _slug(f"{name} {organisation} {date[:4]}"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": [organisation],
                "intended_use": declared["purpose"],
                "data_product_type": "Machine learning model",
                "data_product_region": region,
                "description": told.statement,
                "publication_date": date,
                **({} if sector is None else {"data_product_sector": sector}),
            },
            **_technical(told),
            "administrative": {
                "notes": f"Self-issued. Certificate SHA-256 {told.digest}",
                "registry_authors": [organisation],
            },
        },
    }
    check_schema(entry, registry_schema(), "entry")
    return entry


def _technical(told: Certificate) -> dict[str, Any]:
    """What the certificate knows: variant, loss, model, accounting, implementation."""
    assumed = "\n".join(
        f"- {text} (kept by: {keeper})"
        for text, keeper in zip(told.assumptions, told.kept_by, strict=True)
    )
    fit = any("stage" in release for release in told.releases)
    return {
        "dp_variant": {
            "variant_name": "Approximate DP" if told.delta else "Pure DP",
            "data_domain": told.protects,
            "unprotected_quantities": "\n".join(
                f"- {each}" for each in (told.presence, *told.not_protected)
            ),
        },
        "privacy_loss": {
            "privacy_unit": told.privacy_unit,
            "privacy_unit_details": told.neighbouring_relation,
            "privacy_parameters": {
                "epsilon": told.epsilon,
                **({"delta": told.delta} if told.delta else {}),
            },
            "privacy_parameters_details": told.spent_means,
        },
        "deployment_model": {
            "model_name": _MODELS[told.model],
            "actors": f"Protected from: {told.protects_from}\n{assumed}",
            "release_type": "One release" if fit else "Many releases",
            "release_type_details": f"{len(told.releases)} releases so far. {_total(told)}",
            "data_source_type": "Static" if fit else "Dynamic",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "All that is learnt, planned and played follows from releases",
            "composition": f"{told.composition}. {_total(told)}",
        },
        "implementation": {
            "mechanisms": _implemented(told),
            "justification": _evidence(told),
        },
    }


def _implemented(told: Certificate) -> str:
    software = ", ".join(f"{name} {number}" for name, number in told.versions.items())
    return (
        f"{told.mechanism}. {told.calibration}. Noise is added to integers, by exact samplers: "
        f"floating point tells nothing. {software}"
    )


def _total(told: Certificate) -> str:
    """What the people are promised over all that is done with them."""
    if told.in_total is None:
        return "What else is done with the same people is not counted here"
    total = told.in_total
    when = "" if total["period"] is None else f" in {total['period']}"
    return (
        f"Population {total['population']!r}: {promise(total['promised'])}{when} over all that is "
        f"done with it, of which {promise(total['reserved'])} is reserved by {total['sources']} "
        f"of its policies, fits and fleets ({total['account']} composition)"
    )


def _evidence(told: Certificate) -> str:
    account = told.independent_account
    parts = [] if account is None else [f"{account['by']} finds epsilon {account['epsilon']:.6g}"]
    if told.audit is not None:
        proven, claimed = told.audit["proven_epsilon"], told.audit["claimed_epsilon"]
        parts.append(f"an audit by attack proved epsilon {proven:g} of {claimed:g}")
    return "; ".join(parts) or "No independent account or audit is attached"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "deployment"
