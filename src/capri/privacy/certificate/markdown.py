"""The certificate as Markdown."""

from capri.privacy.certificate import reading
from capri.privacy.certificate.document import Certificate


def markdown(told: Certificate) -> str:
    """Everything that the page shows, and every release."""
    lines = [
        "# Certificate of differential privacy",
        "",
        f"**{reading.claim(told)}.** {told.statement}",
        "",
        *_items(reading.declared(told)),
        "",
        "## What is protected",
        "",
        *_items(reading.covered(told)),
        "",
        "## What an attacker may learn",
        "",
        reading.ATTACKER,
        "",
        *_table(reading.beliefs(told)),
        "",
        "## What is not protected",
        "",
        *(f"- {text}" for text in reading.uncovered(told)),
        "",
        "## Assumptions",
        "",
        *(
            f"{number}. {text} (kept by: {keeper})"
            for number, (text, keeper) in enumerate(
                zip(told.assumptions, told.kept_by, strict=True), start=1
            )
        ),
        "",
        "## How it is kept",
        "",
        *_items(reading.kept(told)),
        "",
        "## Releases",
        "",
        *(_table(reading.every_release(told)) or ["None yet."]),
        "",
        "## Digests",
        "",
        *_items(reading.digests(told)),
        "",
        reading.NOT_A_SIGNATURE,
        "",
    ]
    return "\n".join(lines)


def _items(rows: reading.Rows) -> list[str]:
    return [f"- {name}: {text}" for name, text in rows]


def _table(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    head, *body = rows
    return [_row(head), "|" + " --- |" * len(head), *(_row(row) for row in body)]


def _row(cells: list[str]) -> str:
    # A bar would end the cell.
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"
