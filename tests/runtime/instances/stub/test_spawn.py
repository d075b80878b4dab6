# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Stubs that are started by executing an interpreter: to their owners they are like any other."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvloop

from pyruntime.runtime.environments.environment import Environment, Place
from pyruntime.runtime.instances.stub.spawn import spawn_stub
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.regions import create_region
from pyruntime.utils.channel import HostChannel
from pyruntime.utils.messages import Hello, Stop

pytestmark = pytest.mark.processes

OURS = Environment(sys.executable, "ours", Place(sys.executable).variables(os.environ))


@contextmanager
def spawned(environment=OURS):
    """A stub, our end of its socket, and the reading end of its output."""
    with ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        _, their_grants = map(stack.enter_context, socket.socketpair())
        requests, responses = create_region("a test"), create_region("a test")
        stack.callback(requests.close)
        stack.callback(responses.close)
        read_fd, write_fd = os.pipe()
        output = stack.enter_context(open(read_fd, "rb"))
        with open(write_fd, "wb"), theirs, their_grants:
            stub = spawn_stub(
                environment,
                "m_0",
                theirs,
                their_grants,
                write_fd,
                requests.fileno(),
                responses.fileno(),
                1 << 20,
                asyncio.get_running_loop(),
            )
        ours.setblocking(False)
        yield stub, ours, output


def title_of(pid):
    """The title of the process, as lists of processes show it; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return None


async def says_hello(ours):
    """Wait for the stub's first message; the channel that it came on."""
    channel = HostChannel()
    data = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
    (hello,) = channel.receive_data(data)
    assert isinstance(hello, Hello)
    return channel, hello


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine in an event loop, of the kind that the server has or of Python's own."""

    def run_in_loop(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(coroutine)

    return run_in_loop


def test_life(run):
    """It says hello, is in a process group of its own, and ends as it is asked to."""

    async def live():
        with spawned() as (stub, ours, output):
            channel, hello = await says_hello(ours)
            assert hello.pid == stub.pid == os.getpgid(stub.pid)
            assert title_of(stub.pid) == "triton_python_backend_stub m_0"
            assert os.readlink(f"/proc/{stub.pid}/fd/0") == "/dev/null"
            ours.sendall(channel.send(Stop()))
            assert await stub.exited == ProcessExit(0)
            stub.kill()  # too late, and no harm
            assert output.read() == b""

    run(live())


def test_death_is_an_event(run):
    """Every death is reported at once with its signal, and leaves no zombie."""

    async def die():
        for end in (lambda stub: stub.kill(), lambda stub: os.kill(stub.pid, signal.SIGSEGV)):
            with spawned() as (stub, ours, _):
                await says_hello(ours)
                end(stub)
                assert (await stub.exited).code in (-signal.SIGKILL, -signal.SIGSEGV)
                assert title_of(stub.pid) is None

    run(die())


def test_ends_with_the_host_hanging_up(run):
    """A stub whose host is gone ends by itself."""

    async def hang_up():
        with spawned() as (stub, ours, _):
            await says_hello(ours)
            ours.close()
            assert await stub.exited == ProcessExit(0)

    run(hang_up())


def test_family_ends_with_it(run, tmp_path):
    """Processes that it left behind are terminated; here the stub is a shell that leaves a process behind."""
    family = tmp_path / "python"
    family.write_text("#!/bin/sh\nsleep 1000 &\necho $!\nexit 3\n")
    family.chmod(0o755)

    async def leave_behind():
        with spawned(Environment(str(family), "", OURS.variables)) as (stub, _, output):
            assert await stub.exited == ProcessExit(3)
            # Ends when the last process that holds the other end has.
            left = int(await asyncio.to_thread(output.read))
            assert not title_of(left)  # a zombie has none

    run(leave_behind())


def test_cannot_be_executed(run, tmp_path):
    """An interpreter that is gone is an error at once."""

    async def fail():
        with pytest.raises(FileNotFoundError), spawned(Environment(str(tmp_path / "gone"), "", {})):
            pass

    run(fail())


def test_cannot_be_watched(run, monkeypatch):
    """A stub whose end would not be noticed is not left running."""
    pids = []

    def no_descriptors(pid):
        pids.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", no_descriptors)

    async def fail():
        with pytest.raises(OSError, match="Too many open files"), spawned():
            pass

    run(fail())
    assert title_of(pids[0]) is None


def test_other_python(other_environment):
    """It speaks to stubs of every Python."""
    python = str(other_environment / "bin" / "python")
    environment = Environment(python, "", Place(python, str(other_environment), True).variables(os.environ))

    async def speak():
        with spawned(environment) as (stub, ours, _):
            _, hello = await says_hello(ours)
            assert f"environment-{hello.python}".startswith(other_environment.name)
            stub.kill()
            await stub.exited

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(speak())
