# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that speak gRPC over a wire, by another implementation of HTTP/2: they reset calls, open no window, leave."""

import asyncio
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.events
import h2.settings
from tritonclient.grpc import service_pb2

from .tensors import HOP, pack, request_of, value_of
from .wires import cut

SERVICE = "/inference.GRPCInferenceService/"
# A client that opens no window goes away after this, in virtual seconds: longer than the server has patience.
UNREAD_S = 100.0
CANCEL = 8
FRAME_HEAD_BYTES = 9


@dataclass(slots=True)
class Call:
    """A call. `data` is what came of its response; `status` that of gRPC, once there is one."""

    number: int
    data: bytes = b""
    status: int | None = None
    is_over: bool = False


class GrpcClient:
    """See the module. `first` is the number of its first request, and `model` what it asks for."""

    protocol = "gRPC"

    def __init__(self, world, draw, model, first):
        self._world = world
        self._draw = draw
        self._model = model
        self._first = first
        self._count = draw.randint(1, 6)
        self._is_patient = draw.random() < 0.4
        self._gap_s = draw.choice((0.0, 0.0, 0.0005, 0.02))
        self._piece = draw.choice((1 << 20, 1 << 20, 60, 7))
        self._resets = draw.random() < 0.2
        self._timeout = draw.choice(("", "", "", "500u", "50m"))
        self._opens_windows = draw.random() < 0.85
        self._leaves_after_s = draw.choice((0.0, 0.0005, 0.004, 0.05)) if draw.random() < 0.2 else None
        self._wire = None
        self._is_over = False
        self._changed = asyncio.Event()
        self._calls = {}
        self._data = b""
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        if not self._opens_windows:
            self._narrow(draw.choice((0, 10, 50)))

    def _narrow(self, size):
        """Begin each call with a window of this size."""
        window = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: size}
        self._h2.local_settings = h2.settings.Settings(client=True, initial_values=window)

    async def run(self):
        """Send everything, and wait until all calls are over."""
        world, draw = self._world, self._draw
        self._wire = world.dial(self, draw, draw.choice((1 << 20, 1 << 20, 300)))
        self._h2.initiate_connection()
        self._flush()
        if self._leaves_after_s is not None:
            world.loop.call_later(self._leaves_after_s, self._leave)
        if not self._opens_windows:
            world.loop.call_later(UNREAD_S, self._leave)
        for number in range(self._first, self._first + self._count):
            await asyncio.sleep(self._gap_s)
            if self._is_over:
                break
            self._begin(number)
            if self._is_patient:
                await self._until_answered()
        self._end_calls()
        await self._until_over()
        if not self._is_over and draw.random() < 0.7:  # others stay connected until the server ends
            self._leave()

    async def _until_answered(self):
        """Wait until all that was asked is answered."""
        await self._until_over()

    def _end_calls(self):
        """Nothing more is sent."""

    async def _until_over(self):
        while not self._is_over and not all(call.is_over for call in self._calls.values()):
            self._changed.clear()
            await self._changed.wait()

    def _begin(self, number):
        self._world.note("grpc sends", self._model.name, number)
        stream = self._open("ModelInfer", Call(number))
        self._send(stream, self._request(number), ended=True)
        self._reset_later(stream)

    def _open(self, method, call):
        """Begin a call. Returns its stream."""
        stream = self._h2.get_next_available_stream_id()
        self._calls[stream] = call
        head = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), (":authority", "x")]
        head += [("content-type", "application/grpc"), ("te", "trailers")]
        if self._timeout:
            head.append(("grpc-timeout", self._timeout))
        self._h2.send_headers(stream, head)
        return stream

    def _send(self, stream, request, *, ended):
        message = request.SerializeToString()
        self._h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=ended)
        self._flush()

    def _reset_later(self, stream):
        """Some clients cancel some of their calls."""
        if self._resets and self._draw.random() < 0.5:
            after_s = self._draw.choice((0.0, 0.0005, 0.01))
            self._world.loop.call_later(after_s, self._reset, stream, self._calls[stream])

    def _request(self, number):
        model = self._model
        request = service_pb2.ModelInferRequest(model_name=model.name, id=str(number))
        request.inputs.add(name="IN", datatype="INT64", shape=model.shape(1, 2))
        request.raw_input_contents.append(pack(number, 2))
        if model.is_sequence:
            request.parameters["sequence_id"].int64_param = number
            request.parameters["sequence_start"].bool_param = request.parameters["sequence_end"].bool_param = True
        return request

    def _reset(self, stream, call):
        if not call.is_over and not self._is_over:
            call.is_over = True
            self._h2.reset_stream(stream, CANCEL)
            self._flush()
            self._changed.set()

    def _leave(self):
        if not self._is_over:
            self._is_over = True
            self._changed.set()
            self._wire.reset()

    def _flush(self):
        data = self._h2.data_to_send()
        if data:
            for piece in cut(self._draw, data, self._piece):
                self._wire.send(piece)

    # Responses.

    def readable(self):
        """See Wire."""
        if self._is_over:
            return
        data = self._wire.read(1 << 20)
        if data:
            self._data += data
            self._receive()
            self._flush()
            self._changed.set()
        elif self._wire.is_lost:
            self._is_over = True
            self._changed.set()
            numbers = [call.number for call in self._calls.values() if not call.is_over]
            # A handshake that is not over after a long time, in which the server stood still, is given up.
            may_end = self._world.is_closing or "time_stands_still" in self._world.plan.features
            if numbers and self._opens_windows and not may_end:
                self._world.ledger.violated(f"gRPC calls {numbers} are not answered, and the server hangs up")

    def _receive(self):
        """Take all frames that are complete, one by one."""
        while len(self._data) >= FRAME_HEAD_BYTES:
            size = FRAME_HEAD_BYTES + int.from_bytes(self._data[:3], "big")
            if len(self._data) < size:
                return
            frame, self._data = self._data[:size], self._data[size:]
            for event in self._h2.receive_data(frame):
                if isinstance(event, h2.events.ConnectionTerminated) and not event.error_code:
                    # To h2 this is the end, though calls that are under way go on.
                    self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
                self._take(event)

    def _take(self, event):
        call = self._calls.get(getattr(event, "stream_id", None))
        if call is None:
            return
        if call.is_over:
            return  # it was reset, and the server did not know
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                status = dict(event.headers).get("grpc-status")
                call.status = call.status if status is None else int(status)
            case h2.events.DataReceived():
                call.data += event.data
                self._came(call)
                if self._opens_windows:
                    self._acknowledge(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self._ended(call)
            case h2.events.StreamReset():
                call.is_over = True
                if self._opens_windows and call.status is None:
                    self._world.ledger.violated(f"gRPC call {call.number} is reset without a status")

    def _acknowledge(self, size, stream):
        """Open the windows again."""
        self._h2.acknowledge_received_data(size, stream)

    def _came(self, call):
        """A part of what the server says has come."""

    def _ended(self, call):
        call.is_over = True
        self._world.note("grpc answered", call.number, call.status)
        if call.status is None:
            self._world.ledger.violated(f"gRPC call {call.number} ends without a status")
        if call.status != 0:
            return
        size = int.from_bytes(call.data[1:5], "big")
        if len(call.data) != 5 + size:
            self._world.ledger.violated(f"gRPC call {call.number} has no response, or several")
            return
        self._check(service_pb2.ModelInferResponse.FromString(call.data[5:]), call.number)

    def _check(self, response, number):
        """A response is the one to this request."""
        values = [value_of(contents) for contents in response.raw_output_contents]
        if response.id != str(number) or any(value < HOP or request_of(value) != number for value in values):
            self._world.ledger.violated(f"gRPC request {number} is answered wrongly: {response.id}, {values}")
