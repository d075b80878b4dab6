# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a server's models as the repositories have them: looks at their folders every now and then.

Whether a version must be loaded anew is decided by its load. Here it is decided which models are worth a look: those
that changed since the last one, and those whose load failed, because what was wrong with them may be elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from pyruntime.runtime.repository.fingerprint import folder_stamp
from pyruntime.runtime.repository.scan import scan
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.repository")


class Stamp(NamedTuple):
    """What a model's folder was like: where it is, why it cannot be served ("" if it can), and its files."""

    path: str
    problem: str
    files: bytes


class Changes(NamedTuple):
    """What is to be done, by name of model."""

    refresh: list[str]
    remove: list[str]


class Seen:
    """What was seen of the models at the last look."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}

    def look(self, found: Mapping[str, Stamp]) -> Changes:
        """This is there now: what has changed since the last time. At first everything is new."""
        before, self._stamps = self._stamps, dict(found)
        return Changes(
            [name for name, stamp in found.items() if before.get(name) != stamp],
            [name for name in before if name not in found],
        )

    def forget(self, name: str) -> None:
        """A model is not as it was seen: at the next look it is new."""
        if name in self._stamps:
            self._stamps[name] = Stamp("", "", b"")


class Control(Protocol):
    """What polling needs of model control: see ModelControl."""

    def set_repository(self, names: Iterable[str]) -> None: ...

    def refresh(self, name: str) -> asyncio.Task[InferenceError | None]: ...

    def remove(self, name: str) -> None: ...


class Polling:
    """See the module. `sleep` waits for so many seconds."""

    def __init__(
        self, settings: ServerSettings, control: Control, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._settings = settings
        self._control = control
        self._sleep = sleep
        self._seen = Seen()
        self._problem = ""

    async def run(self) -> None:
        """Look for ever. What a look finds is done in the background. Cancelling it is safe."""
        while True:
            await self._sleep(self._settings.repository_poll_s)
            found = await self._look()
            if found is not None:
                self._act(found)

    async def _look(self) -> dict[str, Stamp] | None:
        """What is there; None if that cannot be said, which is no reason to unload anything."""
        problem = ""
        try:
            return await asyncio.to_thread(look, self._settings)
        except LoadError as exc:
            problem = str(exc)
            if problem != self._problem:  # once: it may last
                _LOG.error("models stay as they are: %s", problem)
            return None
        except Exception:
            # Whatever a folder led us into, it must not end the server.
            _LOG.exception("models stay as they are: the repositories cannot be looked at")
            return None
        finally:
            self._problem = problem

    def _act(self, found: Mapping[str, Stamp]) -> None:
        self._control.set_repository(found)
        changes = self._seen.look(found)
        for name in changes.remove:
            _LOG.info("model '%s' is in no repository any more", name)
            self._control.remove(name)
        for name in changes.refresh:
            self._control.refresh(name).add_done_callback(partial(self._refreshed, name))

    def _refreshed(self, name: str, task: asyncio.Task[InferenceError | None]) -> None:
        if task.cancelled() or task.result() is not None:
            self._seen.forget(name)


def look(settings: ServerSettings) -> dict[str, Stamp]:
    """What the repositories hold now, by name of model. Raises LoadError if one of them cannot be read."""
    folders = scan(settings.model_repositories, settings.model_config_name or None)
    return {folder.name: Stamp(folder.path, folder.problem or "", folder_stamp(folder.path)) for folder in folders}
