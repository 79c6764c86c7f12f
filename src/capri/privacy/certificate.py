"""The guarantee on one page: for a lawyer to read and for a machine to check."""

import json
from dataclasses import asdict, dataclass
from html import escape
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from capri.errors import ConfigurationError
from capri.privacy.budget import Budget
from capri.privacy.calibration import noise_multiplier
from capri.privacy.ledger import Ledger
from capri.privacy.promise import PrivacyModel, Randomizer
from capri.privacy.users import UserLimit

_STATEMENTS = {
    PrivacyModel.JOINT: (
        "Whatever anyone can learn from the actions given to other people, and from everything the "
        "curator publishes, would be almost as likely if the data of any one privacy unit had been "
        "different. The curator sees the data and is trusted with it."
    ),
    PrivacyModel.LOCAL: (
        "Each report is made private before it is summed: whoever reads it could almost as "
        "likely have read it had the person's data been different. Whoever receives reports "
        "need not be trusted; the program that makes them sees the data."
    ),
}
NOISE = (
    "discrete Gaussian noise from OpenDP's cryptographic generator, seeded by the operating system"
)
_MECHANISMS = {
    PrivacyModel.JOINT: (
        "sum of contributions, each clipped in norm and rounded to an integer grid, plus " + NOISE
    ),
    PrivacyModel.LOCAL: (
        "each contribution, clipped in norm and rounded to an integer grid, plus " + NOISE
    ),
}


# Settings must not have seen the data they protect.
PUBLIC_SETTINGS = (
    "the context pool or sampler, the kernel and all settings are public and were chosen without "
    "looking at the data protected here"
)
ANALYTIC = (
    "exact Gaussian mechanism (Balle and Wang 2018) at the replace-one sensitivity, with the step "
    "from continuous to integer noise paid for"
)
_ON_DEVICES = (
    "Each person's report is made private on their own device: whoever reads it, the aggregator "
    "included, could almost as likely have read it had the person's data been different. Nobody "
    "has to be trusted with the data."
)
_RANDOMIZERS = {
    Randomizer.SPHERE: (
        "a seed drawn by the operating system names public random directions; the report is the "
        "seed and the number of one of them, chosen with exact integer probabilities whose ratio "
        "between any two data is at most e^epsilon"
    ),
    Randomizer.GAUSSIAN: (
        "the contribution, clipped in norm and rounded to an integer grid, plus " + NOISE
    ),
}
_CALIBRATION = {
    Randomizer.SPHERE: "pure epsilon, delta = 0, checked by every device in exact fractions",
    Randomizer.GAUSSIAN: ANALYTIC + "; checked by every device",
}
# The integer noise of so many coordinates; the number hardly matters.
_COORDINATES = 2


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is promised, to whom, under which assumptions, and what was done to keep it."""

    model: str
    statement: str
    privacy_unit: str
    neighbouring_relation: str
    epsilon: float
    delta: float
    protects: str
    assumptions: tuple[str, ...]
    mechanism: str
    calibration: str
    noise_multiplier: float | None
    composition: str
    releases: tuple[dict[str, Any], ...]
    spent: dict[str, float]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def terms(self) -> dict[str, Any]:
        """The guarantee without what was done so far: releases, and what they spent."""
        done = ("spent", "releases")
        return {name: value for name, value in self.to_dict().items() if name not in done}

    def to_json(self) -> str:
        """The certificate for a machine."""
        return json.dumps(self.to_dict(), indent=2)

    def to_text(self) -> str:
        """The certificate for a reader, as Markdown."""
        head = [
            "# Certificate of differential privacy",
            "",
            f"**({self.epsilon:g}, {self.delta:g})-differential privacy in the {self.model} "
            "model.** " + self.statement,
            "",
            f"- Privacy unit: {self.privacy_unit}",
            f"- Neighbouring data: {self.neighbouring_relation}",
            f"- Protected: {self.protects}",
            f"- Mechanism: {self.mechanism}",
            f"- Noise: {self.calibration}" + self._noise(),
            f"- Composition: {self.composition}",
            f"- Spent so far: epsilon {self.spent['epsilon']:.6g} of {self.epsilon:g} "
            f"at delta {self.delta:g}",
            "",
            "## Assumptions",
            "",
            *(f"{number}. {text}" for number, text in enumerate(self.assumptions, start=1)),
            "",
            "## Releases",
            "",
        ]
        if self.releases:
            names = list(self.releases[0])
            rows = [
                " | ".join(_short(release[name]) for name in names) for release in self.releases
            ]
            head += [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
            head += [f"| {row} |" for row in rows]
        else:
            head.append("None yet.")
        software = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return "\n".join([*head, "", f"Made with {software}.", ""])

    def _noise(self) -> str:
        if self.noise_multiplier is None:
            return ""
        return f"; standard deviation at least {self.noise_multiplier:.6g} times the sensitivity"

    def to_html(self) -> str:
        """The certificate as a page that opens anywhere."""
        return _page(self.to_text())

    def __repr__(self) -> str:
        return (
            f"Certificate(({self.epsilon:g}, {self.delta:g})-differential privacy, {self.model} "
            f"model; {self.privacy_unit}; {len(self.releases)} releases spent epsilon "
            f"{self.spent['epsilon']:.6g}; .to_text() says all)"
        )

    def _repr_html_(self) -> str:
        # Folded, and without the style of the page, which would spread to the whole notebook.
        body = self.to_html().partition("</style>")[2].removesuffix("</html>\n")
        return f"<details><summary>{escape(repr(self))}</summary>{body}</details>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write ``.json``, ``.html`` or Markdown, by the ending of the path."""
        target = Path(path)
        forms = {".json": self.to_json, ".html": self.to_html}
        target.write_text(forms.get(target.suffix, self.to_text)(), encoding="utf-8")


