# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An instance over a real connection whose far end, the stub, is played by the test."""

import asyncio
import signal
import socket
import time
from dataclasses import replace

import pytest

from pyruntime.runtime.execution.job import Job, request_options, tensor_refs
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.instances.stub import connection as connection_module
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.instance import PythonInstance
from pyruntime.runtime.instances.stub.instance_spec import StubInstanceSpec
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.channel import StubChannel
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello, Load, Ready
from tests.patience import PATIENCE_S

from ..model_specs import spec_from

CONFIG = (
    "name: 'm' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 2 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 2 } "
)


def spec_of(text=""):
    return spec_from(CONFIG + text)


SPEC = spec_of()


class Process:
    """Stands for a stub's process: `kill` makes it exit."""

    pid = 1

    def __init__(self, loop):
        self.exited = loop.create_future()
        self.killed = False

    def kill(self, why=""):
        self.killed = self.killed or not self.exited.done()
        self.exit(-signal.SIGKILL)

    def exit(self, code):
        if not self.exited.done():
            self.exited.set_result(ProcessExit(code))


class Stub:
    """The far end of one connection. `granted` are numbers of regions that it was given."""

    def __init__(self, sock, grants, loop):
        self._sock = sock.dup()
        self._sock.setblocking(False)
        self._grants = grants.dup()
        self._grants.setblocking(False)
        self._loop = loop
        self._channel = StubChannel()
        self._waiting = []
        self.process = Process(loop)
        self._sock.send(self._channel.send(Hello(PROTOCOL_VERSION, 1, "3")))

    def say(self, *messages):
        """Send messages, as they are legal."""
        self._sock.send(b"".join(map(self._channel.send, messages)))

    async def hear(self):
        """The host's next message; None if it hung up."""
        while not self._waiting:
            data = await self._loop.sock_recv(self._sock, 1 << 16)
            if not data:
                return None
            self._waiting.extend(self._channel.receive_data(data))
        return self._waiting.pop(0)

    async def hear_load(self):
        load = await self.hear()
        assert type(load) is Load
        return load

    def hang_up(self):
        self._sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._sock.close()
        self._grants.close()


class Owner:
    """Notes what an instance tells."""

    def __init__(self):
        self.put_backs = []
        self.rescheduled = []
        self.events = asyncio.Queue()

    def capacity_freed(self):
        self.events.put_nowait("place freed")

    def put_back(self, batch):
        self.put_backs.append(batch)

    def reschedule(self, job):
        self.rescheduled.append(job)

    def executor_changed(self):
        self.events.put_nowait("changed")

    async def wait(self, event):
        while await self.events.get() != event:
            pass


class Server:
    """Notes what models ask of the server."""

    def __init__(self):
        self.questions = []
        self.measures = []
        self.owners_gone = []

    def find(self, name, version):
        raise InferenceError(f"there is no model '{name}'")

    def ask(self, owner, loading, method, arguments, reply):
        self.questions.append((owner, loading, method, arguments, reply))

    def measure(self, owner, *measure):
        self.measures.append((owner, *measure))

    def gone(self, owner):
        self.owners_gone.append(owner)


class Bench:
    """One instance, its owner, and its stubs as they are started."""

    def __init__(self, tasks, memory, monkeypatch, spec=SPEC, concurrency=1):
        self.memory = memory
        self.owner = Owner()
        self.server = Server()
        self.stubs = asyncio.Queue()
        self.all_stubs = []
        self.statistics = ModelStatistics()
        self.plan = StubInstanceSpec(
            "m_0",
            spec,
            3,
            {"file": "model.py"},
            {"model_name": "m"},
            memory,
            1 << 20,
            self.statistics,
            self.server,
            OutputFindings(spec, "model.py"),
        )
        self.plan = replace(self.plan, concurrency=concurrency)
        self.tasks = tasks
        self.instance = PythonInstance(self.plan, self.owner, tasks)
        self.refuse_to_start = False
        monkeypatch.setattr(connection_module, "launch_stub", self._launch)

    async def _launch(self, handover, environment):
        assert handover.name == "m_0"
        if self.refuse_to_start:
            raise OSError("no more processes")
        stub = Stub(handover.sock, handover.grants, asyncio.get_running_loop())
        self.all_stubs.append(stub)
        self.stubs.put_nowait(stub)
        return stub.process

    async def open(self):
        return await StubConnection.open(self.plan.name, self.plan.memory, self.plan.growth_bytes)

    async def start(self, checks=False, drops=False):
        """Start the instance; its stub, ready."""
        connection = await self.open()
        stub = self.stubs.get_nowait()
        starting = asyncio.ensure_future(self.instance.start(connection))
        await stub.hear_load()
        stub.say(Ready(checks, drops))
        await starting
        return stub

    async def restarted(self):
        """The stub that is started after a death, ready."""
        stub = await self.stubs.get()
        await stub.hear_load()
        stub.say(Ready(False, False))
        await self.owner.wait("changed")
        while not self.instance.is_ready:
            await self.owner.wait("changed")
        return stub

    def job(self, outcomes, request=None, rows=1):
        """A job with one FP32 input whose one outcome goes into this list."""
        if request is None:
            request = InferRequest("m", id="7", inputs=[InputTensor("IN", "FP32", [rows, 2], bytes(8 * rows))])
            self.memory.place(request)

        def respond(outcome, final):
            assert final
            outcomes.append(outcome)

        options, tensors = request_options(request), tensor_refs(request.inputs)
        return Job(request.id, options, tensors, rows, None, request.slots, respond, time.monotonic_ns())

    def post(self, *outcomes, rows=1):
        """Execute a batch of one request for each of these lists, which get the outcomes."""
        batch = [self.job(each, rows=rows) for each in outcomes]
        self.instance.inflight.execute(batch)
        return batch

    async def finish(self):
        """Stop the instance, in any state."""
        stopping = asyncio.ensure_future(self.instance.stop(PATIENCE_S))
        await asyncio.sleep(0)
        for stub in self.all_stubs:
            stub.process.exit(0)
        await stopping


@pytest.fixture
def play(monkeypatch):
    """A function that runs a scenario on a bench, of a model with more configuration than usual if need be."""

    async def run(scenario, text, concurrency):
        memory = RequestMemory("m", 1 << 20, 1 << 20)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            made = Bench(tasks, memory, monkeypatch, spec_of(text), concurrency)
            try:
                await scenario(made)
            finally:
                await made.finish()
                for stub in made.all_stubs:
                    stub.close()
        memory.close()

    return lambda scenario, text="", concurrency=1: asyncio.run(run(scenario, text, concurrency))
