# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Starts stub processes, and learns how they end.

A process of its own, the launcher, has numpy and the stub's code loaded already, and forks a guardian for each stub,
which starts the stub: see stub/launcher.py and stub/guardian.py. The host talks to the guardian over the stub's control
socket, and needs the launcher only to start stubs. If that has ended, the next launch starts another one. A framework
that takes seconds to import, and more than 100 MB, has a launcher of its own that has imported it: all stubs that need
it share that memory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from pyruntime.runtime.environments.environment import Environment, Preloaded, StubPython
from pyruntime.runtime.instances.stub import oom_kills
from pyruntime.runtime.instances.stub.oom_kills import BY_KERNEL
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.utils.launching import (
    EXITED,
    FAILED,
    KILL,
    REPLY_BYTES,
    STARTED,
    Interpreter,
    Order,
    decode_reply,
    encode_order,
)

_LOG = logging.getLogger("pyruntime.instances")

# Named, because the host imports no code of the stub.
PROGRAM = "from pyruntime.stub.launcher import main; main()"
# How long a server that exits waits for the processes that models left behind, in seconds: longer than these have to
# clean up.
CLOSE_S_MAX = 5.0
# How long a guardian that was told to kill its stub has to report its end, in seconds, before both are killed: it needs
# milliseconds, unless a model has stopped it. Shorter than the time that the server has after a second signal.
KILL_S_MAX = 3.0
# How long a launcher has to start a stub, in seconds, before it is taken for lost: it may import a framework first.
START_S_MAX = 120.0
_KILLED = -signal.SIGKILL


class Handover(NamedTuple):
    """The properties of a stub: its name, descriptors that are copied for it, and the growth of its response region.

    `variables` are environment variables on top of those of its Python.
    """

    name: str
    sock: socket.socket
    grants: socket.socket
    output_fd: int
    requests_fd: int
    responses_fd: int
    growth_bytes: int
    variables: Mapping[str, str] = {}


class StubProcess:
    """A stub process. `exited` resolves, once, to how it ended. Cancelling a wait for it is harmless."""

    def __init__(self, pid: int, control: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """`control` is the host's end of the control socket, which is the process's from now on."""
        self.pid = pid
        self.exited: asyncio.Future[ProcessExit] = loop.create_future()
        self._why = ""
        self._escalation: asyncio.TimerHandle | None = None
        self._control = control
        self._loop = loop
        loop.add_reader(control.fileno(), self._on_reply)

    def kill(self, why: str) -> None:
        """Send SIGKILL, if the process still exists. `why` is said of its end, unless there was a reason before."""
        if self.exited.done():
            return
        self._why = self._why or why
        if self._escalation is None:
            self._escalation = self._loop.call_later(KILL_S_MAX, self._kill_both)
        with suppress(OSError):  # the guardian has ended, and so has the stub
            self._control.send(KILL)

    def _kill_both(self) -> None:
        """Kill the stub and its guardian, which does not heed: the stub's model may have stopped it."""
        with suppress(OSError, BlockingIOError):
            if not self._control.recv(1, socket.MSG_PEEK):
                return  # it has ended meanwhile
        with suppress(OSError, ValueError):
            # As long as its parent lives and has not reported its end, the number is the stub's.
            guardian = int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[1])
            _LOG.warning("The guardian of process %d does not react, and is killed together with it", self.pid)
            os.kill(self.pid, signal.SIGKILL)
            os.kill(guardian, signal.SIGKILL)

    def _cause(self, code: int) -> str:
        """Where SIGKILL came from, "" if that is unknown or it was something else."""
        if code != _KILLED:
            return ""
        if self._why:
            return f"by the server: {self._why}"
        return BY_KERNEL if oom_kills.has_more() else ""

    def _on_reply(self) -> None:
        exit = ProcessExit(_KILLED, f"by the server: {self._why}" if self._why else "together with its guardian")
        try:
            reply = self._receive()
        except BlockingIOError:
            return
        if reply:
            kind, number = decode_reply(reply)
            assert kind == EXITED  # nothing else follows STARTED
            exit = ProcessExit(number, self._cause(number))
        if self._escalation is not None:
            self._escalation.cancel()
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if not self.exited.done():
            self.exited.set_result(exit)

    def _receive(self) -> bytes:
        """The next packet of the guardian; empty if it has ended. Raises BlockingIOError if there is none yet."""
        try:
            return self._control.recv(REPLY_BYTES)
        except ConnectionResetError:
            # It ended before it read a request to kill the stub. What it sent before that comes after this error.
            return self._control.recv(REPLY_BYTES)


