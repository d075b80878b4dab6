# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One life of one stub: its process, its response region, its log pipe, and what is said between host and stub.

A connection is made by `StubConnection.open`, lives until the process ends, and is never used again. Messages of a
serving stub go to its instance. A stub that breaks the protocol is killed, and its end is handled like any other.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from weakref import WeakKeyDictionary

from pyruntime.runtime import descriptors
from pyruntime.runtime.environments.environment import StubPython
from pyruntime.runtime.instances.stub.launch import Handover, StubProcess, launch_stub
from pyruntime.runtime.instances.stub.link import LINKS_TURN_S, StubLink
from pyruntime.runtime.instances.stub.output import OutputReader
from pyruntime.runtime.instances.stub.regions import StubRegions
from pyruntime.runtime.instances.stub.returns import Returns
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.model_log import ModelLog
from pyruntime.runtime.regions import SharedRegion, create_region
from pyruntime.runtime.rounds import Rounds
from pyruntime.utils.channel import State
from pyruntime.utils.errors import Code, LaunchError, LoadError, PeerError
from pyruntime.utils.messages import (
    PROTOCOL_VERSION,
    AutoComplete,
    CheckReady,
    Completed,
    DropSequences,
    Hello,
    Infer,
    Load,
    LoadFailed,
    Log,
    Message,
    Ready,
    Stop,
    Stopped,
)

_LOG = logging.getLogger("pyruntime.instances")
_CODES = frozenset(Code)

# The sequences that one message tells a model to drop, and the characters of their ids: a quarter of a frame of UTF-8.
DROPPED_MAX = 1000
DROPPED_CHARS_MAX = 1 << 20
_NO_VARIABLES: Mapping[str, str] = {}
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


