# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A connection between the host and a simulated stub: two queues of bytes, each with a latency.

What the stub says arrives in order, and sometimes in other pieces than it was said. What the host has not read when it
closes the connection lies in the real socket: the product reads the rest from there.
"""

from collections import deque

# No message takes longer on its way, in seconds.
LATENCY_S_MAX = 0.0002


class StubTransport:
    """The host's end. `stub.receive` gets what the host writes, and `stub.lost` is called when the host hangs up."""

    def __init__(self, clock, loop, draw, stub, rest):
        """`rest` is the stub's end of the real socket, which this owns from now on."""
        self._clock = clock
        self._loop = loop
        self._draw = draw
        self._stub = stub
        self._rest = rest
        self._protocol = None
        self._to_host = deque()
        self._to_stub = deque()
        self._is_closed = False
        self._is_paused = False
        # When the last message began or ended its way.
        self.moved_ns = clock.now_ns

    def serve(self, protocol):
        """The protocol of the host that reads here."""
        self._protocol = protocol

    @property
    def is_quiet(self):
        """Whether nothing is on its way."""
        return not self._to_host and not self._to_stub

    # The host's calls: see asyncio.WriteTransport.

    def write(self, data):
        if not self._is_closed:
            self.moved_ns = self._clock.now_ns
            self._to_stub.append(data)
            self._loop.call_later(self._latency(), self._arrive_at_stub)

    def take(self, data):
        """What the host sends past the transport: sometimes the socket takes only a part, or nothing."""
        if self._is_closed:
            raise BrokenPipeError
        size = len(data) if self._draw.random() < 0.9 else self._draw.randrange(len(data))
        if not size:
            raise BlockingIOError
        self.write(data[:size])
        return size

    def get_write_buffer_size(self):
        """What was written is on its way."""
        return 0

    def is_closing(self):
        return self._is_closed

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            unread = b"".join(data for data in self._to_host if data is not None)
            if unread:
                self._rest.send(unread)
            self._to_host.clear()
            self._rest.close()
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._stub.lost()

    abort = close

    def pause_reading(self):
        assert not self._is_paused
        self._is_paused = True

    def resume_reading(self):
        assert self._is_paused
        self._is_paused = False
        for _ in self._to_host:
            self._loop.call_soon(self._arrive_at_host)

    # The stub's calls.

    def say(self, data):
        """Send bytes to the host."""
        if not self._is_closed:
            self.moved_ns = self._clock.now_ns
            self._to_host.append(data)
            self._loop.call_later(self._latency(), self._arrive_at_host)

    def hang_up(self):
        """Close the stub's end, behind all that was said."""
        self.say(None)

    def _latency(self):
        return self._draw.random() * LATENCY_S_MAX

    def _arrive_at_stub(self):
        if self._to_stub and not self._is_closed:
            self.moved_ns = self._clock.now_ns
            self._stub.receive(self._to_stub.popleft())

    def _arrive_at_host(self):
        if not self._to_host or self._is_paused:
            return
        self.moved_ns = self._clock.now_ns
        data = self._to_host.popleft()
        if data is None:
            self._protocol.eof_received()
            self.close()
            return
        if self._draw.random() < 0.1:
            cut = self._draw.randrange(len(data) + 1)
            data, rest = data[:cut], data[cut:]
            self._to_host.appendleft(rest)
            self._loop.call_later(self._latency(), self._arrive_at_host)
        elif self._to_host and self._to_host[0] is not None and self._draw.random() < 0.2:
            data += self._to_host.popleft()
        if data:
            self._protocol.data_received(data)
