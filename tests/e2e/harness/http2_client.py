# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A client of HTTP/2, for what no client of gRPC does."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from .waiting import LIMIT_S


class BareCall:
    """The state of one call of a bare client: `data` are framed messages, `end` the headers it ended with."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end: dict[str, str] = {}
        self.reset: int | None = None

    @property
    def status(self) -> str | None:
        """grpc-status, or `reset` and an error code of HTTP/2; None while the call goes on."""
        return self.end.get("grpc-status", None if self.reset is None else f"reset {self.reset}")


class BareClient:
    """A client of HTTP/2 with actions that gRPC clients do not have. `opens_windows` is whether it takes data."""

    INFER = "/inference.GRPCInferenceService/ModelInfer"
    STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
    LIVE = "/inference.GRPCInferenceService/ServerLive"

    def __init__(self, port: int, window: int | None = None, context: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.opens_windows = window is None
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values={4: window})
        self.calls: dict[int, BareCall] = {}
        self.events: list[Any] = []
        self._rest = b""
        self.h2.initiate_connection()
        self.flush()

    def __enter__(self) -> "BareClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def flush(self) -> None:
        """Write what h2 has to say."""
        self.sock.sendall(self.h2.data_to_send())

    def head(self, path: str, ended: bool = False, **metadata: str | None) -> int:
        """Begin a call, and do not write it yet; its number. What is None is left out."""
        stream: int = self.h2.get_next_available_stream_id()
        self.calls[stream] = BareCall()
        head: dict[str, str | None] = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
        head |= {"content-type": "application/grpc", "te": "trailers", **metadata}
        fields = [(name, value) for name, value in head.items() if value is not None]
        self.h2.send_headers(stream, fields, end_stream=ended)
        return stream

    def call(self, path: str, message: bytes = b"", **metadata: str | None) -> int:
        """A call of one message, which may be larger than windows."""
        stream = self.head(path, **metadata)
        self.send(stream, b"\0" + len(message).to_bytes(4, "big") + message, ended=True)
        return stream

    def send(self, stream: int, data: bytes, ended: bool = False) -> None:
        """Data as it is, as windows allow, or until the server has closed the stream."""
        with suppress(h2.exceptions.StreamClosedError):
            self._send(stream, data, ended)
        self.flush()

    def _send(self, stream: int, data: bytes, ended: bool) -> None:
        while True:
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
            if data and not size:
                self.flush()
                self.read()
                continue
            self.h2.send_data(stream, data[:size], end_stream=ended and size == len(data))
            data = data[size:]
            if not data:
                break

    def read(self, size: int = 1 << 16) -> bool:
        """Read once, `size` bytes at most, and note the events; False at the end."""
        try:
            data = self.sock.recv(size)
        except ConnectionError:
            data = b""
        self._rest += data
        # Frame by frame: what an event changes holds for the next frame.
        while len(self._rest) >= 9 and len(self._rest) >= (size := 9 + int.from_bytes(self._rest[:3], "big")):
            for event in self.h2.receive_data(self._rest[:size]):
                self._note(event)
            self._rest = self._rest[size:]
        with suppress(ConnectionError):
            self.flush()
        return bool(data)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        call = self.calls.get(getattr(event, "stream_id", None) or 0, BareCall())
        match event:
            case h2.events.ConnectionTerminated(error_code=0):
                # To h2 this is the end, though calls that are under way go on.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                call.end |= dict(event.headers)
            case h2.events.StreamReset():
                call.reset = int(event.error_code)
            case h2.events.DataReceived():
                call.data += event.data
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def read_until(self, condition: Callable[[], Any]) -> Any:
        """Read until something is so; AssertionError if the server hangs up before."""
        while not (found := condition()):
            assert self.read(), f"the server hung up: {self.events[-5:]}"
        return found

    def status(self, stream: int) -> str:
        """How a call ends."""
        return str(self.read_until(lambda: self.calls[stream].status))

    def saw(self, kind: type) -> Any:
        """The first event of a kind, or None."""
        return next((event for event in self.events if isinstance(event, kind)), None)
