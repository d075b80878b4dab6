# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brings the versions of one model up to date: loads changed ones, and unloads those that are not wanted any more.

If no version of the model serves yet, each serves as soon as it is ready. Otherwise the old versions serve until all
new ones are ready; if one of those fails, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.repository.fingerprint import Fingerprint, config_of_versions
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.live import LiveVersions, Source
from pyruntime.utils.errors import Code, LoadError

_LOG = logging.getLogger("pyruntime.repository")


class Loader(Protocol):
    """Loads versions: see ModelLoader."""

    async def load(
        self,
        draft: Draft,
        versions: Iterable[int],
        completed: asyncio.Future[Config],
        report: Callable[[int, ModelVersion | LoadError], None],
    ) -> None: ...


@dataclass(slots=True, eq=False)
class Served:
    """The origin of the versions of a model that serve, and their configuration.

    `seen` is the fingerprint that its repository agents got, if it has agents and the load succeeded.
    """

    fingerprints: dict[int, Fingerprint] = field(default_factory=dict)
    config: Config | None = None
    seen: Fingerprint | None = None


class ModelUpdate:
    """One such update, run once. Every version that is loaded from `source` holds it."""

    def __init__(
        self,
        table: LifecycleTable[ModelVersion],
        live: LiveVersions,
        loader: Loader,
        draft: Draft,
        fingerprints: Mapping[int, Fingerprint],
        source: Source | None,
    ) -> None:
        self._table = table
        self._live = live
        self._loader = loader
        self._draft = draft
        self._name = draft.folder.name
        self._fingerprints = fingerprints
        self._source = source
        self._completed: asyncio.Future[Config] = asyncio.get_running_loop().create_future()
        self._at_once = not table.ready_versions(self._name)
        # The versions whose load the table considers open; those of them that are ready and wait for the others; the
        # versions that serve now; and the reasons why others could not be loaded.
        self._loading: set[int] = set()
        self._waiting: dict[int, ModelVersion] = {}
        self._fresh: set[int] = set()
        self._failures: dict[int, str] = {}

    @property
    def has_loaded(self) -> bool:
        """Whether one of its versions serves now."""
        return bool(self._fresh)

    async def run(self, served: Served, begun: Callable[[], None]) -> dict[int, str]:
        """Perform the update, and update `served`. `begun` is called once the versions to load are known.

        Returns why versions could not be loaded. Cancelling it kills versions that still load; others go on serving.
        """
        draft, name = self._draft, self._name
        serving = set(self._table.ready_versions(name))
        known = served.fingerprints
        stale = [v for v in draft.versions if v not in serving or known.get(v) != self._fingerprints.get(v)]
        if draft.newest not in stale:
            self._completed.set_result(served.config)
        try:
            self._begin((*stale, *draft.missing))
            for version, reason in draft.missing.items():
                self._fail(version, LoadError(reason, Code.NOT_FOUND))
            missing, self._failures = self._failures, {}
            begun()
            await self._load(stale)
            if not self._failures and self._has_other_config(served):
                # The newest version completes the configuration for all.
                rest = [version for version in draft.versions if version not in stale]
                self._begin(rest)
                await self._load(rest)
        except BaseException:
            self._drop("its load was given up")
            raise
        self._switch()
        if self._fresh:
            served.config = self._completed.result()
            if self._fingerprints:
                served.fingerprints.update({version: self._fingerprints[version] for version in self._fresh})
        if not self._failures:
            down = {version for model, version in self._table.down if model == name}
            gone = (serving | down).difference(draft.versions)
            for version in gone:
                self._live.unload(name, version)
            if self._fresh or gone:
                _LOG.info("successfully loaded '%s'", name)
        elif not self._at_once:
            reasons = (f"version {version}: {reason}" for version, reason in sorted(self._failures.items()))
            self._table.fail_model(name, "; ".join(reasons))
        return missing | self._failures

    def _has_other_config(self, served: Served) -> bool:
        """Whether the versions that serve were loaded with another configuration than the completed one."""
        return served.config is None or bool(
            config_of_versions(self._completed.result()) != config_of_versions(served.config)
        )

    def _begin(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._live.begin_load(self._name, version)
            self._loading.add(version)

    async def _load(self, versions: list[int]) -> None:
        for version in versions:
            _LOG.info("loading: %s:%d", self._name, version)
        await self._loader.load(self._draft, versions, self._completed, self._report)

    def _report(self, version: int, model: ModelVersion | LoadError) -> None:
        """A version is ready, or its load has failed."""
        if isinstance(model, LoadError):
            self._fail(version, model)
            return
        self._live.adopt(model, self._source)
        if self._at_once:
            self._serve(version, model)
        else:
            self._waiting[version] = model

    def _serve(self, version: int, model: ModelVersion) -> None:
        self._loading.discard(version)
        self._fresh.add(version)
        self._live.serve(model)

    def _fail(self, version: int, error: LoadError) -> None:
        self._loading.discard(version)
        self._failures[version] = reason = self._record(version, error)
        _LOG.error("failed to load '%s' version %d: %s", self._name, version, reason)

    def _record(self, version: int, error: LoadError) -> str:
        """Record the failed load of a version. Returns the reason for operators and clients."""
        reason = f"{error.code.words}: {error}"
        self._live.fail(self._name, version, reason)
        return reason

    def _switch(self) -> None:
        """Let the waiting versions serve if all are ready; drop them otherwise."""
        for version, model in self._waiting.items():
            if reason := self._live.why_lost(model):
                self._fail(version, LoadError(reason))
        if self._failures:
            self._drop(f"it is not served because version {min(self._failures)} failed to load")
        for version, model in self._waiting.items():
            self._serve(version, model)

    def _drop(self, reason: str) -> None:
        """Give up the versions that load, and those that are ready and wait."""
        for version in self._loading:
            self._record(version, LoadError(reason, Code.UNAVAILABLE))
        for model in self._waiting.values():
            self._live.retire(model)
        self._loading.clear()
        self._waiting.clear()
