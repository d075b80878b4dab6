# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stub's end of the socket, shared by all threads of the model.

Any thread may send, and any thread may wait for a condition that a message fulfils. There is no reader thread: one of
the waiting threads reads for all, and when its own condition is true, another one takes over. So a plain model has one
thread, which reads its requests itself, and a call to another model in execute reads its own answer. Neither costs a
thread switch.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Optional, Type, Union

from pyruntime.utils.channel import StubChannel
from pyruntime.utils.messages import Message

READ_BYTES = 64 << 10
# Called with an exception that a signal handler of the model has raised.
Interrupted = Callable[[BaseException], None]


class Link:
    """The socket. `handle` is called with every message, in the reading thread; it must not block."""

    def __init__(self, sock: socket.socket, channel: StubChannel, handle: Callable[[Message], None]) -> None:
        self._sock = sock
        # The kernel also wakes a thread that waits in recv when the host has read what was sent before. One that waits
        # in poll it only wakes when something has come.
        self._arrival = select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._channel = channel
        self._handle = handle
        # Threads of the model may log while execute answers. A signal handler or a destructor may also log, on the same
        # thread in the middle of sending, so the lock is reentrant.
        self._sending = threading.RLock()
        self._in_send = False
        self._outbox: Deque[Union[Message, bytes]] = deque()
        self._reader = threading.Lock()
        self._followers = 0
        self._read = threading.Condition(threading.Lock())
        self._attended = False
        # Whether the host has ended or broken the protocol; and the functions to call then, in the detecting thread.
        self.closed = False
        self.on_closed: Callable[[], None] = _nothing

    def fileno(self) -> int:
        """The socket's descriptor, for an event loop."""
        return self._sock.fileno()

    def post(self, message: Message) -> None:
        """Send a message together with the next one; it must be small enough for a frame."""
        self._outbox.append(message)

    def send(self, message: Message) -> None:
        """Send a message. Thread-safe and reentrant. Raises LocalError if the message is too large."""
        with self._sending:
            self._send(message)

    def send_frame(self, kind: Type[Any], frame: bytes) -> None:
        """As `send`, where the message is encoded already."""
        with self._sending:
            frame = self._channel.send_frame(kind, frame)
            if self._in_send or self._outbox:
                self._send(frame)
                return
            self._in_send = True  # as _send does, which costs two calls
            try:
                self._sock.sendall(frame)
                if self._outbox:
                    self._drain()
            finally:
                self._in_send = False

    def _send(self, message: Union[Message, bytes]) -> None:
        """A message, or the frame of one. The caller has the lock."""
        outbox = self._outbox
        if self._in_send:
            outbox.append(message)
            return  # the outer call sends it
        self._in_send = True
        try:
            if outbox:
                outbox.append(message)
            else:
                self._sock.sendall(self._encode(message))
            self._drain()
        finally:
            self._in_send = False

    def _drain(self) -> None:
        """Send what is in the outbox. The caller has the lock."""
        outbox = self._outbox
        while outbox:
            data = b""
            try:
                while outbox:
                    data += self._encode(outbox.popleft())
            finally:
                if data:
                    self._sock.sendall(data)

    def _encode(self, message: Union[Message, bytes]) -> bytes:
        return message if type(message) is bytes else self._channel.send(message)  # type: ignore[arg-type]

    def wait(self, done: Callable[[], object], interrupted: Optional[Interrupted] = None) -> bool:
        """Read until `done()` is true; False if the host closed the connection before. Only this thread calls `done`.

        Whatever makes it true without a message must call `wake` afterwards. `interrupted` is called with what a signal
        handler of the model raises meanwhile; without it the wait ends, and raises it.
        """
        reader = self._reader
        while not done():
            if self.closed:
                return False
            if not reader.acquire(False):
                try:
                    self._follow(done)
                except BaseException as exc:
                    if interrupted is None:
                        raise
                    interrupted(exc)
                continue
            try:
                # The previous reader may have handled the message.
                if not done() and not self.closed:
                    try:
                        self._arrival.poll()
                    except BaseException as exc:
                        if interrupted is None:
                            raise
                        interrupted(exc)
                    else:
                        self._receive(0)
            finally:
                reader.release()
                if self._followers:
                    self.wake()
        return True

    def poll(self) -> None:
        """Handle received messages without waiting, for an event loop that found the socket readable."""
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
        """Start a thread that reads whenever no other does. Costs a thread switch for every message."""
        with self._read:
            if self._attended:
                return
            self._attended = True
        threading.Thread(target=self.wait, args=(lambda: False,), name="pyruntime attend", daemon=True).start()

    def wake(self) -> None:
        """Make all waiting threads test their conditions again."""
        with self._read:
            self._read.notify_all()

    def close(self) -> None:
        """Close the socket in a child that the model forked, because the channel belongs to its parent."""
        self._sock.close()

    def _follow(self, done: Callable[[], object]) -> None:
        """Wait while another thread reads, until it has read something or stopped reading."""
        with self._read:
            # Counted first, so that a reader that stops after our test of the lock sees this follower.
            self._followers += 1
            try:
                if self._reader.locked() and not done():
                    self._read.wait()
            finally:
                self._followers -= 1

    def _receive(self, flags: int) -> None:
        try:
            data = self._sock.recv(READ_BYTES, flags)
        except ConnectionResetError:  # the host closed the connection before it read all our messages
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
    """The default callback."""
