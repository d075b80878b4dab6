# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The far end of a connection to a stub, without a process: messages arrive at once in both directions."""

import asyncio
import contextlib
import socket
import time

from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.link import GRANT_BYTES, LINKS_TURN_S
from pyruntime.runtime.rounds import Rounds
from pyruntime.utils.channel import State, StubChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello, Load, Ready


class Socket:
    """Stands for the host's socket: takes so many bytes, for the stub, and raises this error if that is none."""

    stub = None

    def __init__(self, room=0, error=BlockingIOError):
        self._room = room
        self._error = error

    def send(self, data):
        if not self._room:
            raise self._error
        self.stub.receive(data[: self._room])
        return min(len(data), self._room)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Nothing is open."""

    def recv(self, size):
        raise BlockingIOError


class Stub:
    """See the module. It stands for the transport, too.

    `writes` is how often the transport has written, and `unsent` what it has not sent, in bytes.
    """

    unsent = 0
    writes = 0

    def __init__(self, name, requests, state=State.SERVING, sock=None, rounds=None):
        # What the host does in its next turn, and whether it reads.
        self.due = []
        self.is_read = True
        self.connection = asyncio.run(self._connect(name, requests))
        self._ours, self.connection.link._grants = socket.socketpair()
        self._ours.setblocking(False)
        self.connection.link._grants.setblocking(False)
        self.connection.link._rounds = rounds or Rounds(time.monotonic, self.due.append, LINKS_TURN_S)
        self.connection.link._sock = sock or Socket()
        self.connection.link._sock.stub = self
        self._channel = StubChannel()
        self._heard = []
        self.connection.link.connection_made(self)
        self.say(Hello(PROTOCOL_VERSION, 1, "3"))
        self.connection.link.send(Load({}, {}, 1, requests.number))
        if state is State.SERVING:
            self.say(Ready(False, False))
        self.hear()
        self.writes = 0

    @staticmethod
    async def _connect(name, requests):
        return StubConnection(name, requests)

    def write(self, data):
        """See asyncio.WriteTransport."""
        self.writes += 1
        self.receive(data)

    def get_write_buffer_size(self):
        """See asyncio.WriteTransport."""
        return self.unsent

    def abort(self):
        """See asyncio.WriteTransport."""

    def is_closing(self):
        """See asyncio.ReadTransport."""
        return False

    def pause_reading(self):
        """See asyncio.ReadTransport."""
        assert self.is_read
        self.is_read = False

    def resume_reading(self):
        """See asyncio.ReadTransport."""
        assert not self.is_read
        self.is_read = True

    def receive(self, data):
        """Bytes of the host arrive."""
        self._heard += self._channel.receive_data(data)

    def encode(self, message):
        """The bytes of a message to the host."""
        return self._channel.send(message)

    def say(self, *messages):
        """Have the host handle messages of one read, in as many turns as it takes."""
        self.connection.link.data_received(b"".join(map(self.encode, messages)))
        while self.turn():
            pass

    def turn(self):
        """Do what the host does in its next turn; False if that is nothing."""
        due, self.due[:] = [*self.due], []
        for call_back in due:
            call_back()
        return bool(due)

    def hear(self):
        """Everything that the host has said since the last time."""
        heard, self._heard = self._heard, []
        return heard

    def granted(self):
        """The numbers of regions that were granted since the last time."""
        numbers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._ours, GRANT_BYTES, 1)
                socket.close(fds[0])
                numbers.append(int.from_bytes(data, "little"))
        return numbers

    def exit(self):
        """The process is gone: what wait_exited does."""
        self.connection._close()

    def close(self):
        self.exit()
        self._ours.close()
