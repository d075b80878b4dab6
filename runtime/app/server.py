# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The composition root: builds the server, starts it, and shuts it down in order."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import uvloop

from pyruntime.runtime.app.heap import trim_heap
from pyruntime.runtime.app.load_reports import LoadReports
from pyruntime.runtime.app.metrics import ServerMetrics
from pyruntime.runtime.app.services import ModelServices
from pyruntime.runtime.app.state import VERSION, LentConnections, ServerState
from pyruntime.runtime.caching.factory import create_cache
from pyruntime.runtime.gpus.machine import MachineGpus
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.instances.stub.launch import close_launcher
from pyruntime.runtime.loaders.model_loader import create_loader
from pyruntime.runtime.observe.log_settings import LogSettings
from pyruntime.runtime.observe.log_tail import LogTail
from pyruntime.runtime.observe.logging import adjust_logging
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.observe.tables import backend_table, model_table
from pyruntime.runtime.repository.agents import RepositoryAgents
from pyruntime.runtime.repository.backends import OUR_BACKENDS
from pyruntime.runtime.repository.control import ModelControl
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.live import LiveVersions
from pyruntime.runtime.repository.polling import Polling
from pyruntime.runtime.repository.scan import layout_warning
from pyruntime.runtime.settings import ServerSettings, SettingsError
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.server")

# The time limit for the end of the server after a second signal, in seconds: longer than the time that clients have to
# read their last responses. A thread of a native backend cannot be ended.
HURRIED_S_MAX = 5.0

# The event loop gets Python's lock from a thread after this time, in seconds. It waits several times in one turn, for
# each file that it reads, and up to four threads may want the lock: with Python's default of 5 ms others were delayed
# by a tenth of a second.
SWITCH_INTERVAL_S = 0.001

# Freed blocks of the heap go back to the system from this size on, in bytes, and so does the free end of a heap from
# twice this size on. By default the C library raises both, up to 32 MiB and 64 MiB, when such a block is freed: after a
# few large bodies the server then kept more than 100 MiB in the heaps of its threads. Smaller blocks are worth keeping.
RETURNED_BYTES_MIN = 8 << 20
# Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _return_large_blocks() -> None:
    """See RETURNED_BYTES_MIN. Has no effect with a C library that has no such thresholds."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, RETURNED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, 2 * RETURNED_BYTES_MIN)


def _leave() -> None:
    _LOG.error("What does not end is left behind")
    logging.shutdown()
    os._exit(1)


def _from_here(settings: ServerSettings) -> ServerSettings:
    """The same, with absolute paths, because a native backend may change the server's current folder."""
    return replace(
        settings,
        model_repositories=tuple(map(_absolute, settings.model_repositories)),
        backend_directory=_absolute(settings.backend_directory) if settings.backend_directory else None,
        cache_directory=_absolute(settings.cache_directory),
        repoagent_directory=_absolute(settings.repoagent_directory),
    )


def _absolute(path: str) -> str:
    return os.fspath(Path(path).absolute())


class Frontends(Protocol):
    """The servers of all protocols: see frontends.listeners."""

    async def open(self) -> None:
        """Listen, and log the addresses. Raises SettingsError if that fails."""

    def log_loaded(self) -> None:
        """Log where models can be tried."""

    def connections(self) -> Mapping[str, int]:
        """The number of open connections, by protocol."""

    def shut_down(self) -> None:
        """Notify clients that the server is about to stop."""

    def close(self) -> None:
        """Accept no more connections, and close each after its responses."""

    async def finish(self) -> None:
        """Wait a short time for clients to read their last responses, then cut the remaining connections."""


FrontendsOf = Callable[[ServerState], Frontends]


def serve(settings: ServerSettings, frontends_of: FrontendsOf) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 0 after a clean stop, 1 if the server could not start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Server(settings, frontends_of).run())


