# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The composition root: builds everything, says when the server is ready, and owns the order of shutting down."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvloop

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.http import HttpConnection
from pyruntime.runtime.model import ModelVersion
from pyruntime.runtime.observe.tables import backend_table, model_table
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.loading import Draft, ModelLoader, read_draft
from pyruntime.runtime.repository.scan import ModelFolder, scan
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.server")

# The Python-based backends that come with pyruntime.
OUR_BACKENDS = str(Path(__file__).resolve().parent.parent / "backends")
# Connections that the kernel holds for us while we are busy: a burst of clients, no more.
BACKLOG = 1024
# What finalize is granted after the drain has used up all of --exit-timeout-secs.
FINALIZE_S_MIN = 2.0


def serve(settings: ServerSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status: 0 after a clean stop, 1 when the server could not start."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Server(settings).run())


class Server:
    """One server, run once."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._core: Core
        self._connections: set[HttpConnection] = set()
        self._stop = asyncio.Event()
        self._backends: dict[str, str] = {"python": OUR_BACKENDS}

    async def run(self) -> int:
        """See serve."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        self._core = Core(self._settings)
        async with asyncio.TaskGroup() as tasks:
            status = await self._serve(tasks)
        return status

    async def _serve(self, tasks: asyncio.TaskGroup) -> int:
        listener = None
        if self._settings.allow_http:
            try:
                listener = await self._listen()
            except OSError as exc:
                _LOG.error("HTTP cannot be served at %s: %s", self._http_endpoint(), exc.strerror or exc)
                return 1
        try:
            folders = scan(self._settings.model_repositories, self._settings.model_config_name or None)
        except LoadError as exc:
            _LOG.error("%s", exc)
            return 1
        loading = tasks.create_task(self._load_all(folders, tasks), name="load models")
        stopping = tasks.create_task(self._stop.wait(), name="wait for a signal")
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        status = 0
        if self._stop.is_set() and not loading.done():
            loading.cancel()
            await asyncio.wait((loading,))
        elif not loading.result() and self._settings.exit_on_error:
            _LOG.error("failed to load all models; --exit-on-error=false serves those that did load")
            status = 1
        else:
            self._core.loaded = True
            if listener is not None:
                _LOG.info("Started HTTPService at %s", self._http_endpoint())
            await self._stop.wait()
        stopping.cancel()
        await self._shut_down(listener)
        return status

    def _on_signal(self, signum: int) -> None:
        if self._stop.is_set():
            _LOG.warning("Signal (%d) received again: stopping without waiting", signum)
            for model in self._core.models():
                model.kill()
            return
        _LOG.info("Signal (%d) received.", signum)
        self._stop.set()

    # Starting.

    async def _listen(self) -> asyncio.Server:
        settings = self._settings
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: HttpConnection(self._core, self._connections),
            settings.http_address,
            settings.http_port,
            backlog=BACKLOG,
            reuse_port=settings.reuse_http_port,
        )

    def _http_endpoint(self) -> str:
        return f"{self._settings.http_address}:{self._settings.http_port}"

    async def _load_all(self, folders: Sequence[ModelFolder], tasks: asyncio.TaskGroup) -> bool:
        """Load every model; True if all are ready."""
        core = self._core
        core.table.set_repository(folder.name for folder in folders)
        user = self._settings.backend_directory
        loader = ModelLoader(self._settings, [user, OUR_BACKENDS] if user else [OUR_BACKENDS], tasks, self._lost)
        limit = asyncio.Semaphore(self._settings.model_load_thread_count)
        async with asyncio.TaskGroup() as loads:
            for folder in folders:
                loads.create_task(self._load_model(loader, folder, limit), name=f"load {folder.name}")
        self._log_tables()
        rows = core.table.index()
        return all(row.state == "READY" for row in rows if row.state)

    async def _load_model(self, loader: ModelLoader, folder: ModelFolder, limit: asyncio.Semaphore) -> None:
        table = self._core.table
        async with limit:
            try:
                draft = read_draft(folder, self._settings)
            except LoadError as exc:
                _LOG.error("failed to load '%s': %s", folder.name, exc)
                table.fail_model(folder.name, str(exc))
                return
            for version in (*draft.versions, *draft.missing):
                table.begin_load(folder.name, version)
            for version, reason in draft.missing.items():
                table.fail(folder.name, version, reason)
            for version in draft.versions:
                _LOG.info("loading: %s:%d", folder.name, version)
                self._note_backend(loader, draft, version)
            await loader.load(draft, partial(self._loaded, folder.name))

    def _loaded(self, name: str, version: int, model: ModelVersion | LoadError) -> None:
        """A version is ready, or is known not to become so."""
        if isinstance(model, LoadError):
            self._core.table.fail(name, version, str(model))
            _LOG.error("failed to load '%s' version %d: %s", name, version, model)
            return
        self._core.table.ready(name, version, model)
        _LOG.info("successfully loaded '%s' version %d", name, version)
        model.review_instances()  # they may have been given up while others still loaded

    def _note_backend(self, loader: ModelLoader, draft: Draft, version: int) -> None:
        try:
            backend: Backend = loader.backend_of(draft, version)
        except LoadError:
            return  # loading the version says so
        if backend.kind == "python_based":
            self._backends[backend.name] = backend.path

    def _lost(self, model: ModelVersion, reason: str) -> None:
        """The last instance of a version was given up."""
        self._core.table.fail(model.spec.name, model.version, reason)

    def _log_tables(self) -> None:
        settings = self._settings
        cmdline = {
            "auto-complete-config": str(settings.auto_complete_config).lower(),
            "backend-directory": settings.backend_directory or OUR_BACKENDS,
            "min-compute-capability": "6.000000",
            "default-max-batch-size": str(settings.python_backend.default_max_batch_size),
        }
        rows = [
            (name, path, cmdline | dict(settings.backend_config.get(name, {}))) for name, path in self._backends.items()
        ]
        _LOG.info("Backends", extra={"table": backend_table(rows)})
        models = [
            (row.name, row.version, row.state if not row.reason else f"{row.state}: {row.reason}")
            for row in self._core.table.index()
        ]
        _LOG.info("Models", extra={"table": model_table(models)})

    # Shutting down: no new requests, those under way, finalize, gone.

    async def _shut_down(self, listener: asyncio.Server | None) -> None:
        core = self._core
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout_s
        models = core.models()
        _LOG.info("Waiting for %d in-flight requests to complete.", core.in_flight)
        if not await core.drain(self._settings.exit_timeout_s):
            _LOG.warning("Exit timeout expired with %d requests in flight; they are cut off", core.in_flight)
        if listener is not None:
            listener.close()
        for connection in list(self._connections):
            connection.close_idle()
        timeout_s = max(FINALIZE_S_MIN, deadline - loop.time())
        async with asyncio.TaskGroup() as stops:
            for model in models:
                stops.create_task(model.stop(timeout_s), name=f"stop {model.spec.name}")
        for connection in list(self._connections):
            connection.abort()
        _LOG.info("All models are stopped, unloaded.")
