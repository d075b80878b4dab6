# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the models of a server equal to those in the repositories, by reading their folders periodically.

The load itself decides whether a version must be loaded again. This module selects the models to load: those that
changed since the last poll, and those that do not serve because their load failed, since the cause may lie outside
their folders. Those are tried again slower and slower. A model that serves is tried once for each change: it goes on as
it was, and each failed load fills the log with a traceback.
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


# A failed load is tried again after so many polls at most: with 15 s between polls that is every 16 minutes.
RETRY_POLLS_MAX = 64


class Stamp(NamedTuple):
    """A model's folder at one poll: its path, why it cannot be served ("" if it can), and its files."""

    path: str
    problem: str
    files: bytes


class Changes(NamedTuple):
    """The models to load and to unload, by name."""

    refresh: list[str]
    remove: list[str]


class Seen:
    """The models at the last poll, and the failed loads to try again."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        # How often the load of a model failed since its folder changed, and after how many polls it is due again.
        self._failures: dict[str, int] = {}
        self._due: dict[str, int] = {}

    def look(self, found: Mapping[str, Stamp]) -> Changes:
        """Replace the models by those `found` now, and return the changes. At first everything is new."""
        before, self._stamps = self._stamps, dict(found)
        changed = [name for name, stamp in found.items() if before.get(name) != stamp]
        gone = [name for name in before if name not in found]
        for name in (*changed, *gone):
            self.loaded(name)
        for name in self._due:
            self._due[name] -= 1
        again = [name for name, polls in self._due.items() if not polls]
        for name in again:
            del self._due[name]
        return Changes([*changed, *again], gone)

    def loaded(self, name: str) -> None:
        """A model was loaded, or is about to be loaded as it is now."""
        self._failures.pop(name, None)
        self._due.pop(name, None)

    def failed(self, name: str) -> None:
        """The load of a model failed. It is due at the next poll, and after further failures less and less often."""
        if name in self._stamps:
            count = self._failures[name] = self._failures.get(name, 0) + 1
            self._due[name] = min(2 ** max(0, count - 2), RETRY_POLLS_MAX)


class Control(Protocol):
    """The part of ModelControl that polling uses."""

    def set_repository(self, names: Iterable[str]) -> None: ...

    def refresh(self, name: str) -> asyncio.Task[InferenceError | None]: ...

    def is_serving(self, name: str) -> bool: ...

    def remove(self, name: str) -> None: ...


class Polling:
    """See the module. `sleep` waits for a number of seconds."""

    def __init__(
        self, settings: ServerSettings, control: Control, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._settings = settings
        self._control = control
        self._sleep = sleep
        self._seen = Seen()
        self._problem = ""

    async def run(self) -> None:
        """Poll until cancelled. Loads and unloads run in the background. Safe to cancel."""
        while True:
            await self._sleep(self._settings.repository_poll_s)
            found = await self._look()
            if found is not None:
                self._act(found)

    async def _look(self) -> dict[str, Stamp] | None:
        """The models in the repositories; None if they cannot be read, in which case no model is unloaded."""
        problem = ""
        try:
            return await asyncio.to_thread(look, self._settings)
        except LoadError as exc:
            problem = str(exc)
            if problem != self._problem:  # once, because the problem may last
                _LOG.error("models stay as they are: %s", problem)
            return None
        except Exception:
            # No error that a folder causes may end the server.
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
        if task.cancelled() or task.result() is None:
            self._seen.loaded(name)
        elif not self._control.is_serving(name):
            self._seen.failed(name)


def look(settings: ServerSettings) -> dict[str, Stamp]:
    """The models in the repositories now, by name. Raises LoadError if a repository cannot be read."""
    folders = scan(settings.model_repositories, settings.model_config_name or None)
    return {folder.name: Stamp(folder.path, folder.problem or "", folder_stamp(folder.path)) for folder in folders}