def certify_policy(
    *,
    model: PrivacyModel,
    limit: UserLimit | None,
    composition: float,
    ledger: Ledger | None,
    private: bool,
) -> Certificate:
    """State the guarantee of a policy, or refuse: no budget and no real noise, no certificate."""
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this policy runs without privacy. Give it a capri.Budget"
        )
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            "Leave simulation_seed at None"
        )
    unit = "one round of one user: context, action and reward"
    composed = (
        "parallel: a user is in one epoch, later releases are post-processing of it, so every "
        "epoch may spend the full budget"
    )
    once = "every user takes part in one round at most"
    if limit is not None:
        unit = f"one user: all of up to {limit.total} contributions, at most "
        unit += f"{limit.per_epoch} per epoch"
        composed = (
            f"group privacy within an epoch and adaptive Gaussian composition across epochs, "
            f"a factor of {composition:g} on the noise"
        )
        once = "user ids tell users apart; the limit per user is enforced"
    return Certificate(
        model=str(model),
        statement=_STATEMENTS[model],
        privacy_unit=unit,
        neighbouring_relation="replace one: the same number of rounds, one unit's data changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="contexts, actions and rewards of the unit",
        assumptions=(
            "a user's reward does not depend on the actions given to other users",
            once,
            PUBLIC_SETTINGS,
            "the policy runs in one process at a time and is always loaded from its newest file",
            "the curator's memory, timing and machine are out of an attacker's sight"
            if model is PrivacyModel.JOINT
            else "the process that makes the reports is trusted, or runs on the user's device",
        ),
        mechanism=_MECHANISMS[model],
        calibration=ANALYTIC + "; the paper's noise where larger",
        noise_multiplier=noise_multiplier(ledger.budget, 1, composition) / 2,
        composition=composed,
        releases=releases_of(ledger, epoch="epoch", participants="decisions"),
        spent=asdict(ledger.spent),
        versions=versions_of("opendp", "dp-accounting", "numpy", "scipy"),
    )


def certify_devices(
    randomizer: Randomizer,
    budget: Budget,
    releases: tuple[dict[str, Any], ...],
    *,
    reported: bool,
) -> Certificate:
    """State what every user of a :class:`LocalClient` is promised.

    ``reported``: whether any report came in. A report spends when it is made, not when its epoch
    closes.
    """
    pure = randomizer is Randomizer.SPHERE
    delta = 0.0 if pure else budget.delta
    return Certificate(
        model="local",
        statement=_ON_DEVICES,
        privacy_unit="one report of one user: context, action and reward",
        neighbouring_relation="replace one: any two data of the user",
        epsilon=budget.epsilon,
        delta=delta,
        protects="contexts, actions and rewards of the unit, and whether there was a reward",
        assumptions=(
            "the device runs capri.LocalClient unchanged and gives it the person's own budget",
            "a person reports from one device, once; the client enforces it while it runs, and "
            "across restarts where it keeps a receipt",
            "the operating system's random numbers are unpredictable",
            "that somebody takes part, and when, is not hidden by the report itself; how long the "
            "device computed is out of an attacker's sight",
            PUBLIC_SETTINGS,
        ),
        mechanism=_RANDOMIZERS[randomizer],
        calibration=_CALIBRATION[randomizer],
        noise_multiplier=None if pure else noise_multiplier(budget, _COORDINATES) / 2,
        composition="none needed: a user reports once, and all else is post-processing of reports",
        releases=releases,
        spent={"epsilon": budget.epsilon, "delta": delta}
        if reported
        else {"epsilon": 0.0, "delta": 0.0},
        versions=versions_of("numpy", *(() if pure else ("opendp", "scipy"))),
    )


