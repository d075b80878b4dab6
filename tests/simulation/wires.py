# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A connection between a client and the server: what TCP and the event loop do in between, with latencies.

The client's bytes arrive in any pieces. What the server writes goes through a socket of limited room, and what does not
fit stays where it lies, in the server's memory, until the client has read enough: so the product has to keep it.
"""

from collections import deque

# No bytes take longer on their way, in seconds.
LATENCY_S_MAX = 0.0003
# Bytes that are sent at a time are cut into so many pieces at most, besides what lies before and behind these.
PIECES_MAX = 16


def cut(draw, data, size):
    """Pieces of this size from somewhere on in the data, and what lies before and behind them."""
    if len(data) <= size:
        return [data]
    begin = draw.randrange(max(1, len(data) - size * PIECES_MAX + 1))
    end = min(begin + size * PIECES_MAX, len(data))
    pieces = [data[:begin], *(data[at : at + size] for at in range(begin, end, size)), data[end:]]
    return [piece for piece in pieces if piece]


class _NoSocket:
    """The socket of a wire, of which the kernel knows nothing: all that is not acknowledged lies in the wire."""

    def fileno(self):
        raise OSError(9, "there is no descriptor in this simulation")


class Wire:
    """Both ends: the methods of asyncio.Transport for the server, and the others for `client`.

    `client.readable()` is called when there is something to read, and `client.ended()` when the server has hung up and
    all is read. `room` is how many bytes the server may send ahead of the client.
    """

    def __init__(self, world, draw, client, room):
        self._loop = world.loop
        self._note = world.note
        self._draw = draw
        self._client = client
        self._room = room
        self._protocol = None
        # Pieces of what the client sends, None for its end, that have not arrived; and those that the server has not
        # read.
        self._coming = deque()
        self._arrived = deque()
        # What the server has written and the socket has no room for, and what the client has not read.
        self._unsent = deque()
        self._unread = deque()
        self._is_read_paused = False
        self._is_write_paused = False
        self._is_reset = False
        self._is_reading = False
        # The server has closed its end; and it was told that the connection is lost.
        self._is_closing = False
        self.is_lost = False

    def connect(self, protocol):
        """The server accepts the connection."""
        self._protocol = protocol
        protocol.connection_made(self)

    # The server's calls: see asyncio.Transport.

    def write(self, data):
        if self._is_reset:
            self._lose()
        elif not self._is_closing or self._unsent:
            self._unsent.append(memoryview(data).cast("B"))
            self._flush()

    def writelines(self, parts):
        for part in parts:
            self.write(part)

    def set_write_buffer_limits(self, high, low):
        """All that is not sent counts."""

    def get_write_buffer_size(self):
        return sum(map(len, self._unsent))

    def get_extra_info(self, name):
        return {"peername": ("192.0.2.1", 40_000), "socket": _NoSocket()}.get(name)

    def pause_reading(self):
        self._is_read_paused = True

    def resume_reading(self):
        self._is_read_paused = False
        self._read_soon()

    def is_closing(self):
        return self._is_closing

    def can_write_eof(self):
        """No half of it is closed alone, as with TLS."""
        return False

    def close(self):
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._lose()

    def abort(self):
        self._is_closing = True
        self._unsent.clear()
        self._lose()

    # The client's calls.

    def send(self, data):
        """Send bytes to the server; None for the end of what is sent."""
        self._coming.append(data)
        self._loop.call_later(self._latency(), self._arrive)

    def read(self, size):
        """Read up to so many bytes, which makes room for others."""
        data = b""
        while self._unread and len(data) < size:
            part = self._unread.popleft()
            taken = size - len(data)
            data += part[:taken]
            if part[taken:]:
                self._unread.appendleft(part[taken:])
        self._room += len(data)
        self._loop.call_soon(self._flush)
        return data

    def reset(self):
        """Leave, without a word."""
        self._loop.call_later(self._latency(), self._arrive_reset)

    # In between.

    def _latency(self):
        return self._draw.random() * LATENCY_S_MAX

    def _arrive(self):
        data = self._coming.popleft()
        if data and self._draw.random() < 0.2:
            cut = self._draw.randrange(len(data))
            self._arrived += [part for part in (data[:cut], data[cut:]) if part]
        else:
            self._arrived.append(data)
        self._read_soon()

    def _arrive_reset(self):
        self._is_reset = True
        if not self._is_read_paused:
            self._lose()

    def _read_soon(self):
        if (self._arrived or self._is_reset) and not self._is_reading:
            self._is_reading = True
            self._loop.call_soon(self._read)

    def _read(self):
        """The server's event loop reads once."""
        self._is_reading = False
        if self._is_read_paused or self._is_closing or self.is_lost:
            return
        if self._is_reset:
            self._lose()
            return
        data = self._arrived.popleft()
        if data is None:
            if not self._protocol.eof_received():
                self.close()
            return
        buffer = self._protocol.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        if data[size:]:
            self._arrived.appendleft(data[size:])
        self._protocol.buffer_updated(size)
        self._read_soon()

    def _flush(self):
        """Send as much as there is room for."""
        if self.is_lost:
            return
        has_sent = False
        while self._unsent and self._room:
            part = self._unsent.popleft()
            size = min(len(part), self._room)
            self._room -= size
            if size:
                self._unread.append(bytes(part[:size]))
                has_sent = True
            if size < len(part):
                self._unsent.appendleft(part[size:])
        if has_sent:
            self._loop.call_later(self._latency(), self._client.readable)
        if self._unsent and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol.pause_writing()
        elif not self._unsent and self._is_write_paused:
            self._is_write_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._lose()

    def _lose(self):
        if not self.is_lost:
            self.is_lost = True
            self._is_closing = True
            self._unsent.clear()
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._loop.call_later(LATENCY_S_MAX, self._client.readable)