class Launcher:
    """The launcher process, and the host's end of its socket."""

    def __init__(self, models_files_max: int, module: str) -> None:
        """Start it, with this limit of descriptors for stubs; it imports `module` unless that is "". Raises OSError."""
        self.models_files_max = models_files_max
        self._module = module
        self._sock, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = [str(theirs.fileno()), str(models_files_max), module]
                # -P: no module of the current folder takes the place of another.
                flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
                command = [sys.executable, *flags, "-c", PROGRAM, *arguments]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        except BaseException:
            self._sock.close()
            raise
        self._sock.setblocking(False)

    def send(self, descriptors: list[int]) -> None:
        """Request one launch: see utils/launching.py. Raises OSError; BrokenPipeError if the launcher has ended."""
        self._process.send_signal(signal.SIGCONT)  # a model may have stopped it
        socket.send_fds(self._sock, [bytes([len(descriptors)])], descriptors)

    def successor(self) -> Launcher:
        """A new launcher in the place of this one, which has ended. Raises OSError."""
        successor = Launcher(self.models_files_max, self._module)
        self._sock.close()
        exit = self._wait()
        _LOG.warning("The launcher of stub processes was lost: %s. Another one is started.", exit.describe())
        return successor

    async def close(self, timeout_s: float) -> None:
        """Let it end, and wait for it and for what models left behind, but no longer than this: it is killed then."""
        self._sock.shutdown(socket.SHUT_WR)
        self._process.send_signal(signal.SIGCONT)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_recv(self._sock, 1)
        except TimeoutError:
            _LOG.warning("Processes that models left behind do not end within %g s", timeout_s)
            self.kill()
        finally:
            self._sock.close()
        self._wait()

    def kill(self) -> None:
        """End it at once: it does not react."""
        self._process.kill()

    def _wait(self) -> ProcessExit:
        """How it ended. It has closed its socket, so that this does not take long."""
        return ProcessExit(self._process.wait())


# By the module that they have imported, "" for none.
_launchers: dict[str, Launcher] = {}


def start_launcher(models_files_max: int) -> None:
    """Start the launcher now, so that it imports numpy while the host reads configurations. Raises OSError.

    `models_files_max` is the soft limit of descriptors in stubs.
    """
    _launchers[""] = Launcher(models_files_max, "")
    oom_kills.watch()


async def close_launcher() -> None:
    """End all launchers, after the last stub. Waits for processes that models left behind, CLOSE_S_MAX at most."""
    launchers = list(_launchers.values())
    _launchers.clear()
    await asyncio.gather(*(launcher.close(CLOSE_S_MAX) for launcher in launchers))


async def launch_stub(handover: Handover, environment: StubPython) -> StubProcess:
    """Start a stub with copies of the descriptors, in `environment`, or None for the host's own Python.

    Raises OSError. Cancelling it kills the stub.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as resources:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        resources.callback(control.close)
        with theirs:
            _request(theirs, handover, environment)
        control.setblocking(False)
        try:
            async with asyncio.timeout(START_S_MAX):
                reply = await loop.sock_recv(control, REPLY_BYTES)
        except ConnectionResetError:
            reply = b""
        except TimeoutError:
            launcher = _launchers.get(_module(environment))
            if launcher is not None:
                launcher.kill()  # the next launch starts another one
            reply = b""
        if not reply:
            raise BlockingIOError(errno.EAGAIN, "the launcher of stub processes ended, or has no descriptors")
        kind, number = decode_reply(reply)
        if kind == FAILED:
            raise OSError(number, os.strerror(number), _interpreter(environment))
        assert kind == STARTED  # there is no other first reply
        resources.pop_all()
        return StubProcess(number, control, loop)


def _module(environment: StubPython) -> str:
    """The module that the launcher of such stubs has imported."""
    return environment.module if isinstance(environment, Preloaded) else ""


def _interpreter(environment: StubPython) -> str | None:
    return environment.interpreter if isinstance(environment, Environment) else None


def _request(control: socket.socket, handover: Handover, environment: StubPython) -> None:
    """Request a stub whose guardian has this end of the control socket. Raises OSError."""
    with open(os.memfd_create("pyruntime order"), "wb", 0) as order:
        order.write(encode_order(_order(handover, environment)))
        _send(_module(environment), [control.fileno(), order.fileno(), *_descriptors(handover)])


def _order(handover: Handover, environment: StubPython) -> Order:
    interpreter = None
    if isinstance(environment, Environment):
        variables = dict(environment.variables)
        interpreter = Interpreter(environment.interpreter, variables, environment.at_terminal)
    return Order(handover.name, handover.growth_bytes, interpreter, dict(handover.variables))


def _descriptors(handover: Handover) -> list[int]:
    """See launching.DESCRIPTORS."""
    files = [handover.output_fd, handover.requests_fd, handover.responses_fd]
    return [handover.sock.fileno(), handover.grants.fileno(), *files]


def _send(module: str, descriptors: list[int]) -> None:
    """Send a request to the launcher that has this module, and to another one if that has ended. Raises OSError."""
    if module not in _launchers:
        _launchers[module] = Launcher(_models_files_max(), module)
    try:
        _launchers[module].send(descriptors)
    except (BrokenPipeError, ConnectionResetError):
        _launchers[module] = _launchers[module].successor()
        _launchers[module].send(descriptors)


def _models_files_max() -> int:
    """The limit of descriptors of the first launcher, if there is one: the host may have raised its own since."""
    first = _launchers.get("")
    return first.models_files_max if first else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
