"""A reservation in an organisation's ledger, as far as a certificate asks it."""

from typing import Any

CLINIC = "Ada's Clinic"


class Standing:
    """One of several sources of a population."""

    def __init__(self, **changes: Any) -> None:
        self.told: dict[str, Any] = {
            "organisation": CLINIC, "ledger": "ab" * 16, "generation": 3, "digest": "cd" * 32,
            "population": "patients", "promised": {"epsilon": 3.0, "delta": 3e-6},
            "account": "basic", "period": "2026", "sources": 1, "guarded": False,
            "reserved": {"epsilon": 1.0, "delta": 1e-6, "mu": None},
        } | changes  # fmt: skip

    def standing(self) -> dict[str, Any]:
        return self.told
