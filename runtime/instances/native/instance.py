# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One instance of a native model, which runs on a thread of this process.

There is no stub to be restarted: what kills a backend kills the server. A model that is not to be trusted that far runs
in a process of its own, see backends/native.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pyruntime.runtime.instances.deadlock import FREE, Waiting
from pyruntime.runtime.instances.instance_spec import Batch, Owner
from pyruntime.runtime.instances.native.instance_spec import NativeInstanceSpec
from pyruntime.runtime.instances.native.known import KnownBatches
from pyruntime.runtime.instances.native.threads import NativeThreads
from pyruntime.runtime.instances.readiness import IS_READY_TIMEOUT_S, CallBack
from pyruntime.runtime.native.parameters import read_parameters
from pyruntime.runtime.observe.statistics import MemoryUsage
from pyruntime.utils.errors import InferenceError, LoadError

_LOG = logging.getLogger("pyruntime.native")

# TRITONSERVER_InstanceGroupKind.
_KINDS = {"AUTO": 0, "CPU": 1, "GPU": 2, "MODEL": 3}
# What Linux keeps of a thread's name.
THREAD_NAME_MAX = 15
# Handles of instances whose backend did not come to an end. It may still use them, so they are never given back.
_ABANDONED: list[Any] = []


class NativeInstance:
    """See the module. `down` says why it was given up, or is "". It is never restarted."""

    restarts = 0
    # What its responses use of shared memory.
    response_bytes = 0

    def __init__(self, plan: NativeInstanceSpec, native: ModuleType, owner: Owner, threads: NativeThreads) -> None:
        self.name = plan.instance.name
        self.down = ""
        self.is_ready = False
        self._plan = plan
        self._native = native
        self._threads = threads
        instance = plan.instance
        self._batches = KnownBatches(plan, owner)
        # See ModelInstance. Every request counts here.
        self.execute_known = self._batches.execute_known
        self.lend = self._batches.lend
        self.adopt = self._batches.adopt
        self._handle = self._batches.handle = native.Instance(
            plan.model,
            self._batches,
            instance.name,
            _KINDS[instance.kind],
            instance.device_id,
            instance.passive,
            plan.profiles,
            plan.secondary_devices,
            plan.host_policy,
        )
        self._batches.wake_soon = self._wake_soon
        self._batches.make_client = native.ClientSocket
        self._loop = asyncio.get_running_loop()
        self._wakes = False
        self._initialized = False

    def __repr__(self) -> str:
        return f"<NativeInstance {self.name} [{len(self._batches)} under way]>"

    @property
    def places(self) -> int:
        """How many more batches the instance takes now."""
        return self._batches.places

    @property
    def waiting(self) -> int:
        """How many requests it has been given that wait behind others."""
        return self._batches.waiting

    @property
    def is_idle(self) -> bool:
        """Whether the instance executes nothing now."""
        return not self._batches.running

    @property
    def may_read(self) -> bool:
        """See ModelInstance."""
        return self._batches.may_read

    @property
    def memory_usage(self) -> list[MemoryUsage]:
        """What memory it takes, as its backend says."""
        usage: list[MemoryUsage] = self._handle.memory_usage
        return usage

    def tell(self) -> str:
        """What `pyruntime stack` says of it."""
        knows = self._initialized or self._batches.running
        doing = self._batches.doing(time.monotonic_ns()) if knows else "begins, or ends"
        return f"Thread {self.name[:THREAD_NAME_MAX]} of the server (native code): {doing}\n"

    def execute(self, batch: Batch) -> None:
        """Run a batch. The instance must have a place. Every job's `respond` will be called, whatever happens."""
        self._batches.execute(batch)

    def know(self, document: bytes, size: int, wire: list[Any]) -> Any | None:
        """See ModelInstance."""
        read_parameters(wire)
        return self._native.KnownRequest(self._plan.model, document, size, wire)

    def _wake_soon(self) -> None:
        """Wake the thread when the loop has seen to all that has come in: once for all that is there for it."""
        if not self._wakes:
            self._wakes = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self._handle.wake()

    def check_ready(self, call_back: CallBack) -> None:
        """Call back, at once or later, with whether the instance takes requests and its backend says that it may."""
        if not self.is_ready:
            call_back(False)
            return
        self._threads.ask(self._handle.is_ready, IS_READY_TIMEOUT_S, lambda answer: call_back(self._is_well(answer)))

    def _is_well(self, answer: object) -> bool:
        if answer is not None:
            _LOG.warning("%s: not ready: %s", self.name, answer)
        return answer is None

    def workers(self) -> Sequence[Waiting]:
        """Who executes its requests: see deadlock.py."""
        return (self._batches.worker,) if self._batches.running else (FREE,)

    # Starting and stopping.

    async def start(self) -> None:
        """Initialise the instance and begin to serve. Raises LoadError; the instance is of no use then.

        Cancelling it waits for the backend all the same, if that does not take too long.
        """
        await self._threads.run(self._handle.initialize, undo=self._handle.finalize)
        self._initialized = True
        self.is_ready = True
        self._batches.open()

    async def stop(self, timeout_s: float) -> None:
        """Let the backend finish what it was given, and finalize. What takes longer than `timeout_s` is abandoned."""
        self.is_ready = False
        if not self._initialized:
            return
        self._initialized = False
        drained = asyncio.Event()
        self._batches.close(drained.set)
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
            _ABANDONED.append(self._handle)

    def _abandon(self, timeout_s: float) -> None:
        """Go on without a backend that does not finish. It may still read its requests: their memory stays."""
        _LOG.error("%s: did not finish within %g s; what it holds is not freed", self.name, timeout_s)
        self.down = "its backend did not finish"
        self._plan.memory.region.count_on()
        _ABANDONED.append(self._handle)
        self._batches.give_up(InferenceError(f"instance '{self.name}' did not finish in time"))

    def kill(self) -> None:
        """A thread cannot be ended: the instance goes with its process."""
