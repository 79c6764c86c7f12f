"""Endpoints that change what is public: the catalogue, who decides, and closing an epoch."""

import asyncio
from pathlib import Path
from typing import Any, Protocol

from capri.errors import ConfigurationError
from capri.joint.policy import Capri
from capri.service.door import Answer, Call
from capri.service.envelope import read_as
from capri.service.facts import Facts
from capri.service.messages import Catalogue, Close, Mode, RefusalError, encode
from capri.service.settings import actions_from

DEEPEST = 16


class Admin:
    """Calls of the role ``admin``; their bodies are public, and refusals may quote them."""

    def __init__(self, policy: Capri, facts: Facts) -> None:
        self._policy, self._facts = policy, facts

    def operations(self) -> Any:
        """What was done to the policy, one line each."""
        return [operation.to_dict() for operation in self._policy.operations]

    async def catalogue(self, call: Call) -> Answer:
        """``POST /v1/admin/catalogue``: other actions, from the next epoch on."""
        return await replace_actions(call, self._policy, self._facts)

    async def mode(self, call: Call) -> Answer:
        """``POST /v1/admin/mode``: who decides from now on."""
        given = read_as(call.body, Mode, DEEPEST)
        try:
            await asyncio.to_thread(self._policy.set_mode, given.mode, action=given.action)
        except ConfigurationError as problem:
            raise RefusalError(422, str(problem), "mode") from None
        self._facts.forget()
        return Answer(encode({"status": "accepted", "mode": given.mode}))

    async def close(self, call: Call) -> Answer:
        """``POST /v1/admin/close``: release what is due, and what is under way where asked."""
        given = read_as(call.body, Close, DEEPEST)
        await asyncio.to_thread(self._policy.close_epoch, early=given.early)
        return Answer(encode({"status": "closed", "releases": len(self._policy.epochs)}))


class _Replaces(Protocol):
    """A policy, or a collector of reports."""

    def replace_actions(self, actions: Any) -> Any:
        """Other actions, from the next epoch on."""


async def replace_actions(call: Call, of: _Replaces, facts: Facts) -> Answer:
    """A new catalogue for whoever decides or hands out bundles."""
    given = read_as(call.body, Catalogue, DEEPEST)
    try:
        await asyncio.to_thread(of.replace_actions, actions_from(given.actions, Path()))
    except ConfigurationError as problem:
        raise RefusalError(422, str(problem), "actions") from None
    facts.forget()
    return Answer(encode({"status": "accepted", "effective": "from the next epoch on"}))
