# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The intake, over a model that notes its jobs, for a protocol of which nothing but requests is known."""

import asyncio
import struct
from types import SimpleNamespace

import pytest

from pyruntime.runtime.config.inputs import STRINGS_AT_ONCE_BYTES_MAX
from pyruntime.runtime.inference import intake as intake_module
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX, Activities, Intake
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.errors import Code, InferenceError

from ..model_specs import spec_from

CONFIG = (
    "name: 'm' input { name: 'IN' data_type: TYPE_%s dims: -1 } output { name: 'OUT' data_type: TYPE_FP32 dims: -1 }"
)
TWO = struct.pack("<2f", 1, 2)


class Instance:
    name = "m_0"
    down = ""
    capacity = 1 << 20
    is_ready = is_idle = True
    plain = None

    def __init__(self):
        self.jobs = []

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    def execute(self, batch):
        self.jobs += batch


class Trace:
    """Stands for the trace of a request."""

    def __init__(self):
        self.notes = []
        self.attached = []
        self.closed = False

    def note(self, activity, ns):
        self.notes.append(activity)

    def attach(self, job, region):
        self.attached.append(job)

    def close(self):
        self.closed = True


class Tracer:
    def __init__(self):
        self.active = False
        self.traces = []
        self.calls = {}

    def sample(self, model, request_id, traceparent):
        self.traces.append(Trace())
        return self.traces[-1]

    def call(self, model, request_id, context):
        return self.calls.get(context)


class Incoming:
    """A request whose only input has these contents."""

    trace = job = options = None
    received_ns = 0
    abandoned = False
    is_ordered = False

    def hold_back(self):
        self.note("held back")
        return lambda: self.note(f"resumed with {self.job is not None:d} jobs")

    def note(self, event):
        self.events.append(event)

    def __init__(self, slot=None, contents=TWO, id="", datatype="FP32", count=2, forwarded=(), sends_in_respond=False):
        self.activities = Activities("BEGIN", "END", "SEND", "SENT", sends_in_respond)
        self.head = SimpleNamespace(forwarded=forwarded, traceparent="")
        self.slot = slot
        self.decoded = 0
        self.outcomes = []
        self.rejected = []
        self.events = []
        self._contents = contents
        self._id = id
        self._datatype = datatype
        self._count = count

    def decode(self, model):
        self.decoded += 1
        offset = -1
        contents = self._contents
        if self.slot is not None:
            offset, contents = self.slot.offset, self.slot.view
        tensor = InputTensor("IN", self._datatype, [self._count], contents, offset)
        return InferRequest("m", id=self._id, inputs=[tensor]), "options"

    def respond(self, outcome, final):
        self.outcomes.append((outcome, final))

    def reject(self, failure):
        self.rejected.append(str(failure))


class World:
    def __init__(self, datatype):
        self.memory = RequestMemory("m", 1 << 16, 1 << 16)
        spec = spec_from(CONFIG % datatype)
        self.instance = Instance()
        self.model = ModelVersion(spec, 1, self.memory, lambda model, reason: None)
        self.model.serve([self.instance])
        self.tracer = Tracer()
        self.tasks = None
        self.intake = Intake(lambda name, version: self.model, self.tracer, lambda: self.tasks, GpuPeers(None, None))

    def slot(self):
        return self.memory.allocate(len(TWO), 0, TWO)


@pytest.fixture
def world(request):
    made = World(getattr(request, "param", "FP32"))
    yield made
    made.memory.close()


strings = pytest.mark.parametrize("world", ["STRING"], indirect=True)


def lose(world):
    """The last instance of the model is given up."""
    world.instance.down = "it crashed"
    world.model.review_instances()


class TestSubmit:
    def test_forwarded_headers(self, world):
        """They become parameters. One that means something else is refused, and the frontend frees the memory."""
        world.intake.submit(Incoming(forwarded=(("x-user", "me"),)), world.model)
        assert '"x-user":"me"' in world.instance.jobs[0].options.parameters
        refused = Incoming(world.slot(), forwarded=(("timeout", "1"),))
        with pytest.raises(InferenceError, match="reserved"):
            world.intake.submit(refused, world.model)
        assert refused.slot is not None
        assert refused.job is None

    def test_refused(self, world):
        """A request that does not suit its model gives its memory back, and is counted."""
        refused = Incoming(world.slot(), count=3)
        with pytest.raises(InferenceError):
            world.intake.submit(refused, world.model)
        assert (world.memory.live, refused.slot, refused.outcomes) == (0, None, [])
        assert world.model.statistics.failure_count == 1

    def test_model_that_is_gone(self, world):
        """Also one that took requests before."""
        world.intake.submit(Incoming(world.slot()), world.model)
        world.instance.jobs.pop().free()
        lose(world)
        with pytest.raises(InferenceError, match="it crashed"):
            world.intake.submit(Incoming(world.slot()), world.model)
        assert world.memory.live == 0


