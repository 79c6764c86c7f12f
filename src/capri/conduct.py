"""How to play in an epoch: a public law on the actions that no test has ruled out.

All a device needs to know in order to decide, and a function of earlier releases alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from capri.elimination import CommonWidth, DifferenceTest, EliminationTest
from capri.exploration import InverseGapLaw, Law, ThompsonLaw, UniformLaw
from capri.features import Basis
from capri.predictor import Predictor
from capri.spaces import Actions, context_chunks
from capri.typing import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class Conduct:
    """A law and the tests in force."""

    actions: Actions
    law: Law
    tests: tuple[EliminationTest, ...] = ()

    def active(self, contexts: FloatArray) -> BoolArray:
        """Actions that no test has ruled out, ``(n, actions)``."""
        active = np.ones((len(contexts), self.actions.count), dtype=np.bool_)
        for part in context_chunks(len(contexts), self.actions.count):
            pairs = self.actions.pairs(contexts[part])
            for test in self.tests:
                active[part] &= test.active(pairs)
            # Tests of different epochs may contradict each other; then nothing is ruled out.
            active[part][~active[part].any(axis=1)] = True
        return active

    def probabilities(self, contexts: FloatArray) -> FloatArray:
        """The law at each context. Thompson play needs no test: its support shrinks by itself."""
        law = np.empty((len(contexts), self.actions.count))
        for part in context_chunks(len(contexts), self.actions.count):
            rows = contexts[part]
            if isinstance(self.law, ThompsonLaw):
                active = np.ones((len(rows), self.actions.count), dtype=np.bool_)
            else:
                active = self.active(rows)
            law[part] = self.law.probabilities(self.actions.pairs(rows), active)
        return law

    def state(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Law and tests as JSON values and arrays; the basis is stored by whoever owns it."""
        values: dict[str, Any] = {"law": {"kind": "uniform"}, "tests": []}
        arrays: dict[str, FloatArray] = {}
        if isinstance(self.law, ThompsonLaw):
            values["law"] = {"kind": "thompson"}
            arrays["law.draws"] = self.law.draws
        elif isinstance(self.law, InverseGapLaw):
            values["law"] = {"kind": "inverse-gap", "gamma": self.law.gamma}
            arrays["law.weights"] = self.law.predictor.weights
        for number, test in enumerate(self.tests):
            name = f"test.{number}"
            if isinstance(test, CommonWidth):
                values["tests"].append({"kind": "common", "width": test.width})
                arrays[f"{name}.weights"] = test.predictor.weights
            elif isinstance(test, DifferenceTest):
                values["tests"].append(
                    {
                        "kind": "difference",
                        "width": test.width,
                        "outside": test.outside,
                        "roots": len(test.roots),
                    }
                )
                arrays[f"{name}.coefficients"] = test.coefficients
                arrays |= {f"{name}.root.{i}": root for i, root in enumerate(test.roots)}
        return values, arrays

    @classmethod
    def from_state(
        cls, values: dict[str, Any], arrays: dict[str, FloatArray], basis: Basis, actions: Actions
    ) -> "Conduct":
        """The inverse of :meth:`state`."""
        tests = tuple(
            _test(test, f"test.{number}", arrays, basis)
            for number, test in enumerate(values["tests"])
        )
        return cls(actions, _law(values["law"], arrays, basis), tests)


def _predictor(basis: Basis, weights: FloatArray) -> Predictor:
    return Predictor(basis.kernel, basis.pivots, weights)


def _law(values: dict[str, Any], arrays: dict[str, FloatArray], basis: Basis) -> Law:
    if values["kind"] == "thompson":
        return ThompsonLaw(basis, arrays["law.draws"])
    if values["kind"] == "inverse-gap":
        return InverseGapLaw(_predictor(basis, arrays["law.weights"]), float(values["gamma"]))
    return UniformLaw()


def _test(
    values: dict[str, Any], name: str, arrays: dict[str, FloatArray], basis: Basis
) -> EliminationTest:
    if values["kind"] == "common":
        return CommonWidth(_predictor(basis, arrays[f"{name}.weights"]), float(values["width"]))
    return DifferenceTest(
        basis,
        arrays[f"{name}.coefficients"],
        tuple(arrays[f"{name}.root.{i}"] for i in range(values["roots"])),
        float(values["outside"]),
        float(values["width"]),
    )
