# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures without connections, over the server of ../conftest.py."""

import asyncio
import re
import struct
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc.connection import GrpcConnection
from pyruntime.runtime.frontends.grpc.head import HeadReader
from pyruntime.runtime.frontends.grpc.methods import METHODS, STREAMS
from pyruntime.utils.errors import InferenceError

SERVICE = "/inference.GRPCInferenceService/"


class Caller:
    """Calls methods of a state; what has no answer yet is in `replies` once it has."""

    def __init__(self, state):
        self.state = state
        self.replies = []

    def begin(self, name, request=None, /, **fields):
        method = METHODS[name if name.startswith("/") else SERVICE + name]
        request = method.request(**fields) if request is None else method.request.FromString(request)
        method.act(self.state, request, self.replies.append)

    def __call__(self, name, request=None, /, **fields):
        """The one answer, that came at once. Raises InferenceError if that is what it is."""
        self.replies.clear()
        self.begin(name, request, **fields)
        (reply,) = self.replies
        if isinstance(reply, InferenceError):
            raise reply
        return reply

    def error(self, name, request=None, /, **fields):
        """The code and message of the error that a call ends with."""
        with pytest.raises(InferenceError) as caught:
            self(name, request, **fields)
        return caught.value.code, caught.value.message


class StreamCaller:
    """One call of a streaming method: `sent` is what it sent, `end` how it ended, as a list of none or one."""

    def __init__(self, state, path):
        method = STREAMS[path]
        self._request = method.request
        self.sent = []
        self.end = []
        self.stream = method.factory(state, self.sent.append, self._ended)

    def _ended(self, failure):
        self.end.append(failure)
        self.stream.cancelled()

    def __call__(self, **fields):
        """The responses that are sent at once for a request."""
        self.sent.clear()
        self.stream.message(self._request(**fields))
        return self.sent


@pytest.fixture
def call(server):
    return Caller(server.state)


@pytest.fixture
def open_stream(server):
    """Opens a call of a streaming method."""
    return lambda path: StreamCaller(server.state, path)