class StubConnection:
    """See the module. All methods belong to the event loop's thread.

    `link` is where messages go, `regions` are those that the stub may use, and `returns` is what it gets back.
    """

    def __init__(self, name: str, requests: SharedRegion) -> None:
        """`requests` is the request region of the stub's model."""
        self.name = name
        self._requests = requests
        self.responses = create_region(f"responses of {name}")
        self._loop = asyncio.get_running_loop()
        self.link = StubLink(name, self._handle, self._kill_after, self._on_end, _rounds_of(self._loop))
        self.regions = StubRegions(self.link, requests, self.responses)
        self.returns = Returns(self.link)
        self.checks_ready = False
        self._drops_sequences = False
        self._log = ModelLog(_LOG, f"{name}: ")
        self._replies: asyncio.Queue[Message | None] = asyncio.Queue()
        self._closed = False
        self._is_ending = False
        self._was_failure_logged = False
        self._process: StubProcess | None = None
        self._output: asyncio.ReadTransport | None = None
        # Those of the output, once there is one.
        self._pipe: FileIO
        self._reader: OutputReader

    def __repr__(self) -> str:
        return f"<StubConnection {self.name} {self.link.state.name}>"

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
                connection.kill("its start has failed")
                await connection.wait_exited()
            if isinstance(exc, OSError):
                error = LaunchError if exc.errno in SCARCE else LoadError
                raise error(f"the stub process of {name} cannot be started: {exc}") from exc
            raise
        return connection

    async def _start(self, growth_bytes: int, environment: StubPython, variables: Mapping[str, str]) -> None:
        """Create the sockets, the pipe and the process at their other ends. Raises OSError."""
        with descriptors.room_for(self.name), ExitStack() as ours:
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
            self._process.exited.add_done_callback(lambda _: self._on_end())
            await self.link.open(our_sock, our_grants)
            self._pipe = output
            self._output, self._reader = await self._loop.connect_read_pipe(lambda: OutputReader(self._log), output)
            ours.pop_all()  # from here on, the link and the transports own them

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
        link = self.link
        if not link.is_open:
            return  # the stub hung up; its batches fail, or are put back, once its process has ended
        returns = self.returns
        data = link.encode((batch, requests, returns.slots), Infer)
        (link.write_now if at_once else link.write)(data)
        if returns.slots:
            returns.slots = []
            returns.slot_bytes = 0

    def set_flag(self, serial: int, value: int) -> None:
        """Set the flag that tells the model whether a request is cancelled."""
        if not self._closed:
            self.responses.set_flag(serial, value)

    def check_ready(self) -> None:
        """Ask the model's is_ready. The stub must serve."""
        if self.link.is_serving:
            self.link.send(CheckReady())

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """Have the model drop what it keeps for these sequences, if it has a method for that and serves."""
        if self._drops_sequences and self.link.is_serving:
            self.link.send(*(DropSequences(some) for some in portions(ids)))

    def stop(self) -> None:
        """Ask the stub to finalize and exit. A stub that does not accept that yet is killed."""
        self._begin_end()
        if self.link.state in (State.IDLE, State.SERVING):
            self.link.send(Stop())
        elif self.link.state is not State.STOPPING:
            self.kill("it was stopped while it loaded its model")

    def kill(self, why: str) -> None:
        """Kill the process at once. `why` is said of its end."""
        if self._process is not None:
            self._begin_end()
            self._process.kill(why)

    def _begin_end(self) -> None:
        if not self._is_ending and not self._closed:
            self._is_ending = True
            descriptors.begin_change()

    def _kill_after(self, why: str, after_s: float) -> None:
        """Kill the process, unless it ends by itself before."""
        if self._process is None or self._process.exited.done():
            return
        if after_s:
            late = self._loop.call_later(after_s, self._process.kill, f"{why}, and did not end within {after_s:g} s")
            self._process.exited.add_done_callback(lambda _: late.cancel())
        else:
            self._process.kill(why)

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

    async def wait_lost(self) -> LoadError:
        """Wait for the end of a process that loads the model. Returns what is to be raised. As wait_exited."""
        exit = await self.wait_exited()
        return LoadError(f"the stub process of {self.name} {_was(exit)} while it loaded the model")

    def _handle(self, message: Message) -> None:
        match message:
            case Log(level, text, file, line):
                self._was_failure_logged = level >= logging.ERROR
                self._log.write(level, text, file, line)
            case Hello() | Completed() | Ready() | LoadFailed():
                self._replies.put_nowait(message)
            case Stopped():
                # The process exits next. A thread of the model that waits for the host must not delay that.
                self.link.hang_up()
            case _:
                raise PeerError(f"{type(message).__name__} came before the model was loaded")

    def _close(self) -> None:
        if self._closed:
            return
        self.link.close()
        self._closed = True
        if self._output is not None:
            if not self._output.is_closing():
                # Not its end: a process that the model left behind may keep the pipe open.
                self._reader.read_rest(self._pipe.fileno())
            self._output.close()
        self._log.close()
        self.regions.end()
        self.responses.close()
        if self._is_ending:
            descriptors.end_change()

    def _on_end(self) -> None:
        """No reply follows."""
        self._replies.put_nowait(None)

    async def _ask(self, question: Message) -> Message:
        """Send a message and wait for the reply. Raises LoadError, also if the stub has hung up before."""
        if self.link.state is not State.CLOSED:
            self.link.send(question)
        return await self._reply()

    async def _reply(self) -> Message:
        reply = await self._replies.get()
        if reply is None:
            raise await self.wait_lost()
        if isinstance(reply, LoadFailed):
            # The stub ends either way, so an unknown code is worth no other failure.
            code = Code(reply.code) if reply.code in _CODES else Code.INTERNAL
            # A stub logs an exception with its traceback before it says that the load has failed.
            raise LoadError(reply.reason, code, was_logged=self._was_failure_logged)
        return reply


# Those of the links whose messages wait, by event loop: a turn is one of a loop.
_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()


def _rounds_of(loop: asyncio.AbstractEventLoop) -> Rounds:
    """Those of all links of a loop."""
    found = _rounds.get(loop)
    if found is None:
        found = _rounds[loop] = Rounds(time.monotonic, loop.call_soon, LINKS_TURN_S)
    return found


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


def _was(exit: ProcessExit) -> str:
    return exit.describe() if exit.code >= 0 else f"was {exit.describe()}"
