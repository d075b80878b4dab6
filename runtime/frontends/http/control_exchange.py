# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchanges of loading and unloading a model, which take their time.

Whoever hangs up does not wait for the end of it, which comes all the same.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.repository_request import decode_load, decode_unload
from pyruntime.utils.errors import InferenceError


class _ControlExchange(Exchange):
    """What both have in common: the answer."""

    def _begin(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._body = b""  # it may hold whole files
        self._state.tasks.create_task(self._answer_after(work), name=f"{what} '{self.head.route.model}'")

    async def _answer_after(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except InferenceError as exc:
            self.reject(exc)
        else:
            self._respond(200, b"")


class LoadExchange(_ControlExchange):
    """`load`: answered once the model is ready."""

    def _act(self) -> None:
        config, files = decode_load(bytes(self._body))
        self._begin(self._state.control.load(self.head.route.model, config, files), "load")


class UnloadExchange(_ControlExchange):
    """`unload`: answered once the model takes no more requests."""

    def _act(self) -> None:
        with_dependents = decode_unload(bytes(self._body))
        self._begin(self._state.control.unload(self.head.route.model, with_dependents), "unload")