class Loop:
    """An event loop's clock, its timers and what it does soon, all of which a test lets happen."""

    def __init__(self):
        self.now = 0.0
        self.timers = []
        self.soon = []

    def time(self):
        return self.now

    def call_soon(self, call_back):
        self.soon.append(call_back)

    def call_later(self, delay_s, call_back):
        timer = (self.now + delay_s, call_back)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def run_in_executor(self, executor, work):
        """Run the work of a thread at a later turn."""
        return Work(work)

    def turn(self):
        """Do what was to be done soon."""
        due, self.soon = self.soon, []
        for call_back in due:
            call_back()
        return bool(due)

    def advance(self, seconds):
        """Let time pass, and every timer go off in its turn."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
            self.turn()
        self.now = end


class Work:
    """The work of a thread, for the task that awaits it."""

    def __init__(self, work):
        self._work = work

    def __await__(self):
        yield
        return self._work()


class Tasks:
    """Runs each task up to its next await in a turn of the loop."""

    def __init__(self, loop):
        self._loop = loop

    def create_task(self, coroutine, name=None):
        self._loop.call_soon(partial(self._step, coroutine))

    def _step(self, coroutine):
        with suppress(StopIteration):
            coroutine.send(None)
            self.create_task(coroutine)


class Answer:
    """The answer to one call, as far as it has arrived."""

    def __init__(self):
        self.head = self.trailers = self.reset = None
        self.data = b""
        self.ended = False

    @property
    def is_over(self):
        return self.ended or self.reset is not None

    @property
    def messages(self):
        """(flag, message) of all that are whole."""
        found, rest = [], self.data
        while len(rest) >= 5 and len(rest) >= 5 + int.from_bytes(rest[1:5], "big"):
            size = int.from_bytes(rest[1:5], "big")
            found.append((rest[0], rest[5 : 5 + size]))
            rest = rest[5 + size :]
        return found

    @property
    def status(self):
        """(grpc-status, grpc-message), None while there is none."""
        end = self.trailers or self.head
        if end is None or "grpc-status" not in end:
            return None
        return int(end["grpc-status"]), unquote(end.get("grpc-message", ""))


class Peer:
    """A client of another making, a connection of ours, and no wire between them."""

    INFER = SERVICE + "ModelInfer"
    STREAM = SERVICE + "ModelStreamInfer"

    def __init__(self, server, loop, make_transport, settings=None):
        self.state = server.state
        self.loop = loop
        self.connection = GrpcConnection(server.state, server.connections, HeadReader().read)
        self.transport = make_transport(self.connection)
        self.opens_windows = True
        # Whether the head of a call and its first message go over the wire together.
        self.sends_at_once = False
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.answers = {}
        self.events = []
        self._seen = 0
        self.h2.initiate_connection()
        self.pump()

    def pump(self):
        """Carry bytes to and fro until nobody has any more."""
        while True:
            data = self.h2.data_to_send()
            if data and not self.transport.closed:
                self.transport.feed(data)
            moved = self.loop.turn()
            came = self.transport.sent[self._seen :]
            self._seen += len(came)
            while came:
                size = 9 + int.from_bytes(came[:3], "big")
                for event in self.h2.receive_data(came[:size]):
                    self._take(event)
                came, moved = came[size:], True
            if not data and not moved:
                return

    def _take(self, event):
        self.events.append(event)
        if isinstance(event, h2.events.ConnectionTerminated) and not event.error_code:
            # To h2 this is the end, though calls that are under way go on.
            self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        answer = self.answers.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.ResponseReceived):
            answer.head = dict(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = dict(event.headers)
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.DataReceived):
            answer.data += event.data
            if self.opens_windows:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def saw(self, kind):
        """Whether the client has seen an event of a kind."""
        return any(isinstance(event, kind) for event in self.events)

    def call(self, path, *messages, ended=True, raw=b"", **headers):
        """Begin a call; its number. `raw` are bytes behind the messages."""
        stream = self.h2.get_next_available_stream_id()
        self.answers[stream] = Answer()
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
        head |= {"content-type": "application/grpc", "te": "trailers"}
        # Names of gRPC's own cannot be written as they are.
        head |= {re.sub("_", "-", name) if name.startswith("grpc_") else name: headers[name] for name in headers}
        self.h2.send_headers(stream, list(head.items()))
        if not self.sends_at_once:
            self.pump()
        self.send(stream, *messages, ended=ended, raw=raw)
        return stream

    def send(self, stream, *messages, ended=False, raw=b"", flag=0):
        """More of a call."""
        data = raw
        for message in reversed(messages):
            message = message if isinstance(message, bytes) else message.SerializeToString()
            data = bytes([flag]) + len(message).to_bytes(4, "big") + message + data
        while (data or ended) and not self.answers[stream].is_over:
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
            if data and not size:
                break
            last = ended and size == len(data)
            self.h2.send_data(stream, data[:size], end_stream=last)
            data = data[size:]
            self.pump()
            if last:
                break

    def cancel(self, stream):
        self.h2.reset_stream(stream, 8)
        self.pump()

    def hang_up(self):
        self.transport.lose()

    def __getitem__(self, stream):
        return self.answers[stream]


@pytest.fixture
def loop(monkeypatch):
    """The loop that connections have while there is none that runs."""
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def dial(server, loop):
    """Opens a connection to `server`: see Peer."""
    server.state.tasks = Tasks(loop)
    make_transport = type(server.connect(lambda state, connections: _Nobody()))
    return lambda **options: Peer(server, loop, make_transport, **options)


class _Nobody:
    def connection_made(self, transport):
        pass


@pytest.fixture
def ask():
    """Makes a ModelInferRequest: to model "m" of contents `values`, unless other fields say otherwise."""

    def make(*values, model="m", raw=True, **fields):
        request = service_pb2.ModelInferRequest(model_name=model, **fields)
        entry = request.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
        if raw:
            request.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
        else:
            entry.contents.fp32_contents.extend(values)
        return request

    return make
