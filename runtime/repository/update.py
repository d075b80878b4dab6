# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Brings the versions of one model up to date: loads changed ones, and unloads those that are not wanted any more.

Where only the instance groups changed, a version keeps the instances that are still wanted, and is not loaded again. A
change of the version policy alone changes nothing but the configuration that a version shows.

If no version of the model serves yet, each serves as soon as it is ready. Otherwise the old versions serve until all
new ones are ready; if one of those fails, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.inference.model_version import Exchange, ModelVersion
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.repository.fingerprint import Fingerprint, config_of_versions
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.live import LiveVersions, Source
from pyruntime.utils.errors import Code, LoadError

_LOG = logging.getLogger("pyruntime.repository")

# How long a load waits for the instances that it removes, in seconds. One of them may execute the request that asks for
# the load, and it must not wait for itself until it is killed.
ENDS_S_MAX = 10.0


class Loader(Protocol):
    """Loads versions: see ModelLoader."""

    async def load(
        self,
        draft: Draft,
        versions: Iterable[int],
        completed: asyncio.Future[Config],
        report: Callable[[int, ModelVersion | LoadError], None],
    ) -> None: ...

    def regrouped(self, draft: Draft, model: ModelVersion, config: Config) -> Config: ...

    async def regroup(
        self,
        draft: Draft,
        models: Iterable[ModelVersion],
        config: Config,
        report: Callable[[int, Exchange | LoadError], None],
    ) -> None: ...


class Failure(NamedTuple):
    """Why a version could not be loaded, or its instances not be exchanged; `state` is its state, for clients."""

    reason: str
    state: str = "UNAVAILABLE"


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
        # The versions whose load the table considers open; those of them that are ready and wait for the others, as new
        # ones or with new instances; the versions that serve now; and the reasons why others could not be loaded.
        self._loading: set[int] = set()
        self._waiting: dict[int, ModelVersion] = {}
        self._exchanges: dict[int, Exchange] = {}
        # The versions that go on as they are.
        self._shown: list[int] = []
        self._fresh: set[int] = set()
        self._failures: dict[int, Failure] = {}
        self._ends: list[asyncio.Task[None]] = []

    @property
    def has_loaded(self) -> bool:
        """Whether one of its versions serves now."""
        return bool(self._fresh)

    async def run(self, served: Served, begun: Callable[[], None]) -> dict[int, Failure]:
        """Perform the update, and update `served`. `begun` is called once the versions to load are known.

        Returns why versions could not be loaded. Cancelling it kills versions that still load; others go on serving.
        """
        draft, name = self._draft, self._name
        serving = set(self._table.ready_versions(name))
        stale = [version for version in draft.versions if version not in serving or self._is_stale(version, served)]
        if draft.newest not in stale:
            self._completed.set_result(self._config_of_kept(served))
        try:
            self._begin((*stale, *draft.missing))
            for version, reason in draft.missing.items():
                self._fail(version, LoadError(reason, Code.NOT_FOUND))
            missing, self._failures = self._failures, {}
            begun()
            await self._load(stale)
            kept = [version for version in draft.versions if version not in stale]
            if kept and not self._failures:
                await self._follow(kept, served)
        except BaseException:
            self._drop("its load was given up")
            raise
        self._switch()
        if self._fresh or (self._shown and not self._failures):
            served.config = self._completed.result()
        current = self._fresh if self._failures else draft.versions
        served.fingerprints.update({v: self._fingerprints[v] for v in current if v in self._fingerprints})
        if not self._failures:
            for version in set(self._shown).intersection(self._table.ready_versions(name)):
                self._table.resolve(name, version).show(self._completed.result())
            down = {version for model, version in self._table.down if model == name}
            gone = (serving | down).difference(draft.versions)
            for version in gone:
                self._live.unload(name, version)
            if self._fresh or gone:
                _LOG.info("successfully loaded '%s'", name)
        elif not self._at_once:
            reasons = (f"version {version}: {failure.reason}" for version, failure in sorted(self._failures.items()))
            self._table.fail_model(name, "; ".join(reasons))
        if self._ends:
            # As in Triton a load is done when the instances that it removes have finalized.
            await asyncio.wait(self._ends, timeout=ENDS_S_MAX)
        return missing | self._failures

    def _is_stale(self, version: int, served: Served) -> bool:
        """Whether a version that serves must be loaded again, because more than its instance groups changed."""
        known, wanted = served.fingerprints.get(version), self._fingerprints.get(version)
        return known != wanted and not (known and wanted and known.differs_in_instances_only(wanted))

    def _config_of_kept(self, served: Served) -> Config:
        """The final configuration of a model whose newest version stays. Raises LoadError."""
        newest, config = self._draft.newest, served.config
        if served.fingerprints.get(newest) != self._fingerprints.get(newest):
            config = self._loader.regrouped(self._draft, self._table.resolve(self._name, newest), config)
        if config is None or config.version_policy == self._draft.config.version_policy:
            return config
        changed = type(config)()
        changed.CopyFrom(config)
        changed.version_policy.CopyFrom(self._draft.config.version_policy)
        return changed

    async def _follow(self, kept: list[int], served: Served) -> None:
        """Bring the versions that serve and have not changed to the configuration of the newest one."""
        config, ready = self._completed.result(), self._table.ready_versions(self._name)
        if served.config is None or config_of_versions(config) != config_of_versions(served.config):
            ready = ()
        elif config.instance_group == served.config.instance_group:
            self._shown = kept
            return
        self._begin(kept)
        await self._load([version for version in kept if version not in ready])
        await self._regroup([version for version in kept if version in ready])

    async def _regroup(self, versions: list[int]) -> None:
        self._log_loading(versions)
        models = [self._table.resolve(self._name, version) for version in versions]
        await self._loader.regroup(self._draft, models, self._completed.result(), self._report_exchange)

    def _report_exchange(self, version: int, exchange: Exchange | LoadError) -> None:
        """The new instances of a version are ready, or one of them has failed."""
        if isinstance(exchange, LoadError):
            # As in Triton it is at READY state, because this was no load.
            self._fail(version, exchange, "READY")
        else:
            self._exchanges[version] = exchange

    def _begin(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._live.begin_load(self._name, version)
            self._loading.add(version)

    def _log_loading(self, versions: list[int]) -> None:
        for version in versions:
            _LOG.info("loading: %s:%d", self._name, version)

    async def _load(self, versions: list[int]) -> None:
        self._log_loading(versions)
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

    def _fail(self, version: int, error: LoadError, state: str = "UNAVAILABLE") -> None:
        self._loading.discard(version)
        reason = self._record(version, error)
        self._failures[version] = Failure(reason, state)
        extra = {"only_verbose": error.was_logged}
        _LOG.error("failed to load '%s' version %d: %s", self._name, version, reason, extra=extra)

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
        for version, exchange in self._exchanges.items():
            self._loading.discard(version)
            self._fresh.add(version)
            self._ends += self._live.exchange(exchange)

    def _drop(self, reason: str) -> None:
        """Give up the versions that load, and those that are ready and wait."""
        for version in self._loading:
            self._record(version, LoadError(reason, Code.UNAVAILABLE))
        for model in self._waiting.values():
            self._live.retire(model)
        for exchange in self._exchanges.values():
            self._live.give_up(exchange)
        self._loading.clear()
        self._waiting.clear()
        self._exchanges.clear()
