"""Options that more than one command takes."""

from typing import Annotated

import typer

# The first is the default.
PRESETS = ("practical", "paper")

POLICY_PANEL = "Policy and privacy"

Preset = Annotated[
    str,
    typer.Option(
        help="Constants of CAPRI.", metavar="|".join(PRESETS), rich_help_panel=POLICY_PANEL
    ),
]
Epsilon = Annotated[
    float, typer.Option(help="Budget: smaller is more private.", rich_help_panel=POLICY_PANEL)
]
Delta = Annotated[
    float, typer.Option(help="Budget: the slack beside epsilon.", rich_help_panel=POLICY_PANEL)
]
Rounds = Annotated[int, typer.Option(help="Rounds to play.", min=2)]
