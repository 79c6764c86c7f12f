"""A certificate as an entry of the public Differential Privacy Deployments Registry.

The registry describes a deployment in fields of its own, in three tiers. A certificate knows most
of them; its organisation adds the name and the region. ``registry.schema.json`` says what stands
where, written from the registry's fields (github.com/opendp/deployments-registry-data, 2026): what
is exported is checked against it.

Its files are YAML, named in lower-case letters, digits and underscores. The slug comes first, as
the registry makes it; every other value is written as JSON, which is YAML.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any
from unicodedata import combining, normalize

from capri.errors import ConfigurationError
from capri.privacy.certificate.document import Certificate, checked_line
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
    checked_line("name", name)
    checked_line("region", region)
    organisation, date = str(declared["organisation"]), str(declared["date"])
    entry = {
        "url_slug": "-".join(_slug(each) for each in (name, organisation, date[:4])),
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
    """As the registry does: underscores, and runs of what is in no word of any script, are a dash.

    >>> _slug("Søn A/S (new)")
    'søn-a-s-new-'
    """
    return re.sub(r"\W+|_", "-", text.lower())


# -- the file -------------------------------------------------------------------------------------


def registry_yaml(entry: dict[str, Any]) -> str:
    """An entry as the file that the registry takes."""
    rest = {name: value for name, value in entry.items() if name != "url_slug"}
    return f"url_slug: {entry['url_slug']}\n" + "".join(_lines(rest, ""))


def file_name(entry: dict[str, Any]) -> str:
    """A name for that file: the slug in plain letters.

    >>> file_name({"url_slug": "été-søn-2026"})
    'ete_s_n_2026.yaml'
    """
    letters = "".join(c for c in normalize("NFKD", entry["url_slug"]) if not combining(c))
    return re.sub(r"[^a-z0-9]+", "_", letters).strip("_") + ".yaml"


def check_file_name(name: str) -> None:
    """Refuse a name that the registry refuses."""
    if not re.fullmatch(r"[a-z0-9_]+\.yaml", name):
        raise ConfigurationError(
            "the registry takes files named in lower-case letters, digits and underscores that end "
            f"in .yaml, got {name!r}: leave the name out, or give one such as reminders_2026.yaml"
        )


def _lines(values: dict[str, Any], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {_value(value)}\n"


def _value(value: Any) -> str:
    """JSON on one line, in characters and numbers that every reader of YAML takes as such."""
    if isinstance(value, float):  # 1e-06 would be a text: YAML wants a point
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
