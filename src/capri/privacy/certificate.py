"""The guarantee on one page: for a lawyer to read and for a machine to check."""

import json
from dataclasses import asdict, dataclass
from html import escape
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from capri.epoch.problem import PrivacyModel, Problem
from capri.errors import ConfigurationError
from capri.privacy.calibration import noise_multiplier
from capri.privacy.ledger import Ledger

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


_NOISE = (
    "discrete Gaussian noise from OpenDP's cryptographic generator, seeded by the operating system"
)
_MECHANISMS = {
    PrivacyModel.JOINT: (
        "sum of contributions, each clipped in norm and rounded to an integer grid, plus " + _NOISE
    ),
    PrivacyModel.LOCAL: (
        "each contribution, clipped in norm and rounded to an integer grid, plus " + _NOISE
    ),
}


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


def certify(problem: Problem, ledger: Ledger | None, *, private: bool) -> Certificate:
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
    limit = problem.limit
    unit = "one round of one user: context, action and reward"
    composition = (
        "parallel: a user is in one epoch, later releases are post-processing of it, so every "
        "epoch may spend the full budget"
    )
    once = "every user takes part in one round at most"
    if limit is not None:
        unit = f"one user: all of up to {limit.total} contributions, at most "
        unit += f"{limit.per_epoch} per epoch"
        composition = (
            f"group privacy within an epoch and adaptive Gaussian composition across epochs, "
            f"a factor of {problem.composition:g} on the noise"
        )
        once = "user ids tell users apart; the limit per user is enforced"
    return Certificate(
        model=str(problem.model),
        statement=_STATEMENTS[problem.model],
        privacy_unit=unit,
        neighbouring_relation="replace one: the same number of rounds, one unit's data changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="contexts, actions and rewards of the unit",
        assumptions=(
            "a user's reward does not depend on the actions given to other users",
            once,
            "the context pool or sampler, the kernel and all settings are public and were chosen "
            "without looking at the data protected here",
            "the policy runs in one process at a time and is always loaded from its newest file",
            "the curator's memory, timing and machine are out of an attacker's sight"
            if problem.model is PrivacyModel.JOINT
            else "the process that makes the reports is trusted, or runs on the user's device",
        ),
        mechanism=_MECHANISMS[problem.model],
        calibration=(
            "exact Gaussian mechanism (Balle and Wang 2018) at the replace-one sensitivity, with "
            "the step from continuous to integer noise paid for; the paper's noise where larger"
        ),
        noise_multiplier=noise_multiplier(ledger.budget, 1, problem.composition) / 2,
        composition=composition,
        releases=tuple(
            {
                "epoch": event.epoch,
                "decisions": event.participants,
                "coordinates": event.rank,
                "sensitivity": event.sensitivity,
                "noise": event.noise_scale,
                "calibration": event.calibration,
                "epsilon": ledger.spent_in(event.epoch).epsilon,
            }
            for event in ledger.events
        ),
        spent=asdict(ledger.spent),
        versions={
            "capri-bandits": version("capri-bandits"),
            "opendp": version("opendp"),
            "dp-accounting": version("dp-accounting"),
            "numpy": version("numpy"),
            "scipy": version("scipy"),
        },
    )


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
