# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One instance of a native model, which runs on a thread of this process.

There is no stub to restart: a crash of the backend is a crash of the server. A model that is not trusted that far can
run in a process of its own: see backends/native.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack

from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.executor import IS_READY_TIMEOUT_S, CallBack, ExecutorOwner, PlainRequestExecutor
from pyruntime.runtime.instances.native.instance_spec import NativeExtension, NativeHandle, NativeInstanceSpec
from pyruntime.runtime.instances.native.plain import PlainBatches
from pyruntime.runtime.instances.native.stacks import NativeStacks
from pyruntime.runtime.instances.native.threads import NativeThreads
from pyruntime.runtime.observe.statistics import MemoryUsage
from pyruntime.utils.errors import InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.native")

# Linux truncates the names of threads to this length.
THREAD_NAME_MAX = 15
# Handles of instances whose backend did not finish. The backend may still use them, so they are never freed.
_ABANDONED: list[NativeHandle] = []


class NativeInstance:
    """See the module, and Executor. It is never restarted."""

    restarts = 0

    def __init__(
        self,
        spec: NativeInstanceSpec,
        native: NativeExtension,
        owner: ExecutorOwner,
        threads: NativeThreads,
        stacks: NativeStacks,
    ) -> None:
        self.name = spec.instance.name
        self.signature = spec.instance.signature
        self.down = ""
        self.is_ready = False
        self._spec = spec
        self._native = native
        self._threads = threads
        self._stacks = stacks
        # What goes when the instance has stopped.
        self._resources = ExitStack()
        self.inflight = PlainBatches(spec, owner, native, asyncio.get_running_loop().call_soon)
        self._handle = self.inflight.handle
        self._resources.callback(self.inflight.outputs.close)
        self.plain: PlainRequestExecutor | None = self.inflight if self.inflight.reads_plain else None
        self._initialized = False

    def __repr__(self) -> str:
        return f"<NativeInstance {self.name} [{len(self.inflight)} under way]>"

    @property
    def memory_usage(self) -> list[MemoryUsage]:
        """The memory that the instance uses, as its backend reports it; nothing once it has stopped."""
        return self._handle.memory_usage if self._initialized else []

    @property
    def response_bytes(self) -> int:
        """See Executor: outputs that stay in the server's own memory are not among them."""
        return self.inflight.outputs.used_bytes

    def tell(self) -> str:
        """The text that `pyruntime stack` shows for the instance."""
        knows = self._initialized or not self.inflight.is_idle
        doing = self.inflight.doing(time.monotonic_ns()) if knows else "begins, or ends"
        return f"Thread {self.name[:THREAD_NAME_MAX]} of the server (native code): {doing}\n"

    def check_ready(self, call_back: CallBack) -> None:
        """See Executor."""
        if not self.is_ready:
            call_back(False)
            return
        self._threads.ask(self._handle.is_ready, IS_READY_TIMEOUT_S, lambda answer: call_back(self._is_well(answer)))

    def _is_well(self, answer: object) -> bool:
        if answer is not None:
            _LOG.warning("%s: not ready: %s", self.name, answer)
        return answer is None

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """See Executor. Triton's interface has no function for it."""

    def workers(self) -> Sequence[Waiting]:
        """See Executor."""
        return (FREE,) if self.inflight.is_idle else (self.inflight.worker,)

    # Starting and stopping.

    async def start(self) -> None:
        """Initialise the instance and begin to serve. Raises LoadError; the instance cannot be used then.

        A cancelled call still waits for the backend: see NativeThreads.run.
        """
        spec = self._spec
        self._resources.callback(self._stacks.open(spec.spec.name, spec.version, self.name, self.tell))
        await self._threads.run(self._handle.initialize, undo=self._handle.finalize)
        self._initialized = True
        if self._spec.warm_up is not None:
            await self._spec.warm_up(self, self.inflight, 1)
        self.is_ready = True
        self.inflight.open()

    async def stop(self, timeout_s: float) -> None:
        """Let the backend finish its batches, and finalize. After `timeout_s` seconds the backend is abandoned."""
        self.is_ready = False
        with self._resources:
            if self._initialized:
                self._initialized = False
                await self._end(timeout_s)

    async def _end(self, timeout_s: float) -> None:
        drained = asyncio.Event()
        self.inflight.close(drained.set)
        self._native.set_hurried(True)
        try:
            async with asyncio.timeout(timeout_s):
                await drained.wait()
        except TimeoutError:
            self._abandon(timeout_s)
            return
        finally:
            self._native.set_hurried(False)
        try:
            await self._threads.end(self._handle.finalize)
        except LoadError as exc:
            _LOG.error("%s: failed to finalize: %s", self.name, exc)
        # Its thread ends with the handle. The handle and the batches refer to each other, so without this the thread
        # would stay until the garbage collector finds them.
        del self._handle, self.inflight.handle

    def _abandon(self, timeout_s: float) -> None:
        """Continue without a backend that does not finish. It may still read its requests, so their memory stays."""
        _LOG.error("%s: did not finish within %g s; what it holds is not freed", self.name, timeout_s)
        self.down = "its backend did not finish"
        self._spec.memory.region.count_on()
        _ABANDONED.append(self._handle)
        self.inflight.give_up(InferenceError(f"instance '{self.name}' did not finish in time"))

    def kill(self) -> None:
        """Does nothing: a thread cannot be killed."""
