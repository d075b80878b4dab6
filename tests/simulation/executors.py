# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated executor in the server's process, as a C++ backend has it: the contract of execution/executor.py."""

import asyncio

from pyruntime.runtime.execution.deadlock import FREE
from pyruntime.runtime.instances.capacity import AdaptiveCapacity
from pyruntime.runtime.instances.inflight import InflightBatches
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError

from .tensors import HOP, pack, value_of

CAPACITY_MAX = 4


class NativeBatches(InflightBatches):
    """The batches of one native executor, each of which takes some time."""

    def __init__(self, world, version, behaviour):
        limit = AdaptiveCapacity(CAPACITY_MAX, 1, version.spec.is_batched)
        super().__init__(version.statistics, version.scheduler, limit)
        self._world = world
        self._version = version
        self._behaviour = behaviour
        self.model = world.models[version.spec.name]
        self.is_running = False
        world.native.append(self)
        world.stubs[self] = self
        self._moved_ns = world.clock.now_ns
        self.open()

    def __len__(self):
        return len(self._inflight)

    @property
    def idle_since_ns(self):
        """Since when it has no batch; None if it has one."""
        return None if self._inflight else self._moved_ns

    @property
    def has_ended(self):
        """No thread ends by itself."""
        return False

    def executes(self, serial):
        """Whether it has a batch with this number."""
        return serial in self._inflight

    @property
    def running(self):
        return (FREE,) if self._inflight else ()

    @property
    def waiting(self):
        return sum(len(batch) for batch in list(self._inflight.values())[1:])

    def execute(self, batch):
        self._world.ledger.posted(self._version, self, batch)
        self._inflight[self._serial] = batch
        for job in batch:
            job.instance = self
            job.serial = self._serial
        self._serial += 1
        self.capacity -= 1
        self._run()

    def cancel(self, job):
        job.cancelled = True

    def worker_of(self, job):
        return FREE

    def _run(self):
        if self._inflight and not self.is_running:
            self.is_running = True
            self._world.begins()
            self._world.loop.call_later(self._behaviour.execute_s(), self._finish)

    def _finish(self):
        self.is_running = False
        serial = next(iter(self._inflight))
        batch = self._inflight.pop(serial)
        self._limit.observe(100_000)
        now_ns = self._world.clock.monotonic_ns()
        for job in batch:
            style = self._behaviour.style(self.model)
            if style == "error":
                self._fail(job, InferenceError("this request was made to fail", Code.INTERNAL), now_ns)
                continue
            outcome = self._response(job)
            self._statistics.success(job.rows, 0, 0, 0, 0, now_ns - job.arrived_ns)
            job.free()
            job.respond(outcome, True)
        self._statistics.execution(sum(job.rows for job in batch), 0, 0, 0, now_ns // 1_000_000)
        self._moved_ns = now_ns
        self._run()
        self._update_capacity()
        self._owner.capacity_freed()
        self._notify_if_idle()

    def _response(self, job):
        _, datatype, shape, at, size, _, _ = job.tensors[0]
        if isinstance(at, bytes):
            data = at
        else:
            number, offset = split(at)
            region = self._world.memory.open[number] if number else self._version.memory.region
            data = region.view[offset : offset + size]
        value = value_of(data)
        output = OutputTensor("OUT", datatype, list(shape), pack(value + HOP, size // 8))
        return InferResponse(self._version.spec.name, self._version.version, job.id, [output])


class SimulatedExecutor:
    """See Executor."""

    down = ""
    restarts = 0
    response_bytes = 0
    plain = None

    def __init__(self, world, version, name, behaviour):
        self.name = name
        self.signature = name
        self.inflight = NativeBatches(world, version, behaviour)
        self.is_ready = True

    def check_ready(self, call_back):
        call_back(self.is_ready)

    def workers(self):
        return (FREE,)

    async def stop(self, timeout_s):
        drained = asyncio.Event()
        self.inflight.close(drained.set)
        await drained.wait()
        self.is_ready = False

    def kill(self):
        """A thread cannot be killed."""
