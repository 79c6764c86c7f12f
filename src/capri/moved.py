"""Modules that moved: their old paths still work, with a warning.

Files pickled by an earlier release and programs that import from a documented path find what they
name: an old module looks its names up in the new one, or in the new ones where it was split.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HOMES: dict[str, tuple[str, ...]] = {
    "arena": ("experiments.arena", "cli.arena"),
    "arena.contest": ("experiments.arena",),
    "arena.experiments": ("experiments.arena", "environments.published", "experiments.play"),
    "arena.problems": ("experiments.arena",),
    "arena.table": ("cli.arena",),
    "audit": ("joint.audit",),
    "certificate": ("privacy.certificate",),
    "cli.findings": ("cli.contest",),
    "cli.report_page": ("cli.report",),
    "conduct": ("epoch.play",),
    "confidence": ("learners.active",),
    "datasets.cleaning": ("datasets.tables",),
    "datasets.frames": ("datasets.tables",),
    "datasets.one_pass": ("datasets.bandit",),
    "datasets.plain": ("datasets.catalogue",),
    "datasets.replaying": ("datasets.logs",),
    "datasets.reward_model": ("datasets.off_policy",),
    "datasets.split": ("datasets.loader",),
    "datasets.suggestions": ("datasets.catalogue",),
    "decisions": ("epoch.decide", "epoch.accumulate"),
    "device_audit": ("local.audit",),
    "elimination": ("epoch.play",),
    "encoder": ("epoch.encode",),
    "encoding": ("epoch.encode",),
    "environments.catalogue": ("environments.functions",),
    "environments.rkhs": ("environments.functions",),
    "experiments.clock": ("experiments.runner",),
    "experiments.events": ("experiments.backends",),
    "experiments.extras": ("checks", "errors"),
    "experiments.given": ("toml",),
    "experiments.here": ("experiments.backends",),
    "experiments.lines": ("toml",),
    "experiments.maps": ("experiments.play",),
    "experiments.toml": ("toml",),
    "experiments.toml_writer": ("toml",),
    "exploration": ("epoch.play", "epoch.decide"),
    "gate": ("privacy.gate",),
    "grid": ("privacy.grid",),
    "kernels.distances": ("kernels.stationary",),
    "kernels.functions": ("kernels.algebra",),
    "learners.base": ("epoch.learner",),
    "local.certificate": ("privacy.certificate",),
    "regression.guarantee": ("privacy.certificate",),
    "regression.moments": ("privacy.moments",),
    "learners.planning": ("learners.messages",),
    "learners.shape": ("learners.messages",),
    "local.reports": ("local.wire",),
    "local.spherical": ("privacy.sphere",),
    "outlook": ("forecast.result",),
    "plan": ("epoch.plan",),
    "plots.contest": ("plots.run",),
    "policy": ("joint.policy",),
    "predictor": ("features",),
    "presets": ("learners.presets",),
    "problem": ("epoch.problem",),
    "random_functions": ("forecast.worlds",),
    "regression.model": ("regression.decode",),
    "regression.planner": ("regression.allocation",),
    "regression.reports": ("regression.devices",),
    "regression.width": ("regression.decode",),
    "report.document": ("report.page",),
    "report.report": ("report.reader",),
    "rivals.batched_linear": ("rivals.linear.moments",),
    "rivals.least_squares": ("rivals.linear.least_squares",),
    "rivals.shariff_sheffet": ("rivals.linear.moments",),
    "rivals.tree": ("rivals.linear.tree",),
    "storage": ("epoch.storage",),
    "typing": ("arrays",),
}


# Names that changed on the way, by old module and name.
_NAMES = {
    ("audit", "audit"): "audit_policy",
    ("outlook", "EpochOutlook"): "ExpectedEpoch",
    ("outlook", "Outlook"): "ExpectedRegret",
}


class _OldPaths(MetaPathFinder, Loader):
    """Finds ``capri.<old>`` and makes a module that looks names up where they are now."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.removeprefix("capri.") not in _HOMES:
            return None
        return ModuleSpec(fullname, self, is_package=True)  # so that old modules below it are found

    def exec_module(self, module: ModuleType) -> None:
        """Warn once, and look names up when they are asked for."""
        homes = _HOMES[module.__name__.removeprefix("capri.")]
        warnings.warn(
            f"{module.__name__} moved to {' and '.join(f'capri.{home}' for home in homes)}",
            DeprecationWarning,
            stacklevel=2,
        )

        def look_up(name: str) -> Any:
            name = _NAMES.get((module.__name__.removeprefix("capri."), name), name)
            for home in homes:
                found = importlib.import_module(f"capri.{home}")
                if hasattr(found, name):
                    return getattr(found, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = look_up


def install() -> None:
    """Let old paths be imported; asked last, so that it costs nothing where they are not used."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
