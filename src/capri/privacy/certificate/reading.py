"""The certificate in sentences and rows: what its text and its page both show."""

from typing import Any

from capri.privacy.certificate.beliefs import cases, percent
from capri.privacy.certificate.document import Certificate

NOT_DECLARED = "not declared"
Rows = list[tuple[str, str]]
# A page has room for so many; the JSON and the text list all.
_MOST_ROWS = 12
NOT_A_SIGNATURE = (
    "The digest shows that this certificate was not changed by accident or in part. It is no "
    "signature: compare it with the one that the organisation publishes."
)


def claim(told: Certificate) -> str:
    """The guarantee in one line."""
    return f"({told.epsilon:g}, {told.delta:g})-differential privacy in the {told.model} model"


def declared(told: Certificate) -> Rows:
    """Who, what for and when; what nobody declared is said to be so."""
    return [(name.capitalize(), text or NOT_DECLARED) for name, text in told.declaration.items()]


def covered(told: Certificate) -> Rows:
    """What is protected, from whom, and what of it was spent."""
    alone = []
    if (by_itself := told.locally) is not None:
        promise = f"({by_itself['epsilon']:g}, {by_itself['delta']:g})-differential privacy"
        alone = [("Without a shuffler", f"{promise}, from {by_itself['protects_from']}")]
    return [
        ("Privacy unit", told.privacy_unit),
        ("Protected", told.protects),
        ("Protected from", told.protects_from),
        *alone,
        ("Neighbouring data", told.neighbouring_relation),
        ("Spent", told.spent_means),
    ]


def uncovered(told: Certificate) -> tuple[str, ...]:
    """What is outside of the promise; whether presence is comes first."""
    return told.presence, *told.not_protected


def kept(told: Certificate) -> Rows:
    """How the promise is kept, and who else looked at it."""
    noise = told.calibration
    if told.noise_multiplier is not None:
        noise += f"; standard deviation at least {told.noise_multiplier:.6g} times the sensitivity"
    return [
        ("Mechanism", told.mechanism),
        ("Noise", noise),
        ("Composition", told.composition),
        ("Independent account", _account(told.independent_account)),
        ("Audit", _audit(told.audit)),
    ]


def _account(account: dict[str, Any] | None) -> str:
    if account is None:
        return (
            "none: pure epsilon is a count of exact fractions, which every device repeats; there "
            "is no noise to account for"
        )
    return (
        f"independent of this package, {account['by']} says epsilon {account['epsilon']:.6g} at "
        f"delta {account['delta']:g} for all releases that one unit can be in (noise "
        f"{account['noise_multiplier']:.6g} times the sensitivity; its rounding is at most "
        f"{account['tolerance']:.3g})"
    )


def _audit(audit: dict[str, Any] | None) -> str:
    if audit is None:
        return "no audit was attached"
    return (
        f"an attack on the running code proved epsilon {max(audit['proven_epsilon'], 0.0):.3g} at "
        f"{100 * audit['confidence']:.6g} % confidence, against a claim of "
        f"{audit['claimed_epsilon']:g}: no more than is claimed"
    )


ATTACKER = (
    "Suppose somebody knows everything except one unit's data and reasons perfectly. They believe "
    "a statement about that unit with the probability on the left. Once they have seen everything "
    "that is published, they believe it with at most the probability on the right. A belief can "
    "fall only as far as its opposite can rise."
)


def beliefs(told: Certificate) -> list[list[str]]:
    """Belief before, and after at most: one column for each chance of being exceeded."""
    chances = list(dict.fromkeys(row["exceeded_with_chance_at_most"] for row in told.beliefs))
    table = [["Belief before", *(_chance(chance) for chance in chances)]]
    for before in dict.fromkeys(row["before"] for row in told.beliefs):
        after = [row["after_at_most"] for row in told.beliefs if row["before"] == before]
        table.append([f"{100 * before:g} %", *(percent(each) for each in after)])
    return table


def _chance(chance: float) -> str:
    return f"After: at most, {cases(chance)}" if chance else "After: always at most"


def digests(told: Certificate) -> Rows:
    """What identifies configuration, plans and this document."""
    plans = [digest[:12] if digest else "not kept" for digest in told.digests["plans"]]
    prior = told.digests.get("prior")
    store = told.digests.get("store")
    standing = []
    if store is not None:
        anchor = "with an anchor" if store.get("anchored") else "without an anchor outside of it"
        said = f"line {store['line'][:12]}, generation {store['generation']}, {anchor}"
        standing = [("Store", said)]
    return [
        ("Configuration", told.digests["configuration"] or "not kept"),
        *([] if prior is None else [("Told beforehand", prior)]),
        ("Plans", _in_short(plans) if plans else "none yet"),
        *standing,
        ("This certificate", told.digest),
        ("Software", ", ".join(f"{name} {number}" for name, number in told.versions.items())),
    ]


def _in_short(plans: list[str]) -> str:
    """The first digits of each, which are enough to find the whole one in the JSON."""
    if len(plans) > _MOST_ROWS:
        return f"{plans[0]} to {plans[-1]}, {len(plans)} in all; the JSON lists them"
    return ", ".join(plans)


def cell(value: object) -> str:
    """A number of a release."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def every_release(told: Certificate) -> list[list[str]]:
    """One row for each release under the names of its columns; nothing before the first."""
    if not told.releases:
        return []
    return [list(told.releases[0]), *([cell(v) for v in each.values()] for each in told.releases)]


def folded_releases(told: Certificate) -> list[list[str]]:
    """The same where it fits on the page, else one row for releases in a row that are alike.

    Alike means the same calibration, the same epsilon and the same ratio of noise to sensitivity
    to six digits: what the promise depends on. Of everything else the range is shown.
    """
    if len(told.releases) <= _MOST_ROWS:
        return every_release(told)
    groups: list[list[dict[str, Any]]] = []
    for release in told.releases:
        if not groups or _parameters(groups[-1][-1]) != _parameters(release):
            groups.append([])
        groups[-1].append(release)
    if len(groups) > _MOST_ROWS:
        groups = [list(told.releases)]
    names = list(told.releases[0])
    return [names, *([_range(group, name) for name in names] for group in groups)]


def _parameters(release: dict[str, Any]) -> tuple[str, ...]:
    ratio = release["noise"] / release["sensitivity"] if "sensitivity" in release else 0.0
    return cell(release.get("calibration", "")), cell(release["epsilon"]), cell(ratio)


def _range(group: list[dict[str, Any]], name: str) -> str:
    values = [release[name] for release in group]
    if isinstance(values[0], str):
        return ", ".join(dict.fromkeys(values))
    ends = f"{min(values):.4g}", f"{max(values):.4g}"
    if isinstance(values[0], int):
        ends = str(min(values)), str(max(values))
    return " to ".join(dict.fromkeys(ends))
