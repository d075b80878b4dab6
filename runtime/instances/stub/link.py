# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The messages between the host and one stub, over its socket. Regions are granted over a second socket.

Answers free capacity, so that new batches are posted. All that is sent while the messages of one read are handled is
written at once.

One read may bring thousands of messages, which would hold up everybody else: responses of a stream, records of a log,
questions. So they are handled while all links together have time in a turn of the event loop, and the others in slices
of the next turns, one link after the other (see rounds.py). The stub is not read meanwhile: it waits once its socket is
full.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, cast

from pyruntime.runtime.regions import ClientRegion, SharedRegion
from pyruntime.runtime.rounds import Rounds
from pyruntime.utils.channel import HostChannel, State
from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import MESSAGES, Message

_LOG = logging.getLogger("pyruntime.instances")

_LISTENING = (State.LOADING, State.SERVING, State.STOPPING)
# A grant on the second socket: the region's number, little-endian, together with its descriptor.
GRANT_BYTES = 8
# The size of each read of the messages that a dead stub left in the socket, in bytes.
REST_BYTES = 64 << 10
# How long a stub that has hung up has to end by itself, in seconds: how it ends says why, and needs no longer than exit
# handlers of its model.
HUNG_UP_S_MAX = 2.0
# The messages of one read that are handled without a look at the clock: a stub that answers batches sends fewer.
MESSAGES_AT_ONCE = 16
# The time for the messages of all stubs in a turn of the event loop, in seconds: less than for requests of clients, and
# enough for dozens of messages.
LINKS_TURN_S = 0.003

# How to handle each kind of message. Any: each handler takes messages of its own kind.
Handlers = Mapping[type[Message], Callable[[Any], None]]

Write = Callable[[bytes], object]


