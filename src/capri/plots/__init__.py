"""Pictures. Figures are built as objects: no global state, no screen needed.

``result.plot()`` imports pictures, so pictures import the classes of results for their types alone.
"""

from capri.plots.forecast import forecast_figure
from capri.plots.results import audit_figure, contest_figure, explanation_figure, run_figure
from capri.plots.style import spread, to_bytes

__all__ = [
    "audit_figure",
    "contest_figure",
    "explanation_figure",
    "forecast_figure",
    "run_figure",
    "spread",
    "to_bytes",
]
