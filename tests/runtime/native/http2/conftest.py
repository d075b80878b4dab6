# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A session and, on the other end of no wire at all, a client of another making."""

import struct

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from pyruntime.runtime.native import _http2

LIMITS = {
    "max_streams": 10,
    "stream_window": 65535,
    "connection_window": 65535,
    "header_list_bytes": 4096,
    "message_bytes": 1 << 25,
    "large_bytes": 1 << 30,
    "frame_bytes": 16384,
    "alignment": 64,
}
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def packed(*headers):
    """Headers as the session takes them and gives them."""
    return b"".join(name + b"\0" + value + b"\0" for name, value in headers)


def framed(message, flag=0):
    """A message as it stands in a stream."""
    return struct.pack(">BI", flag, len(message)) + message


class Client:
    """A client, its session, and the events of both.

    `events` are the session's; `data`, `heads`, `trailers`, `resets` and `ended` are the client's, by stream.
    """

    LIMITS = LIMITS
    HEADERS = HEADERS
    packed = staticmethod(packed)
    HEAD = packed((b":status", b"200"), (b"content-type", b"application/grpc"))
    TRAILERS = packed((b"grpc-status", b"0"))
    REFUSAL = packed((b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"8"))

    def __init__(self, place=lambda stream, meta, left: None, settings=None, **limits):
        self.session = _http2.Session(place, **{**LIMITS, **limits})
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self.opens_windows = True
        self.events, self.seen, self.released = [], [], []
        self.data, self.heads, self.trailers, self.resets = {}, {}, {}, {}
        self.ended = set()
        self.h2.initiate_connection()
        self.pump()

    def take_events(self):
        """The session's events since the last time."""
        events, self.events = self.events, []
        return events

    def pump(self):
        """Carry bytes in both directions until there are no more; the events of the session."""
        while self.to_session() or self.to_client():
            pass
        return self.events

    def to_session(self):
        """Carry the client's data, if there is any."""
        data = self.h2.data_to_send()
        if data:
            self.events += self.session.receive(data)
        return bool(data)

    def to_client(self):
        """Carry the session's data, if there is any; its chunks."""
        chunks, released = self.session.send()
        self.released += released
        for event in self.h2.receive_data(b"".join(chunks)) if chunks else ():
            self._see(event)
        return chunks

    def _see(self, event):
        self.seen.append(event)
        match event:
            case h2.events.DataReceived():
                self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                if self.opens_windows:
                    self.open_window(event.stream_id, event.flow_controlled_length)
            case h2.events.ResponseReceived():
                self.heads[event.stream_id] = event.headers
            case h2.events.TrailersReceived():
                self.trailers[event.stream_id] = event.headers
            case h2.events.StreamReset():
                self.resets[event.stream_id] = event.error_code
            case h2.events.StreamEnded():
                self.ended.add(event.stream_id)

    def open_window(self, stream, length):
        """Let the session send so much more."""
        try:
            self.h2.acknowledge_received_data(length, stream)
        except h2.exceptions.StreamClosedError:
            self.h2.increment_flow_control_window(length)

    def open(self, *headers, end=False):
        """Open a stream with more headers."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*HEADERS, *headers], end_stream=end)
        return stream

    def send(self, stream, data, end=False):
        """Send data as far and as fast as windows let it; what could not be sent."""
        rest = memoryview(data)
        while len(rest):
            length = min(len(rest), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if length == 0:
                self.pump()
                length = min(len(rest), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
                if length == 0:
                    return bytes(rest)
            self.h2.send_data(stream, bytes(rest[:length]), end_stream=end and length == len(rest))
            rest = rest[length:]
        return b""

    def call(self, *messages, end=True):
        """A whole request; its stream."""
        stream = self.open()
        self.send(stream, b"".join(map(framed, messages)), end=end)
        self.pump()
        return stream


@pytest.fixture
def connect():
    """Makes clients; takes what Client takes."""
    return Client


@pytest.fixture
def client():
    """A client with the usual limits."""
    return Client()