class StubLink(asyncio.Protocol):
    """See the module. All methods belong to the event loop's thread.

    `encode` makes the bytes of a message: see Channel.send. `write` sends such bytes, and `write_now` sends them before
    the transport's turn in the event loop. Both are other functions while messages are handled: a method that looks
    would be one more call for each request.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Message], None],
        kill: Callable[[str, float], None],
        on_end: Callable[[], None],
        rounds: Rounds,
    ) -> None:
        """`handle` takes the messages that have no handler of their own. It may raise PeerError.

        `kill` ends a stub that breaks the protocol, or hangs up too early, for a reason and after some seconds.
        `on_end` is called behind the last message. `rounds` are those of all links.
        """
        self.name = name
        self.is_open = False
        self._kill = kill
        self._on_end = on_end
        self._rounds = rounds
        # Messages that have arrived and wait for their slice. While there are any, nothing is read.
        self._waiting: deque[Message] = deque()
        # It waits for a slice.
        self._is_queued = False
        self._is_paused = False
        # For all kinds, so that nobody has to look whether there is one.
        self.handlers: dict[type[Message], Callable[[Any], None]] = dict.fromkeys(MESSAGES, handle)
        self._on_lost: Callable[[], None] = _nothing
        self._channel = HostChannel()
        self.encode = self._channel.send
        self._receive_data = self._channel.receive_data
        self._transport: asyncio.WriteTransport | None = None
        # A duplicate of the transport's socket: to write at once, and to read what has arrived after the transport is
        # closed.
        self._sock: socket.socket | None = None
        self._grants: socket.socket | None = None
        self.write: Write = _discard
        self.write_now: Write = _discard
        # Both, as they are while no messages are handled.
        self._writers: tuple[Write, Write] = _discard, _discard

    async def open(self, sock: socket.socket, grants: socket.socket) -> None:
        """Take over the sockets, whose other ends the stub has. Raises OSError."""
        sock.setblocking(False)
        self._sock = sock.dup()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)
        grants.setblocking(False)
        self._grants = grants

    @property
    def state(self) -> State:
        """The state of the protocol with the stub."""
        return self._channel.state

    @property
    def is_serving(self) -> bool:
        """Whether the model is loaded, and the stub does not stop."""
        return self._channel.state is State.SERVING

    @property
    def is_listening(self) -> bool:
        """Whether the stub accepts messages about its calls and its regions. A dead one does not."""
        return self._channel.state in _LISTENING

    def attach(self, handlers: Handlers, on_lost: Callable[[], None]) -> None:
        """Pass messages of the stub to these handlers from now on. `on_lost` is called when the stub has hung up."""
        self.handlers.update(handlers)
        self._on_lost = on_lost

    def send(self, *messages: Message) -> None:
        """Send messages. Raises LocalError if one is illegal now or too large."""
        if not self.is_open:
            return  # the stub hung up; `connection_lost` notifies those who wait for its answer
        data = self.encode(messages[0])
        for message in messages[1:]:
            data += self.encode(message)
        self.write(data)

    def hand_over(self, region: SharedRegion | ClientRegion) -> None:
        """Grant the stub a region, by its descriptor. Raises LocalError."""
        if self._grants is None:
            return
        try:
            socket.send_fds(self._grants, [region.number.to_bytes(GRANT_BYTES, "little")], [region.fileno()])
        except OSError as exc:
            raise LocalError(f"{self.name} cannot be given a region of shared memory: {exc}") from exc

    def hang_up(self) -> None:
        """Close the socket behind what was sent."""
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """The process has ended: handle what it has sent, and close the sockets."""
        if self._transport is not None:
            self._transport.abort()
            self._lose()
        self._read_rest()
        if self._grants is not None:
            self._grants.close()
            self._grants = None

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._sock is not None  # set by open
        self._transport = opened = cast(asyncio.WriteTransport, transport)
        self.is_open = True
        self._set_writers(opened.write, partial(_send_past, opened, self._sock))

    def data_received(self, data: bytes, is_last: bool = False) -> None:
        """Handle what arrives, and what waits, while this link may go on if these are many messages, or `is_last`."""
        held: list[bytes] = []
        self.write = self.write_now = held.append
        try:
            messages = self._receive_data(data)
            if len(messages) > MESSAGES_AT_ONCE or self._waiting:
                self._waiting.extend(messages)
                self._handle_waiting(is_last)
            else:
                handlers = self.handlers
                for message in messages:
                    handlers[type(message)](message)
        except PeerError as exc:
            _LOG.error("%s: its stub broke the protocol and is killed: %s", self.name, exc)
            self._waiting.clear()
            self._kill("it broke the protocol", 0.0)
        finally:
            self.write, self.write_now = self._writers
            if held:
                self.write(b"".join(held))
            if self._is_paused or self._waiting:
                self._pause_or_resume()

    def _handle_waiting(self, is_last: bool) -> None:
        """Handle messages that wait, in order: all of them with `is_last`, else while this link may go on."""
        waiting, handlers, rounds = self._waiting, self.handlers, self._rounds
        if self._is_queued and not is_last:
            return
        while waiting:
            if not is_last and monotonic() >= rounds.until and not rounds.admits(self):
                self._is_queued = True
                return
            message = waiting.popleft()
            handlers[type(message)](message)

    def take_slice(self) -> None:
        """See WaitingConnection."""
        self._is_queued = False
        if self._waiting:
            self.data_received(b"")

    def _pause_or_resume(self) -> None:
        """Read nothing while messages wait."""
        transport = cast("asyncio.ReadTransport | None", self._transport)
        if self._is_paused != bool(self._waiting) and transport is not None and not transport.is_closing():
            self._is_paused = bool(self._waiting)
            if self._is_paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def eof_received(self) -> None:
        # Before connection_lost, so that no request goes to a stub that has hung up.
        self._on_lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()
        self._read_rest()
        finished = self._channel.state is State.CLOSED
        try:
            self._channel.receive_eof()
        except PeerError as error:
            _LOG.error("%s: its stub %s", self.name, error)
        self._on_end()
        if not finished:  # it died, or hung up: it cannot be used any more
            self._kill("it has closed its connection to the server", HUNG_UP_S_MAX)

    def _lose(self) -> None:
        self._transport = None
        self.is_open = False
        self._set_writers(_discard, _discard)
        self._on_lost()

    def _read_rest(self) -> None:
        """Handle all messages of the stub that are left. A transport closes without the unread once it cannot write."""
        if self._waiting:
            self.data_received(b"", is_last=True)
        if self._sock is None:
            return
        with self._sock as rest:
            self._sock = None
            while self._channel.state is not State.CLOSED:
                try:
                    data = rest.recv(REST_BYTES)
                except OSError:  # such as BlockingIOError, while a fork of the stub keeps the socket open
                    break
                if not data:
                    break
                self.data_received(data, is_last=True)

    def _set_writers(self, write: Write, write_now: Write) -> None:
        self._writers = self.write, self.write_now = write, write_now


def _send_past(transport: asyncio.WriteTransport, sock: socket.socket, data: bytes) -> None:
    """Send data past the transport, unless it has earlier data; it sends what the socket does not take."""
    sent = 0
    if not transport.get_write_buffer_size():
        try:
            sent = sock.send(data)
        except OSError:  # the socket is full; or the stub has hung up, which the transport notices
            sent = 0
    if sent < len(data):
        transport.write(data[sent:])


def _discard(data: bytes) -> None:
    """Send nothing: the stub has hung up."""


def _nothing() -> None:
    pass
