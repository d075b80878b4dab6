# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One life of one stub: its process, its socket, its response region, its log pipe.

A connection is made by `StubConnection.open`, lives until the process is gone, and is never used again. What the stub
says while serving goes to its owner, the instance; a stub that breaks the protocol is killed, which is an exit like
any other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import assert_never

from pyruntime.runtime.instances.launch import StubProcess, launch_stub
from pyruntime.runtime.instances.supervisor import ProcessExit
from pyruntime.runtime.memory.regions import create_region
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.lines import LineSplitter
from pyruntime.utils.channel import HostChannel, State
from pyruntime.utils.errors import LoadError, PeerError
from pyruntime.utils.messages import (
    PROTOCOL_VERSION,
    AutoComplete,
    Completed,
    Failed,
    Hello,
    Infer,
    Load,
    LoadFailed,
    Log,
    Message,
    Ready,
    Release,
    Result,
    Retired,
    Stop,
    Stopped,
)

_LOG = logging.getLogger("pyruntime.instances")

# Lines of a model's output that are logged in one go; a flood must not keep the server from its requests.
LINES_AT_ONCE_MAX = 500
# Response slots that wait for the next Infer to carry them back; beyond either limit they go in a frame of their own.
RELEASES_WAITING_MAX = 64
RELEASE_BYTES_WAITING_MAX = 1 << 20

Answer = Result | Failed | Retired


