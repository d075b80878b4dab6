# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sockets and pipes that exist in this process only, in place of the modules that the product makes them with."""


class _Socket:
    """One end of a pair. `take` gets what the host sends past its transport. Only what a dead stub has left is read."""

    def __init__(self):
        self.peer = None
        self.unread = b""
        self.take = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Nothing is open."""

    def setblocking(self, flag):
        """Nothing blocks."""

    def close(self):
        """Nothing is open."""

    def fileno(self):
        return -1

    def dup(self):
        return self

    def send(self, data):
        if self.take is not None:
            return self.take(data)
        self.peer.unread += data
        return len(data)

    def recv(self, size):
        data, self.unread = self.unread[:size], self.unread[size:]
        if not data:
            raise BlockingIOError
        return data


class SimulatedSockets:
    """In place of the module `socket`."""

    @staticmethod
    def socketpair():
        one, other = _Socket(), _Socket()
        one.peer, other.peer = other, one
        return one, other

    @staticmethod
    def send_fds(sock, buffers, fds):
        """A stub finds each region by its number."""


class SimulatedPipes:
    """In place of the module `os`."""

    @staticmethod
    def pipe():
        return -1, -1

    @staticmethod
    def fdopen(fd, mode, buffering):
        return _Socket()

    @staticmethod
    def close(fd):
        """Nothing is open."""
