# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One life of one stub: its process, its socket, its response region, its log pipe.

A connection is made by `StubConnection.open`, lives until the process ends, and is never used again. Messages of a
serving stub go to its instance. A stub that breaks the protocol is killed, and its end is handled like any other.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pyruntime.runtime.environments.environment import StubPython
from pyruntime.runtime.instances.stub.launch import Handover, StubProcess, launch_stub
from pyruntime.runtime.instances.stub.output import OutputReader
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.model_log import ModelLog
from pyruntime.runtime.regions import GpuRegion, GrantedRegion, SharedRegion, create_region
from pyruntime.utils.channel import HostChannel, State
from pyruntime.utils.errors import Code, LaunchError, LoadError, LocalError, PeerError
from pyruntime.utils.messages import (
    PROTOCOL_VERSION,
    AutoComplete,
    CheckReady,
    Completed,
    Credit,
    DropSequences,
    Hello,
    Infer,
    Load,
    LoadFailed,
    Log,
    MapGpu,
    Message,
    Ready,
    Release,
    Stop,
    Stopped,
    Unmap,
    UnmapGpu,
)

_LOG = logging.getLogger("pyruntime.instances")
_CODES = frozenset(Code)

# Response slots that wait for the next Infer, which takes them back; beyond either limit they have their own frame.
RELEASES_WAITING_MAX = 64
RELEASE_BYTES_WAITING_MAX = 1 << 20

# Responses of one request that its client has taken and the stub does not know of yet. Much less than a sender may be
# ahead (see utils/flow_control.py), so that no sender waits for the last of them.
CREDITS_WAITING_MAX = 16
CREDIT_BYTES_WAITING_MAX = 16 << 20
# The sequences that one message tells a model to drop, and the characters of their ids: a quarter of a frame of UTF-8.
DROPPED_MAX = 1000
DROPPED_CHARS_MAX = 1 << 20
# The regions on GPUs that are known after their loss: twice what a stub may lease at a time.
LOST_MAX = 512
_NO_VARIABLES: Mapping[str, str] = {}
_LISTENING = (State.LOADING, State.SERVING, State.STOPPING)
# A grant on the grants socket: the region's number, little-endian, together with its descriptor.
GRANT_BYTES = 8
# The size of each read of the messages that a dead stub left in the socket, in bytes.
REST_BYTES = 64 << 10
# Why a process cannot be started now, but perhaps later: no descriptors, processes or memory.
SCARCE = (
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ETOOMANYREFS,
)

# How to handle each kind of message. Any: each handler takes messages of its own kind.
Handlers = Mapping[type[Message], Callable[[Any], None]]