class TestIds:
    """A long id would be kept until the client has read the last response."""

    LONGEST, TOO_LONG = "x" * ID_LENGTH_MAX, "x" * (ID_LENGTH_MAX + 1)

    def test_longest(self, world):
        """It is accepted."""
        for id in ("", self.LONGEST):
            world.intake.submit(Incoming(world.slot(), id=id), world.model)
        assert [job.id for job in world.instance.jobs] == ["", self.LONGEST]

    def test_too_long(self, world):
        """It is refused, and nothing of the request is left."""
        incoming = Incoming(world.slot(), id=self.TOO_LONG)
        live = world.memory.live
        with pytest.raises(InferenceError, match=f"has {ID_LENGTH_MAX + 1} characters") as caught:
            world.intake.submit(incoming, world.model)
        assert caught.value.code is Code.INVALID_ARG
        assert len(world.instance.jobs) == 0
        incoming.slot.free()
        assert world.memory.live == live - 1

    def test_too_long_without_a_slot(self, world):
        """The memory that its tensors were decoded to is free."""
        with pytest.raises(InferenceError):
            world.intake.submit(Incoming(id=self.TOO_LONG), world.model)
        assert world.memory.live == 0


@strings
class TestStrings:
    COUNT = STRINGS_AT_ONCE_BYTES_MAX

    def submit(self, world, contents, during=lambda incoming: None, is_ordered=False):
        incoming = Incoming(contents=contents, datatype="BYTES", count=self.COUNT)
        incoming.is_ordered = is_ordered

        async def main():
            async with asyncio.TaskGroup() as world.tasks:
                world.intake.submit(incoming, world.model)
                assert incoming.job is None
                during(incoming)

        asyncio.run(main())
        return incoming

    def test_counted_by_a_thread(self, world):
        """A request that a thread has counted is queued."""
        incoming = self.submit(world, bytes(4 * self.COUNT))
        assert world.instance.jobs == [incoming.job]
        assert incoming.rejected == []

    def test_wrong(self, world):
        """Its frontend learns it later."""
        incoming = self.submit(world, bytes(4 * self.COUNT + 4))
        assert len(incoming.rejected) == 1
        assert (world.instance.jobs, world.memory.live) == ([], 0)

    @pytest.mark.parametrize("surplus", [0, 4])
    def test_abandoned(self, world, surplus):
        """A request whose client has left meanwhile does not reach the model, and is not refused either."""
        contents = bytes(4 * self.COUNT + surplus)
        incoming = self.submit(world, contents, lambda incoming: setattr(incoming, "abandoned", True))
        assert (world.instance.jobs, incoming.rejected, world.memory.live) == ([], [], 0)

    @pytest.mark.parametrize("surplus", [0, 4])
    def test_later_requests_are_held_back(self, world, surplus):
        """Until it is queued or refused."""
        incoming = self.submit(world, bytes(4 * self.COUNT + surplus), lambda incoming: incoming.note("counting"))
        assert incoming.events == ["held back", "counting", "resumed with 0 jobs" if surplus else "resumed with 1 jobs"]

    def test_ordered(self, world):
        """The client of a stream takes the first response, wherever strings were counted."""
        assert self.submit(world, bytes(4 * self.COUNT), is_ordered=True).job.takes_first
        assert not self.submit(world, bytes(4 * self.COUNT)).job.takes_first


class TestReserve:
    def test_limit(self, world, monkeypatch):
        """Beyond the limit there is no memory for bodies that are still to come; a single one may be of any size."""
        monkeypatch.setattr(intake_module, "EXPECTED_BYTES_MAX", 100)
        first = world.intake.reserve(world.model, 150, 150)
        assert world.intake.expected_bytes == 150
        assert world.intake.reserve(world.model, 1, 1) is None
        first.end().free()
        assert world.intake.expected_bytes == 0
        world.intake.reserve(world.model, 1, 1).end().free()
        assert world.memory.live == 0

    def test_model_that_is_gone(self, world):
        """Reserving memory of a model that is gone counts no bytes."""
        lose(world)
        with pytest.raises(InferenceError) as caught:
            world.intake.reserve(world.model, 1, 1)
        assert caught.value.code is Code.UNAVAILABLE
        assert world.intake.expected_bytes == 0

    def test_model_waits(self, world):
        """A model does not stop before the body is there."""

        async def main():
            reservation = world.intake.reserve(world.model, 1, 1)
            waiting = asyncio.ensure_future(world.model._wait_arrived(60))
            await asyncio.sleep(0)
            assert not waiting.done()
            reservation.end().free()
            await waiting

        asyncio.run(main())


class TestTraces:
    def test_of_a_protocol_that_says_when_it_has_sent(self, world):
        """The trace is left open for its frontend."""
        world.tracer.active = True
        incoming = Incoming()
        world.intake.submit(incoming, world.model)
        (trace,) = world.tracer.traces
        assert incoming.trace is trace
        assert (trace.notes, trace.attached, trace.closed) == (["BEGIN", "END"], [incoming.job], False)

    def test_of_a_protocol_that_sends_in_respond(self, world):
        """For a protocol that sends in respond, the trace notes the sending around that call."""
        world.tracer.active = True
        incoming = Incoming(sends_in_respond=True)
        world.intake.submit(incoming, world.model)
        (trace,) = world.tracer.traces
        incoming.job.respond("a response", True)
        assert incoming.outcomes == [("a response", True)]
        assert (trace.notes, trace.closed, incoming.trace) == (["BEGIN", "END", "SEND", "SENT"], True, None)