class Server:
    """One server, run once."""

    def __init__(self, settings: ServerSettings, frontends_of: FrontendsOf) -> None:
        self._settings = settings = _from_here(settings)
        self._tasks = tasks = asyncio.TaskGroup()
        lent = LentConnections()
        table: LifecycleTable[ModelVersion] = LifecycleTable(lent.recall)
        tracer = Tracer(settings.trace, VERSION, lambda name: bool(table.ready_versions(name)), lent.recall)
        # Models and metrics use the server that contains them: the state that both need is created further down.
        metrics = Metrics(lambda: self._metrics.lines(), lambda: self._native.metrics())
        reports = LoadReports(metrics, lambda: self._metrics.machine())
        services = ModelServices(table, metrics, tracer, lambda: self.state, tasks)
        self._native = native = NativeHost(services, tasks, settings)
        native.adjust_log(settings)
        self._log_tail = log_tail = LogTail(settings)
        log_settings = LogSettings(
            settings, adjust_logging, log_tail.adjust, lambda _: lent.recall(), native.adjust_log
        )
        self._cache = create_cache(settings.cache_config, settings.cache_directory, native)
        self._live = live = LiveVersions(table, tasks, settings.drain_s)
        self._agents = RepositoryAgents(native, settings.repoagent_directory, tasks)
        directories = [settings.backend_directory, OUR_BACKENDS] if settings.backend_directory else [OUR_BACKENDS]
        loader = create_loader(settings, directories, tasks, live.lost, services, native, self._cache, table.resolve)
        gpus = MachineGpus(settings)
        control = ModelControl(settings, table, live, loader, tasks, self._agents, gpus.read)
        self.state = ServerState(
            settings, tasks, table, control, metrics, tracer, log_settings, log_tail, lent, native.settle, reports
        )
        self._frontends = frontends_of(self.state)
        self._metrics = ServerMetrics(self.state, self._frontends.connections, self._cache, native.pinned_memory)
        self._watching: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Begin to shut down, unless that has begun. `run` returns after it."""
        self._stop.set()

    async def run(self) -> int:
        """See serve."""
        self._log_tail.attach()
        try:
            async with self._tasks:
                loop = asyncio.get_running_loop()
                for signum in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(signum, self._on_signal, signum)
                return await self._serve()
        finally:
            self._log_tail.detach()

    async def _watch(self) -> None:
        """Measure the server and give memory back, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trim_heap(), name="give memory back")
            if self._settings.allow_metrics:
                tasks.create_task(self._metrics.run(), name="measure the server")

    async def _serve(self) -> int:
        tasks = self._tasks
        try:
            await self._frontends.open()
            names = self.state.control.find_models()
            self._check_repositories()
            if self._cache is not None:
                await self._cache.open()
        except (SettingsError, LoadError) as exc:
            _LOG.error("%s", exc)
            return 1
        self._watching = tasks.create_task(self._watch(), name="watch the server")
        loading = tasks.create_task(self._load_all(names), name="load models")
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
            self.state.loaded = True
            self._frontends.log_loaded()
            if self._settings.model_control_mode == "poll" and self._settings.repository_poll_s:
                polling = Polling(self._settings, self.state.control)
                self._polling = tasks.create_task(polling.run(), name="poll the repositories")
            await self._stop.wait()
        stopping.cancel()
        await self._shut_down()
        return status

    def _on_signal(self, signum: int) -> None:
        if self._stop.is_set():
            _LOG.warning("Signal (%d) received again: stopping without waiting", signum)
            self._live.kill()
            asyncio.get_running_loop().call_later(HURRIED_S_MAX, _leave)
            return
        _LOG.info("Signal (%d) received.", signum)
        self.stop()

    # Starting.

    def _check_repositories(self) -> None:
        """Log a warning for each repository that cannot be meant. In explicit mode any may be empty at first."""
        if self._settings.model_control_mode == "explicit":
            return
        for repository in self._settings.model_repositories:
            if (problem := layout_warning(repository)) is not None:
                _LOG.warning("%s", problem)

    async def _load_all(self, names: Sequence[str]) -> bool:
        """Load these models. True if all wanted models are ready."""
        all_ready = await self.state.control.start(names)
        self._log_tables()
        return all_ready

    def _log_tables(self) -> None:
        settings = self._settings
        cmdline = {
            "auto-complete-config": str(settings.auto_complete_config).lower(),
            "backend-directory": settings.backend_directory or OUR_BACKENDS,
            "min-compute-capability": f"{settings.min_supported_compute_capability:f}",
            "default-max-batch-size": str(settings.python_backend.default_max_batch_size),
        }
        backends = {("python", OUR_BACKENDS)} | self.state.control.backends
        rows = [(name, path, cmdline | dict(settings.backend_config.get(name, {}))) for name, path in backends]
        _LOG.debug("Backends", extra={"table": backend_table(rows)})
        index = self.state.table.index()
        models = [(row.name, row.version, f"{row.state}: {row.reason}" if row.reason else row.state) for row in index]
        # People have read the reasons above it.
        states = model_table([(row.name, row.version, row.state) for row in index])
        _LOG.info("Models", extra={"table": model_table(models), "people_table": states})

    # Shutting down: refuse new requests, answer those in progress, finalize, end.

    async def _shut_down(self) -> None:
        state = self.state
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.drain_s
        if self._polling is not None:
            self._polling.cancel()
        await state.control.close()
        self._frontends.shut_down()
        self._native.hurry()
        _LOG.info("Waiting for %d in-flight requests to complete.", state.in_flight)
        if state.in_flight and self._settings.debug_model:
            _LOG.info("There is no time limit while a model is debugged; a second signal does not wait.")
        if not await state.drain(self._settings.drain_s):
            _LOG.warning("Exit timeout expired with %d requests in flight; they are cut off", state.in_flight)
        self._frontends.close()
        await self._live.stop(deadline - loop.time())
        await self._agents.close()
        if self._cache is not None:
            await self._cache.close()
        await self._native.close()
        await self._frontends.finish()
        await state.client_memory.close()
        await close_launcher()
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.to_thread(state.tracer.close)
        _LOG.info("All models are stopped, unloaded.")
