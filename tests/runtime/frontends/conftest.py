# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server without processes: connections over transports that note what is written, in front of models of straw.

`server.instance` is the instance of model "m", which echoes its input; `server.decoupled` that of model "d", whose
responses the test makes.
"""

import asyncio
import struct
from functools import partial

import pytest

from pyruntime.runtime.frontends.http import write_stall
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.kserve_response import encode_binary
from pyruntime.runtime.frontends.http.request_head import ChunkedBody, HeadReader, read_plain
from pyruntime.runtime.frontends.http.response_head import infer_head
from pyruntime.runtime.inference.intake import Intake
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.runtime.inference.threads import THREADS_MAX
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.settings import ServerSettings

from ..model_specs import spec_from
from ..server_states import new_state

CONFIG = (
    "name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: -1 } output { name: 'OUT' data_type: TYPE_FP32 dims: -1 }"
)
DECOUPLED = CONFIG + " model_transaction_policy { decoupled: true }"
INPUT_BYTES_MAX = 1 << 20
# What is read at once of a connection that is lent.
LENT_BYTES_MAX = 24 << 10


class ClientSocket:
    """A connection that an instance sends in by itself."""

    def __init__(self, transport):
        self.transport = transport

    def send(self, data):
        self.transport.write(data)

    def shut_down(self):
        """The transport is closed already."""


class Lent:
    """A connection that an instance reads by itself, one request for each call of `act`."""

    def __init__(self, instance, connection, client, data):
        self.connection = connection
        self.begun = 0
        self._instance = instance
        self._client = client
        self._line = data[: data.index(b"\r\n") + 2]
        self._data = data
        self._is_back = False

    def act(self):
        """Read, and answer if all of a request is there; whether anything has happened."""
        if self._is_back:
            return False
        read = b""
        if self.begun or not self._data:
            read = self._client.transport.take(LENT_BYTES_MAX)
            self._data += read
        end = self._data.find(b"\r\n\r\n") + 4
        head = read_plain(self._data[:end]) if end > 3 else None
        if head is not None and (head.encoding or head.expects_continue or head.load_format or not head.keep_alive):
            head = None
        is_other = self._data[: len(self._line)] != self._line[: len(self._data)] or (end > 3 and head is None)
        if not is_other and (head is None or len(self._data) < end + head.content_length):
            return bool(read)
        request = None
        if not is_other and len(self._data) == end + head.content_length:
            request = self._instance.read_body(self._data[end:], head.header_length)
        if request is None:
            self.connection.returned()
            assert self._is_back
            return True
        self.begun += 1
        self._data = b""
        if self._instance.adopts():
            self._is_back = True
            self._instance.adopted(self.connection.adopt(1 << 62, 0, request.id, request.rows), request)
        else:
            self._client.send(request.answer())
        return True

    def take_back(self):
        assert not self._is_back
        self._is_back = True
        return self._data


class PlainBody:
    """A request that native code would read, and its answer."""

    def __init__(self, id, rows, shape, contents):
        self.id = id
        self.rows = rows
        self.shape = shape
        self.contents = contents

    def response(self, release=lambda: None):
        output = OutputTensor("OUT", "FP32", list(self.shape), memoryview(self.contents))
        return InferResponse("m", 1, self.id, [output], release=release)

    def answer(self):
        document, parts, length = encode_binary(self.response())
        return b"".join([infer_head(len(document), length, b""), document, *parts])


class Instance:
    """Echoes, at once or when the test calls `answer`; or sends the test's responses."""

    is_idle = True

    name = "m_0"
    is_ready = True
    down = ""
    restarts = 0
    waiting = 0
    response_bytes = 0
    capacity = 1 << 30

    def __init__(self, memory):
        self._memory = memory
        self._reader = PlainRequests(spec_from(CONFIG))
        self.waits = False
        # Whether it writes responses to plain requests, and sends them.
        self.writes = True
        self.sends = False
        self.may_read = False
        self.adopts = lambda: False
        self.lent = []
        self.untold = []
        # How many plain requests it has read, and itself if it does that.
        self.plain_count = 0
        self.plain = None
        self.contents = {}
        self.jobs = []
        self.cancelled = []
        self.released = 0
        self.checks = []
        self.answers_checks = True

    @property
    def inflight(self):
        """It stands for its batches, too."""
        return self

    def execute(self, batch):
        self.jobs += batch
        for job in batch:
            job.instance = self
        if not self.waits:
            self.answer()

    def read_body(self, body, document_length):
        """A plain request, None for any other one."""
        read = self._reader.read_document(body, document_length, 0, self._memory.allocate)
        if read is None or read.binary is not True or read.options[2]:
            return None
        ((_, _, shape, offset, size, _, _),) = read.tensors
        return PlainBody(read.id, read.rows, shape, body[offset : offset + size])

    def execute_plain(self, job, data, at, document_length):
        """Takes a plain request; the test calls `answer` later, as for an instance with threads."""
        request = self.read_body(data[at:], document_length)
        if request is None:
            return False
        job.id, job.rows, job.instance = request.id, request.rows, self
        self.contents[job] = request, job.client_socket(ClientSocket) if self.sends else None
        self.jobs.append(job)
        self.plain_count += 1
        return True

    def lend(self, connection, data):
        head, _, body = data.partition(b"\r\n\r\n")
        if self.read_body(body, read_plain(head + b"\r\n\r\n").header_length) is None:
            return None
        client = connection.client_socket(ClientSocket)
        if client is None:
            return None
        self.lent.append(Lent(self, connection, client, data))
        return self.lent[-1]

    def adopt(self, job, serial):
        job.instance = self
        job.serial = serial

    def adopted(self, job, request):
        """Answer a request that the instance has read itself like any other request."""
        self.contents[job] = request, None
        self.jobs.append(job)

    def read(self):
        """Read data on lent connections; whether there was any."""
        return any([lent.act() for lent in self.lent])

    def answer(self, count=None):
        due = self.jobs[:count]
        del self.jobs[:count]
        for job in due:
            if job in self.contents:
                self._answer_plain(job, *self.contents.pop(job))
                continue
            ((_, _, shape, offset, size, _, _),) = job.tensors
            contents = bytes(self._memory.region.view[offset : offset + size])
            job.free()
            output = OutputTensor("OUT", "FP32", list(shape), memoryview(contents))
            job.respond(InferResponse("m", 1, job.id, [output], release=self._release), True)

    def claim(self, job):
        """Have us send nothing to the client of a request; not if we have."""
        if job in self.contents:
            self.contents[job] = self.contents[job][0], None
        return job not in self.untold

    def settle(self):
        """Say which requests we have answered ourselves."""
        untold, self.untold = self.untold, []
        for job in untold:
            job.sent(None)

    def _answer_plain(self, job, request, client):
        if not self.writes:
            job.respond(request.response(self._release), True)
        elif client is None:
            job.encoded(request.answer())
        else:
            client.send(request.answer())
            self.untold.append(job)

    def say(self, outcome, final=False, datatype="FP32", count=1):
        """The next response to the first job, which is a number, so many times, or an error."""
        job = self.jobs[0]
        if final:
            self.jobs.remove(job)
            job.free()
        if isinstance(outcome, (int, float)):
            output = OutputTensor("OUT", datatype, [count], memoryview(struct.pack("<f", outcome) * count))
            outcome = InferResponse("d", 1, job.id, [output], release=self._release)
        job.respond(outcome, final)

    def cancel(self, job):
        self.cancelled.append(job)

    def check_ready(self, call_back):
        self.checks.append(call_back)
        if self.answers_checks:
            self.answer_check(True)

    def answer_check(self, ready):
        self.checks.pop(0)(ready)

    def _release(self):
        self.released += 1