class StubConnection(asyncio.Protocol):
    """See the module. All methods belong to the event loop's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The instance sets these before it has the stub load anything.
        self.on_answer: Callable[[Answer], None] = _unexpected
        self.on_lost: Callable[[], None] = _nothing
        self.responses = create_region(f"responses of {name}")
        self._channel = HostChannel()
        self._loop = asyncio.get_running_loop()
        self._replies: asyncio.Queue[Message | None] = asyncio.Queue()
        self._released: list[int] = []
        self._released_bytes = 0
        self._closed = False
        self._corked: list[bytes] | None = None
        self._process: StubProcess | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._output: asyncio.ReadTransport | None = None

    def __repr__(self) -> str:
        return f"<StubConnection {self.name} {self._channel.state.name}>"

    @classmethod
    async def open(cls, name: str, memory: RequestMemory, growth_bytes: int) -> StubConnection:
        """Start a stub and wait for its Hello. Raises LoadError if it dies or is of another version first.

        Cancelling it kills the stub.
        """
        connection = cls(name)
        try:
            await connection._start(memory, growth_bytes)
            hello = await connection._reply()
            if not isinstance(hello, Hello) or hello.protocol != PROTOCOL_VERSION:
                raise LoadError(f"the stub of {name} speaks another protocol than version {PROTOCOL_VERSION}: {hello}")
        except BaseException as exc:
            if connection._process is None:
                connection._close()
            else:
                connection.kill()
                await connection.wait_exited()
            if isinstance(exc, OSError):
                raise LoadError(f"the stub process of {name} cannot be started: {exc}") from exc
            raise
        return connection

    async def _start(self, memory: RequestMemory, growth_bytes: int) -> None:
        """Make the socket and the pipe, and a process at their other ends. Raises OSError."""
        with ExitStack() as ours:
            our_sock, their_sock = socket.socketpair()
            ours.callback(our_sock.close)
            with their_sock:
                read_fd, write_fd = os.pipe()
                output = ours.enter_context(os.fdopen(read_fd, "rb", 0))
                try:
                    self._process = launch_stub(
                        self.name,
                        their_sock,
                        write_fd,
                        memory.region.fileno(),
                        self.responses.fileno(),
                        growth_bytes,
                        self._loop,
                    )
                finally:
                    os.close(write_fd)
            # A process that the model forked may hold the other end of the socket open, so its end is no sign of life.
            self._process.exited.add_done_callback(lambda _: self._replies.put_nowait(None))
            our_sock.setblocking(False)
            await self._loop.create_unix_connection(lambda: self, sock=our_sock)
            self._output, _ = await self._loop.connect_read_pipe(lambda: _OutputLog(self.name), output)
            ours.pop_all()  # the transports' from here on

    # What an instance asks of its stub.

    async def complete(self, location: dict[str, str], config: str) -> str:
        """The model's completed configuration as JSON, "" if it completes nothing. Raises LoadError."""
        self._send(AutoComplete(location, config))
        reply = await self._reply()
        assert isinstance(reply, Completed)  # the channel's table admits nothing else
        return reply.config

    async def load(self, location: dict[str, str], args: dict[str, str]) -> None:
        """Import and initialise the model. Raises LoadError. Cancelling leaves the stub loading: kill it then."""
        self._send(Load(location, args))
        reply = await self._reply()
        assert isinstance(reply, Ready)  # the channel's table admits nothing else

    def infer(self, batch: int, requests: list[object]) -> None:
        """Post a batch. Raises LocalError if it does not fit a frame."""
        self._send(Infer(batch, requests, self._released))
        if self._released:
            self._released = []
            self._released_bytes = 0

    def release(self, slot: int, size: int) -> None:
        """Give a response slot of `size` bytes back to the stub. Does nothing once the stub is gone."""
        self._released.append(slot)
        self._released_bytes += size
        if len(self._released) >= RELEASES_WAITING_MAX or self._released_bytes >= RELEASE_BYTES_WAITING_MAX:
            if self._channel.state in (State.SERVING, State.STOPPING):
                self._send(Release(self._released))
            self._released = []
            self._released_bytes = 0

    def stop(self) -> None:
        """Ask for finalize and exit. A stub that cannot hear that yet is killed."""
        if self._channel.state in (State.IDLE, State.SERVING):
            self._send(Stop())
        elif self._channel.state is not State.STOPPING:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    async def wait_exited(self) -> ProcessExit:
        """Wait for the process to be gone, then free what it leaves. Cancelling the wait is safe."""
        assert self._process is not None  # set by open
        exit = await asyncio.shield(self._process.exited)
        self._close()
        return exit

    # What the event loop tells us.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        # Answers free places, and so bring new batches: what is sent meanwhile goes out in one piece.
        corked: list[bytes] = []
        self._corked = corked
        try:
            for message in self._channel.receive_data(data):
                if type(message) is Result or type(message) is Failed:
                    self.on_answer(message)
                else:
                    self._handle(message)
        except PeerError as exc:
            _LOG.error("%s: its stub broke the protocol and is killed: %s", self.name, exc)
            self.kill()
        finally:
            self._corked = None
            if corked and self._transport is not None:
                self._transport.write(b"".join(corked))

    def connection_lost(self, exc: Exception | None) -> None:
        finished = self._channel.state is State.CLOSED
        try:
            self._channel.receive_eof()
        except PeerError as error:
            _LOG.error("%s: its stub %s", self.name, error)
        self._transport = None
        self._replies.put_nowait(None)
        self.on_lost()
        if not finished:  # it died, or hung up: then it is of no use any more
            self.kill()

    def _handle(self, message: Message) -> None:
        match message:
            case Log(level, text, file, line):
                _log_for_stub(self.name, level, text, file, line)
            case Retired():
                self.on_answer(message)
            case Hello() | Completed() | Ready() | LoadFailed():
                self._replies.put_nowait(message)
            case Stopped():
                pass  # the exit that follows is what counts
            case Result() | Failed() | AutoComplete() | Load() | Infer() | Release() | Stop():
                raise AssertionError(f"{message} cannot arrive here: the channel's table does not admit it")
            case _ as never:
                assert_never(never)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        if self._output is not None:
            self._output.close()
        self.responses.close()

    def _send(self, message: Message) -> None:
        if self._transport is None:
            return  # the stub hung up, and whoever waits for its answer hears of that
        data = self._channel.send(message)
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._transport.write(data)

    async def _reply(self) -> Message:
        reply = await self._replies.get()
        if reply is None:
            exit = await self.wait_exited()
            raise LoadError(f"the stub process of {self.name} {_was(exit)} while it loaded the model")
        if isinstance(reply, LoadFailed):
            raise LoadError(reply.reason)
        return reply


def _unexpected(answer: Answer) -> None:
    raise PeerError(f"{type(answer).__name__} came before the model was loaded")


def _nothing() -> None:
    pass


def _was(exit: ProcessExit) -> str:
    return exit.describe() if exit.code >= 0 else f"was {exit.describe()}"


def _log_for_stub(name: str, level: int, text: str, file: str, line: int) -> None:
    for part in _bounded(text.splitlines() or [""]):
        _LOG.log(level, "%s: %s", name, part, extra={"stub_file": file, "stub_line": line})


def _bounded(lines: list[str]) -> list[str]:
    """At most LINES_AT_ONCE_MAX of `lines`, and how many there were besides."""
    if len(lines) <= LINES_AT_ONCE_MAX:
        return lines
    return [*lines[:LINES_AT_ONCE_MAX], f"... and {len(lines) - LINES_AT_ONCE_MAX} more lines at once"]


class _OutputLog(asyncio.Protocol):
    """Logs what a stub writes to stdout and stderr, line by line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = LineSplitter()

    def data_received(self, data: bytes) -> None:
        for line in _bounded(self._lines.feed(data)):
            _LOG.info("%s: %s", self._name, line)

    def connection_lost(self, exc: Exception | None) -> None:
        for line in self._lines.end():
            _LOG.info("%s: %s", self._name, line)
