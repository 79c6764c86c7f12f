"""Read by Python when it starts, since this folder is on the path of a tormented service.

Puts points to die at around the stores of the service and its workers, and sets their clock; where
releases are to be recounted it takes the budget away. The package knows nothing of it; other
processes that a service starts are left alone.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

_STARTED = " ".join(sys.orig_argv)
if "CAPRI_FAULT_CONTROL" in os.environ and (" serve " in _STARTED or "forkserver" in _STARTED):
    from capri.joint import engine
    from fault_control import Control
    from fault_points import Points

    control = Control(Path(os.environ["CAPRI_FAULT_CONTROL"]))
    Points(control).install()
    if "CAPRI_FAULT_EXACT" in os.environ:  # no policy file can ask for that
        from capri.service import settings

        settings.Budget = lambda **_: None  # type: ignore[assignment, misc]
    engine.time = SimpleNamespace(time=lambda: time.time() + control.clock)  # type: ignore[assignment]