class StubConnection(asyncio.Protocol):
    """See the module. All methods belong to the event loop's thread."""

    def __init__(self, name: str, requests: SharedRegion) -> None:
        """`requests` is the request region of the stub's model."""
        self.name = name
        self._requests = requests
        self._handlers: Handlers = {}
        self._on_lost: Callable[[], None] = _nothing
        self.checks_ready = False
        self._drops_sequences = False
        self.responses = create_region(f"responses of {name}")
        self._channel = HostChannel()
        self._log = ModelLog(_LOG, f"{name}: ")
        self._loop = asyncio.get_running_loop()
        self._replies: asyncio.Queue[Message | None] = asyncio.Queue()
        self._released: list[int] = []
        self._released_bytes = 0
        self._credits: dict[int, tuple[int, int]] = {}
        self._granted: dict[int, GrantedRegion] = {}
        # Memory on GPUs that the stub leases, and memory there that it has not closed yet.
        self._leased: dict[int, GpuRegion] = {}
        self._closing: dict[int, GpuRegion] = {}
        # Memory that was lost, LOST_MAX regions: another thread of the stub may have spoken of it meanwhile.
        self._lost: dict[int, GpuRegion] = {}
        self._grants: socket.socket | None = None
        # A duplicate of the transport's socket: to write at once, and to read what has arrived after the transport is
        # closed.
        self._sock: socket.socket | None = None
        self._closed = False
        self._corked: list[bytes] | None = None
        self._process: StubProcess | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._output: asyncio.ReadTransport | None = None

    def __repr__(self) -> str:
        return f"<StubConnection {self.name} {self._channel.state.name}>"

    @classmethod
    async def open(
        cls,
        name: str,
        memory: RequestMemory,
        growth_bytes: int,
        environment: StubPython = None,
        variables: Mapping[str, str] = _NO_VARIABLES,
    ) -> StubConnection:
        """Start a stub and wait for its Hello. Raises LoadError if it dies first, or has another version.

        LaunchError and OutOfMemoryError say that the server lacks what a process needs, and may have it later.
        `environment` is the Python to start it with, None for the host's; `variables` are environment variables on top
        of its own. Cancelling it kills the stub.
        """
        connection = cls(name, memory.region)
        try:
            await connection._start(growth_bytes, environment, variables)
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
                error = LaunchError if exc.errno in SCARCE else LoadError
                raise error(f"the stub process of {name} cannot be started: {exc}") from exc
            raise
        return connection

    async def _start(self, growth_bytes: int, environment: StubPython, variables: Mapping[str, str]) -> None:
        """Create the sockets, the pipe and the process at their other ends. Raises OSError."""
        with ExitStack() as ours:
            our_sock, their_sock = socket.socketpair()
            ours.callback(our_sock.close)
            our_grants, their_grants = socket.socketpair()
            ours.callback(our_grants.close)
            with their_sock, their_grants:
                read_fd, write_fd = os.pipe()
                output = ours.enter_context(os.fdopen(read_fd, "rb", 0))
                try:
                    handover = Handover(
                        self.name,
                        their_sock,
                        their_grants,
                        write_fd,
                        self._requests.fileno(),
                        self.responses.fileno(),
                        growth_bytes,
                        variables,
                    )
                    self._process = await launch_stub(handover, environment)
                finally:
                    os.close(write_fd)
            # Not the end of the socket: a process that the model forked may keep that open.
            self._process.exited.add_done_callback(lambda _: self._replies.put_nowait(None))
            our_sock.setblocking(False)
            self._sock = our_sock.dup()
            await self._loop.create_unix_connection(lambda: self, sock=our_sock)
            self._output, _ = await self._loop.connect_read_pipe(lambda: OutputReader(self._log), output)
            our_grants.setblocking(False)
            self._grants = our_grants
            ours.pop_all()  # from here on, the transports and this object own them

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
        """Pass messages of the stub to an instance from now on. `on_lost` is called when the stub has hung up."""
        self._handlers = handlers
        self._on_lost = on_lost

    # Messages to the stub.

    async def complete(self, location: dict[str, str], config: str) -> str:
        """The model's completed configuration as JSON, "" if the model does not complete it. Raises LoadError."""
        reply = await self._ask(AutoComplete(location, config))
        assert isinstance(reply, Completed)  # the channel's table permits no other message
        return reply.config

    async def load(self, location: dict[str, str], args: dict[str, str], concurrency: int) -> None:
        """Import and initialise the model. Raises LoadError. Cancelling leaves the stub loading: kill it then."""
        reply = await self._ask(Load(location, args, concurrency, self._requests.number))
        assert isinstance(reply, Ready)  # the channel's table permits no other message
        self.checks_ready = reply.checks
        self._drops_sequences = reply.drops

    def infer(self, batch: int, requests: list[list[object]], at_once: bool) -> None:
        """Post a batch. Raises LocalError if it does not fit a frame.

        With `at_once` it is sent before the transport's turn in the event loop: the stub has nothing to do, and can
        begin while the host still does what follows from the request.
        """
        if self._transport is None:
            return  # the stub hung up; its batches fail, or are put back, once its process has ended
        data = self._channel.send((batch, requests, self._released), Infer)
        if self._corked is not None:
            self._corked.append(data)
        elif at_once and self._sock is not None:
            self._send_at_once(self._sock, self._transport, data)
        else:
            self._transport.write(data)
        if self._released:
            self._released = []
            self._released_bytes = 0

    def release(self, slot: int, size: int) -> None:
        """Give a response slot of `size` bytes back to the stub. Does nothing once the stub has ended."""
        self._released.append(slot)
        self._released_bytes += size
        if len(self._released) >= RELEASES_WAITING_MAX or self._released_bytes >= RELEASE_BYTES_WAITING_MAX:
            if self._channel.state in (State.SERVING, State.STOPPING):
                self.send(Release(self._released))
            self._released = []
            self._released_bytes = 0

    def credit(self, serial: int, size: int) -> None:
        """A client has taken another response, of `size` bytes, from a sender."""
        count, total = self._credits.get(serial, (0, 0))
        count, total = count + 1, total + size
        if count < CREDITS_WAITING_MAX and total < CREDIT_BYTES_WAITING_MAX:
            self._credits[serial] = (count, total)
            return
        self._credits.pop(serial, None)
        if self._channel.state in (State.SERVING, State.STOPPING):
            self.send(Credit([[serial, count]]))

    def forget_credit(self, serial: int) -> None:
        """A request has ended: its sender needs no more credit."""
        self._credits.pop(serial, None)

    def set_flag(self, serial: int, value: int) -> None:
        """Set the flag that tells the model whether a request is cancelled."""
        if not self._closed:
            self.responses.set_flag(serial, value)

    def region(self, number: int) -> SharedRegion | GpuRegion:
        """The region that the stub knows by this number, 0 for its own. Raises PeerError if it knows none."""
        if number == 0:
            return self.responses
        if number == self._requests.number:
            return self._requests
        region = self._granted.get(number) or self._closing.get(number) or self._lost.get(number)
        if not isinstance(region, (SharedRegion, GpuRegion)):  # a stub must not pass on a client's memory
            raise PeerError(f"there is no region {number}, or it is none of the stub's business")
        return region

    def leased(self, number: int) -> GpuRegion:
        """The memory on a GPU in which the stub writes its tensors, by its number. Raises PeerError."""
        region = self._leased.get(number) or self._lost.get(number)
        if region is None:
            raise PeerError(f"region {number} is not memory on a GPU that the stub leases")
        return region

    def grant(self, region: GrantedRegion) -> None:
        """Grant the stub a region, if it does not have it, before it reads there. Raises LocalError if that fails."""
        if region is self._requests or region.number in self._granted or self._grants is None:
            return
        if isinstance(region, GpuRegion):
            self._grant_on_gpu(region)
            return
        try:
            socket.send_fds(self._grants, [region.number.to_bytes(GRANT_BYTES, "little")], [region.fileno()])
        except OSError as exc:
            raise LocalError(f"{self.name} cannot be given a region of shared memory: {exc}") from exc
        self._granted[region.number] = region
        region.holders.add(self)

    def revoke(self, region: GrantedRegion) -> None:
        """See memory.regions.Holder."""
        if self._granted.pop(region.number, None) is None:
            return
        unmap: Message = Unmap([region.number])
        if isinstance(region, GpuRegion):
            self._closing[region.number] = region
            unmap = UnmapGpu(region.number)
        if self.is_listening:
            self.send(unmap)

    # Memory on GPUs. The methods that take a number raise PeerError.

    @property
    def leases(self) -> int:
        """How many chunks of memory the stub leases."""
        return len(self._leased)

    def lease(self, region: GpuRegion) -> None:
        """The stub writes to this memory from now on, until `give_back` or its end."""
        if self._closed:
            region.close()
            return
        self._leased[region.number] = region
        self._granted[region.number] = region
        region.holders.add(self)

    def give_back(self, number: object) -> None:
        """The stub has closed memory that it leases, and keeps no tensors there."""
        region = self._leased.pop(number, None) if type(number) is int else None
        if region is None:
            if type(number) is int and number in self._lost:
                return  # `closed` has ended the lease
            raise PeerError(f"region {number!r} on a GPU is given back and was not leased")
        if self._granted.pop(region.number, None) is not None:
            region.left(self)
        region.close()

    def closed(self, number: object) -> None:
        """The stub has closed memory after an UnmapGpu."""
        region = self._closing.pop(number, None) if type(number) is int else None
        if region is None:
            raise PeerError(f"region {number!r} on a GPU is closed and was not to be closed")
        region.left(self)
        if region.loss:
            self._lost[region.number] = region
            if len(self._lost) > LOST_MAX:
                del self._lost[next(iter(self._lost))]
            if self._leased.pop(region.number, None) is not None:
                region.close()

    def _grant_on_gpu(self, region: GpuRegion) -> None:
        if region.loss:
            raise LocalError(region.loss)
        if not self.is_listening:
            return
        self._granted[region.number] = region
        region.holders.add(self)
        self.send(MapGpu(region.number, region.gpu.uuid, region.handle, region.event, region.limit))

    def check_ready(self) -> None:
        """Ask the model's is_ready. The stub must serve."""
        if self._channel.state is State.SERVING:
            self.send(CheckReady())

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """Have the model drop what it keeps for these sequences, if it has a method for that and serves."""
        if self._drops_sequences and self._channel.state is State.SERVING:
            self.send(*(DropSequences(some) for some in portions(ids)))

    def stop(self) -> None:
        """Ask the stub to finalize and exit. A stub that does not accept that yet is killed."""
        if self._channel.state in (State.IDLE, State.SERVING):
            self.send(Stop())
        elif self._channel.state is not State.STOPPING:
            self.kill()

    def kill(self) -> None:
        """Kill the process at once."""
        if self._process is not None:
            self._process.kill()

    async def wait_exited(self) -> ProcessExit:
        """Wait for the end of the process, then free its resources. If it is cancelled, they are freed all the same."""
        assert self._process is not None  # set by open
        try:
            exit = await asyncio.shield(self._process.exited)
        except asyncio.CancelledError:
            self._process.exited.add_done_callback(lambda _: self._close())
            raise
        self._close()
        return exit

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        # Answers free capacity, so that new batches are posted. All of these are written at once.
        corked: list[bytes] = []
        self._corked = corked
        try:
            handlers = self._handlers
            for message in self._channel.receive_data(data):
                handler = handlers.get(type(message))
                if handler is not None:
                    handler(message)
                else:
                    self._handle(message)
        except PeerError as exc:
            _LOG.error("%s: its stub broke the protocol and is killed: %s", self.name, exc)
            self.kill()
        finally:
            self._corked = None
            if corked and self._transport is not None:
                self._transport.write(b"".join(corked))

    def eof_received(self) -> None:
        # Before connection_lost, so that no request goes to a stub that has hung up.
        self._on_lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()
        self._read_rest()
        finished = self._channel.state is State.CLOSED
        try:
            self._channel.receive_eof()
        except PeerError as error:
            _LOG.error("%s: its stub %s", self.name, error)
        self._replies.put_nowait(None)
        if not finished:  # it died, or hung up: it cannot be used any more
            self.kill()

    def _read_rest(self) -> None:
        """Handle the unread messages of the stub: a transport closes without them once it cannot write."""
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
                self.data_received(data)

    def _handle(self, message: Message) -> None:
        match message:
            case Log(level, text, file, line):
                self._log.write(level, text, file, line)
            case Hello() | Completed() | Ready() | LoadFailed():
                self._replies.put_nowait(message)
            case Stopped():
                # The process exits next. A thread of the model that waits for the host must not delay that.
                if self._transport is not None:
                    self._transport.close()
            case _:
                raise PeerError(f"{type(message).__name__} came before the model was loaded")

    def _close(self) -> None:
        if self._closed:
            return
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._on_lost()
        self._read_rest()
        self._closed = True
        if self._output is not None:
            self._output.close()
        self._log.close()
        if self._grants is not None:
            self._grants.close()
            self._grants = None
        granted, self._granted = self._granted, {}
        for region in (*granted.values(), *self._closing.values()):
            if isinstance(region, GpuRegion):
                region.left(self)
            else:
                region.holders.discard(self)
        for lease in self._leased.values():
            lease.event = b""  # its copies have ended with the process, and nobody can open the event any more
            lease.close()
        self._leased.clear()
        self._closing.clear()
        self.responses.close()

    def send(self, *messages: Message) -> None:
        """Send messages. Raises LocalError if one is illegal now or too large."""
        if self._transport is None:
            return  # the stub hung up; `connection_lost` notifies those who wait for its answer
        data = self._channel.send(messages[0])
        for message in messages[1:]:
            data += self._channel.send(message)
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._transport.write(data)

    @staticmethod
    def _send_at_once(sock: socket.socket, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send data past the transport, unless it has earlier data; it sends what the socket does not take."""
        sent = 0
        if not transport.get_write_buffer_size():
            try:
                sent = sock.send(data)
            except OSError:  # the socket is full; or the stub has hung up, which the transport notices
                sent = 0
        if sent < len(data):
            transport.write(data[sent:])

    async def _ask(self, question: Message) -> Message:
        """Send a message and wait for the reply. Raises LoadError, also if the stub has hung up before."""
        if self._channel.state is not State.CLOSED:
            self.send(question)
        return await self._reply()

    async def _reply(self) -> Message:
        reply = await self._replies.get()
        if reply is None:
            exit = await self.wait_exited()
            raise LoadError(f"the stub process of {self.name} {_was(exit)} while it loaded the model")
        if isinstance(reply, LoadFailed):
            # The stub ends either way, so an unknown code is worth no other failure.
            code = Code(reply.code) if reply.code in _CODES else Code.INTERNAL
            raise LoadError(reply.reason, code)
        return reply


def portions(ids: Sequence[int | str]) -> Iterator[list[int | str]]:
    """The ids of sequences in portions that fit frames. Each came in a frame, so each fits one by itself."""
    portion: list[int | str] = []
    size = 0
    for id in ids:
        size += len(id) if isinstance(id, str) else 1
        if portion and (size > DROPPED_CHARS_MAX or len(portion) == DROPPED_MAX):
            yield portion
            portion, size = [], len(id) if isinstance(id, str) else 1
        portion.append(id)
    if portion:
        yield portion


def _nothing() -> None:
    pass


def _was(exit: ProcessExit) -> str:
    return exit.describe() if exit.code >= 0 else f"was {exit.describe()}"
