# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stub's end of the socket, shared by all threads of the model.

Any thread may send. Any thread may also wait for something that a message brings, and there is no thread whose business
it is to read: of those that wait, one reads for all, and when it has what it waited for another takes over. So a model
that does nothing but execute has one thread, which reads its requests itself; and a call to another model from within
execute reads its own answer. Neither ever costs a switch of threads.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Callable, Deque

from pyruntime.utils.channel import StubChannel
from pyruntime.utils.messages import Message

READ_BYTES = 64 << 10


class Link:
    """See the module. `handle` gets every message, in the thread that reads; it must not wait."""

    def __init__(self, sock: socket.socket, channel: StubChannel, handle: Callable[[Message], None]) -> None:
        self._sock = sock
        self._channel = channel
        self._handle = handle
        # A model's threads may log while execute answers; and so may a signal handler or a destructor, in the middle of
        # sending and on the very same thread.
        self._sending = threading.RLock()
        self._in_send = False
        self._outbox: Deque[Message] = deque()
        self._reader = threading.Lock()
        self._followers = 0
        self._read = threading.Condition(threading.Lock())
        self._attended = False
        # The host is gone, or has broken the protocol; and who wants to know that, in the thread that noticed.
        self.closed = False
        self.on_closed: Callable[[], None] = _nothing

    def fileno(self) -> int:
        """The socket, for an event loop to watch."""
        return self._sock.fileno()

    def post(self, message: Message) -> None:
        """Send a message together with the next one; it must be small enough for a frame."""
        self._outbox.append(message)

    def send(self, message: Message) -> None:
        """Send a message to the host; from any thread, and from within itself. Raises LocalError if it is too large."""
        with self._sending:
            outbox = self._outbox
            outbox.append(message)
            if self._in_send:
                return  # the outer call sends it
            self._in_send = True
            try:
                while outbox:
                    self._send_all()
            finally:
                self._in_send = False

    def wait(self, done: Callable[[], object]) -> bool:
        """Read until `done()`; False if the host hung up before. `done` may be called by this thread only.

        What makes it true must be a message, or somebody has to call `wake` afterwards.
        """
        reader = self._reader
        while not done():
            if self.closed:
                return False
            if not reader.acquire(False):
                self._follow(done)
                continue
            try:
                # Whoever read before may have brought it.
                if not done() and not self.closed:
                    self._receive(0)
            finally:
                reader.release()
                if self._followers:
                    self.wake()
        return True

    def poll(self) -> None:
        """Handle what has arrived, without waiting: for an event loop that found the socket readable."""
        if not self._reader.acquire(False):
            return  # another thread is about to read it
        try:
            self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # another thread has read it
        finally:
            self._reader.release()
            if self._followers:
                self.wake()

    def attend(self) -> None:
        """From now on have a thread read whenever no other does. Costs a switch of threads for every message."""
        with self._read:
            if self._attended:
                return
            self._attended = True
        threading.Thread(target=self.wait, args=(lambda: False,), name="pyruntime attend", daemon=True).start()

    def wake(self) -> None:
        """Have all threads that wait look again."""
        with self._read:
            self._read.notify_all()

    def close(self) -> None:
        """Close the socket, in a process that the model forked: the channel is its parent's."""
        self._sock.close()

    def _send_all(self) -> None:
        data = b""
        try:
            while self._outbox:
                data += self._channel.send(self._outbox.popleft())
        finally:
            if data:
                self._sock.sendall(data)

    def _follow(self, done: Callable[[], object]) -> None:
        """Wait while another thread reads, until it has read something or nobody reads any more."""
        with self._read:
            # Counted first: a reader that stops after our look at the lock is sure to see it.
            self._followers += 1
            try:
                if self._reader.locked() and not done():
                    self._read.wait()
            finally:
                self._followers -= 1

    def _receive(self, flags: int) -> None:
        try:
            data = self._sock.recv(READ_BYTES, flags)
        except ConnectionResetError:  # it hung up, and has not read all that we said
            data = b""
        if not data:
            self.closed = True
            self.on_closed()
            return
        try:
            with self._sending:  # what arrives may change the state that a thread's message is sent in
                messages = self._channel.receive_data(data)
        except BaseException:
            self.closed = True
            raise
        for message in messages:
            self._handle(message)


def _nothing() -> None:
    """Nobody wants to know."""