class Transport(asyncio.Transport):
    """Notes written data; data that arrives while reading is paused waits, as in a socket."""

    def __init__(self, connection):
        self._connection = connection
        self._incoming = b""
        self.sent = b""
        self.is_paused = False
        self.closed = False
        self.aborted = False
        self.half_closed = False
        self.buffered = 100  # while it is stalled
        self.stalled = False  # the client reads nothing: written data stays here
        connection.connection_made(self)

    def set_write_buffer_limits(self, high, low):
        assert high == low == 0

    def feed(self, data):
        self._incoming += data
        self._pump()

    def _pump(self):
        while self._incoming and not self.is_paused and not self.closed:
            buffer = self._connection.get_buffer(-1)
            size = min(len(buffer), len(self._incoming))
            buffer[:size] = self._incoming[:size]
            self._incoming = self._incoming[size:]
            self._connection.buffer_updated(size)

    def take(self, size):
        """Read from the socket, as another reader than the connection."""
        assert self.is_paused
        data, self._incoming = self._incoming[:size], self._incoming[size:]
        return data

    def get_write_buffer_size(self):
        return self.buffered if self.stalled else 0

    def get_extra_info(self, name):
        return None if name == "sslcontext" else self

    def fileno(self):
        """Stands for a descriptor: see ClientSocket."""
        return self

    def write(self, data):
        assert not self.closed, "written behind the end"
        self.sent += bytes(data)
        if self.stalled and data:
            self._connection.pause_writing()

    def writelines(self, parts):
        self.write(b"".join(parts))

    def drain(self, still_stalled=False):
        self.stalled = still_stalled
        self._connection.resume_writing()

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False
        self._pump()

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.half_closed = True

    def abort(self):
        self.closed = self.aborted = True

    def lose(self):
        self.closed = True
        self._connection.connection_lost(None)

    def responses(self):
        """The responses that were sent, as (status, headers, body); of a stream, as much of the body as there is."""
        found = []
        rest = self.sent
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            status = int(first.split()[1])
            assert first.startswith("HTTP/1.1 ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            if "transfer-encoding" in headers:
                parts, rest = ChunkedBody().feed(rest)
                found.append((status, headers, b"".join(parts)))
                continue
            if headers.get("content-type", "").startswith("text/event-stream"):
                headers["content-length"] = len(rest)  # there is nothing else until the connection ends
            length = int(headers.get("content-length", 0)) if status != 100 else 0
            found.append((status, headers, rest[:length]))
            assert len(rest) >= length
            rest = rest[length:]
        return found

    def statuses(self):
        return [status for status, _, _ in self.responses()]


class Server:
    def __init__(self, input_bytes_max=INPUT_BYTES_MAX):
        self.memory = RequestMemory("m", 1 << 16, 1 << 16)
        self.instance, self.decoupled = Instance(self.memory), Instance(self.memory)
        settings = ServerSettings(model_repositories=("/models",), http_max_input_size=input_bytes_max)
        self.state = new_state(settings, settle=self.instance.settle)
        self.state.soon = lambda call_back: call_back()
        self.state.loaded = True
        self.decoupled.waits = True
        self.model = self._serve("m", CONFIG, self.instance)
        self._serve("d", DECOUPLED, self.decoupled)
        self.connections = set()
        self.read_head = HeadReader().read

    def _serve(self, name, text, instance):
        spec = spec_from(text.replace("'m'", f"'{name}'"), name)
        model = ModelVersion(spec, 1, self.memory, lambda model, reason: None)
        model.serve([instance])
        self.state.table.begin_load(name, 1)
        self.state.table.ready(name, 1, model)
        return model

    def read_plain(self):
        """Have the instance of "m" read plain requests by itself."""
        self.instance.plain = self.instance
        self.model.serve([self.instance])

    def trace_with(self, tracer):
        """Have requests traced by another tracer."""
        self.state.tracer = tracer
        self.state.intake = Intake(self.state.resolve, tracer, lambda: self.state.tasks, self.state.gpu_peers)

    def connect(self, connection=HttpConnection):
        arguments = (self.read_head,) if connection is HttpConnection else ()
        return Transport(connection(self.state, self.connections, *arguments))

    def is_idle(self):
        return self.state.in_flight == 0 and self.memory.live == 0 and self.state.turns.free == THREADS_MAX


@pytest.fixture(scope="module")
def shared():
    made = Server()
    yield made
    made.memory.close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.memory.close()


class Timer:
    """One that was set; a test lets it go off."""

    def __init__(self, delay_s, call_back, *arguments):
        self.delay_s = delay_s
        self.cancelled = False
        self._call = partial(call_back, *arguments)

    def cancel(self):
        self.cancelled = True

    def go_off(self):
        assert not self.cancelled
        self._call()


@pytest.fixture(autouse=True)
def timers(monkeypatch):
    """The timers that connections have set: there is no event loop."""
    made = []

    def call_later(*arguments):
        made.append(Timer(*arguments))
        return made[-1]

    monkeypatch.setattr(write_stall, "call_later", call_later)
    monkeypatch.setattr(write_stall, "unacknowledged", lambda transport: transport.get_write_buffer_size())
    return made