def certify_fit(
    ledger: Ledger | None, *, private: bool, from_data: tuple[str, ...] = ()
) -> Certificate:
    """State the guarantee of a fit, or refuse: no budget, no real noise or data in the settings."""
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this fit spent no budget here. Epsilon is infinite, or the rows came "
            "as reports, which are certified where they are made"
        )
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            "Leave random_state at None"
        )
    if from_data:
        raise ConfigurationError(
            "no certificate: bounds were taken from the data, which is not private. "
            f"Give {' and '.join(from_data)}, known without looking at the data, and fit again"
        )
    return Certificate(
        model="joint",
        statement=(
            "Whatever anyone can learn from the fitted estimator, its predictions and its widths "
            "would be almost as likely if any one row had been different. Whoever runs the fit "
            "sees the data and is trusted with it."
        ),
        privacy_unit="one row: all features and targets of it",
        neighbouring_relation="replace one: the same number of rows, one row changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="features and targets of the row",
        assumptions=(
            "a person is in one row at most",
            "bounds, public rows, the kernel and all settings were chosen without looking at the "
            "data",
            "the place of a row, and the order of rows, does not depend on the values of rows (no "
            "sorting by value); otherwise use partial_fit, which makes a single stage",
            "rows are the same, in the same order, whenever they are read: chunks and files are "
            "checked for it, Dask collections are not",
            "the data are fitted once: every further fit on the same rows spends the budget again",
            "the machine that fits, its memory and its timing are out of an attacker's sight",
        ),
        mechanism=(
            "second-moment matrix of rows, each clipped in norm and rounded to an integer grid, "
            "plus " + NOISE
        ),
        calibration=ANALYTIC + "; the paper's noise where larger",
        noise_multiplier=min(1 / event.mu for event in ledger.events),
        composition=(
            "parallel: every row is in one stage, by public lots, and later stages are "
            "post-processing of earlier ones, so every stage may spend the full budget"
        ),
        releases=releases_of(ledger, epoch="stage", participants="rows"),
        spent=asdict(ledger.spent),
        versions=versions_of("opendp", "dp-accounting", "numpy", "scipy"),
    )


def releases_of(ledger: Ledger, *, epoch: str, participants: str) -> tuple[dict[str, Any], ...]:
    """One row for each event of a ledger, under the names that its reader knows."""
    return tuple(
        {
            epoch: event.epoch,
            participants: event.participants,
            "coordinates": event.rank,
            "sensitivity": event.sensitivity,
            "noise": event.noise_scale,
            "calibration": event.calibration,
            "epsilon": ledger.spent_in(event.epoch).epsilon,
        }
        for event in ledger.events
    )


def versions_of(*names: str) -> dict[str, str]:
    """Of this package and of the libraries that the guarantee rests on."""
    return {name: version(name) for name in ("capri-bandits", *names)}


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _page(markdown: str) -> str:
    """The few Markdown forms used above as one self-contained HTML page."""
    body: list[str] = []
    kind = ""  # the element that list items or table rows are being collected in
    for line in markdown.splitlines():
        text = escape(line)
        if text.startswith("|"):
            wanted, item = "table", _table_row(text, first=kind != "table")
        elif text.startswith("- "):
            wanted, item = "ul", f"<li>{text[2:]}</li>"
        elif text[:1].isdigit() and ". " in text:
            wanted, item = "ol", f"<li>{text.split('. ', 1)[1]}</li>"
        elif text.startswith("#"):
            level = len(text) - len(text.lstrip("#"))
            wanted, item = "", f"<h{level}>{text[level + 1 :]}</h{level}>"
        else:
            bold = text.split("**")
            wanted = ""
            item = f"<p><b>{bold[1]}</b>{bold[2]}</p>" if len(bold) == 3 else f"<p>{text}</p>"
            item = item if text else ""
        if kind and wanted != kind:
            body.append(f"</{kind}>")
        if wanted and wanted != kind:
            body.append(f"<{wanted}>")
        kind = wanted
        if item:
            body.append(item)
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;display:block;overflow-x:auto}"
        "td,th{border-bottom:1px solid #8886;padding:.25rem .6rem;text-align:right}"
        ":root{color-scheme:light dark}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Certificate of differential privacy</title><style>{style}</style>"
        + "\n".join(body)
        + "</html>\n"
    )


def _table_row(text: str, *, first: bool) -> str:
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    if all(cell == "---" for cell in cells):
        return ""
    tag = "th" if first else "td"
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"
