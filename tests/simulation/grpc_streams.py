# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that send many requests over one gRPC stream (ModelStreamInfer); they cancel, leave, and read slowly."""

from dataclasses import dataclass, field

from tritonclient.grpc import service_pb2

from .grpc_clients import Call, GrpcClient

FINAL = "triton_final_response"


@dataclass(slots=True)
class StreamCall(Call):
    """A stream. `open` are its requests without a last response, in order, each with the number of its responses."""

    open: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)


class GrpcStreamClient(GrpcClient):
    """See the module."""

    def __init__(self, world, draw, model, first):
        super().__init__(world, draw, model, first)
        # Whether it asks for a last response to a request that has none. Otherwise nobody knows when it is answered.
        self._asks_for_end = self._is_patient or not model.is_decoupled or draw.random() < 0.7
        # A slow client has a small window, and opens it this much later.
        self._slow_s = draw.choice((0.0, 0.005, 0.02))
        if self._slow_s and self._opens_windows:
            self._narrow(draw.choice((50, 200)))

    def _begin(self, number):
        """Send a request, mostly over the stream that the one before went over."""
        self._world.note("grpc streams", self._model.name, number)
        stream = next(reversed(self._calls), None)
        if stream is None or self._calls[stream].is_over or self._draw.random() < 0.15:
            stream = self._open("ModelStreamInfer", StreamCall(number))
            self._reset_later(stream)
        self._calls[stream].open[number] = 0
        request = self._request(number)
        request.parameters["triton_enable_empty_final_response"].bool_param = self._asks_for_end
        self._send(stream, request, ended=False)

    async def _until_answered(self):
        while not self._is_over and any(call.open and not call.is_over for call in self._calls.values()):
            self._changed.clear()
            await self._changed.wait()

    def _end_calls(self):
        """Nothing more is sent over any stream. Some are cancelled instead."""
        for stream, call in self._calls.items():
            if self._is_over or call.is_over:
                continue
            if self._draw.random() < 0.1:
                self._reset(stream, call)
            else:
                self._h2.end_stream(stream)
                self._flush()

    # Responses.

    def _acknowledge(self, size, stream):
        if self._slow_s:
            self._world.loop.call_later(self._slow_s, self._acknowledge_late, size, stream)
        else:
            super()._acknowledge(size, stream)

    def _acknowledge_late(self, size, stream):
        if not self._is_over:
            super()._acknowledge(size, stream)
            self._flush()

    def _came(self, call):
        while len(call.data) >= (stop := 5 + int.from_bytes(call.data[1:5], "big")) and len(call.data) >= 5:
            event = service_pb2.ModelStreamInferResponse.FromString(call.data[5:stop])
            call.data = call.data[stop:]
            self._take_event(call, event)

    def _take_event(self, call, event):
        response, ledger = event.infer_response, self._world.ledger
        number = int(response.id)
        self._world.note("grpc streamed", number, event.error_message)
        if number not in call.open:
            ledger.violated(f"gRPC request {number} of {self._model.name} is answered after its last response")
            return
        if event.error_message:
            call.failed.add(number)
        elif response.outputs:
            call.open[number] += 1
            self._check(response, number)
        if not self._model.is_decoupled and number != next(iter(call.open)):
            ledger.violated(f"gRPC request {number} is answered before {next(iter(call.open))} of the same stream")
        if FINAL not in response.parameters or response.parameters[FINAL].bool_param:
            self._answered(call, number)

    def _answered(self, call, number):
        responses = call.open.pop(number)
        if number not in call.failed:
            self._world.check_length(self._model, number, responses)
            if not self._model.is_decoupled and responses != 1:
                self._world.ledger.violated(f"gRPC request {number} gets {responses} responses")

    def _ended(self, call):
        call.is_over = True
        self._world.note("grpc stream ends", call.number, call.status)
        if call.status is None:
            self._world.ledger.violated(f"gRPC stream {call.number} ends without a status")
        if call.status == 0 and (call.data or (call.open and self._asks_for_end)):
            self._world.ledger.violated(f"gRPC stream {call.number} ends, and requests {list(call.open)} do not")
